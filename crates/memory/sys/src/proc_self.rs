//! Look-ups in `/proc/self` and `/proc/sys` that other users cannot delay.
//!
//! Looking up a name that the kernel has not cached takes the lock of the directory. A user can hold
//! that lock: `getdents64(2)` keeps it while it writes to memory whose file is on a FUSE server that
//! does not answer, and a writer that queues behind it blocks all further readers. Every user may list
//! `/proc/PID`, so its entries must be in the cache whenever a server looks them up. Only processes that
//! may trace this one can list `fd` and `fdinfo`, so look-ups in these need no such care.
//!
//! glibc opens a file of `/proc/sys/vm`, too: when it first returns memory of a thread's arena to the kernel.
//! It does that once in a process, so a thread that may hang does it before the server has clients.

use std::collections::BTreeMap;
use std::hint;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use crate::bounded::{self, Looking};

/// The entries that threads look up while they serve. A server does not start without them.
static OF_PROCESS: Directory =
    Directory::new(&["/proc/self/fd", "/proc/self/fdinfo", "/proc/self/mountinfo"]);
/// The entries that threads look up at most once, and that a server can do without.
static OF_MEMORY: Directory =
    Directory::new(&["/proc/sys/vm/max_map_count", "/proc/sys/vm/overcommit_memory"]);

/// `true` if a thread has begun to [`trim_an_arena`].
static HAS_TRIMMED: AtomicBool = AtomicBool::new(false);

/// The size of the blocks of [`trim_an_arena`]. `malloc(3)` maps blocks of 128 KiB or more separately.
const BLOCK_BYTES: usize = 100 << 10;
/// The maximum size of a heap of an arena, and so of the memory that is free at its end.
const HEAP_BYTES: usize = 64 << 20;

/// The message of the error if the entries of [`OF_PROCESS`] are not found in time.
const DELAYED: &str = "/proc/self/fd was not found within two seconds: another user may hold the lock of \
    this process's directory in /proc, or no thread can be started; start another process";

/// A directory, and the entries in it that this crate and the C library use while a server runs. A held lock
/// delays all entries of its directory, and one thread looks them up.
struct Directory {
    entries: &'static [&'static str],
    state: Mutex<State>,
    /// Notified when a look-up ends.
    ended: Condvar,
}

struct State {
    /// Open descriptors of entries. The kernel caches an entry, and the directories above it, while a
    /// descriptor of it is open.
    pinned: BTreeMap<&'static str, OwnedFd>,
    /// `true` while a thread looks up the others.
    is_looking: bool,
    /// The result of the last look-up that has ended. It is an error if descriptors or memory were
    /// exhausted, and not if an entry does not exist.
    result: Option<Result<(), Errno>>,
}

