//! Checksums of the bytes that a device reads, and of those that it has written.

use longshore_access::Session;
use longshore_domain::backend::Soft;
use longshore_domain::{Bounce, Direction, Domain};
use longshore_heap::{Buffer, Heap};
use longshore_iov::checksum::{self, Checksum};
use longshore_iov::crc32c::{self, Crc32c};
use longshore_mem::Iova;

fn domain(bounce: Bounce) -> (Domain, Session) {
    let soft = Soft::new().unwrap();
    let session = soft.space().session();
    (Domain::builder(soft).bounce(bounce).free_after(None).build(), session)
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len as u32).map(|nth| (nth.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn buffer(content: &[u8]) -> Buffer {
    let mut buffer = Heap::Memfd.allocate(content.len() as u64).unwrap();
    buffer.write().unwrap().copy_from_slice(content);
    buffer
}

/// Transfers that go through a slot, whose ends are in slots, and that are mapped directly.
#[test]
fn the_checksum_covers_the_bytes_for_the_device() {
    for bounce in [Bounce::Never, Bounce::Always] {
        let (domain, device) = domain(bounce);
        for len in [1, 9, 4096, 5000, 65_536, 262_144, 300_001] {
            let content = bytes(len);
            let (mut sum, mut crc) = (Checksum::new(), Crc32c::new());
            let local = domain.local();
            let copied = domain.counters().copied_bytes;
            let mapping =
                local.map_summed(buffer(&content), Direction::ToDevice, &mut sum).unwrap();
            let is_slot = mapping.is_bounced() && len <= 262_144;
            if is_slot {
                assert_eq!(domain.counters().copied_bytes - copied, len as u64, "copied once");
            }
            let mut seen = vec![0; len];
            device.read(mapping.iova(), &mut seen).unwrap();
            assert_eq!((seen == content, sum.finish()), (true, checksum::of(&content)), "{len}");
            let memory = mapping.unmap().unwrap();
            let mapping = domain.map_summed(memory, Direction::Bidirectional, &mut crc).unwrap();
            assert_eq!(crc.finish(), crc32c::of(&content), "{len}");
            drop(mapping);
        }
    }
}

#[test]
fn the_checksum_covers_the_bytes_of_the_device() {
    for bounce in [Bounce::Never, Bounce::Always] {
        let (domain, device) = domain(bounce);
        for len in [1, 9, 4096, 5000, 65_536, 262_144, 300_001, 303_104] {
            let content = bytes(len);
            for written in [0, 1, len / 2, len - 1, len] {
                let local = domain.local();
                let mapping = local.map_reported(buffer(&vec![7; len])).unwrap();
                device.write(mapping.iova(), &content[..written]).unwrap();
                let mut crc = Crc32c::new();
                let memory = mapping.complete_summed(written as u64, &mut crc).unwrap();
                assert_eq!(crc.finish(), crc32c::of(&content[..written]), "{written} of {len}");
                let after = memory.read().unwrap();
                let (done, rest) = after.split_at(written);
                assert!(done == &content[..written] && rest.iter().all(|byte| *byte == 7));
            }
        }
        // If the device may only read, the sum is that of the bytes that it was given.
        let content = bytes(5000);
        let mapping = domain.map(buffer(&content), Direction::ToDevice).unwrap();
        let mut sum = Checksum::new();
        mapping.complete_summed(5000, &mut sum).unwrap();
        assert_eq!(sum.finish(), checksum::of(&content));
    }
}

/// The sum is that of the bytes in the memory, even if the device goes on writing to a slot.
#[test]
fn a_device_that_goes_on_writing_does_not_change_the_sum() {
    let (domain, device) = domain(Bounce::Always);
    let mapping = domain.map_reported(buffer(&[0; 65_536])).unwrap();
    let iova = mapping.iova();
    std::thread::scope(|scope| {
        let ends = scope.spawn(move || {
            let mut crc = Crc32c::new();
            let memory = mapping.complete_summed(65_536, &mut crc).unwrap();
            assert_eq!(crc.finish(), crc32c::of(&memory.read().unwrap()));
        });
        let mut turn = 0u8;
        while !ends.is_finished() {
            turn = turn.wrapping_add(1);
            for at in (0..65_536).step_by(512) {
                // The memory of the pool stays mapped, so that this cannot fail after the end.
                device.write(Iova::new(iova.raw() + at), &[turn; 16]).unwrap();
            }
        }
        ends.join().unwrap();
    });
}
