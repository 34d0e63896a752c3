//! Tests for every backend. A rig provides the backend and a device behind it.
#![allow(unreachable_pub, reason = "read by test programs of several crates")]

use std::num::NonZero;
use std::ptr::NonNull;
use std::thread;

use longshore_domain::{
    Bounce, Builder, Direction, DmaPoolOptions, Domain, Error, Mapping, iova::IovaError,
};
use longshore_heap::{Buffer, Heap};
use longshore_mem::{DmaMemory, FileOffset, Iova};

/// A backend, and a device that can reach only what is mapped.
pub trait Rig {
    type Device: Device;

    /// Returns a builder of a new domain, and a device in it.
    fn domain(&self) -> (Builder, Self::Device);
}

/// A device that does DMA for the calling thread.
pub trait Device {
    /// Reads all of it. Returns false if that is not possible.
    fn read(&self, iova: Iova, into: &mut [u8]) -> bool;
    /// Writes all of it. Returns false if that is not possible.
    fn write(&self, iova: Iova, from: &[u8]) -> bool;
}

pub type Case<R> = (&'static str, fn(&R));

/// All cases.
pub fn cases<R: Rig>() -> Vec<Case<R>> {
    vec![
        ("the_device_sees_what_is_mapped", the_device_sees_what_is_mapped),
        ("the_device_may_do_what_the_direction_says", the_device_may_do_what_the_direction_says),
        ("what_was_unmapped_is_out_of_reach", what_was_unmapped_is_out_of_reach),
        ("a_dropped_mapping_is_out_of_reach", a_dropped_mapping_is_out_of_reach),
        ("a_chosen_address_is_kept", a_chosen_address_is_kept),
        ("a_gap_stops_the_device", a_gap_stops_the_device),
        ("a_narrow_device_gets_low_addresses", a_narrow_device_gets_low_addresses),
        ("a_batch_is_taken_back_at_once", a_batch_is_taken_back_at_once),
        ("a_full_space_gives_the_memory_back", a_full_space_gives_the_memory_back),
        ("borrowed_bytes_are_lent_for_a_scope", borrowed_bytes_are_lent_for_a_scope),
        ("coherent_memory_is_seen_by_both", coherent_memory_is_seen_by_both),
        ("elements_of_a_pool_stay_mapped", elements_of_a_pool_stay_mapped),
        ("a_mapping_is_used_more_than_once", a_mapping_is_used_more_than_once),
        ("odd_memory_is_refused", odd_memory_is_refused),
        ("threads_map_beside_each_other", threads_map_beside_each_other),
    ]
}

const PAGE: u64 = 4096;

fn buffer(len_bytes: u64, fill: u8) -> Buffer {
    let mut buffer = Heap::Memfd.allocate(len_bytes).unwrap();
    buffer.write().unwrap().fill(fill);
    buffer
}

fn starts_with<D: Device>(device: &D, iova: Iova, len: usize, fill: u8) -> bool {
    let mut bytes = vec![!fill; len];
    device.read(iova, &mut bytes) && bytes.iter().all(|byte| *byte == fill)
}

fn at(iova: Iova, offset: u64) -> Iova {
    iova.checked_add(offset).unwrap()
}

fn all_is_free(domain: &Domain) {
    let iovas = domain.iovas();
    assert_eq!(iovas.free_bytes(), iovas.all_bytes());
    let counters = domain.counters();
    assert_eq!((counters.maps, counters.leaked), (counters.unmaps, 0));
}

fn the_device_sees_what_is_mapped<R: Rig>(rig: &R) {
    let (builder, device) = rig.domain();
    let domain = builder.build();
    for len in [PAGE, 3 * PAGE, 2 << 20, (2 << 20) + PAGE] {
        let mapping = domain.map(buffer(len, 0x17), Direction::Bidirectional).unwrap();
        assert_eq!(mapping.len(), len);
        assert!(starts_with(&device, mapping.iova(), len as usize, 0x17));
        assert!(device.write(at(mapping.iova(), len - 5), b"tail!"));
        let buffer = mapping.unmap().unwrap();
        assert_eq!(&buffer.read().unwrap()[len as usize - 5..], b"tail!");
    }
    all_is_free(&domain);
}

fn the_device_may_do_what_the_direction_says<R: Rig>(rig: &R) {
    let (builder, device) = rig.domain();
    let domain = builder.build();
    let mapping = domain.map(buffer(PAGE, 1), Direction::ToDevice).unwrap();
    assert!(starts_with(&device, mapping.iova(), 8, 1));
    assert!(!device.write(mapping.iova(), &[2; 8]));
    assert!(mapping.unmap().unwrap().read().unwrap().iter().all(|byte| *byte == 1));
    let mapping = domain.map(buffer(PAGE, 1), Direction::FromDevice).unwrap();
    assert!(device.write(mapping.iova(), &[2; 8]));
    assert_eq!(mapping.unmap().unwrap().read().unwrap()[..9], [2, 2, 2, 2, 2, 2, 2, 2, 1]);
    all_is_free(&domain);
}

fn what_was_unmapped_is_out_of_reach<R: Rig>(rig: &R) {
    let (builder, device) = rig.domain();
    let domain = builder.build();
    let [one, other] =
        [3, 4].map(|fill| domain.map(buffer(2 * PAGE, fill), Direction::Bidirectional).unwrap());
    let iova = one.iova();
    let memory = one.unmap().unwrap();
    for page in [0, PAGE] {
        assert!(!device.write(at(iova, page), &[9]));
        assert!(!device.read(at(iova, page), &mut [0]));
    }
    assert!(memory.read().unwrap().iter().all(|byte| *byte == 3));
    assert!(starts_with(&device, other.iova(), 2 * PAGE as usize, 4));
    drop(other);
    all_is_free(&domain);
}

fn a_dropped_mapping_is_out_of_reach<R: Rig>(rig: &R) {
    let (builder, device) = rig.domain();
    let domain = builder.build();
    let mapping = domain.map(buffer(PAGE, 3), Direction::Bidirectional).unwrap();
    let iova = mapping.iova();
    assert!(device.write(iova, &[1]));
    drop(mapping);
    assert!(!device.write(iova, &[1]));
    all_is_free(&domain);
}

fn a_chosen_address_is_kept<R: Rig>(rig: &R) {
    let (builder, device) = rig.domain();
    let domain = builder.build();
    let iova = Iova::new(0x40_0000);
    let mapping = domain.map_at(iova, buffer(2 * PAGE, 5), Direction::ToDevice).unwrap();
    assert_eq!(mapping.iova(), iova);
    assert!(starts_with(&device, iova, 2 * PAGE as usize, 5));
    let refused = domain.map_at(at(iova, PAGE), buffer(PAGE, 6), Direction::ToDevice).unwrap_err();
    assert!(matches!(*refused.error, Error::Iova(IovaError::NotFree { .. })), "{refused}");
    assert!(refused.value.read().unwrap().iter().all(|byte| *byte == 6));
    for odd in [1, u64::MAX - PAGE + 1] {
        let refused = domain.map_at(Iova::new(odd), buffer(2 * PAGE, 6), Direction::ToDevice);
        assert!(matches!(*refused.unwrap_err().error, Error::Iova(IovaError::Claim { .. })));
    }
    drop(mapping);
    all_is_free(&domain);
}

fn a_gap_stops_the_device<R: Rig>(rig: &R) {
    let (builder, device) = rig.domain();
    let domain = builder.guard_bytes(1).build();
    let map = |fill| domain.map(buffer(PAGE, fill), Direction::Bidirectional).unwrap();
    let mappings: Vec<_> = (0..8).map(map).collect();
    for mapping in &mappings {
        assert!(device.write(at(mapping.iova(), PAGE - 1), &[1]));
        assert!(!device.write(at(mapping.iova(), PAGE), &[1]));
    }
    drop(mappings);
    all_is_free(&domain);
}

fn a_narrow_device_gets_low_addresses<R: Rig>(rig: &R) {
    let (builder, device) = rig.domain();
    let domain = builder.address_bits(32).build();
    assert!(domain.iovas().all_bytes() < 1 << 32);
    let mapping = domain.map(buffer(3 * PAGE, 7), Direction::ToDevice).unwrap();
    assert!(mapping.iova().raw() + mapping.len() <= 1 << 32);
    assert!(starts_with(&device, mapping.iova(), 3 * PAGE as usize, 7));
    drop(mapping);
    all_is_free(&domain);
}

fn a_batch_is_taken_back_at_once<R: Rig>(rig: &R) {
    let (builder, device) = rig.domain();
    let domain = builder.build();
    let [local, other] = [domain.local(), domain.local()];
    let mut batch = local.batch();
    let mut iovas = Vec::new();
    for fill in 0..20 {
        let mapping = local.map(buffer(PAGE, fill), Direction::Bidirectional).unwrap();
        iovas.push(mapping.iova());
        mapping.unmap_deferred(&mut batch).unwrap();
    }
    // Before the flush the device can still write.
    assert!(device.write(iovas[3], &[99]));
    let before = domain.counters().flushes;
    let mut back = Vec::new();
    batch.flush(|buffer| back.push(buffer)).unwrap();
    assert_eq!(domain.counters().flushes - before, 1);
    assert!(batch.is_empty());
    assert!(iovas.iter().all(|iova| !device.write(*iova, &[1])));
    let first = |buffer: &Buffer| buffer.read().unwrap()[0];
    assert_eq!(first(&back[3]), 99);
    assert!(back.iter().enumerate().all(|(nth, buffer)| nth == 3 || first(buffer) == nth as u8));
    batch.flush(|_| panic!("it is empty")).unwrap();

    // A mapping of another handle is refused, and still exists.
    let mapping = other.map(buffer(PAGE, 1), Direction::ToDevice).unwrap();
    let refused = mapping.unmap_deferred(&mut batch).unwrap_err();
    assert!(matches!(*refused.error, Error::OtherHandle { .. }));
    assert!(starts_with(&device, refused.value.iova(), 8, 1));
    drop((refused, batch));
    drop((local, other));
    all_is_free(&domain);
}

fn a_full_space_gives_the_memory_back<R: Rig>(rig: &R) {
    let (builder, _device) = rig.domain();
    // 64 KiB of addresses, without the first page.
    let domain = builder.address_bits(16).build();
    let map = |len| domain.map(buffer(len, 8), Direction::ToDevice).ok();
    let mut mappings: Vec<_> = (0..15).map(|_| map(PAGE).unwrap()).collect();
    let refused = domain.map(buffer(PAGE, 8), Direction::ToDevice).unwrap_err();
    let Error::Iova(IovaError::Full { free_bytes: 0, .. }) = *refused.error else {
        panic!("{refused}")
    };
    assert_eq!(refused.value.read().unwrap()[0], 8);
    mappings.sort_by_key(Mapping::iova);
    drop(mappings.drain(4..6));
    let two = map(2 * PAGE).unwrap();
    assert!(map(PAGE).is_none());
    drop((two, mappings));
    all_is_free(&domain);
}

fn borrowed_bytes_are_lent_for_a_scope<R: Rig>(rig: &R) {
    let (builder, device) = rig.domain();
    let domain = builder.build();
    let bytes = [6u8; 700];
    let iova = domain
        .lend(&bytes[1..], |iova| {
            assert!(starts_with(&device, iova, 699, 6));
            assert!(!device.write(iova, &[1]));
            iova
        })
        .unwrap();
    // The first length fits into a bounce buffer, and the second does not.
    for len in [700, 400_000] {
        let mut bytes = vec![6u8; len];
        let lent = domain.lend_mut(&mut bytes[3..], Direction::FromDevice, |iova| {
            assert!(device.write(at(iova, 1), &[7; 600]));
            iova
        });
        assert_eq!(bytes[..4], [6; 4]);
        assert_eq!(bytes[4..604], [7; 600]);
        assert!(bytes[604..].iter().all(|byte| *byte == 6));
        lent.unwrap();
    }
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        domain.lend(&bytes, |_| panic!("in the scope"))
    }));
    assert!(panicked.is_err());
    domain.shrink(std::time::Duration::ZERO).unwrap();
    assert!(!device.read(iova, &mut [0]));
    all_is_free(&domain);
}

