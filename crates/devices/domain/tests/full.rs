//! Transfers when the bounce buffers are at their limit.

use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use longshore_domain::backend::Soft;
use longshore_domain::{Bounce, Direction, Domain, Error, Mapping, PoolError, WhenFull};
use longshore_heap::{Heap, Sealing, SharedBuffer};

const CHUNK: u64 = 2 << 20;
const SLOTS: usize = (CHUNK / 4096) as usize;
const MINUTE: Duration = Duration::from_secs(60);

/// Returns a domain whose pools have room for one chunk.
fn domain(when_full: WhenFull) -> Domain {
    let builder = Domain::builder(Soft::new().unwrap()).bounce(Bounce::Always).free_after(None);
    builder.pool_limit(CHUNK, when_full).build()
}

/// Returns the same page each time. A buffer for each mapping would need more descriptors than a process
/// may have.
fn page() -> Arc<SharedBuffer> {
    static PAGE: OnceLock<Arc<SharedBuffer>> = OnceLock::new();
    let share = || Heap::Memfd.allocate(4096).unwrap().share(Sealing::Content).unwrap();
    Arc::clone(PAGE.get_or_init(|| Arc::new(share())))
}

fn is_limit(error: &Error) -> bool {
    matches!(error, Error::Pool(PoolError::Limit { held_bytes: CHUNK, limit_bytes: CHUNK }))
}

/// Takes all slots.
fn fill(domain: &Domain) -> Vec<Mapping<'_, Arc<SharedBuffer>>> {
    (0..SLOTS).map(|_| domain.map(page(), Direction::ToDevice).unwrap()).collect()
}

/// A transfer is not refused while there are idle slots, or slots in the cache of another thread.
#[test]
fn idle_and_cached_slots_make_room() {
    for when_full in [WhenFull::Refuse, WhenFull::Wait(MINUTE)] {
        let domain = domain(when_full);
        let (local, other) = (domain.local(), domain.local());
        for direction in [Direction::ToDevice, Direction::FromDevice, Direction::Bidirectional] {
            for len_bytes in [4096, 65_536] {
                let buffer = Heap::Memfd.allocate(len_bytes).unwrap();
                assert!(local.map(buffer, direction).unwrap().is_bounced());
                let buffer = Heap::Memfd.allocate(len_bytes).unwrap();
                assert!(other.map(buffer, direction).unwrap().is_bounced());
            }
        }
        let counters = domain.counters();
        assert_eq!((counters.pool_bytes, counters.pool_peak_bytes), (CHUNK, CHUNK));
    }
}

#[test]
fn a_transfer_waits_for_another_to_end() {
    let domain = domain(WhenFull::Wait(MINUTE));
    let mut all = fill(&domain);
    let (begins, has_begun) = mpsc::channel();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            begins.send(()).unwrap();
            let local = domain.local();
            let mapping = local.map(page(), Direction::ToDevice).unwrap();
            mapping.is_bounced()
        });
        has_begun.recv().unwrap();
        thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished(), "there is no slot for it");
        let ended = all.pop();
        drop(ended);
        assert!(waiting.join().unwrap());
    });
}

/// A waiting thread takes the slots that the handle of another thread caches.
#[test]
fn a_waiting_transfer_takes_a_slot_from_the_cache_of_a_handle() {
    let domain = domain(WhenFull::Wait(MINUTE));
    let mut all = fill(&domain);
    let (local, other) = (domain.local(), domain.local());
    // The only slot that becomes free goes to the cache of the handle that gives it back.
    all.pop();
    let last = local.map(page(), Direction::ToDevice).unwrap();
    drop(last);
    assert!(other.map(page(), Direction::ToDevice).unwrap().is_bounced());
}

#[test]
fn a_transfer_does_not_wait_for_ever() {
    const TIME: Duration = Duration::from_millis(50);
    let domain = domain(WhenFull::Wait(TIME));
    let mut all = fill(&domain);
    let began = Instant::now();
    let refused = domain.map(page(), Direction::ToDevice).unwrap_err();
    assert!(is_limit(&refused.error), "{refused}");
    assert!(began.elapsed() >= TIME);
    assert_eq!(refused.value.len(), 4096);
    // A transfer that is longer than a slot and begins within a granule needs two slots for its ends.
    let mut bytes = vec![1; 1 << 20];
    let lent = domain.lend_mut(&mut bytes[1..], Direction::ToDevice, |_| ());
    assert!(is_limit(&lent.unwrap_err()));
    all.truncate(SLOTS - 2);
    domain.lend_mut(&mut bytes[1..], Direction::ToDevice, |_| ()).unwrap();
    drop(all);
    assert_eq!(domain.shrink(Duration::ZERO).unwrap(), CHUNK);
    assert_eq!(domain.iovas().free_bytes(), domain.iovas().all_bytes());
}

/// Each of many threads gets a slot, although there are few.
#[test]
fn threads_share_few_slots() {
    let (threads, turns) = if cfg!(miri) { (3, 4) } else { (6, 200) };
    let domain = domain(WhenFull::Wait(MINUTE));
    // A chunk has eight slots of 256 KiB.
    let hold: Vec<_> = (0..6)
        .map(|_| domain.map(Heap::Memfd.allocate(262_144).unwrap(), Direction::ToDevice).unwrap())
        .collect();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let local = domain.local();
                for _ in 0..turns {
                    let buffer = Heap::Memfd.allocate(262_144).unwrap();
                    assert!(local.map(buffer, Direction::ToDevice).unwrap().is_bounced());
                }
            });
        }
    });
    drop(hold);
    assert_eq!(domain.counters().pool_peak_bytes, CHUNK);
    assert_eq!(domain.shrink(Duration::ZERO).unwrap(), CHUNK);
}
