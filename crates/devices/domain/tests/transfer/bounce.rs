//! Transfers through bounce buffers, with a device that reads and writes all that is mapped.

use std::num::NonZero;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use longshore_access::Session;
use longshore_domain::backend::Soft;
use longshore_domain::{Bounce, Builder, Direction, Domain, Error, PoolError, WhenFull};
use longshore_mem::{DmaMemory, FileOffset, Iova};

use crate::outside::Outside;

const PAGE: u64 = 4096;

/// Bytes at any address.
#[derive(Debug)]
struct Bytes {
    /// Neither moved nor freed while the value lives, and not read while a device may write.
    bytes: Vec<u8>,
    skip: usize,
}

impl Bytes {
    /// Returns `len` bytes at an odd address.
    fn odd(len: usize, fill: u8) -> Self {
        let mut bytes = vec![0; len + 8192];
        let skip = (4096 - bytes.as_ptr().addr() % 4096) + 3;
        bytes[skip..skip + len].fill(fill);
        bytes.truncate(skip + len);
        Self { bytes, skip }
    }

    /// Returns `len` bytes at the start of a page.
    fn pages(len: usize, fill: u8) -> Self {
        let mut odd = Self::odd(len + 4096, fill);
        odd.skip += 4093;
        odd.bytes.truncate(odd.skip + len);
        odd
    }

    fn get(&self) -> &[u8] {
        &self.bytes[self.skip..]
    }
}

// SAFETY: a vector's bytes stay at their address, and `get` borrows the value.
#[allow(unsafe_code, reason = "memory of a test")]
unsafe impl DmaMemory for Bytes {
    fn host(&self) -> NonNull<[u8]> {
        let bytes = self.get();
        let start = bytes.as_ptr().expose_provenance();
        let start = NonNull::with_exposed_provenance(NonZero::new(start).unwrap());
        NonNull::slice_from_raw_parts(start, bytes.len())
    }

    fn is_writable(&self) -> bool {
        true
    }

    unsafe fn file(&self) -> Option<(BorrowedFd<'_>, FileOffset)> {
        None
    }
}

/// Returns a domain whose pools are freed only on request, unless `set_up` changes that, and a device.
fn domain(set_up: impl FnOnce(Builder) -> Builder) -> (Domain, Session) {
    let soft = Soft::new().unwrap();
    let session = soft.space().session();
    (set_up(Domain::builder(soft).free_after(None)).build(), session)
}

fn at(iova: Iova, offset: u64) -> Iova {
    iova.checked_add(offset).unwrap()
}

fn read(device: &Session, iova: Iova, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    device.read(iova, &mut bytes).unwrap();
    bytes
}

#[test]
fn bytes_of_every_length_and_place_arrive() {
    let (domain, device) = domain(|builder| builder.bounce(Bounce::Always));
    let local = domain.local();
    let mut bounced = 0;
    for len in (1..300).chain([4095, 4096, 4097, 8192, 12_289, 65_536, 100_001, 262_144]) {
        for direction in [Direction::ToDevice, Direction::FromDevice, Direction::Bidirectional] {
            let mapping = local.map(Bytes::odd(len, 0x31), direction).unwrap();
            assert!(mapping.is_bounced());
            bounced += 1;
            if direction != Direction::FromDevice {
                assert!(read(&device, mapping.iova(), len).iter().all(|byte| *byte == 0x31));
            }
            let written = device.write(at(mapping.iova(), len as u64 - 1), &[0x77]);
            assert_eq!(written.is_ok(), direction != Direction::ToDevice);
            let bytes = mapping.unmap().unwrap();
            let (last, before) = bytes.get().split_last().unwrap();
            assert!(before.iter().all(|byte| *byte == 0x31));
            assert_eq!(*last, if written.is_ok() { 0x77 } else { 0x31 });
        }
    }
    drop(local);
    let counters = domain.counters();
    assert_eq!((counters.bounced, counters.flushes), (bounced, 0));
}