/// Bounced and direct.
fn a_mapping_is_used_more_than_once<R: Rig>(rig: &R) {
    let (builder, device) = rig.domain();
    let domain = builder.bounce(Bounce::Below(2 * PAGE)).build();
    for (len, is_bounced) in [(PAGE, true), (4 * PAGE, false)] {
        let mut mapping = domain.map(buffer(len, 1), Direction::Bidirectional).unwrap();
        assert_eq!(mapping.is_bounced(), is_bounced);
        for turn in 2..6u8 {
            // The CPU's turn, and then the device's.
            mapping.sync_for_cpu(100..150).unwrap();
            mapping.write(100, &[turn; 50]).unwrap();
            mapping.sync_for_device(90..200).unwrap();
            assert!(starts_with(&device, at(mapping.iova(), 100), 50, turn));
            assert!(starts_with(&device, at(mapping.iova(), 150), 10, 1));
            assert!(device.write(at(mapping.iova(), 3000), &[!turn; 20]));
            mapping.sync_for_cpu(2999..3020).unwrap();
            let mut seen = [0; 21];
            mapping.read(2999, &mut seen).unwrap();
            assert_eq!((seen[0], &seen[1..]), (1, &[!turn; 20][..]));
        }
        for bytes in [len..len + 1, 0..len + 1, u64::MAX..u64::MAX] {
            let refused = mapping.sync_for_cpu(bytes).unwrap_err();
            assert!(matches!(refused, Error::Outside { .. }), "{refused}");
        }
        assert!(mapping.read(len - 1, &mut [0; 2]).is_err());
        assert!(mapping.write(u64::MAX, &[0; 2]).is_err());
        assert!(mapping.read(len, &mut []).is_ok());
        let memory = mapping.unmap().unwrap();
        assert_eq!(memory.read().unwrap()[100..150], [5; 50]);
        assert_eq!(memory.read().unwrap()[3000..3020], [!5; 20]);
    }
    domain.shrink(std::time::Duration::ZERO).unwrap();
    all_is_free(&domain);
}

