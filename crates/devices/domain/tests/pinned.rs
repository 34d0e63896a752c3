//! A thread that holds a pin cannot unmap. It maps nothing that it must unmap again, and memory that it
//! drops is freed later.
#![cfg(not(loom))]

use std::io::IoSlice;
use std::iter;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use longshore_access::{Error as AccessError, OnUnmap, ReadOnly, Session, SpaceConfig};
use longshore_domain::backend::{BackendError, Soft};
use longshore_domain::{
    Bounce, Builder, Direction, DmaPoolOptions, Domain, Error, Mapping, SgLimits,
};
use longshore_heap::{Buffer, Heap};
use longshore_iov::{Cursor, Source};
use longshore_mem::Iova;

const PAGE: u64 = 4096;

fn buffer(len_bytes: u64, fill: u8) -> Buffer {
    let mut buffer = Heap::Memfd.allocate(len_bytes).unwrap();
    buffer.write().unwrap().fill(fill);
    buffer
}

fn domain(config: SpaceConfig) -> (Domain, Session) {
    let soft = Soft::with_config(config).unwrap();
    let device = soft.space().session();
    (Domain::builder(soft).free_after(None).build(), device)
}

/// Runs `work` while this thread pins the first bytes of `mapping`.
fn pinned<R>(device: &Session, mapping: &Mapping<'_, Buffer>, work: impl FnOnce() -> R) -> R {
    device.pin(mapping.iova(), 8, ReadOnly, |_| work()).unwrap()
}

#[track_caller]
fn assert_pinned<T>(result: Result<T, Error>) {
    match result {
        Err(Error::Backend {
            source: BackendError::Space(AccessError::PinnedByCaller { .. }),
            ..
        }) => {}
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was mapped"),
    }
}

#[test]
fn bytes_are_not_lent_by_a_thread_that_pins() {
    let (domain, device) = domain(SpaceConfig::new());
    let mapping = domain.map(buffer(PAGE, 1), Direction::ToDevice).unwrap();
    let mut pages = buffer(100 * PAGE, 2);
    let mut pages = pages.write().unwrap();
    pinned(&device, &mapping, || {
        let maps = domain.counters().maps;
        // Whole granules, unaligned ends, and segments.
        assert_pinned(domain.lend(&pages[..4096], |_| ()));
        assert_pinned(domain.lend_mut(&mut pages[..4096], Direction::FromDevice, |_| ()));
        assert_pinned(domain.local().lend(&pages[..4096], |_| ()));
        assert_pinned(domain.lend(&pages[9..400_000], |_| ()));
        let slices = [IoSlice::new(&pages[..8192])];
        let mut cursor = Cursor::<Source>::own_vec(&slices);
        assert_pinned(domain.lend_sg(&mut cursor, 8192, SgLimits::new(), |_| ()));
        assert_eq!(domain.counters().maps, maps);
        // A copy needs no unmapping.
        let read = domain.lend(&pages[9..109], |iova| {
            let mut bytes = [0; 100];
            device.space().session().read(iova, &mut bytes).unwrap();
            bytes
        });
        assert_eq!(read.unwrap(), [2; 100]);
    });
    domain.lend(&pages[..4096], |_| ()).unwrap();
    mapping.unmap().unwrap();
}

/// If the second of two pieces is refused, the first one must be unmapped.
#[test]
fn memory_that_is_given_back_after_an_error_is_not_mapped() {
    // The tables of the last 2 MiB, and of the first piece, which lies 4 MiB below.
    let table_bytes_max = Some(5 * PAGE);
    let (domain, device) = domain(SpaceConfig::new().with_table_bytes_max(table_bytes_max));
    let mapping = domain.map(buffer(PAGE, 1), Direction::ToDevice).unwrap();
    let places = || vec![buffer(PAGE, 7), buffer(4 << 20, 7)];
    let map = || domain.map_sg(places(), Direction::Bidirectional, SgLimits::new());
    let refused = map().map(drop).unwrap_err();
    assert!(!matches!(
        *refused.error,
        Error::Backend { source: BackendError::Space(AccessError::PinnedByCaller { .. }), .. }
    ));
    let failed = pinned(&device, &mapping, || map().map(drop).unwrap_err());
    let all = domain.iovas();
    let around = mapping.iova().raw().saturating_sub(32 << 20)..mapping.iova().raw() + (32 << 20);
    for at in around.step_by(PAGE as usize) {
        let mut byte = [0];
        let reached = device.read(Iova::new(at), &mut byte);
        assert!(reached.is_err() || byte != [7], "a device still reaches the memory at {at:#x}");
    }
    assert_eq!(all.free_bytes() + PAGE, all.all_bytes());
    assert_pinned::<()>(Err(*failed.error));
    drop(failed.value);
    mapping.unmap().unwrap();
}

