//! Transfers whose bytes lie in several places.

use std::io::{IoSlice, IoSliceMut};
use std::num::NonZero;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longshore_access::Session;
use longshore_domain::backend::{Backend, BackendError, Limits, Piece, Soft};
use longshore_domain::{Bounce, Builder, Direction, Domain, Error, SgLimits, SgSegment, WhenFull};
use longshore_heap::{Buffer, Heap, Sealing};
use longshore_iov::{Cursor, Dest, SegmentSource as _, Source};
use longshore_mem::{AddrRange, DmaMemory, FileOffset, Granule, Iova};
use longshore_pagetable::Prot;
use proptest::prelude::*;

use crate::outside::Outside;

const PAGE: u64 = 4096;

/// A part of a shared buffer.
#[derive(Debug)]
struct Part {
    buffer: Arc<Buffer>,
    at: u64,
    len_bytes: u64,
}

// SAFETY: the buffer stays at its address while a part lives. Tests read it only while none is mapped.
#[allow(unsafe_code, reason = "memory of a test")]
unsafe impl DmaMemory for Part {
    fn host(&self) -> NonNull<[u8]> {
        let start = self.buffer.host().cast::<u8>();
        // SAFETY: within the buffer.
        let start = unsafe { start.add(self.at as usize) };
        NonNull::slice_from_raw_parts(start, self.len_bytes as usize)
    }

    fn is_writable(&self) -> bool {
        true
    }

    unsafe fn file(&self) -> Option<(BorrowedFd<'_>, FileOffset)> {
        None
    }
}

fn domain(set_up: impl FnOnce(Builder) -> Builder) -> (Domain, Session) {
    let soft = Soft::new().unwrap();
    let session = soft.space().session();
    let builder = Domain::builder(soft).free_after(None).bounce(Bounce::Never);
    (set_up(builder).build(), session)
}

/// Returns `len` bytes, whose values follow from their offsets.
fn buffer(len: u64) -> Buffer {
    let mut buffer = Heap::Memfd.allocate(len).unwrap();
    let mut bytes = buffer.write().unwrap();
    bytes.iter_mut().zip(0u64..).for_each(|(byte, at)| *byte = tag(at));
    drop(bytes);
    buffer
}

fn tag(at: u64) -> u8 {
    (at % 251) as u8 + 1
}

fn parts(buffer: &Arc<Buffer>, places: &[(u64, u64)]) -> Vec<Part> {
    let part = |&(at, len_bytes)| Part { buffer: Arc::clone(buffer), at, len_bytes };
    places.iter().map(part).collect()
}

fn read(device: &Session, segments: &[SgSegment]) -> Vec<u8> {
    let mut all = Vec::new();
    for SgSegment { iova, len_bytes } in segments {
        let mut bytes = vec![0; *len_bytes as usize];
        device.read(*iova, &mut bytes).unwrap();
        all.extend(bytes);
    }
    all
}

fn write(device: &Session, segments: &[SgSegment], bytes: &[u8]) {
    let mut rest = bytes;
    for SgSegment { iova, len_bytes } in segments {
        let (here, behind) = rest.split_at(*len_bytes as usize);
        device.write(*iova, here).unwrap();
        rest = behind;
    }
    assert!(rest.is_empty());
}

fn is_at_rest(domain: &Domain) {
    domain.shrink(Duration::ZERO).unwrap();
    assert_eq!(domain.iovas().free_bytes(), domain.iovas().all_bytes());
    let counters = domain.counters();
    assert_eq!((counters.maps, counters.pool_bytes, counters.leaked), (counters.unmaps, 0, 0));
}

/// Returns the bytes that the device can read in the granules of these segments, outside the segments.
fn seen_beside(device: &Session, segments: &[SgSegment]) -> Vec<u8> {
    let mut beside = Vec::new();
    let is_inside = |at: u64| {
        let holds = |segment: &SgSegment| {
            (segment.iova.raw()..segment.iova.raw() + segment.len_bytes).contains(&at)
        };
        segments.iter().any(holds)
    };
    for SgSegment { iova, len_bytes } in segments {
        let end = (iova.raw() + len_bytes).next_multiple_of(PAGE);
        for at in (iova.raw() / PAGE * PAGE..end).filter(|at| !is_inside(*at)) {
            let mut byte = [0];
            if device.read(Iova::new(at), &mut byte).is_ok() {
                beside.push(byte[0]);
            }
        }
    }
    beside
}

