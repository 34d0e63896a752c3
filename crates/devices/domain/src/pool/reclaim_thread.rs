//! The reclaim thread, which frees unused memory of pools.
//!
//! One thread serves all domains of the process. It runs while one of their pools has a chunk that can
//! be freed later. It visits a domain twice in the time after which the domain's idle chunks are freed,
//! and at least twice a second to read the kernel's memory pressure: if tasks wait for memory, it frees
//! all idle chunks at once.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use longshore_sys::memory_pressure::MemoryPressure;

use crate::backend::BackendError;

/// The operations of this thread on a domain.
pub(crate) trait Reclaim: Send + Sync {
    /// Returns the time after which unused chunks are freed; `None` if they are kept.
    fn idle(&self) -> Option<Duration>;

    /// Frees the chunks that were not used for `idle`, and returns the number of bytes that were freed.
    /// It enters no span: a subscriber may drop the domain, which waits for this thread.
    ///
    /// # Errors
    /// [`BackendError`] of the first chunk that could not be unmapped.
    fn shrink(&self, idle: Duration) -> Result<u64, BackendError>;

    /// Returns true if there are chunks that can be freed later.
    fn may_shrink(&self) -> bool;

    /// Frees the chunks that cannot be used any more: idle chunks of dropped DMA pools, and bounce
    /// buffers if the domain was dropped.
    ///
    /// # Errors
    /// [`BackendError`] if this thread cannot unmap one of them now; it is kept.
    fn end(&self) -> Result<(), BackendError>;

    /// Returns true if the calling thread would deadlock if it waited for another thread to unmap memory
    /// of this domain, because it holds a pin, for example.
    fn is_held_by_caller(&self) -> bool;
}

/// The domains. The lock is not held during a visit: unmapping waits for devices of this process, and
/// they may wait for a thread that builds or drops another domain.
static DOMAINS: Mutex<Domains> = Mutex::new(Domains::new());
static VISITED: Condvar = Condvar::new();

struct Domains {
    kept: Vec<Weak<dyn Reclaim>>,
    /// Domains with unused memory that its last owner could not unmap.
    ending: Vec<Arc<dyn Reclaim>>,
    /// The address of each domain that is visited now, and the visiting thread.
    visited: Vec<(usize, ThreadId)>,
}

impl Domains {
    const fn new() -> Self {
        Self { kept: Vec::new(), ending: Vec::new(), visited: Vec::new() }
    }
}

static SIGNAL: Mutex<Signal> = Mutex::new(Signal { has_grown: false, is_running: false });
static GROWN: Condvar = Condvar::new();

struct Signal {
    /// `true` if a pool has grown since the last visit of all domains.
    has_grown: bool,
    is_running: bool,
}

/// Adds a domain to those that the thread visits.
pub(crate) fn add(domain: Weak<dyn Reclaim>) {
    lock(&DOMAINS).kept.push(domain);
}

/// Removes a domain that is dropped. When this returns, the reclaim thread does not use it any more,
/// unless the reclaim thread itself calls this (in a callback of the domain), or waits for the caller.
pub(crate) fn remove(domain: &dyn Reclaim) {
    let (address, me) = (address(domain), thread::current().id());
    // The reclaim thread may be unmapping memory that the caller pins.
    let waits_for_caller = domain.is_held_by_caller();
    let mut domains = lock(&DOMAINS);
    domains.kept.retain(|other| self::address(other.as_ptr()) != address);
    domains.ending.retain(|other| self::address(Arc::as_ptr(other)) != address);
    let is_in_use = |domains: &mut Domains| {
        let is_by_other = |&(visited, by): &(usize, ThreadId)| visited == address && by != me;
        !waits_for_caller && domains.visited.iter().any(is_by_other)
    };
    let removed = VISITED.wait_while(domains, is_in_use);
    drop(removed.unwrap_or_else(PoisonError::into_inner));
}

/// Has the reclaim thread free unused memory of a domain that the calling thread could not unmap.
pub(crate) fn end_later(domain: Arc<dyn Reclaim>) {
    add_ending(domain);
    wake();
}

fn add_ending(domain: Arc<dyn Reclaim>) {
    let address = address(Arc::as_ptr(&domain));
    let mut domains = lock(&DOMAINS);
    if !domains.ending.iter().any(|other| self::address(Arc::as_ptr(other)) == address) {
        domains.ending.push(domain);
    }
}

/// A visit to a domain, which ends when this is dropped.
struct Visit {
    // Dropped before `_noted`, so that a thread that waits in `remove` has the last reference then, and
    // frees the backend.
    domain: Arc<dyn Reclaim>,
    _noted: Noted,
}

/// An entry of [`Domains::visited`].
struct Noted(usize, ThreadId);

