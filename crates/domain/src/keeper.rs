//! The thread that frees bounce buffers which no transfer uses.
//!
//! There is one for all domains of the process, while any of their pools has a chunk that is to be
//! freed some day. It looks at each domain twice in the time after which that is, and at least twice a
//! second for what the kernel says of memory: where others wait for it, all that is idle is freed.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use longshore_sys::memory_pressure::MemoryPressure;

use crate::domain::Inner;

/// The domains. Not locked while one of them is looked at: unmapping waits for devices of this process,
/// and they may wait for a thread that builds or drops another domain.
static DOMAINS: Mutex<Domains> = Mutex::new(Domains::new());
static LOOKED: Condvar = Condvar::new();

struct Domains {
    kept: Vec<Arc<Inner>>,
    /// Domains with memory that nothing uses any more, but whose last owner could not unmap it.
    ending: Vec<Arc<Inner>>,
    /// The domains that are looked at now, and by which thread.
    looked_at: Vec<(usize, ThreadId)>,
}

impl Domains {
    const fn new() -> Self {
        Self { kept: Vec::new(), ending: Vec::new(), looked_at: Vec::new() }
    }
}

static SIGNAL: Mutex<Signal> = Mutex::new(Signal { has_grown: false, is_running: false });
static GROWN: Condvar = Condvar::new();

struct Signal {
    /// Whether a pool has grown since the domains were looked at.
    has_grown: bool,
    is_running: bool,
}

/// Has the keeper look after a domain.
pub(crate) fn add(inner: &Arc<Inner>) {
    lock(&DOMAINS).kept.push(Arc::clone(inner));
}

/// Removes a domain that is dropped. When this returns, the reclaim thread does not use it any more,
/// unless that thread calls this, from a callback of the domain, or waits for the caller.
pub(crate) fn remove(inner: &Arc<Inner>) {
    let (address, me) = (address(inner), thread::current().id());
    // The reclaim thread may be unmapping memory that the caller pins.
    let waits_for_caller = inner.is_held_by_caller();
    let mut domains = lock(&DOMAINS);
    let others = |other: &Arc<Inner>| !Arc::ptr_eq(other, inner);
    domains.kept.retain(others);
    domains.ending.retain(others);
    let is_in_use = |domains: &mut Domains| {
        let is_by_other = |&(looked_at, by): &(usize, ThreadId)| looked_at == address && by != me;
        !waits_for_caller && domains.looked_at.iter().any(is_by_other)
    };
    let removed = LOOKED.wait_while(domains, is_in_use);
    drop(removed.unwrap_or_else(PoisonError::into_inner));
}

/// Frees memory of a domain that nothing uses any more, and that the calling thread could not unmap, by
/// the reclaim thread.
pub(crate) fn end_later(inner: &Arc<Inner>) {
    add_ending(Arc::clone(inner));
    wake();
}

fn add_ending(inner: Arc<Inner>) {
    let mut domains = lock(&DOMAINS);
    if !domains.ending.iter().any(|other| Arc::ptr_eq(other, &inner)) {
        domains.ending.push(inner);
    }
}

/// A domain that is looked at, until this is dropped.
struct Looked {
    // Dropped first: the last reference is that of the thread which waits, so that it frees the backend.
    inner: Arc<Inner>,
    _noted: Noted,
}

/// An entry of [`Domains::looked_at`].
struct Noted(usize, ThreadId);

impl Looked {
    /// Returns `None` if the domain at `address` was removed.
    fn begin(address: usize) -> Option<Self> {
        let mut domains = lock(&DOMAINS);
        let inner = domains.kept.iter().find(|kept| self::address(kept) == address)?;
        let inner = Arc::clone(inner);
        Some(Self::note(inner, &mut domains))
    }

    /// Takes a domain of those whose memory is to be unmapped.
    fn begin_ending() -> Option<Self> {
        let mut domains = lock(&DOMAINS);
        let inner = domains.ending.pop()?;
        Some(Self::note(inner, &mut domains))
    }

    fn note(inner: Arc<Inner>, domains: &mut Domains) -> Self {
        let noted = (address(&inner), thread::current().id());
        domains.looked_at.push(noted);
        Self { inner, _noted: Noted(noted.0, noted.1) }
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        let mut domains = lock(&DOMAINS);
        if let Some(at) = domains.looked_at.iter().position(|other| *other == (self.0, self.1)) {
            domains.looked_at.swap_remove(at);
        }
        drop(domains);
        LOOKED.notify_all();
    }
}

/// The address of a domain, which tells it from others as long as it lives.
fn address(inner: &Arc<Inner>) -> usize {
    Arc::as_ptr(inner).addr()
}