fn coherent_memory_is_seen_by_both<R: Rig>(rig: &R) {
    let (builder, device) = rig.domain();
    let domain = builder.build();
    let mut ring = domain.alloc_coherent(5000).unwrap();
    assert_eq!(ring.len(), 8192);
    assert!(starts_with(&device, ring.iova(), 8192, 0));
    for turn in 1..50u8 {
        ring.view_mut().write(turn.into(), &[turn]).unwrap();
        assert!(starts_with(&device, at(ring.iova(), turn.into()), 1, turn));
        assert!(device.write(at(ring.iova(), 4096), &[turn]));
        let mut seen = [0];
        ring.view().read(4096, &mut seen).unwrap();
        assert_eq!(seen, [turn]);
    }
    drop(ring);
    assert!(domain.alloc_coherent(u64::MAX).is_err());
    all_is_free(&domain);
}

fn elements_of_a_pool_stay_mapped<R: Rig>(rig: &R) {
    let (builder, device) = rig.domain();
    // The reclaim thread could hold cached elements at any moment, so it is off.
    let domain = builder.free_after(None).build();
    let options = DmaPoolOptions::new().limit(600);
    let pool = domain.dma_pool(1024, 1024, options.boundary(PAGE)).unwrap();
    let mut elements: Vec<_> = (0..600).map(|_| pool.take().unwrap()).collect();
    // Only some of them, because emulated devices are slow.
    for (nth, element) in elements.iter_mut().enumerate().skip(39).step_by(40) {
        let fill = nth as u8;
        element.write_at(0, &[fill; 1000]).unwrap();
        assert!(device.write(at(element.iova(), 1000), &[!fill; 24]));
    }
    for (nth, element) in elements.iter().enumerate().skip(39).step_by(40) {
        assert!(starts_with(&device, element.iova(), 1000, nth as u8));
        let mut tail = [0; 24];
        element.read_at(1000, &mut tail).unwrap();
        assert_eq!(tail, [!(nth as u8); 24]);
    }
    let last = elements.pop().unwrap().freeze().slice(500..1000).unwrap();
    let iova = last.iova();
    drop((elements, pool));
    assert!(starts_with(&device, iova, 500, 599_u32 as u8));
    thread::scope(|scope| scope.spawn(move || drop(last)).join().unwrap());
    assert!(!device.read(iova, &mut [0]) && !device.write(iova, &[1]));

    let pool = domain.dma_pool(64, 64, options.direction(Direction::ToDevice)).unwrap();
    let mut element = pool.take().unwrap();
    element.write_at(0, &[5; 64]).unwrap();
    assert!(starts_with(&device, element.iova(), 64, 5) && !device.write(element.iova(), &[6]));
    let mut seen = [0];
    element.read_at(0, &mut seen).unwrap();
    assert_eq!(seen, [5]);
    drop((pool, element));
    all_is_free(&domain);
}