/// The policy is followed, and the counters show it.
#[test]
fn the_policy_decides() {
    let route = |bounce: Bounce, trusted: bool, bytes: Bytes| {
        let soft = Soft::new().unwrap();
        let device = soft.space().session();
        let builder = Domain::builder(Outside(soft)).free_after(None).bounce(bounce);
        // SAFETY: the session reads only bytes of the transfer.
        #[allow(unsafe_code, reason = "shows the effect")]
        let builder = if trusted { unsafe { builder.trusted() } } else { builder };
        let domain = builder.build();
        let len = bytes.get().len();
        let mapping = domain.map(bytes, Direction::ToDevice).map_err(|failed| *failed.error)?;
        assert!(read(&device, mapping.iova(), len).iter().all(|byte| *byte == 9));
        Ok::<_, Error>(mapping.is_bounced())
    };
    let pages = |count: usize| Bytes::pages(count * 4096, 9);
    assert!(!route(Bounce::Never, false, pages(1)).unwrap());
    assert!(route(Bounce::Never, false, Bytes::odd(100, 9)).unwrap());
    assert!(!route(Bounce::Never, true, Bytes::odd(100, 9)).unwrap());
    assert!(!route(Bounce::Never, true, Bytes::odd(1_000_000, 9)).unwrap());
    assert!(route(Bounce::Below(2 * PAGE), false, pages(1)).unwrap());
    assert!(!route(Bounce::Below(2 * PAGE), false, pages(2)).unwrap());
    assert!(route(Bounce::Below(2 * PAGE), false, Bytes::odd(200_000, 9)).unwrap());
    assert!(route(Bounce::Always, true, pages(64)).unwrap());
    // Longer than any slot.
    assert!(!route(Bounce::Always, true, pages(65)).unwrap());
    // Too long for a slot: its ends are bounced.
    assert!(route(Bounce::Never, false, Bytes::odd(1_000_000, 9)).unwrap());
    let empty = route(Bounce::Never, false, pages(0)).unwrap_err();
    assert!(matches!(empty, Error::Empty { .. }), "{empty}");
}

/// A device reads only zeros in a slot beyond its transfer, even if the slot was in use before.
#[test]
fn a_device_never_sees_another_transfer() {
    let (domain, device) = domain(|builder| builder.bounce(Bounce::Always));
    let local = domain.local();
    for direction in [Direction::ToDevice, Direction::Bidirectional] {
        // Long transfers, which the device fills to the end of the slot.
        let long: Vec<_> =
            (0..20).map(|_| local.map(Bytes::odd(4096, 0x5e), direction).unwrap()).collect();
        for mapping in &long {
            let _ = device.write(mapping.iova(), &[0x5e; 4096]);
        }
        drop(long);
        // A short transfer, beyond which the device writes, too.
        let short = local.map(Bytes::odd(5, 0x5e), direction).unwrap();
        let written = device.write(short.iova(), &[0x5e; 4096]);
        assert_eq!(written.is_ok(), direction == Direction::Bidirectional);
        drop(short);
        for len in [1, 7, 64, 4095] {
            let mapping = local.map(Bytes::odd(len, 0x11), direction).unwrap();
            let slot = read(&device, mapping.iova(), 4096);
            assert!(slot[..len].iter().all(|byte| *byte == 0x11));
            assert!(slot[len..].iter().all(|byte| *byte == 0), "{direction:?}, {len}");
        }
    }
}

/// The ends of a long transfer are bounced, so that a device cannot read the bytes around it, and writes
/// around it are lost.
#[test]
fn the_ends_of_a_long_transfer_are_bounced() {
    const LEN: usize = 300_000;
    let (domain, device) = domain(|builder| builder);
    let local = domain.local();
    // Leaves bytes in the slots.
    for direction in [Direction::ToDevice, Direction::Bidirectional, Direction::FromDevice] {
        let mappings: Vec<_> =
            (0..4).map(|_| local.map(Bytes::odd(4090, 0x5e), direction).unwrap()).collect();
        drop(mappings);
    }
    for (skip, cut) in [(0, 5), (3, 0), (3, 5), (4095, 4095), (1, 4096)] {
        for direction in [Direction::ToDevice, Direction::Bidirectional, Direction::FromDevice] {
            let mut bytes = Bytes::pages(LEN.next_multiple_of(4096), 0x21);
            bytes.skip += skip;
            bytes.bytes.truncate(bytes.bytes.len() - cut);
            let len = bytes.get().len();
            let copied = domain.counters().copied_bytes;
            let mapping = local.map(bytes, direction).unwrap();
            assert!(mapping.is_bounced());
            assert!(domain.counters().copied_bytes - copied < 8192);
            let iova = mapping.iova();
            assert_eq!(iova.raw() % PAGE, skip as u64);
            let before = Iova::new(iova.raw() - iova.raw() % PAGE);
            let all = (skip + len).next_multiple_of(4096);
            if direction == Direction::FromDevice {
                device.write(before, &vec![0x99; all]).unwrap();
            } else {
                let seen = read(&device, before, all);
                assert!(seen[..skip].iter().all(|byte| *byte == 0));
                assert!(seen[skip..skip + len].iter().all(|byte| *byte == 0x21));
                assert!(seen[skip + len..].iter().all(|byte| *byte == 0));
                let written = device.write(before, &vec![0x99; all]);
                assert_eq!(written.is_ok(), direction == Direction::Bidirectional);
            }
            let bytes = mapping.unmap().unwrap();
            let expected = if direction == Direction::ToDevice { 0x21 } else { 0x99 };
            assert!(bytes.get().iter().all(|byte| *byte == expected));
            // The bytes around it are unchanged.
            assert!(bytes.bytes[bytes.skip - skip..bytes.skip].iter().all(|byte| *byte == 0x21));
            assert!(device.read(iova, &mut [0]).is_err());
        }
    }
    drop(local);
    domain.shrink(Duration::ZERO).unwrap();
    assert_eq!(domain.iovas().free_bytes(), domain.iovas().all_bytes());
}