/// The reclaim thread waits for a device, but no other domain waits for the thread.
#[test]
fn a_lease_of_an_idle_buffer_keeps_no_other_domain_waiting() {
    let pooled = |free_after| {
        let soft = Soft::new().unwrap();
        let device = soft.space().session();
        let builder = Domain::builder(soft).bounce(Bounce::Always).free_after(Some(free_after));
        (builder.build(), device)
    };
    let (domain, device) = pooled(Duration::from_millis(2));
    let mapping = domain.map(buffer(PAGE, 1), Direction::ToDevice).unwrap();
    let iova = mapping.iova();
    let lease = device.lease(iova, 8, ReadOnly, OnUnmap::Wait).unwrap();
    mapping.unmap().unwrap();
    // Waits until the reclaim thread has removed the translation, and waits for the lease.
    while device.read(iova, &mut [0]).is_ok() {
        thread::sleep(Duration::from_millis(1));
    }
    let (sender, receiver) = mpsc::channel();
    let other = thread::spawn(move || {
        let (other, _device) = pooled(Duration::from_secs(3600));
        other.map(buffer(PAGE, 1), Direction::ToDevice).unwrap().unmap().unwrap();
        drop(other);
        sender.send(()).unwrap();
    });
    let is_through = receiver.recv_timeout(Duration::from_secs(20));
    lease.view().read(0, &mut [0; 8]).unwrap();
    drop(lease);
    other.join().unwrap();
    is_through.expect("a domain waited for a lease of another domain's memory");
    drop(domain);
}

/// Returns a domain that bounces, and a device.
fn bouncing(set_up: impl FnOnce(Builder) -> Builder) -> (Domain, Session) {
    let soft = Soft::new().unwrap();
    let device = soft.space().session();
    (set_up(Domain::builder(soft).bounce(Bounce::Always)).build(), device)
}

/// Makes a chunk of bounce buffers without a transfer, and returns an address in it.
fn idle_buffer(domain: &Domain) -> Iova {
    let mapping = domain.map(buffer(PAGE, 1), Direction::ToDevice).unwrap();
    let iova = mapping.iova();
    mapping.unmap().unwrap();
    iova
}

/// Waits for the work of another thread.
#[track_caller]
fn wait_until(mut is_so: impl FnMut() -> bool) {
    let rounds = iter::repeat_with(|| thread::sleep(Duration::from_millis(1)));
    assert!(rounds.take(20_000).any(|()| is_so()), "timed out");
}

fn is_reached(device: &Session, iova: Iova) -> bool {
    device.space().session().read(iova, &mut [0]).is_ok()
}