fn places() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let gap = prop_oneof![Just(0), 1u64..100, 4000u64..9000, Just(PAGE)];
    let len = prop_oneof![0u64..60, 4090u64..4100, Just(PAGE), Just(3 * PAGE), 8000u64..40_000];
    proptest::collection::vec((gap, len), 1..8).prop_map(|list| {
        let mut at = 5 * PAGE;
        let place = |(gap, len)| {
            let place = (at + gap, len);
            at += gap + len;
            place
        };
        list.into_iter().map(place).collect()
    })
}

fn bounces() -> impl Strategy<Value = Bounce> {
    prop_oneof![Just(Bounce::Never), Just(Bounce::Below(20_000)), Just(Bounce::Always)]
}

fn directions() -> impl Strategy<Value = Direction> {
    prop_oneof![
        Just(Direction::ToDevice),
        Just(Direction::FromDevice),
        Just(Direction::Bidirectional)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 100 }))]

    /// Wherever the bytes lie and however they are mapped, the device can read only these bytes.
    #[test]
    fn the_device_finds_the_bytes(
        places in places(),
        bounce in bounces(),
        direction in directions(),
        is_trusted: bool,
        written in 0.0..1.0,
        boundary in prop_oneof![Just(None), Just(Some(Granule::SIZE_4K)), Just(Some(Granule::SIZE_64K))],
    ) {
        let soft = Soft::new().unwrap();
        let device = soft.space().session();
        let builder = Domain::builder(Outside(soft)).free_after(None).bounce(bounce);
        // SAFETY: the sessions access only bytes of the transfers.
        #[allow(unsafe_code, reason = "shows the effect")]
        let builder = if is_trusted { unsafe { builder.trusted() } } else { builder };
        let domain = builder.build();
        let local = domain.local();
        let len: u64 = places.iter().map(|(_, len)| len).sum();
        prop_assume!(len != 0);
        // Leaves bytes in bounce buffers of the sizes that the transfer takes.
        domain.set_bounce(Bounce::Always);
        for len in [PAGE, len.next_multiple_of(PAGE)] {
            drop(local.map(buffer(len), direction).unwrap());
        }
        domain.set_bounce(bounce);
        let shared = Arc::new(buffer(400_000));
        let limits = SgLimits::new().segment_bytes(NonZero::new(10_000).unwrap());
        let limits = boundary.map_or(limits, |boundary| limits.boundary(boundary));
        let mapping = local.map_sg(parts(&shared, &places), direction, limits).unwrap();
        prop_assert_eq!(mapping.len(), len);
        for SgSegment { iova, len_bytes } in mapping.segments() {
            prop_assert!((1..=10_000).contains(len_bytes));
            let last = iova.raw() + len_bytes - 1;
            let every = boundary.map_or(1 << 40, Granule::bytes);
            prop_assert_eq!(iova.raw() / every, last / every);
        }
        let expected: Vec<u8> =
            places.iter().flat_map(|(at, len)| (*at..at + len).map(tag)).collect();
        if direction != Direction::FromDevice {
            prop_assert_eq!(&read(&device, mapping.segments()), &expected);
            if !is_trusted || mapping.is_bounced() {
                prop_assert!(seen_beside(&device, mapping.segments()).iter().all(|byte| *byte == 0));
            }
        }
        let first = mapping.segments()[0];
        let segments = mapping.segments().to_vec();
        let is_bounced = mapping.is_bounced();
        let written_bytes = (written * len as f64) as u64;
        let answer: Vec<u8> = expected.iter().map(|byte| !byte).collect();
        if direction == Direction::ToDevice {
            prop_assert!(device.write(first.iova, &[0]).is_err());
        } else {
            write(&device, &segments, &answer);
        }
        drop(mapping.complete(written_bytes).unwrap());
        // A bounce buffer stays mapped for the next transfer.
        if !is_bounced {
            prop_assert!(device.read(first.iova, &mut [0]).is_err());
        }
        let after = Arc::into_inner(shared).unwrap();
        let after = after.read().unwrap();
        let mut nth = 0;
        let mut holds = vec![None; after.len()];
        for (at, len) in &places {
            for place in *at..at + len {
                holds[place as usize] = Some(nth);
                nth += 1;
            }
        }
        for (at, byte) in after.iter().enumerate() {
            let before = tag(at as u64);
            match holds[at] {
                Some(_) if direction == Direction::ToDevice => prop_assert_eq!(*byte, before),
                Some(nth) if nth < written_bytes => prop_assert_eq!(*byte, !before),
                // Later bytes are unchanged if they are copied. Otherwise the device wrote them.
                Some(_) => prop_assert!([before, !before].contains(byte)),
                None => prop_assert_eq!(*byte, before),
            }
        }
        drop(local);
        is_at_rest(&domain);
    }
}

