//! Bounce buffers keep the low bits of an address that a device needs, and the bytes before and between
//! transfers have no bytes of other transfers.

use std::io::IoSlice;
use std::num::NonZero;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use longshore_access::Session;
use longshore_domain::backend::Soft;
use longshore_domain::{Bounce, Direction, Domain, Error, SgLimits, SgSegment};
use longshore_heap::{Buffer, Heap};
use longshore_iov::crc32c::Crc32c;
use longshore_iov::{Cursor, Source, copy};
use longshore_mem::{DmaMemory, FileOffset, Granule, Iova};
use proptest::prelude::*;

const PAGE: u64 = 4096;
const LARGEST: u64 = 64 * PAGE;
const SECRET: u8 = 0x5e;
const MASKS: [u64; 7] = [0, 0xfff, 0x1ff, 0x3, 0x800, 0xff0, 0xa5a];

/// A part of a shared buffer.
#[derive(Debug, Clone)]
struct Part {
    buffer: Arc<Buffer>,
    at: u64,
    len_bytes: u64,
}

// SAFETY: a buffer's bytes stay at their address, and no test borrows a slice of a shared one.
#[allow(unsafe_code, reason = "memory of a test")]
unsafe impl DmaMemory for Part {
    fn host(&self) -> NonNull<[u8]> {
        let start = self.buffer.host().cast::<u8>().expose_provenance().get() + self.at as usize;
        let start = NonNull::with_exposed_provenance(NonZero::new(start).unwrap());
        NonNull::slice_from_raw_parts(start, self.len_bytes as usize)
    }

    fn is_writable(&self) -> bool {
        true
    }

    unsafe fn file(&self) -> Option<(BorrowedFd<'_>, FileOffset)> {
        None
    }
}

impl Part {
    fn start(&self) -> u64 {
        self.host().cast::<u8>().addr().get() as u64
    }

    /// Returns the bytes, which no device may access at the time.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len_bytes as usize];
        // SAFETY: within the buffer, of which no slice exists.
        #[allow(unsafe_code, reason = "memory of a test")]
        unsafe {
            self.host().cast::<u8>().as_ptr().copy_to(bytes.as_mut_ptr(), bytes.len());
        }
        bytes
    }
}

fn tag(at: u64) -> u8 {
    (at % 61) as u8 + 1
}

/// Returns a buffer without zero and secret bytes.
fn buffer(len_bytes: u64) -> Arc<Buffer> {
    let mut buffer = Heap::Memfd.allocate(len_bytes).unwrap();
    buffer.write().unwrap().iter_mut().zip(0..).for_each(|(byte, at)| *byte = tag(at));
    Arc::new(buffer)
}

fn secret(len_bytes: u64) -> Part {
    let mut buffer = Heap::Memfd.allocate(len_bytes).unwrap();
    buffer.write().unwrap().fill(SECRET);
    Part { buffer: Arc::new(buffer), at: 0, len_bytes }
}

fn domain(mask: u64, bounce: Bounce) -> (Domain, Session) {
    let soft = Soft::new().unwrap();
    let session = soft.space().session();
    let builder = Domain::builder(soft).free_after(None).bounce(bounce);
    (builder.min_align_mask(mask).unwrap().build(), session)
}

/// Leaves secret bytes in slots of each size that the tests take.
fn fill_slots(domain: &Domain, device: &Session, len_bytes: u64) {
    let bounce = domain.bounce();
    domain.set_bounce(Bounce::Always);
    for direction in [Direction::ToDevice, Direction::FromDevice, Direction::Bidirectional] {
        for len_bytes in [PAGE, len_bytes.next_multiple_of(PAGE), len_bytes + PAGE] {
            let len_bytes = len_bytes.next_multiple_of(PAGE).min(LARGEST);
            let mappings: Vec<_> =
                (0..3).map(|_| domain.map(secret(len_bytes), direction).unwrap()).collect();
            for mapping in &mappings {
                let _ = device.write(mapping.iova(), &vec![SECRET; len_bytes as usize]);
            }
        }
    }
    domain.set_bounce(bounce);
}

/// Checks that the device reads only zeros in the granules of these segments, outside the segments.
fn assert_nothing_else(device: &Session, segments: &[SgSegment]) -> Result<(), TestCaseError> {
    let is_ours = |at: u64| {
        segments
            .iter()
            .any(|part| (part.iova.raw()..part.iova.raw() + part.len_bytes).contains(&at))
    };
    for segment in segments {
        let first = segment.iova.raw() & !(PAGE - 1);
        let end = (segment.iova.raw() + segment.len_bytes).next_multiple_of(PAGE);
        let mut bytes = vec![0; (end - first) as usize];
        if device.read(Iova::new(first), &mut bytes).is_err() {
            continue;
        }
        for (byte, at) in bytes.into_iter().zip(first..) {
            prop_assert!(is_ours(at) || byte == 0, "{byte:#x} at {at:#x} of {segments:?}");
        }
    }
    Ok(())
}

