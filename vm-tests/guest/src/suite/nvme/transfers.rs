//! Reads and writes of every kind, on small disks.

use longshore_domain::{Bounce, Direction, Error as DomainError};
use longshore_heap::{Buffer, Heap};
use longshore_mem::Iova;
use longshore_nvme::{
    DataPointerFormat, DiskRange, Error, Interface, Opcode, Options, Segment, load, store,
};
use longshore_vm_tests::{fixture, pattern};

use super::rig;
use crate::outcome::{Passed, TestResult, ensure};

const SMALL: &str = fixture::DRIVEN_SMALL;
const SMALL_SEED: u64 = fixture::DRIVEN_SMALL_SEED;
const RAW: &str = fixture::DRIVEN_RAW;
const RAW_SEED: u64 = fixture::DRIVEN_SEED;

fn buffer_with(seed: u64, offset: u64, len_bytes: u64) -> rig::Result<Buffer> {
    let mut buffer = Heap::Memfd.allocate(len_bytes)?;
    pattern::fill(seed, offset, &mut buffer.write()?);
    Ok(buffer)
}

pub(super) fn written(interface: Interface) -> TestResult {
    // The writable half, without a block at each end.
    let (start, len_bytes) = (fixture::DRIVEN_SMALL_BYTES + 4096, (1 << 20) + 4096 * 3);
    let range = DiskRange { disk_offset: start, offset: 0, len_bytes };
    let around = DiskRange { disk_offset: start - 4096, offset: 0, len_bytes: len_bytes + 8192 };
    let mut before = Vec::new();
    for seed in [21, 22] {
        rig::drive(interface, SMALL, Options::default(), |_, controller, namespace| {
            let read = Heap::Memfd.allocate(around.len_bytes)?;
            before = load(controller, &namespace, 8, &[around], read, |_| {})?.read()?.to_vec();
            let buffer = buffer_with(seed, 0, len_bytes)?;
            let buffer = store(controller, &namespace, 8, &[range], buffer, |_| {})?;
            rig::expect(seed, 0, &buffer.read()?)
        })?;
        // With a controller that was reset in between.
        rig::drive(interface, SMALL, Options::default(), |_, controller, namespace| {
            let read = Heap::Memfd.allocate(around.len_bytes)?;
            let read = load(controller, &namespace, 8, &[around], read, |_| {})?;
            let bytes = read.read()?;
            let end = bytes.len() - 4096;
            rig::expect(seed, 0, &bytes[4096..end])?;
            ensure!(bytes[..4096] == before[..4096], "the block before was changed");
            ensure!(bytes[end..] == before[end..], "the block after was changed");
            Ok(())
        })?;
    }
    Ok(Passed::Yes)
}

/// The unaligned ends of a transfer go through bounce slots, and the bytes beside it do not change.
pub(super) fn unaligned(interface: Interface) -> TestResult {
    rig::drive(interface, RAW, Options::default(), |domain, controller, namespace| {
        let mut queue = controller.queue(1)?;
        let mut bounced = 0;
        for (offset, len_bytes) in [(512, 512), (4, 4096), (100, 65_536), (1000, 500 << 10)] {
            let mut bytes = vec![0xee_u8; len_bytes + 8192];
            let start = bytes.as_ptr().align_offset(4096) + offset;
            let lba = 77 + offset as u64;
            let done = domain.lend_mut(
                &mut bytes[start..start + len_bytes],
                Direction::FromDevice,
                |iova| {
                    let segment = Segment { iova, len_bytes: len_bytes as u64 };
                    queue.submit(Opcode::Read, &namespace, lba, &[segment], ())?;
                    Ok::<_, Error>(queue.wait()?.result?)
                },
            )?;
            done?;
            rig::expect(RAW_SEED, lba * 512, &bytes[start..start + len_bytes])?;
            let (before, behind) = (&bytes[..start], &bytes[start + len_bytes..]);
            let is_left = before.iter().chain(behind).all(|byte| *byte == 0xee);
            ensure!(is_left, "{len_bytes} bytes at {offset}: the bytes beside them were written");
            let counters = domain.counters();
            ensure!(counters.bounced > bounced, "{len_bytes} bytes at {offset}: {counters:?}");
            bounced = counters.bounced;
        }
        // Of the longest transfer only the two ends, each shorter than a granule, are bounced. Their
        // bytes are copied to the slots and back.
        let copied_bytes = domain.counters().copied_bytes;
        ensure!(copied_bytes <= 2 * (512 + 4096 + 65_536 + 2 * 4096), "{copied_bytes} were copied");
        Ok(Passed::Yes)
    })
}