#[test]
fn chunks_that_a_thread_with_a_pin_cannot_free_are_kept() {
    let (domain, device) = bouncing(|builder| builder.free_after(None));
    let ring = domain.alloc_coherent(PAGE).unwrap();
    let pool = domain.dma_pool(PAGE, PAGE, DmaPoolOptions::new()).unwrap();
    let used = || (domain.counters().pool_grows, pool.usage().chunks);
    let refuse = |result: Result<u64, BackendError>| {
        let is_pin =
            |error| matches!(error, BackendError::Space(AccessError::PinnedByCaller { .. }));
        assert!(result.is_err_and(is_pin));
    };
    for _ in 0..4 {
        idle_buffer(&domain);
        drop(pool.take().unwrap());
        let shrink = || {
            refuse(domain.shrink(Duration::ZERO));
            refuse(domain.reclaim().map(|freed| freed.pool_bytes));
            refuse(pool.shrink());
        };
        device.pin(ring.iova(), 8, ReadOnly, |_| shrink()).unwrap();
        assert_eq!(used(), (1, 1));
    }
    // A lease of an idle chunk does the same.
    let lease = device.lease(idle_buffer(&domain), 8, ReadOnly, OnUnmap::Wait).unwrap();
    refuse(domain.shrink(Duration::ZERO));
    drop(lease);
    assert_eq!(domain.shrink(Duration::ZERO).unwrap(), 4 << 20);
    assert_eq!((domain.counters().pool_bytes, pool.usage().chunks), (0, 0));
    drop(ring);
    domain.shrink(Duration::ZERO).unwrap();
    assert_eq!(domain.iovas().free_bytes(), domain.iovas().all_bytes());
}

#[test]
fn a_pool_that_a_thread_with_a_pin_drops_is_freed_later() {
    for has_element in [false, true] {
        let (domain, device) = bouncing(|builder| builder.free_after(None));
        let ring = domain.alloc_coherent(PAGE).unwrap();
        let free_bytes = domain.iovas().free_bytes();
        let pool = domain.dma_pool(PAGE, PAGE, DmaPoolOptions::new()).unwrap();
        let element = pool.take().unwrap();
        let iova = element.iova();
        let kept = has_element.then_some(element);
        device.pin(ring.iova(), 8, ReadOnly, |_| drop((pool, kept))).unwrap();
        wait_until(|| !is_reached(&device, iova));
        wait_until(|| domain.dump().dma_pools.is_empty());
        assert_eq!(domain.iovas().free_bytes(), free_bytes);
        assert_eq!(domain.counters().leaked, 0);
    }
}

/// Drops a domain within a pin of an element, which lives longer than the domain.
fn drop_within_pin(free_after: Option<Duration>) {
    let (domain, device) = bouncing(|builder| builder.free_after(free_after));
    let pool = domain.dma_pool(PAGE, PAGE, DmaPoolOptions::new()).unwrap();
    let element = pool.take().unwrap();
    let other = domain.dma_pool(PAGE, PAGE, DmaPoolOptions::new().reserve(1)).unwrap();
    let iova = idle_buffer(&domain);
    let drop_all = || {
        // Waits until the reclaim thread has removed the translation, and waits for the pin.
        wait_until(|| free_after.is_none() || !is_reached(&device, iova));
        drop((other, domain));
    };
    device.pin(element.iova(), 8, ReadOnly, |_| drop_all()).unwrap();
    wait_until(|| !is_reached(&device, iova));
    let at = element.iova();
    drop((element, pool));
    assert!(!is_reached(&device, at));
}

#[test]
fn a_domain_that_is_dropped_within_a_pin_does_not_deadlock() {
    for free_after in [None, Some(Duration::from_millis(2))] {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            drop_within_pin(free_after);
            sender.send(()).unwrap();
        });
        receiver.recv_timeout(Duration::from_secs(60)).expect("deadlock");
    }
}

/// The measured memory cannot be unmapped, so it is leaked and the device can still access it.
#[test]
fn memory_that_calibration_cannot_unmap_is_not_used_again() {
    let (domain, device) = domain(SpaceConfig::new());
    let mapping = domain.map(buffer(PAGE, 1), Direction::ToDevice).unwrap();
    let iova = pinned(&device, &mapping, || match domain.calibrate() {
        Err(Error::Backend { iova, .. }) => iova,
        other => panic!("{other:?}"),
    });
    assert_eq!(domain.counters().leaked, 1);
    // If the measured memory had been freed, one of these buffers could take its place.
    let _others: Vec<_> = (0..4).map(|_| buffer(256 << 10, b'S')).collect();
    let mut seen = [0; 8];
    device.read(iova, &mut seen).unwrap();
    assert_eq!(seen, [1; 8], "the bytes of calibration");
}
