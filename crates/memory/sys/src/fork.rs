//! Detects that this process is a child of `fork(2)`.
#![expect(unsafe_code, reason = "maps a page that the kernel wipes in a child")]

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The page with the number of this process. In a child it is zero, also if the child was made by
/// `clone(2)` and no handler of `pthread_atfork(3)` has run. It is never unmapped.
static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
/// The number that was given last, to this process or to one of its ancestors.
static LAST: AtomicU64 = AtomicU64::new(0);

/// An identity of a process, which a child does not have. The process ID is not one: in a new PID namespace, a
/// child can have the ID of its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u64);

impl Process {
    /// Returns the identity of this process. Before Linux 4.14, it is the process ID.
    pub fn current() -> Self {
        let Some(number) = page() else { return Self(std::process::id().into()) };
        Self(match number.load(Ordering::Relaxed) {
            0 => {
                let new = LAST.fetch_add(1, Ordering::Relaxed) + 1;
                // Another thread may have given a number at the same time.
                number
                    .compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed)
                    .map_or_else(|given| given, |_| new)
            }
            number => number,
        })
    }

    /// Returns the number of the process, which none of its ancestors has.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// Returns the page, which the first call maps; `None` if the kernel cannot wipe it.
fn page() -> Option<&'static AtomicU64> {
    let mut page = NonNull::new(PAGE.load(Ordering::Acquire));
    if page.is_none() {
        let new = map()?;
        let (order, old) = (Ordering::AcqRel, ptr::null_mut());
        page = match PAGE.compare_exchange(old, new.as_ptr(), order, Ordering::Acquire) {
            Ok(_) => Some(new),
            Err(other) => {
                // SAFETY: this function mapped it, and no other code has its address.
                let _ = unsafe { munmap(new.as_ptr().cast(), size_of::<AtomicU64>()) };
                NonNull::new(other)
            }
        };
    }
    // SAFETY: `PAGE` has only pages that are mapped for ever, and every page is a valid atomic number.
    page.map(|page| unsafe { page.as_ref() })
}

fn map() -> Option<NonNull<AtomicU64>> {
    if cfg!(miri) {
        return None;
    }
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    let len = size_of::<AtomicU64>();
    // SAFETY: the kernel chooses an address that nothing uses.
    let page = unsafe { mmap_anonymous(ptr::null_mut(), len, protection, flags) }.ok()?;
    // SAFETY: the page was mapped just now, and no other code has its address.
    if unsafe { madvise(page, len, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: as above.
        let _ = unsafe { munmap(page, len) };
        return None;
    }
    NonNull::new(page.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends this process, with 0 if its identity is another one than that of `parent`.
    fn end_as_other(parent: Process) -> ! {
        let now = Process::current();
        let is_other = now != parent && now == Process::current();
        // SAFETY: always safe.
        unsafe { libc::_exit(i32::from(!is_other)) }
    }

    fn status_of(child: libc::pid_t) -> i32 {
        let mut status = 0;
        // SAFETY: `status` is a place for the status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        status
    }

    #[test]
    fn a_child_is_another_process() {
        let parent = Process::current();
        assert_eq!(Process::current(), parent);
        // SAFETY: the child only compares numbers and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let inner = Process::current();
            // SAFETY: as above.
            match unsafe { libc::fork() } {
                0 => end_as_other(inner),
                grandchild if status_of(grandchild) == 0 => end_as_other(parent),
                _ => end_as_other(inner),
            }
        }
        assert_eq!(status_of(child), 0);
        assert_eq!(Process::current(), parent);
    }

    #[test]
    fn a_child_without_handlers_of_forks_is_another_process() {
        let parent = Process::current();
        let no = ptr::null_mut::<libc::c_void>();
        // SAFETY: it has a copy of the stack, only compares numbers, and exits.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, no, no, no, no) };
        if child == 0 {
            end_as_other(parent);
        }
        assert_eq!(status_of(child as libc::pid_t), 0);
    }
}