/// A look-up in a directory, which ends when this is dropped.
struct LookingIn(&'static Directory);

impl LookingIn {
    /// Takes `self`, because a closure that uses only the field does not capture the whole.
    fn look(self) {
        self.0.look();
    }
}

impl Drop for LookingIn {
    fn drop(&mut self) {
        self.0.lock().is_looking = false;
        self.0.ended.notify_all();
    }
}

impl Directory {
    const fn new(entries: &'static [&'static str]) -> Self {
        let state = State { pinned: BTreeMap::new(), is_looking: false, result: None };
        Self { entries, state: Mutex::new(state), ended: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to look up the entries that are not pinned yet, unless a thread does that already.
    fn begin(&'static self) -> Option<Looking<()>> {
        let mut state = self.lock();
        if state.is_looking || state.pinned.len() == self.entries.len() {
            return None;
        }
        state.is_looking = true;
        drop(state);
        let looking = LookingIn(self);
        bounded::begin(move || looking.look())
    }

    /// Pins each entry as soon as it is found, so that an entry that is found late is pinned, too.
    fn look(&self) {
        let mut result = Ok(());
        for path in self.entries {
            if self.lock().pinned.contains_key(path) {
                continue;
            }
            let found = openat(CWD, *path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
            match found {
                Ok(found) => drop(self.lock().pinned.insert(path, found)),
                Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => result = Err(error),
                Err(_) => {}
            }
        }
        self.lock().result = Some(result);
    }

    /// Waits until no thread looks up the entries, at most until the deadline. Returns no error if an entry
    /// does not exist.
    fn wait_until(&self, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.ended.wait_timeout_while(self.lock(), left, |state| state.is_looking);
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if state.pinned.len() == self.entries.len() {
            return Ok(());
        }
        match state.result {
            Some(result) if !state.is_looking => Ok(result?),
            _ => Err(io::Error::new(io::ErrorKind::TimedOut, DELAYED)),
        }
    }
}

/// The look-ups that [`prepare`] has begun.
#[must_use = "wait for them"]
pub(crate) struct Prepared {
    looking: Vec<Looking<()>>,
    deadline: Instant,
}

impl Prepared {
    /// Waits until the look-ups have ended, for at most two seconds since their beginning.
    ///
    /// # Errors
    /// `TimedOut` if the look-up of `/proc/self/fd` and its neighbours has not ended; threads that serve
    /// would then look them up without a limit. Descriptors or memory exhausted.
    pub(crate) fn wait(self) -> io::Result<()> {
        for looking in self.looking {
            // An error means that it has not ended, which `wait_until` finds out for the process's entries.
            let _ = looking.wait();
        }
        // Another thread may have begun it.
        OF_PROCESS.wait_until(self.deadline)
    }
}

/// Begins to look up the entries, which then stay in the kernel's cache until the process ends, and has
/// glibc open its file of `/proc/sys/vm`.
///
/// If a user delays a look-up, its entry is pinned when the look-up ends. A later call looks up the entries
/// that are missing, for example because `/proc` was not mounted, unless a thread still does that.
///
/// A user who holds the lock of `/proc/PID` while the process starts delays its start: before `main`, the
/// standard library reads `/proc/self/maps`.
pub(crate) fn prepare() -> Prepared {
    let deadline = bounded::deadline();
    let begun = [begin_trimming(), OF_PROCESS.begin(), OF_MEMORY.begin()];
    Prepared { looking: begun.into_iter().flatten().collect(), deadline }
}

/// Lets a thread [`trim_an_arena`] once, if the C library is glibc.
fn begin_trimming() -> Option<Looking<()>> {
    let is_glibc = cfg!(all(target_env = "gnu", not(miri)));
    if !is_glibc || HAS_TRIMMED.swap(true, Ordering::Relaxed) {
        return None;
    }
    let trimming = bounded::begin(trim_an_arena);
    HAS_TRIMMED.store(trimming.is_some(), Ordering::Relaxed);
    trimming
}

/// Makes `malloc(3)` return memory of this thread's arena to the kernel.
///
/// Before glibc first shrinks a heap of an arena, it reads `/proc/sys/vm/overcommit_memory`, and before that
/// it records that no other thread needs to (`check_may_shrink_heap` in `malloc-sysdep.h`). So after this has
/// begun, no other thread opens the file, even if this one hangs. A thread that hangs keeps the lock of its
/// arena, which new threads then do not use; but `fork(2)` waits for that lock.
///
/// With `M_ARENA_MAX=1`, all memory is in the main arena, and glibc never opens the file.
fn trim_an_arena() {
    let mut blocks: Vec<Vec<u8>> = Vec::with_capacity(HEAP_BYTES / BLOCK_BYTES);
    // The heap shrinks if more is free at its end than a threshold, which can be as much as the whole heap.
    // The memory is not touched, except by the header of each block.
    while blocks.len() < blocks.capacity() {
        let mut block = Vec::new();
        if block.try_reserve_exact(BLOCK_BYTES).is_err() {
            break;
        }
        blocks.push(hint::black_box(block));
    }
    // From last to first, so that each becomes a part of the end.
    while blocks.pop().is_some() {}
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_entry_is_pinned_once() {
        let numbers = || {
            let of = |directory: &Directory| -> Vec<_> {
                directory.lock().pinned.values().map(OwnedFd::as_raw_fd).collect()
            };
            [&OF_PROCESS, &OF_MEMORY].into_iter().flat_map(of).collect::<Vec<_>>()
        };
        let begin = Instant::now();
        while numbers().len() < 5 {
            assert!(begin.elapsed() < Duration::from_secs(60), "entries are missing");
            // Another test may have begun it.
            prepare().wait().unwrap();
        }
        let before = numbers();
        prepare().wait().unwrap();
        assert_eq!(numbers(), before);
    }

    #[test]
    fn entries_of_which_one_is_missing_are_pinned_and_looked_up_again() {
        static SOME: Directory = Directory::new(&["/proc/self/none", "/proc/self/fd"]);
        for _ in 0..2 {
            SOME.begin().unwrap().wait().unwrap();
            SOME.wait_until(Instant::now()).unwrap();
            assert_eq!(SOME.lock().pinned.keys().collect::<Vec<_>>(), [&"/proc/self/fd"]);
        }
    }

    #[test]
    fn no_second_thread_looks_up_the_same_entries() {
        static SOME: Directory = Directory::new(&["/proc/self/fd"]);
        SOME.lock().is_looking = true;
        assert!(SOME.begin().is_none());
        let delayed = SOME.wait_until(Instant::now()).unwrap_err();
        assert_eq!(delayed.kind(), io::ErrorKind::TimedOut);
        drop(LookingIn(&SOME));
        assert!(SOME.wait_until(Instant::now()).is_err(), "no thread has looked them up");
        SOME.begin().unwrap().wait().unwrap();
        assert!(SOME.begin().is_none() && !SOME.lock().pinned.is_empty());
        SOME.wait_until(Instant::now()).unwrap();
    }

    #[test]
    fn a_thread_waits_for_a_look_up_that_another_has_begun() {
        static SOME: Directory = Directory::new(&["/proc/self/fd"]);
        SOME.lock().is_looking = true;
        let looking = LookingIn(&SOME);
        let other = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            looking.look();
        });
        let patience = Duration::from_secs(60);
        let begin = Instant::now();
        SOME.wait_until(begin + patience).unwrap();
        assert!(begin.elapsed() < patience / 2, "it is not notified");
        other.join().unwrap();
    }
}