/// Only synchronised bytes are copied.
#[test]
fn only_the_requested_bytes_are_synchronised() {
    const LEN: usize = 300_000;
    let (domain, device) = domain(|builder| builder);
    for len in [1000, LEN] {
        let mut mapping = domain.map(Bytes::odd(len, 1), Direction::Bidirectional).unwrap();
        let last = len as u64 - 1;
        device.write(mapping.iova(), &[2; 10]).unwrap();
        device.write(at(mapping.iova(), last), &[2]).unwrap();
        mapping.sync_for_cpu(0..5).unwrap();
        let mut seen = [0; 10];
        mapping.read(0, &mut seen).unwrap();
        assert_eq!(seen, [2, 2, 2, 2, 2, 1, 1, 1, 1, 1]);
        mapping.sync_for_cpu(last..last + 1).unwrap();
        mapping.read(last, &mut seen[..1]).unwrap();
        assert_eq!(seen[0], 2);
        mapping.write(0, &[3; 10]).unwrap();
        mapping.sync_for_device(8..10).unwrap();
        assert_eq!(read(&device, mapping.iova(), 10), [2, 2, 2, 2, 2, 2, 2, 2, 3, 3]);
    }
}

/// Bytes that the device has not written are unchanged, and are never bytes of an earlier transfer.
#[test]
fn memory_never_gets_stale_bytes() {
    let (domain, device) = domain(|builder| builder.bounce(Bounce::Always));
    let local = domain.local();
    let before = local.map(Bytes::odd(4096, 0), Direction::FromDevice).unwrap();
    let slot = before.iova();
    device.write(slot, &[0xbb; 4096]).unwrap();
    drop(before);

    let mapping = local.map(Bytes::odd(1000, 0x22), Direction::FromDevice).unwrap();
    assert_eq!(mapping.iova(), slot, "the slot is used again");
    device.write(slot, &[0x33; 10]).unwrap();
    let bytes = mapping.unmap().unwrap();
    assert_eq!(bytes.get()[..10], [0x33; 10]);
    assert_eq!(bytes.get()[10..], [0x22; 990]);

    // If the device reports the length that it wrote, nothing else is copied, in either direction.
    let copied = domain.counters().copied_bytes;
    let mapping = local.map_reported(Bytes::odd(1000, 0x44)).unwrap();
    device.write(mapping.iova(), &[0x55; 600]).unwrap();
    let refused = mapping.complete(1001).unwrap_err();
    assert!(matches!(*refused.error, Error::Reported { .. }), "{refused}");
    let bytes = refused.value.complete(500).unwrap();
    assert_eq!(bytes.get()[..500], [0x55; 500]);
    assert_eq!(bytes.get()[500..], [0x44; 500]);
    assert_eq!(domain.counters().copied_bytes - copied, 500);
    let bytes = local.map_reported(bytes).unwrap().unmap().unwrap();
    assert_eq!(bytes.get()[..500], [0x55; 500]);
}