/// Memory that does not consist of whole pages.
#[derive(Debug)]
struct Odd(u64, usize);

// SAFETY: it is refused before it is accessed.
#[allow(unsafe_code, reason = "promises nothing that is used")]
unsafe impl DmaMemory for Odd {
    fn host(&self) -> NonNull<[u8]> {
        let start = NonNull::without_provenance(NonZero::new(self.0 as usize).unwrap());
        NonNull::slice_from_raw_parts(start, self.1)
    }

    fn is_writable(&self) -> bool {
        true
    }

    unsafe fn file(&self) -> Option<(std::os::fd::BorrowedFd<'_>, FileOffset)> {
        None
    }
}

fn odd_memory_is_refused<R: Rig>(rig: &R) {
    let (builder, _device) = rig.domain();
    let domain = builder.build();
    for odd in [Odd(0x1001, 4096), Odd(0x1000, 4095), Odd(0x1800, 0x800)] {
        let refused = domain.map_at(Iova::new(0x10_0000), odd, Direction::ToDevice).unwrap_err();
        assert!(matches!(*refused.error, Error::Unaligned { .. }), "{refused}");
    }
    let refused = domain.map(Odd(0x1000, 0), Direction::ToDevice).unwrap_err();
    assert!(matches!(*refused.error, Error::Empty { .. }), "{refused}");
    all_is_free(&domain);
}

fn threads_map_beside_each_other<R: Rig>(rig: &R) {
    const TURNS: usize = 300;
    let (builder, device) = rig.domain();
    let domain = builder.build();
    thread::scope(|scope| {
        for thread in 0..3u8 {
            let domain = &domain;
            scope.spawn(move || {
                let local = domain.local();
                let mut held = Vec::new();
                for turn in 0..TURNS {
                    let len = (turn % 5 + 1) as u64 * PAGE;
                    held.push(local.map(buffer(len, thread), Direction::Bidirectional).unwrap());
                    if held.len() > 7 {
                        let memory = held.swap_remove(turn % held.len()).unmap().unwrap();
                        assert!(memory.read().unwrap().iter().all(|byte| *byte == thread));
                    }
                }
            });
        }
        let mapping = domain.map(buffer(PAGE, 77), Direction::Bidirectional).unwrap();
        for turn in 0..TURNS {
            assert!(device.write(mapping.iova(), &[turn as u8]));
            assert!(starts_with(&device, mapping.iova(), 1, turn as u8));
        }
    });
    all_is_free(&domain);
}