fn is_at_rest(domain: &Domain) -> Result<(), TestCaseError> {
    domain.shrink(Duration::ZERO).unwrap();
    prop_assert_eq!(domain.iovas().free_bytes(), domain.iovas().all_bytes());
    prop_assert_eq!(domain.counters().pool_bytes, 0);
    Ok(())
}

fn bounces() -> impl Strategy<Value = Bounce> {
    prop_oneof![Just(Bounce::Always), Just(Bounce::Never), Just(Bounce::Below(10_000))]
}

fn directions() -> impl Strategy<Value = Direction> {
    prop_oneof![
        Just(Direction::ToDevice),
        Just(Direction::FromDevice),
        Just(Direction::Bidirectional)
    ]
}

fn lengths() -> impl Strategy<Value = u64> {
    let around = |len: u64| len - 3..len + 3;
    prop_oneof![1u64..600, around(PAGE), 1u64..60_000, around(LARGEST), around(LARGEST - PAGE)]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 64 })
    })]

    #[test]
    fn one_place_keeps_its_bits(
        mask in proptest::sample::select(&MASKS[..]),
        skip in 0..2 * PAGE,
        len_bytes in lengths(),
        bounce in bounces(),
        direction in directions(),
        way in 0..3,
        share in 0.0..=1.0,
    ) {
        let (domain, device) = domain(mask, bounce);
        fill_slots(&domain, &device, len_bytes);
        let part = Part { buffer: buffer(300_000), at: skip, len_bytes };
        let (start, before) = (part.start(), part.bytes());
        let mut crc = Crc32c::new();
        let mut mapping = match way {
            0 => domain.map(part.clone(), direction).unwrap(),
            1 => domain.map_summed(part.clone(), direction, &mut crc).unwrap(),
            _ => domain.map_reported(part.clone()).unwrap(),
        };
        let direction = mapping.direction();
        let iova = mapping.iova();
        prop_assert_eq!(iova.raw() & mask, start & mask);
        let segment = [SgSegment { iova, len_bytes }];
        let mut seen = vec![0; len_bytes as usize];
        if way == 1 {
            let mut whole = Crc32c::new();
            let slices = [IoSlice::new(&before)];
            let mut cursor = Cursor::<Source>::own_vec(&slices);
            copy::walk_into(&mut cursor, before.len(), &mut whole).unwrap();
            prop_assert_eq!(crc.finish(), whole.finish());
        }
        if direction != Direction::FromDevice {
            device.read(iova, &mut seen).unwrap();
            prop_assert_eq!(&seen, &before);
        }
        // The granules of a mapping that is not bounced belong to the buffer.
        if mapping.is_bounced() {
            assert_nothing_else(&device, &segment)?;
        }
        // The device writes as many bytes as it reports, and they are there after a sync.
        let written = (len_bytes as f64 * share) as u64;
        if direction != Direction::ToDevice {
            device.write(iova, &vec![0x77; written as usize]).unwrap();
            mapping.sync_for_cpu(0..written).unwrap();
            let mut synced = vec![0; written as usize];
            mapping.read(0, &mut synced).unwrap();
            prop_assert!(synced.iter().all(|byte| *byte == 0x77));
        }
        let written = if direction == Direction::ToDevice { 0 } else { written };
        let after = mapping.complete(written).unwrap().bytes();
        let (first, rest) = after.split_at(written as usize);
        prop_assert!(first.iter().all(|byte| *byte == 0x77));
        prop_assert_eq!(rest, &before[written as usize..]);
        is_at_rest(&domain)?;
    }

    #[test]
    fn each_of_several_places_keeps_its_bits(
        mask in proptest::sample::select(&MASKS[..]),
        gaps in proptest::collection::vec((0..3 * PAGE, 0u64..9000), 1..7),
        bounce in bounces(),
        direction in directions(),
    ) {
        let (domain, device) = domain(mask, bounce);
        let all: u64 = gaps.iter().map(|(_, len)| len).sum();
        prop_assume!(all != 0);
        fill_slots(&domain, &device, all);
        let shared = buffer(300_000);
        let mut at = 0;
        let parts: Vec<_> = gaps
            .iter()
            .map(|(gap, len_bytes)| {
                let part = Part { buffer: Arc::clone(&shared), at: at + gap, len_bytes: *len_bytes };
                at += gap + len_bytes;
                part
            })
            .collect();
        let before: Vec<u8> = parts.iter().flat_map(Part::bytes).collect();
        let mapping = domain.map_sg(parts.clone(), direction, SgLimits::new()).unwrap();
        let segments = mapping.segments().to_vec();
        // The IOVA of each byte of the transfer.
        let places: Vec<u64> = segments
            .iter()
            .flat_map(|part| part.iova.raw()..part.iova.raw() + part.len_bytes)
            .collect();
        prop_assert_eq!(places.len(), before.len());
        let mut at = 0;
        for part in parts.iter().filter(|part| part.len_bytes != 0) {
            let end = at + part.len_bytes as usize;
            prop_assert_eq!(places[at] & mask, part.start() & mask);
            // It is contiguous.
            prop_assert_eq!(places[end - 1] - places[at], part.len_bytes - 1);
            at = end;
        }
        if direction != Direction::FromDevice {
            let mut seen = Vec::new();
            for segment in &segments {
                let mut bytes = vec![0; segment.len_bytes as usize];
                device.read(segment.iova, &mut bytes).unwrap();
                seen.extend(bytes);
            }
            prop_assert_eq!(&seen, &before);
        }
        if bounce != Bounce::Never && mapping.is_bounced() {
            assert_nothing_else(&device, &segments)?;
        }
        let is_written = direction != Direction::ToDevice;
        if is_written {
            for segment in &segments {
                device.write(segment.iova, &vec![0x77; segment.len_bytes as usize]).unwrap();
            }
        }
        mapping.unmap().unwrap();
        let after: Vec<u8> = parts.iter().flat_map(Part::bytes).collect();
        let expected = if is_written { vec![0x77; before.len()] } else { before };
        prop_assert_eq!(after, expected);
        // The bytes outside the parts are unchanged.
        let whole = Part { buffer: shared, at: 0, len_bytes: 300_000 }.bytes();
        let ours = |at: u64| parts.iter().any(|part| (part.at..part.at + part.len_bytes).contains(&at));
        prop_assert!(whole.iter().zip(0..).all(|(byte, at)| ours(at) || *byte == tag(at)));
        is_at_rest(&domain)?;
    }
}