/// Says that a pool has grown. Where there can be no thread, chunks are freed on request alone.
pub(crate) fn wake() {
    let mut signal = lock(&SIGNAL);
    signal.has_grown = true;
    let was_running = mem::replace(&mut signal.is_running, true);
    drop(signal);
    // Without the lock, because this allocates, and the program's allocator may make a pool grow.
    if !was_running
        && thread::Builder::new().name("longshore-pools".to_owned()).spawn(keep).is_err()
    {
        lock(&SIGNAL).is_running = false;
    }
    GROWN.notify_one();
}

fn keep() {
    let mut pressure = Pressure::new(MemoryPressure::of_this_process());
    loop {
        let next = look(&mut pressure);
        let mut signal = lock(&SIGNAL);
        if !signal.has_grown {
            let Some(next) = next else {
                signal.is_running = false;
                return;
            };
            let woken = GROWN.wait_timeout(signal, next);
            signal = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        signal.has_grown = false;
    }
}

/// Frees what has been idle for long enough. Returns when to look again; `None` if there is nothing
/// left.
fn look(pressure: &mut Pressure) -> Option<Duration> {
    let is_short = pressure.is_high();
    let mut refused = Vec::new();
    while let Some(looked) = Looked::begin_ending() {
        // It is refused only if a callback has made a lease on this thread.
        if contained(|| looked.inner.end().is_err()) == Some(true) {
            refused.push(Arc::clone(&looked.inner));
        }
        contained(|| drop(looked));
    }
    let again = (!refused.is_empty()).then_some(LONGEST);
    refused.into_iter().for_each(add_ending);
    let domains: Vec<usize> = lock(&DOMAINS).kept.iter().map(address).collect();
    let after = |domain: usize| {
        let looked = Looked::begin(domain)?;
        let inner = &looked.inner;
        let idle = inner.idle()?;
        // Memory that cannot be unmapped is leaked, and counts as held.
        let _ = inner.shrink(if is_short { Duration::ZERO } else { idle });
        inner.may_shrink().then(|| (idle / 2).clamp(SHORTEST, LONGEST))
    };
    let next = domains.into_iter().filter_map(|domain| contained(|| after(domain)).flatten());
    next.chain(again).min()
}

/// Calls `work`, which runs code of a backend of the program, and returns `None` if it panics: the
/// thread goes on with the other domains.
fn contained<R>(work: impl FnOnce() -> R) -> Option<R> {
    // Its destructor may panic too.
    catch_unwind(AssertUnwindSafe(work)).map_err(mem::forget).ok()
}

const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(500);

/// Whether memory is short.
struct Pressure {
    stalls: MemoryPressure,
    asked: Instant,
}

impl Pressure {
    fn new(stalls: MemoryPressure) -> Self {
        Self { stalls, asked: Instant::now() }
    }

    /// Whether tasks have waited for memory for a tenth of the time since this was last asked.
    fn is_high(&mut self) -> bool {
        let since = self.asked.elapsed();
        self.asked += since;
        self.stalls.stalled() * 10 > since
    }
}

fn lock<T>(of: &'static Mutex<T>) -> MutexGuard<'static, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use longshore_heap::Heap;

    use super::*;
    use crate::backend::Soft;
    use crate::{Bounce, Direction, Domain};

    #[test]
    #[cfg_attr(miri, ignore = "opens files")]
    fn where_memory_is_short_what_is_idle_is_freed_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pressure");
        let write = |total: u64| fs::write(&path, format!("some avg10=0.00 total={total}\n"));
        write(0).unwrap();
        let mut pressure = Pressure::new(MemoryPressure::of_files([path.as_path()]));
        let hour = Some(Duration::from_secs(3600));
        let builder = Domain::builder(Soft::new().unwrap()).bounce(Bounce::Always);
        let domain = builder.free_after(hour).build();
        let map = |fill: u8| {
            let mut buffer = Heap::Memfd.allocate(4096).unwrap();
            buffer.write().unwrap().fill(fill);
            domain.map(buffer, Direction::Bidirectional).unwrap()
        };
        drop(map(1));
        assert_ne!(domain.counters().pool_bytes, 0);
        assert_eq!(look(&mut pressure), Some(LONGEST), "it looks for pressure twice a second");
        assert_ne!(domain.counters().pool_bytes, 0, "it is not idle for an hour");

        // What is in use is not idle.
        let used = map(2);
        write(u64::MAX / 2).unwrap();
        look(&mut pressure);
        assert_ne!(domain.counters().pool_bytes, 0);
        assert_eq!(used.unmap().unwrap().read().unwrap()[0], 2);

        write(u64::MAX - 5).unwrap();
        look(&mut pressure);
        assert_eq!((domain.counters().pool_bytes, domain.counters().pool_shrinks), (0, 1));
    }
}
