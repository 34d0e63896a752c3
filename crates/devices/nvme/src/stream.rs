//! Long transfers between a disk and memory that is mapped once.
//!
//! ```text
//!   DiskRange ──► commands of at most max_transfer_bytes ──► a full Queue
//!     disk_offset, len_bytes ──► offset in the mapping
//! ```

use longshore_domain::{Handle, Mapping};
use longshore_mem::{DmaMemory, Iova};

use crate::command::Opcode;
use crate::controller::Namespace;
use crate::data::Segment;
use crate::error::Error;
use crate::hardware::Hardware;
use crate::queue::Queue;

/// A range that is contiguous on the disk and in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRange {
    /// The start in the namespace, in bytes.
    pub disk_offset: u64,
    /// The start in the mapping, in bytes.
    pub offset: u64,
    /// The length, in bytes.
    pub len_bytes: u64,
}

/// Splits a range into consecutive ranges of `max_bytes`, of which the last may be shorter.
fn split(range: DiskRange, max_bytes: u64) -> impl Iterator<Item = DiskRange> {
    assert!(max_bytes != 0, "a command transfers at least one byte");
    let mut rest = range;
    std::iter::from_fn(move || {
        let len_bytes = rest.len_bytes.min(max_bytes);
        let part = DiskRange { len_bytes, ..rest };
        rest = DiskRange {
            disk_offset: rest.disk_offset + len_bytes,
            offset: rest.offset + len_bytes,
            len_bytes: rest.len_bytes - len_bytes,
        };
        (len_bytes != 0).then_some(part)
    })
}

/// Returns an error if a range cannot be transferred.
fn check(range: &DiskRange, namespace: &Namespace, mapped_bytes: u64) -> Result<(), Error> {
    let DiskRange { disk_offset, offset, len_bytes } = *range;
    let block_bytes = namespace.block_bytes();
    for bytes in [disk_offset, len_bytes] {
        if bytes & (block_bytes - 1) != 0 {
            return Err(Error::PartialBlock { bytes, block_bytes });
        }
    }
    let is_within = |at: u64, all: u64| at.checked_add(len_bytes).is_some_and(|end| end <= all);
    if !is_within(disk_offset, namespace.len()) {
        let namespace_bytes = namespace.len();
        return Err(Error::OutOfRange { offset: disk_offset, len_bytes, namespace_bytes });
    }
    if !is_within(offset, mapped_bytes) {
        return Err(Error::OutOfMapping { offset, len_bytes, mapped_bytes });
    }
    Ok(())
}

/// Reads ranges of the disk into a mapping, or writes them from it, and keeps the queue full meanwhile.
/// Returns the number of bytes. `progress` receives the approximate number of bytes transferred so far.
///
/// Each command borrows the mapping, which therefore cannot be unmapped before the queue is dropped.
///
/// # Errors
/// Returns [`Error::PartialBlock`], [`Error::OutOfRange`] or [`Error::OutOfMapping`] for a range that
/// cannot be transferred, otherwise the first error of a command. No command is in flight then, unless
/// the controller does not respond.
pub fn transfer<'m, 'l, H: Hardware, B: DmaMemory + 'static, D: Handle>(
    queue: &mut Queue<'_, '_, H, &'m Mapping<'l, B, D>>,
    opcode: Opcode,
    namespace: &Namespace,
    ranges: &[DiskRange],
    mapping: &'m Mapping<'l, B, D>,
    mut progress: impl FnMut(u64),
) -> Result<u64, Error> {
    for range in ranges {
        check(range, namespace, mapping.len())?;
    }
    // A transfer has whole blocks, and at least one.
    let max_bytes = queue.controller().max_transfer_bytes() & !(namespace.block_bytes() - 1);
    if max_bytes == 0 {
        let (len_bytes, max_bytes) =
            (namespace.block_bytes(), queue.controller().max_transfer_bytes());
        return Err(Error::TooLong { len_bytes, max_bytes });
    }
    let mut parts = ranges.iter().flat_map(|range| split(*range, max_bytes)).peekable();
    let (mut submitted_bytes, mut error) = (0, None);
    while parts.peek().is_some() || queue.in_flight() != 0 {
        while error.is_none() && queue.in_flight() < queue.depth() {
            let Some(part) = parts.next() else { break };
            let iova = Iova::new(mapping.iova().raw() + part.offset);
            let segment = Segment { iova, len_bytes: part.len_bytes };
            let lba = part.disk_offset >> namespace.block_log2;
            if let Err(refused) = queue.submit(opcode, namespace, lba, &[segment], mapping) {
                error = Some(refused.error);
            } else {
                submitted_bytes += part.len_bytes;
            }
        }
        if queue.in_flight() == 0 {
            break;
        }
        let mut done = Some(queue.wait()?);
        while let Some(ended) = done {
            if let Err(failed) = ended.result {
                error.get_or_insert(failed.into());
            }
            done = queue.take()?;
        }
        // Commands end in any order, so the number is not exact.
        progress(submitted_bytes.saturating_sub(u64::from(queue.in_flight()) * max_bytes));
    }
    queue.ring();
    error.map_or(Ok(submitted_bytes), Err)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NAMESPACE: Namespace = Namespace { id: 1, blocks: 1000, block_log2: 9 };

    #[test]
    fn ranges_that_are_not_valid_are_refused() {
        let range = DiskRange { disk_offset: 512, offset: 0, len_bytes: 1024 };
        check(&range, &NAMESPACE, 1024).unwrap();
        let refused = |range| check(&range, &NAMESPACE, 1024).unwrap_err();
        let beyond = DiskRange { disk_offset: 999 * 512, ..range };
        assert!(matches!(refused(beyond), Error::OutOfRange { namespace_bytes: 512_000, .. }));
        let around = DiskRange { disk_offset: u64::MAX - 511, ..range };
        assert!(matches!(refused(around), Error::OutOfRange { .. }));
        let torn = DiskRange { disk_offset: 100, ..range };
        assert!(matches!(refused(torn), Error::PartialBlock { bytes: 100, block_bytes: 512 }));
        let torn = DiskRange { len_bytes: 513, ..range };
        assert!(matches!(refused(torn), Error::PartialBlock { bytes: 513, .. }));
        let outside = DiskRange { offset: 1, ..range };
        assert!(matches!(refused(outside), Error::OutOfMapping { .. }));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 8 } else { 512 }, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_parts_are_the_range(
            disk_offset in 0_u64..1 << 40,
            offset in 0_u64..1 << 40,
            len_bytes in 0_u64..1 << 20,
            max_blocks in 1_u64..300,
        ) {
            let max_bytes = max_blocks * 512;
            let range = DiskRange { disk_offset, offset, len_bytes };
            let all: Vec<_> = split(range, max_bytes).collect();
            prop_assert_eq!(all.len() as u64, len_bytes.div_ceil(max_bytes));
            let mut at = 0;
            for part in &all {
                prop_assert_eq!(part.disk_offset, disk_offset + at);
                prop_assert_eq!(part.offset, offset + at);
                at += part.len_bytes;
                prop_assert!(part.len_bytes == max_bytes || at == len_bytes);
            }
            prop_assert_eq!(at, len_bytes);
        }
    }
}