#[test]
fn live_transfers_share_no_granule() {
    let (domain, _device) = domain(|builder| builder.bounce(Bounce::Always));
    let local = domain.local();
    let lens = [1, 100, 4096, 5000, 20_000, 40_000, 70_000, 200_000];
    let mappings: Vec<_> = lens
        .iter()
        .cycle()
        .take(200)
        .map(|len| local.map(Bytes::odd(*len, 1), Direction::Bidirectional).unwrap())
        .collect();
    let page = |address: u64| address / PAGE;
    let mut granules: Vec<_> = mappings
        .iter()
        .map(|mapping| {
            let start = mapping.iova().raw();
            (page(start), page(start + mapping.len() - 1))
        })
        .collect();
    granules.sort_unstable();
    assert!(granules.windows(2).all(|pair| pair[0].1 < pair[1].0));
}

#[test]
fn pools_grow_to_their_limit_and_shrink_to_nothing() {
    const LIMIT: u64 = 4 << 20;
    for when_full in [WhenFull::MapDirectly, WhenFull::Refuse] {
        let limited =
            |builder: Builder| builder.bounce(Bounce::Always).pool_limit(LIMIT, when_full);
        let (domain, device) = domain(limited);
        let local = domain.local();
        let mut mappings = Vec::new();
        // Two chunks of 512 pages.
        let full = loop {
            match local.map(Bytes::pages(4096, 3), Direction::Bidirectional) {
                Ok(mapping) if mapping.is_bounced() => mappings.push(mapping),
                Ok(direct) => break Ok(direct),
                Err(refused) => break Err(refused),
            }
        };
        assert_eq!(mappings.len() as u64, LIMIT / PAGE);
        assert_eq!(domain.counters().pool_bytes, LIMIT);
        match full {
            Ok(direct) => {
                assert_eq!(when_full, WhenFull::MapDirectly);
                assert_eq!(read(&device, direct.iova(), 4096), [3; 4096]);
            }
            Err(refused) => {
                assert_eq!(when_full, WhenFull::Refuse);
                let limit = PoolError::Limit { held_bytes: LIMIT, limit_bytes: LIMIT };
                assert_eq!(refused.error.to_string(), limit.to_string());
                assert_eq!(refused.value.get(), [3; 4096]);
            }
        }
        // A transfer that must be bounced is refused either way.
        let refused = local.map(Bytes::odd(10, 1), Direction::Bidirectional).unwrap_err();
        assert!(matches!(*refused.error, Error::Pool(PoolError::Limit { .. })), "{refused}");
        assert_eq!(domain.shrink(Duration::ZERO).unwrap(), 0);
        drop(mappings);
        // The handle caches a few slots, which are taken from it.
        assert_eq!(domain.shrink(Duration::from_secs(3600)).unwrap(), 0);
        assert_eq!(domain.shrink(Duration::ZERO).unwrap(), LIMIT);
        let counters = domain.counters();
        assert_eq!((counters.pool_bytes, counters.pool_peak_bytes), (0, LIMIT));
        assert_eq!((counters.pool_grows, counters.pool_shrinks), (2, 2));
        assert_eq!(domain.iovas().free_bytes(), domain.iovas().all_bytes());
        let again = local.map(Bytes::odd(10, 6), Direction::ToDevice).unwrap();
        assert_eq!(read(&device, again.iova(), 10), [6; 10]);
    }
}

/// At the peak of a burst the pools have at most a quarter more than the bytes in flight, and one chunk
/// for each pool.
#[test]
fn pools_follow_the_bytes_in_flight() {
    const CHUNK: u64 = 2 << 20;
    let (domain, _device) = domain(|builder| builder.bounce(Bounce::Always));
    let local = domain.local();
    let mut in_flight = 0;
    let mappings: Vec<_> = (0..3000usize)
        .map(|nth| {
            let len = 1 + nth * 7919 % 131_072;
            in_flight += len.next_multiple_of(4096) as u64;
            let direction = [Direction::ToDevice, Direction::FromDevice][nth % 2];
            local.map(Bytes::odd(len, 1), direction).unwrap()
        })
        .collect();
    let held = domain.counters().pool_bytes;
    let most = in_flight * 5 / 4 + 2 * 20 * CHUNK;
    assert!(held <= most, "{held} bytes for {in_flight} in flight");
    drop(mappings);
    domain.shrink(Duration::ZERO).unwrap();
    assert_eq!(domain.counters().pool_bytes, 0);
}