/// The slot must also have room for the bytes before the transfer.
#[test]
fn the_offset_counts_for_the_size_of_the_slot() {
    let part = |at, len_bytes| Part { buffer: buffer(300_000), at, len_bytes };
    for (mask, slot_bytes) in [(0, PAGE), (0x1ff, PAGE), (0xfff, 2 * PAGE)] {
        let (domain, _) = domain(mask, Bounce::Always);
        let mapping = domain.map(part(3072, 1100), Direction::ToDevice).unwrap();
        assert!(mapping.is_bounced());
        let pools = domain.dump().pools;
        assert_eq!((pools.len(), pools[0].slot_bytes), (1, slot_bytes), "{mask:#x}");
    }
    // It fits into the largest slot, but not together with the offset, so its ends are bounced.
    let (domain, _) = domain(0xfff, Bounce::Always);
    let mapping = domain.map(part(5, LARGEST), Direction::Bidirectional).unwrap();
    assert!(mapping.is_bounced());
    assert_eq!(domain.counters().copied_bytes, PAGE);
}

/// The checker reports writes beyond the transfer, but not within it.
#[test]
fn the_checker_allows_for_the_offset() {
    let soft = Soft::new().unwrap();
    let device = soft.space().session();
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    let builder = Domain::builder(soft).bounce(Bounce::Always).min_align_mask(0xfff).unwrap();
    let domain =
        builder.on_misuse(move |misuse| sink.lock().unwrap().push(misuse.to_string())).build();
    for beyond in [0, 1] {
        let part = Part { buffer: buffer(2 * PAGE), at: 1000, len_bytes: 50 };
        let mapping = domain.map(part, Direction::FromDevice).unwrap();
        device.write(mapping.iova(), &vec![9; 50 + beyond]).unwrap();
        mapping.unmap().unwrap();
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), beyond, "{seen:?}");
    }
}

#[test]
fn a_mask_of_the_granule_or_above_is_refused() {
    for mask in [PAGE, 0x1fff, u64::MAX] {
        let refused = Domain::builder(Soft::new().unwrap()).min_align_mask(mask).unwrap_err();
        assert!(
            matches!(refused, Error::AlignMask { mask: seen, granule: Granule::SIZE_4K } if seen == mask),
            "{refused}"
        );
    }
}
