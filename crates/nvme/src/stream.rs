//! Long transfers: what is on a disk into memory that is mapped once, and back.
//!
//! ```text
//!   Stretch ──► commands of at most max_transfer_bytes ──► Queue, as full as it can be
//!     disk_offset, len_bytes ──► offset in the mapping
//! ```

use longshore_domain::{Door, Mapping};
use longshore_mem::{DmaMemory, Iova};

use crate::command::Verb;
use crate::controller::Namespace;
use crate::data::Segment;
use crate::error::{Error, Refused};
use crate::hardware::Hardware;
use crate::queue::Queue;

/// Bytes that lie side by side on the disk and in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Where they begin in the namespace, in bytes.
    pub disk_offset: u64,
    /// Where they begin in the mapping.
    pub offset: u64,
    /// How many.
    pub len_bytes: u64,
}

/// Cuts a stretch into what commands take: each begins where the one before ends, none has more than
/// `max_bytes`, and all but the last have just as many.
///
/// # Panics
/// Where `max_bytes` is zero.
pub fn pieces(stretch: Stretch, max_bytes: u64) -> impl Iterator<Item = Stretch> {
    assert!(max_bytes != 0, "a command that takes nothing");
    let mut rest = stretch;
    std::iter::from_fn(move || {
        let len_bytes = rest.len_bytes.min(max_bytes);
        let piece = Stretch { len_bytes, ..rest };
        rest = Stretch {
            disk_offset: rest.disk_offset + len_bytes,
            offset: rest.offset + len_bytes,
            len_bytes: rest.len_bytes - len_bytes,
        };
        (len_bytes != 0).then_some(piece)
    })
}

/// Whether a stretch can be transferred at all.
///
/// # Errors
/// [`Error::NotBlocks`], [`Error::Beyond`].
pub fn check(stretch: &Stretch, namespace: &Namespace, mapped_bytes: u64) -> Result<(), Error> {
    let Stretch { disk_offset, offset, len_bytes } = *stretch;
    let block_bytes = namespace.block_bytes();
    for bytes in [disk_offset, len_bytes] {
        if bytes & (block_bytes - 1) != 0 {
            return Err(Error::NotBlocks { bytes, block_bytes });
        }
    }
    let is_within = |at: u64, all: u64| at.checked_add(len_bytes).is_some_and(|end| end <= all);
    if !is_within(disk_offset, namespace.len_bytes()) {
        let namespace_bytes = namespace.len_bytes();
        return Err(Error::Beyond { offset: disk_offset, len_bytes, namespace_bytes });
    }
    if !is_within(offset, mapped_bytes) {
        let reason =
            format!("{len_bytes:#x} bytes at {offset:#x} are not in {mapped_bytes:#x} of memory");
        return Err(Error::Extents { reason });
    }
    Ok(())
}

/// Reads stretches of the disk into a mapping, or writes them from it, with as many commands in flight
/// as the queue takes. `progress` is told how many bytes are done, each time some are.
///
/// Commands keep the mapping borrowed, so that it cannot be unmapped before the queue is gone.
///
/// # Errors
/// [`Error`], the first there is. What was in flight then has ended, unless the controller does not
/// answer.
pub fn transfer<'m, 'l, H: Hardware, B: DmaMemory + 'static, D: Door>(
    queue: &mut Queue<'_, '_, H, &'m Mapping<'l, B, D>>,
    verb: Verb,
    namespace: &Namespace,
    stretches: &[Stretch],
    mapping: &'m Mapping<'l, B, D>,
    mut progress: impl FnMut(u64),
) -> Result<u64, Error> {
    for stretch in stretches {
        check(stretch, namespace, mapping.len_bytes())?;
    }
    // Whole blocks, and at least one.
    let max_bytes = queue.controller().max_transfer_bytes() & !(namespace.block_bytes() - 1);
    if max_bytes == 0 {
        let (len_bytes, max_bytes) =
            (namespace.block_bytes(), queue.controller().max_transfer_bytes());
        return Err(Error::TooLong { len_bytes, max_bytes });
    }
    let mut pieces = stretches.iter().flat_map(|stretch| pieces(*stretch, max_bytes)).peekable();
    let (mut given_bytes, mut first) = (0, None);
    while pieces.peek().is_some() || queue.in_flight() != 0 {
        while first.is_none() && queue.in_flight() < queue.depth() {
            let Some(piece) = pieces.next() else { break };
            let iova = Iova::new(mapping.iova().raw() + piece.offset);
            let segment = Segment { iova, len_bytes: piece.len_bytes };
            let lba = piece.disk_offset >> namespace.block_log2;
            if let Err(Refused { error, .. }) =
                queue.submit(verb, namespace, lba, &[segment], mapping)
            {
                first = Some(error);
            } else {
                given_bytes += piece.len_bytes;
            }
        }
        if queue.in_flight() == 0 {
            break;
        }
        let mut done = Some(queue.wait()?);
        while let Some(ended) = done {
            if let Err(error) = ended.result {
                first.get_or_insert(error.into());
            }
            done = queue.take()?;
        }
        // Near enough: commands end in any order.
        progress(given_bytes.saturating_sub(u64::from(queue.in_flight()) * max_bytes));
    }
    queue.ring();
    first.map_or(Ok(given_bytes), Err)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NAMESPACE: Namespace = Namespace { id: 1, blocks: 1000, block_log2: 9 };

    #[test]
    fn what_cannot_be_transferred_is_refused() {
        let stretch = Stretch { disk_offset: 512, offset: 0, len_bytes: 1024 };
        check(&stretch, &NAMESPACE, 1024).unwrap();
        let refused = |stretch| check(&stretch, &NAMESPACE, 1024).unwrap_err();
        let beyond = Stretch { disk_offset: 999 * 512, ..stretch };
        assert!(matches!(refused(beyond), Error::Beyond { namespace_bytes: 512_000, .. }));
        let around = Stretch { disk_offset: u64::MAX - 511, ..stretch };
        assert!(matches!(refused(around), Error::Beyond { .. }));
        let torn = Stretch { disk_offset: 100, ..stretch };
        assert!(matches!(refused(torn), Error::NotBlocks { bytes: 100, block_bytes: 512 }));
        let torn = Stretch { len_bytes: 513, ..stretch };
        assert!(matches!(refused(torn), Error::NotBlocks { bytes: 513, .. }));
        let outside = Stretch { offset: 1, ..stretch };
        assert!(matches!(refused(outside), Error::Extents { .. }));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 8 } else { 512 }, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn pieces_are_the_stretch(
            disk_offset in 0_u64..1 << 40,
            offset in 0_u64..1 << 40,
            len_bytes in 0_u64..1 << 20,
            max_blocks in 1_u64..300,
        ) {
            let max_bytes = max_blocks * 512;
            let stretch = Stretch { disk_offset, offset, len_bytes };
            let all: Vec<_> = pieces(stretch, max_bytes).collect();
            prop_assert_eq!(all.len() as u64, len_bytes.div_ceil(max_bytes));
            let mut at = 0;
            for piece in &all {
                prop_assert_eq!(piece.disk_offset, disk_offset + at);
                prop_assert_eq!(piece.offset, offset + at);
                at += piece.len_bytes;
                prop_assert!(piece.len_bytes == max_bytes || at == len_bytes);
            }
            prop_assert_eq!(at, len_bytes);
        }
    }
}