#[test]
fn adjacent_places_are_one_segment() {
    let (domain, device) = domain(|builder| builder);
    let shared = Arc::new(buffer(100 * PAGE));
    let count = |places: &[(u64, u64)]| {
        let mapping =
            domain.map_sg(parts(&shared, places), Direction::ToDevice, SgLimits::new()).unwrap();
        let bytes: Vec<u8> = places.iter().flat_map(|(at, len)| (*at..at + len).map(tag)).collect();
        assert_eq!(read(&device, mapping.segments()), bytes);
        (mapping.segments().len(), mapping.is_bounced())
    };
    // Adjacent in memory, in whole granules or not.
    assert_eq!(count(&[(PAGE, 100), (PAGE + 100, PAGE - 100), (2 * PAGE, PAGE)]), (1, false));
    // Adjacent at IOVAs.
    assert_eq!(count(&[(9 * PAGE, PAGE), (3 * PAGE, 2 * PAGE), (30 * PAGE, 50)]), (1, true));
    assert_eq!(count(&[(9 * PAGE, PAGE), (3 * PAGE, 50), (30 * PAGE, PAGE)]), (2, true));
    // The same bytes twice are sent twice.
    assert_eq!(count(&[(PAGE, PAGE), (PAGE, PAGE)]), (1, false));
    drop(domain);
}

#[test]
fn too_many_segments_are_gathered_or_refused() {
    let (domain, device) = domain(|builder| builder);
    let shared = Arc::new(buffer(200 * PAGE));
    let places: Vec<_> = (0..20).map(|nth| (nth * 3 * PAGE + 7, 100)).collect();
    let limits = SgLimits::new().segments(19);
    let mapping = domain.map_sg(parts(&shared, &places), Direction::ToDevice, limits).unwrap();
    assert_eq!((mapping.segments().len(), mapping.is_bounced()), (1, true));
    assert_eq!(
        read(&device, mapping.segments())[100..103],
        [tag(3 * PAGE + 7), tag(3 * PAGE + 8), tag(3 * PAGE + 9)]
    );
    drop(mapping);
    let mapping =
        domain.map_sg(parts(&shared, &places), Direction::ToDevice, limits.segments(20)).unwrap();
    assert_eq!(mapping.segments().len(), 20);
    drop(mapping);

    // Too long for a bounce buffer.
    let places: Vec<_> = (0..20).map(|nth| (nth * 9 * PAGE + 7, 5 * PAGE)).collect();
    let refused = domain.map_sg(parts(&shared, &places), Direction::ToDevice, limits).unwrap_err();
    assert!(
        matches!(*refused.error, Error::TooManySegments { segments: 20, most: 19, .. }),
        "{refused}"
    );
    assert_eq!(refused.value.len(), 20);
    // A transfer that has too many segments even in a bounce buffer.
    let small = limits.segments(2).segment_bytes(NonZero::new(512).unwrap());
    let refused = domain
        .map_sg(parts(&shared, &[(0, 1025), (PAGE, 1)]), Direction::ToDevice, small)
        .unwrap_err();
    assert!(matches!(*refused.error, Error::TooManySegments { segments: 3, .. }), "{refused}");
    let nothing = domain.map_sg(parts(&shared, &[(5, 0)]), Direction::ToDevice, small).unwrap_err();
    assert!(matches!(*nothing.error, Error::Empty { .. }), "{nothing}");
    is_at_rest(&domain);
}