/// Idle chunks are freed without a call, even if the handle of a busy thread caches slots of them.
#[test]
fn idle_chunks_are_freed_after_a_time() {
    let idle = Some(Duration::from_millis(30));
    let (quick, _device) = domain(|builder| builder.bounce(Bounce::Always).free_after(idle));
    let (never, _other) = domain(|builder| builder.bounce(Bounce::Always).free_after(None));
    let (quick_door, never_door) = (quick.local(), never.local());
    for _ in 0..2 {
        let held = quick_door.map(Bytes::odd(9, 1), Direction::ToDevice).unwrap();
        for handle in [&quick_door, &never_door] {
            let burst: Vec<_> = (0..1000)
                .map(|_| handle.map(Bytes::odd(9, 1), Direction::ToDevice).unwrap())
                .collect();
            drop(burst);
        }
        // One transfer is in flight, so one chunk stays.
        wait_until(|| quick.counters().pool_bytes == 2 << 20);
        assert_eq!(never.counters().pool_bytes, 4 << 20);
        drop(held);
        wait_until(|| quick.counters().pool_bytes == 0);
    }
    assert_eq!(never.counters().pool_shrinks, 0);
}

/// Waits for at most a minute.
fn wait_until(is_so: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "timed out");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Slots are taken from the cache of a handle while its thread maps.
#[test]
fn shrinking_does_not_disturb_transfers() {
    const TURNS: usize = 20_000;
    let (domain, _device) = domain(|builder| builder.bounce(Bounce::Always));
    let done = Mutex::new(0);
    thread::scope(|scope| {
        for thread in 0..2u8 {
            let (domain, done) = (&domain, &done);
            scope.spawn(move || {
                let local = domain.local();
                let mut held = Vec::new();
                let mut spare: Vec<_> = (0..6).map(|_| Bytes::odd(5000, thread)).collect();
                for turn in 0..TURNS {
                    if let Some(bytes) = spare.pop() {
                        held.push(local.map(bytes, Direction::Bidirectional).unwrap());
                    } else {
                        let bytes = held.swap_remove(turn % held.len()).unmap().unwrap();
                        assert!(bytes.get().iter().all(|byte| *byte == thread));
                        spare.push(bytes);
                    }
                }
                *done.lock().unwrap() += 1;
            });
        }
        while *done.lock().unwrap() < 2 {
            domain.shrink(Duration::ZERO).unwrap();
            thread::yield_now();
        }
    });
    domain.shrink(Duration::ZERO).unwrap();
    assert_eq!(domain.counters().pool_bytes, 0);
    assert_eq!(domain.iovas().free_bytes(), domain.iovas().all_bytes());
}

/// A mapping that is passed to `mem::forget` is leaked with its chunk, which is never used again.
#[test]
fn a_forgotten_mapping_keeps_its_bytes() {
    let (domain, device) = domain(|builder| builder.bounce(Bounce::Always));
    let mapping = domain.map(Bytes::odd(10, 1), Direction::Bidirectional).unwrap();
    let iova = mapping.iova();
    std::mem::forget(mapping);
    assert_eq!(domain.shrink(Duration::ZERO).unwrap(), 0);
    drop(domain);
    assert_eq!(read(&device, iova, 10), [1; 10]);
}

#[test]
fn many_owners_map_one_memory() {
    /// Memory that is only read.
    #[derive(Clone, Debug)]
    struct Shared(Arc<Bytes>);
    // SAFETY: as for `Bytes`. No device writes, because the mappings below are for reading.
    #[allow(unsafe_code, reason = "memory of a test")]
    unsafe impl DmaMemory for Shared {
        fn host(&self) -> NonNull<[u8]> {
            self.0.host()
        }

        fn is_writable(&self) -> bool {
            self.0.is_writable()
        }

        unsafe fn file(&self) -> Option<(BorrowedFd<'_>, FileOffset)> {
            None
        }
    }
    let shared = Shared(Arc::new(Bytes::odd(500, 8)));
    let domains: Vec<_> = (0..32).map(|_| domain(|builder| builder)).collect();
    let mappings: Vec<_> = domains
        .iter()
        .map(|(domain, _)| domain.map(shared.clone(), Direction::ToDevice).unwrap())
        .collect();
    for (mapping, (_, device)) in mappings.iter().zip(&domains) {
        assert_eq!(read(device, mapping.iova(), 500), [8; 500]);
    }
    assert_eq!(Arc::strong_count(&shared.0), 33);
    drop(mappings);
    assert_eq!(Arc::strong_count(&shared.0), 1);
}