impl Visit {
    /// Begins a visit. Returns `None` if the domain was removed.
    fn begin(address: usize) -> Option<Self> {
        let mut domains = lock(&DOMAINS);
        let domain = domains.kept.iter().find(|kept| self::address(kept.as_ptr()) == address)?;
        let domain = domain.upgrade()?;
        Some(Self::note(domain, &mut domains))
    }

    /// Begins a visit to a domain whose last owner could not unmap its memory.
    fn begin_ending() -> Option<Self> {
        let mut domains = lock(&DOMAINS);
        let domain = domains.ending.pop()?;
        Some(Self::note(domain, &mut domains))
    }

    fn note(domain: Arc<dyn Reclaim>, domains: &mut Domains) -> Self {
        let noted = (address(Arc::as_ptr(&domain)), thread::current().id());
        domains.visited.push(noted);
        Self { domain, _noted: Noted(noted.0, noted.1) }
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        let mut domains = lock(&DOMAINS);
        if let Some(at) = domains.visited.iter().position(|other| *other == (self.0, self.1)) {
            domains.visited.swap_remove(at);
        }
        drop(domains);
        VISITED.notify_all();
    }
}

/// Returns the address of a domain, which identifies it as long as it lives.
fn address(domain: *const (dyn Reclaim + '_)) -> usize {
    domain.addr()
}

/// Notes that a pool has grown, and starts the thread if it does not run. If no thread can be started,
/// chunks are freed only on request.
pub(crate) fn wake() {
    let mut signal = lock(&SIGNAL);
    signal.has_grown = true;
    let was_running = mem::replace(&mut signal.is_running, true);
    drop(signal);
    // Without the lock, because this allocates, and the program's allocator may make a pool grow.
    if !was_running && thread::Builder::new().name("longshore-pools".to_owned()).spawn(run).is_err()
    {
        lock(&SIGNAL).is_running = false;
    }
    GROWN.notify_one();
}

fn run() {
    let mut pressure = Pressure::new(MemoryPressure::of_this_process());
    loop {
        let next = visit_all(&mut pressure);
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

/// Frees chunks that have been idle for long enough. Returns the time until the next visit, or `None` if
/// no chunk is left to be freed.
fn visit_all(pressure: &mut Pressure) -> Option<Duration> {
    let is_short = pressure.is_high();
    let mut refused = Vec::new();
    while let Some(visit) = Visit::begin_ending() {
        // This fails only if a callback has taken a lease on this thread.
        if contained(|| visit.domain.end().is_err()) == Some(true) {
            refused.push(Arc::clone(&visit.domain));
        }
        contained(|| drop(visit));
    }
    let again = (!refused.is_empty()).then_some(LONGEST);
    refused.into_iter().for_each(add_ending);
    let kept: Vec<usize> = lock(&DOMAINS).kept.iter().map(|kept| address(kept.as_ptr())).collect();
    let after = |address: usize| {
        let visit = Visit::begin(address)?;
        let domain = &visit.domain;
        let idle = domain.idle()?;
        // Memory that cannot be unmapped is leaked, and stays charged to the limits.
        let _ = domain.shrink(if is_short { Duration::ZERO } else { idle });
        domain.may_shrink().then(|| (idle / 2).clamp(SHORTEST, LONGEST))
    };
    let next = kept.into_iter().filter_map(|address| contained(|| after(address)).flatten());
    next.chain(again).min()
}

/// Calls `work`, which may run a backend of the program. Returns `None` if it panics, so that the thread
/// goes on with the other domains.
fn contained<R>(work: impl FnOnce() -> R) -> Option<R> {
    // Its destructor may panic too.
    catch_unwind(AssertUnwindSafe(work)).map_err(mem::forget).ok()
}

const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(500);

/// The memory pressure since it was last read.
struct Pressure {
    stalls: MemoryPressure,
    asked: Instant,
}

impl Pressure {
    fn new(stalls: MemoryPressure) -> Self {
        Self { stalls, asked: Instant::now() }
    }

    /// Returns true if tasks waited for memory for more than a tenth of the time since the last call.
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
    fn idle_chunks_are_freed_at_once_under_memory_pressure() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pressure");
        let write = |total: u64| fs::write(&path, format!("some avg10=0.00 total={total}\n"));
        write(0).unwrap();
        let mut pressure = Pressure::new(MemoryPressure::from_files([path.as_path()]));
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
        assert_eq!(visit_all(&mut pressure), Some(LONGEST), "it reads the pressure twice a second");
        assert_ne!(domain.counters().pool_bytes, 0, "it is not idle for an hour");

        // Chunks in use are not idle.
        let used = map(2);
        write(u64::MAX / 2).unwrap();
        visit_all(&mut pressure);
        assert_ne!(domain.counters().pool_bytes, 0);
        assert_eq!(used.unmap().unwrap().read().unwrap()[0], 2);

        write(u64::MAX - 5).unwrap();
        visit_all(&mut pressure);
        assert_eq!((domain.counters().pool_bytes, domain.counters().pool_shrinks), (0, 1));
    }
}