/// Long transfers are split, even into hundreds of commands. A command beyond the limit is refused, by
/// the driver or by the controller.
pub(super) fn limit(interface: Interface) -> TestResult {
    for format in [DataPointerFormat::Prp, DataPointerFormat::Sgl] {
        let options = Options::default().format(format);
        rig::drive(interface, SMALL, options, |domain, controller, namespace| {
            let len_bytes = fixture::DRIVEN_SMALL_BYTES;
            let range = DiskRange { disk_offset: 0, offset: 0, len_bytes };
            let buffer = Heap::Memfd.allocate(len_bytes)?;
            let buffer = load(controller, &namespace, 64, &[range], buffer, |_| {})?;
            rig::expect(SMALL_SEED, 0, &buffer.read()?)?;

            let mapping = domain.map(buffer, Direction::FromDevice).map_err(DomainError::from)?;
            let mut queue = controller.queue(1)?;
            let most = Segment { iova: mapping.iova(), len_bytes: 16 << 10 };
            queue.submit(Opcode::Read, &namespace, 0, &[most], ())?;
            queue.wait()?.result?;
            let more = Segment { len_bytes: (16 << 10) + 4096, ..most };
            let refused = queue.submit(Opcode::Read, &namespace, 0, &[more], ());
            let refused = refused.err().ok_or("more than the limit was accepted")?;
            ensure!(
                matches!(refused.error, Error::TooLong { len_bytes: 0x5000, max_bytes: 0x4000 }),
                "{refused}"
            );
            let torn = Segment { len_bytes: 512, ..most };
            let refused = queue.submit(Opcode::Read, &namespace, 0, &[torn], ());
            let refused = refused.err().ok_or("an eighth of a block was accepted")?;
            ensure!(matches!(refused.error, Error::PartialBlock { .. }), "{refused}");
            Ok(())
        })?;
    }
    Ok(Passed::Yes)
}

/// One range and many, whole pages and parts of pages, with both kinds of lists.
pub(super) fn pointers(interface: Interface) -> TestResult {
    for format in [DataPointerFormat::Prp, DataPointerFormat::Sgl, DataPointerFormat::Shortest] {
        let options = Options::default().format(format);
        rig::drive(interface, RAW, options, |domain, controller, namespace| {
            let map = |len_bytes| -> rig::Result<_> {
                let buffer = Heap::Memfd.allocate(len_bytes)?;
                Ok(domain.map(buffer, Direction::FromDevice).map_err(DomainError::from)?)
            };
            // The mappings are not adjacent, and are used in another order.
            let mut mappings =
                [map(40 << 10)?, map(4 << 10)?, map(8 << 10)?, map(256 << 10)?, map(4 << 10)?];
            let segment = |index: usize, skip: u64, cut: u64| Segment {
                iova: Iova::new(mappings[index].iova().raw() + skip),
                len_bytes: mappings[index].len() - skip - cut,
            };
            let mut shapes = vec![
                vec![segment(1, 0, 0)],
                vec![segment(1, 512, 1024)],
                vec![segment(2, 0, 0)],
                vec![segment(2, 2048, 0)],
                vec![segment(3, 3584, 512)],
                vec![segment(3, 0, 0), segment(1, 0, 0)],
                vec![segment(4, 512, 0), segment(0, 0, 0), segment(2, 0, 0), segment(1, 0, 3584)],
            ];
            if format != DataPointerFormat::Prp {
                // Partial pages in the middle.
                shapes.push(vec![segment(0, 512, 512), segment(2, 1024, 512), segment(4, 0, 4)]);
                shapes.last_mut().ok_or("a shape")?[2].len_bytes -= 508;
            }
            let mut queue = controller.queue(2)?;
            for (index, shape) in shapes.iter().enumerate() {
                let lba = 1000 + 777 * index as u64;
                queue.submit(Opcode::Read, &namespace, lba, shape, ())?;
                queue.wait()?.result.map_err(|error| format!("{format:?}, {index}: {error}"))?;
                let mut at = lba * 512;
                for segment in shape {
                    let mapping = mappings.iter_mut().find(|mapping| {
                        let start = mapping.iova().raw();
                        (start..start + mapping.len()).contains(&segment.iova.raw())
                    });
                    let mapping = mapping.ok_or("a segment of no mapping")?;
                    let mut bytes = vec![0; segment.len_bytes as usize];
                    let offset = segment.iova.raw() - mapping.iova().raw();
                    // The domain's default policy decides which of them are bounced.
                    mapping.sync_for_cpu(offset..offset + segment.len_bytes)?;
                    mapping.read(offset, &mut bytes)?;
                    rig::expect(RAW_SEED, at, &bytes)
                        .map_err(|error| format!("{format:?}, {index}: {error}"))?;
                    at += segment.len_bytes;
                }
            }
            Ok(())
        })?;
    }
    Ok(Passed::Yes)
}