#[test]
fn only_synchronised_bytes_are_copied() {
    for bounce in [Bounce::Always, Bounce::Never] {
        let (domain, device) = domain(|builder| builder.bounce(bounce));
        let shared = Arc::new(buffer(10 * PAGE));
        let places = [(10, 20), (PAGE + 4000, 200)];
        let mut mapping = domain
            .map_sg(parts(&shared, &places), Direction::Bidirectional, SgLimits::new())
            .unwrap();
        let byte = |at: u64| {
            // SAFETY: within the buffer; the device model does not run now.
            #[allow(unsafe_code, reason = "memory of a test")]
            unsafe {
                shared.host().cast::<u8>().as_ptr().wrapping_add(at as usize).read_volatile()
            }
        };
        write(&device, mapping.segments(), &[0; 220]);
        mapping.sync_for_cpu(15..30).unwrap();
        assert_eq!((byte(24), byte(25), byte(PAGE + 4009)), (tag(24), 0, 0));
        assert_eq!(byte(PAGE + 4010), tag(PAGE + 4010));
        mapping.sync_for_device(30..31).unwrap();
        assert_eq!(read(&device, mapping.segments())[29..32], [0, tag(PAGE + 4010), 0]);
        for outside in [0..221, 221..221, u64::MAX..u64::MAX] {
            assert!(matches!(mapping.sync_for_cpu(outside), Err(Error::Outside { .. })));
        }
        let refused = mapping.complete(221).unwrap_err();
        assert!(matches!(*refused.error, Error::Reported { .. }));
        refused.value.unmap().unwrap();
        assert_eq!(byte(PAGE + 4199), 0);

        // The bytes of both places that the device reports as written.
        let places = [(5000, 20), (2 * PAGE + 100, 200)];
        let mapping =
            domain.map_sg(parts(&shared, &places), Direction::FromDevice, SgLimits::new());
        let mapping = mapping.unwrap();
        write(&device, mapping.segments(), &[0; 220]);
        mapping.complete(100).unwrap();
        assert_eq!((byte(5019), byte(2 * PAGE + 179)), (0, 0));
        assert_eq!(byte(2 * PAGE + 180), tag(2 * PAGE + 180));
        is_at_rest(&domain);
    }
}

#[test]
fn the_bytes_of_a_cursor_are_lent() {
    for bounce in [Bounce::Never, Bounce::Always] {
        let (domain, device) = domain(|builder| builder.bounce(bounce));
        let local = domain.local();
        let (one, two) = (vec![1; 5000], vec![2; 300]);
        let slices = [IoSlice::new(&one), IoSlice::new(&[]), IoSlice::new(&two)];
        let mut source = Cursor::<Source>::own_vec(&slices);
        source.advance(4990);
        let seen = local
            .lend_sg(&mut source, 15, SgLimits::new(), |segments| read(&device, segments))
            .unwrap();
        assert_eq!(seen, [[1; 10].as_slice(), &[2; 5]].concat());
        assert_eq!(source.remaining(), 295, "the cursor has moved");

        let (mut low, mut high) = (vec![0; 3000], vec![0; 6000]);
        let mut slices = [IoSliceMut::new(&mut low), IoSliceMut::new(&mut high)];
        let mut dest = Cursor::<Dest>::own_vec(&mut slices);
        let pattern: Vec<u8> = (0..9000u64).map(tag).collect();
        // More bytes than the cursor has left.
        let written = local.lend_sg(&mut dest, 99_999, SgLimits::new(), |segments| {
            assert!(device.read(segments[0].iova, &mut [0]).is_err(), "the device may only write");
            write(&device, segments, &pattern);
        });
        written.unwrap();
        assert_eq!(dest.remaining(), 0);
        assert_eq!([low, high].concat(), pattern);

        // Zero bytes are an error, and a scope that panics ends the mapping.
        let empty = local.lend_sg(&mut source.clone(), 0, SgLimits::new(), |_| ());
        assert!(matches!(empty, Err(Error::Empty { .. })));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            local.lend_sg(&mut source, 9, SgLimits::new(), |_| panic!("in the scope"))
        }));
        assert!(panicked.is_err());
        assert_eq!(source.remaining(), 295);
        drop(local);
        is_at_rest(&domain);
    }
}