/// Thousands of reads through rings of 65 entries, each checked; mapped and bounced.
pub(super) fn wrapping(interface: Interface) -> TestResult {
    const READS: u64 = 65 * 30;
    rig::drive(interface, RAW, Options::default(), |domain, controller, namespace| {
        for bounce in [Bounce::Never, Bounce::Always] {
            domain.set_bounce(bounce);
            let local = domain.local();
            let mut queue = controller.queue(64)?;
            let mut idle = Vec::new();
            for _ in 0..64 {
                idle.push(Heap::Memfd.allocate(4096)?);
            }
            let (mut given, mut ended) = (0, 0);
            while ended < READS {
                while given < READS
                    && let Some(buffer) = idle.pop()
                {
                    let mapping = local.map_reported(buffer).map_err(DomainError::from)?;
                    let segment = Segment { iova: mapping.iova(), len_bytes: 4096 };
                    // No two reads have the same or adjacent blocks.
                    let lba = given * 1009;
                    queue
                        .submit(Opcode::Read, &namespace, lba, &[segment], (lba, mapping))
                        .map_err(Error::from)?;
                    given += 1;
                }
                ensure!(queue.in_flight() == 64.min(READS - ended) as u16, "{queue:?}");
                let mut done = Some(queue.wait()?);
                while let Some(one) = done {
                    one.result?;
                    let (lba, mapping) = one.payload;
                    let buffer = mapping.complete(4096).map_err(DomainError::from)?;
                    rig::expect(RAW_SEED, lba * 512, &buffer.read()?)?;
                    idle.push(buffer);
                    ended += 1;
                    done = queue.take()?;
                }
            }
            let counters = domain.counters();
            let bounced = if bounce == Bounce::Always { READS } else { 0 };
            ensure!(counters.bounced == bounced, "{counters:?}");
        }
        Ok(Passed::Yes)
    })
}

pub(super) fn refused(interface: Interface) -> TestResult {
    rig::drive(interface, RAW, Options::default(), |domain, controller, namespace| {
        let buffer = Heap::Memfd.allocate(4096)?;
        let mut mapping =
            domain.map(buffer, Direction::Bidirectional).map_err(DomainError::from)?;
        let segment = Segment { iova: mapping.iova(), len_bytes: 4096 };
        let mut queue = controller.queue(4)?;
        // The last blocks are readable, and one block further is an error.
        let last = namespace.blocks - 8;
        queue.submit(Opcode::Read, &namespace, last, &[segment], ())?;
        queue.wait()?.result?;
        queue.submit(Opcode::Read, &namespace, last + 1, &[segment], ())?;
        let refused = queue.wait()?.result.err().ok_or("blocks beyond the end were read")?;
        ensure!((refused.status.code_type(), refused.status.code()) == (0, 0x80), "{refused}");
        let text = refused.to_string();
        let words = ["Read of 8 blocks", &format!("{:#x}", last + 1), "LBA Out of Range"];
        ensure!(words.iter().all(|word| text.contains(word)), "{text}");
        // The disk is read-only.
        queue.submit(Opcode::Write, &namespace, 0, &[segment], ())?;
        let refused = queue.wait()?.result.err().ok_or("a read-only disk was written")?;
        ensure!(refused.to_string().contains("Write of 8 blocks"), "{refused}");
        // The queue continues to work.
        queue.submit(Opcode::Read, &namespace, 5, &[segment], ())?;
        queue.wait()?.result?;
        let mut bytes = [0; 4096];
        mapping.sync_for_cpu(0..4096)?;
        mapping.read(0, &mut bytes)?;
        rig::expect(RAW_SEED, 5 * 512, &bytes)?;
        for depth in [0, u16::MAX] {
            let refused = controller.queue::<()>(depth).err().ok_or("such a queue was created")?;
            ensure!(refused.to_string().contains("possible"), "{refused}");
        }
        let beyond = DiskRange { disk_offset: namespace.len(), offset: 0, len_bytes: 512 };
        let buffer = Heap::Memfd.allocate(4096)?;
        let refused = load(controller, &namespace, 4, &[beyond], buffer, |_| {});
        let refused = refused.err().ok_or("a range beyond the end was loaded")?;
        ensure!(matches!(refused, Error::OutOfRange { .. }), "{refused}");
        Ok(Passed::Yes)
    })
}