/// A backend that refuses the `nth` mapping.
#[derive(Debug)]
struct Refuses {
    soft: Soft,
    maps: Arc<AtomicU64>,
    nth: Arc<AtomicU64>,
}

// SAFETY: the calls are passed on to a space, or return an error.
#[allow(unsafe_code, reason = "a backend of a test")]
unsafe impl Backend for Refuses {
    fn name(&self) -> &'static str {
        "refuses"
    }

    fn limits(&self) -> Limits {
        self.soft.limits()
    }

    unsafe fn map(&self, iova: Iova, piece: Piece<'_>, prot: Prot) -> Result<(), BackendError> {
        if self.maps.fetch_add(1, Ordering::Relaxed) == self.nth.load(Ordering::Relaxed) {
            let source = std::io::Error::from_raw_os_error(12);
            return Err(BackendError::Io { operation: "a test", source });
        }
        // SAFETY: the caller's promise.
        unsafe { self.soft.map(iova, piece, prot) }
    }

    unsafe fn unmap(&self, ranges: &[AddrRange<Iova>]) -> Result<(), BackendError> {
        // SAFETY: the caller's promise.
        unsafe { self.soft.unmap(ranges) }
    }
}

/// After a refusal at any step, nothing stays mapped or taken.
#[test]
fn a_mapping_that_is_refused_partway_is_undone() {
    let shared = Arc::new(buffer(20 * PAGE));
    // A chunk for the ends, two ends, and three pieces of memory.
    let places = [(100, 2 * PAGE), (9 * PAGE, PAGE), (5 * PAGE, PAGE)];
    let mut refusals = 0;
    for nth in 0.. {
        let backend = Refuses {
            soft: Soft::new().unwrap(),
            maps: Arc::default(),
            nth: Arc::new(AtomicU64::new(nth)),
        };
        let domain = Domain::builder(backend)
            .free_after(None)
            .pool_limit(u64::MAX, WhenFull::Refuse)
            .build();
        let mapped = domain.map_sg(parts(&shared, &places), Direction::ToDevice, SgLimits::new());
        match mapped {
            Ok(mapping) => {
                assert_eq!(mapping.unmap().unwrap().len(), 3);
                break;
            }
            Err(refused) => assert_eq!(refused.value.len(), 3),
        }
        refusals += 1;
        is_at_rest(&domain);
    }
    assert_eq!(refusals, 6);
}

#[test]
fn leaks_and_impossible_lengths_are_reported() {
    let (seen, reports) = std::sync::mpsc::channel();
    let (domain, _) =
        domain(|builder| builder.on_misuse(move |misuse| seen.send(misuse.to_string()).unwrap()));
    let shared = Arc::new(buffer(2 * PAGE));
    let map =
        || domain.map_sg(parts(&shared, &[(0, 9), (50, 9)]), Direction::ToDevice, SgLimits::new());
    map().unwrap().complete(0).unwrap();
    assert!(reports.try_recv().is_err());
    map().unwrap().complete(3).unwrap();
    assert!(reports.recv().unwrap().contains("sg.rs"));
    std::mem::forget(map().unwrap());
    drop(domain);
    assert!(reports.recv().unwrap().contains("leaked"));
}

#[test]
fn places_with_more_bytes_than_there_are_iovas_are_refused() {
    // The memory is sparse, and none of it is used.
    let memory = Heap::MemfdBasePages.reserve(1 << 45).unwrap().finish().unwrap();
    let memory = Arc::new(memory.share(Sealing::Size).unwrap());
    let (domain, _device) = domain(|builder| builder);
    let places = vec![memory; 1 << 19];
    let refused = domain.map_sg(places, Direction::ToDevice, SgLimits::new()).unwrap_err();
    assert!(matches!(*refused.error, Error::TooLong { places: 0x8_0000 }), "{refused}");
    assert_eq!(refused.value.len(), 1 << 19);
    is_at_rest(&domain);
}
