//! The description of a command's data: PRP entries and lists (NVM Express Base Specification 2.0, section
//! 4.1.1), scatter-gather lists (section 4.1.2).
//!
//! ```text
//!   one page     PRP1 ──► page                       PRP2 = 0
//!   two pages    PRP1 ──► page,      PRP2 ──► page
//!   more         PRP1 ──► page,      PRP2 ──► list ──► page, page, page …
//!   one segment  SGL1 = data block
//!   more         SGL1 = last segment ──► list of data blocks
//! ```
//!
//! A PRP entry names one page, and a data block of an SGL is any range. Only the first PRP entry may start
//! within a page, and only the last page may end early.

use longshore_mem::Iova;

use crate::command::DataPointer;
use crate::identify::SglSupport;

/// The length of a PRP or SGL list, in bytes. Each command in flight has one.
pub(crate) const LIST_BYTES: usize = 4096;
/// The largest number of PRP entries of a list. More need a list of lists, which this driver does not
/// make.
pub(crate) const PRPS_MAX: usize = LIST_BYTES / 8;
/// The largest number of SGL data blocks of a list.
const BLOCKS_MAX: usize = LIST_BYTES / 16;

/// A range of memory that the controller reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The start of the range.
    pub iova: Iova,
    /// The length of the range.
    pub len_bytes: u64,
}

/// The format in which commands describe the place of their data (PSDT, PRP or SGL for Data Transfer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum DataPointerFormat {
    /// PRP entries and lists.
    Prp,
    /// Scatter-gather lists.
    Sgl,
    /// A scatter-gather list if PRP entries would need a list and the controller supports SGLs,
    /// otherwise PRP entries.
    #[default]
    Shortest,
}

/// The reason why the data of a command cannot be described.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DataPointerError {
    /// A segment is empty, or there is no segment.
    #[error("the transfer has no bytes")]
    Empty,
    /// An address or a length is not a multiple of four.
    #[error(
        "{len_bytes:#x} bytes at IOVA {iova:#x}: the controller supports multiples of four only"
    )]
    Unaligned {
        /// The address of the segment.
        iova: u64,
        /// The length of the segment.
        len_bytes: u64,
    },
    /// A segment starts or ends within a page in the middle of a transfer.
    #[error(
        "the segment at IOVA {iova:#x} begins or ends within a page of {page_bytes:#x} bytes in the \
         middle of a transfer, which PRP entries cannot describe"
    )]
    PartialPage {
        /// The address of the segment.
        iova: u64,
        /// The page size.
        page_bytes: u64,
    },
    /// The transfer has more pages or segments than a list has entries.
    #[error("the transfer has more than the {entries_max} pages or segments that fit into a list")]
    TooMany {
        /// The largest number of entries.
        entries_max: usize,
    },
    /// The controller does not support scatter-gather lists.
    #[error("the controller does not support scatter-gather lists")]
    NoSgl,
}

/// Makes the descriptions that a controller supports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Describer {
    /// The size of a memory page, a power of two.
    pub(crate) page_bytes: u64,
    pub(crate) sgl: SglSupport,
    pub(crate) format: DataPointerFormat,
}

/// A description, and the length of its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    pub(crate) pointer: DataPointer,
    /// The bytes of the list that the controller reads.
    pub(crate) list_len_bytes: usize,
}

impl Describer {
    /// Describes `segments`, and writes the list, which has the address `list_iova`, to `list`.
    #[inline]
    pub(crate) fn describe(
        &self,
        segments: &[Segment],
        list_iova: u64,
        list: &mut [u8; LIST_BYTES],
    ) -> Result<Described, DataPointerError> {
        match self.format {
            DataPointerFormat::Prp => self.prp(segments, list_iova, list),
            DataPointerFormat::Sgl => self.sgl(segments, list_iova, list),
            DataPointerFormat::Shortest if self.sgl == SglSupport::None => {
                self.prp(segments, list_iova, list)
            }
            DataPointerFormat::Shortest => match segments {
                [one] if self.pages(one) <= 2 => self.prp(segments, list_iova, list),
                _ => self.sgl(segments, list_iova, list),
            },
        }
    }

    fn pages(&self, segment: &Segment) -> u64 {
        let offset = segment.iova.raw() & (self.page_bytes - 1);
        offset.saturating_add(segment.len_bytes).div_ceil(self.page_bytes)
    }

    fn prp(
        &self,
        segments: &[Segment],
        list_iova: u64,
        list: &mut [u8; LIST_BYTES],
    ) -> Result<Described, DataPointerError> {
        let mask = self.page_bytes - 1;
        let (mut first, mut second, mut count) = (0, 0, 0_usize);
        for (index, segment) in segments.iter().enumerate() {
            let (iova, len_bytes) = (segment.iova.raw(), segment.len_bytes);
            check(segment, SglSupport::Dwords)?;
            let begins_within = index != 0 && iova & mask != 0;
            let ends_within = index + 1 != segments.len() && (iova + len_bytes) & mask != 0;
            if begins_within || ends_within {
                return Err(DataPointerError::PartialPage { iova, page_bytes: self.page_bytes });
            }
            let mut page = iova;
            for _ in 0..self.pages(segment) {
                match count {
                    0 => first = page,
                    _ => {
                        let at = (count - 1) * 8;
                        let entry = list.get_mut(at..at + 8);
                        let entry =
                            entry.ok_or(DataPointerError::TooMany { entries_max: PRPS_MAX + 1 })?;
                        entry.copy_from_slice(&page.to_le_bytes());
                        second = page;
                    }
                }
                count += 1;
                page = (page & !mask) + self.page_bytes;
            }
        }
        let (second, list_len_bytes) = match count {
            0 => return Err(DataPointerError::Empty),
            1 => (0, 0),
            2 => (second, 0),
            _ => (list_iova, (count - 1) * 8),
        };
        Ok(Described { pointer: DataPointer::Prp(first, second), list_len_bytes })
    }

    fn sgl(
        &self,
        segments: &[Segment],
        list_iova: u64,
        list: &mut [u8; LIST_BYTES],
    ) -> Result<Described, DataPointerError> {
        /// The type SGL Last Segment, in the last byte of a descriptor. The type Data Block is 0.
        const LAST_SEGMENT: u64 = 0x30 << 56;
        for segment in segments {
            check(segment, self.sgl)?;
        }
        match segments {
            [] => Err(DataPointerError::Empty),
            [one] => Ok(Described {
                pointer: DataPointer::Sgl(one.iova.raw(), one.len_bytes),
                list_len_bytes: 0,
            }),
            _ => {
                let list_len_bytes = segments.len() * 16;
                let into = list.get_mut(..list_len_bytes);
                let into = into.ok_or(DataPointerError::TooMany { entries_max: BLOCKS_MAX })?;
                for (into, segment) in into.as_chunks_mut::<16>().0.iter_mut().zip(segments) {
                    into[..8].copy_from_slice(&segment.iova.raw().to_le_bytes());
                    into[8..].copy_from_slice(&segment.len_bytes.to_le_bytes());
                }
                let length = list_len_bytes as u64 | LAST_SEGMENT;
                Ok(Described { pointer: DataPointer::Sgl(list_iova, length), list_len_bytes })
            }
        }
    }
}

/// Returns an error if the controller does not support such a segment.
fn check(segment: &Segment, support: SglSupport) -> Result<(), DataPointerError> {
    let (iova, len_bytes) = (segment.iova.raw(), segment.len_bytes);
    match support {
        SglSupport::None => return Err(DataPointerError::NoSgl),
        SglSupport::Dwords if (iova | len_bytes) & 3 != 0 => {
            return Err(DataPointerError::Unaligned { iova, len_bytes });
        }
        _ => {}
    }
    match u32::try_from(len_bytes) {
        Ok(0) => Err(DataPointerError::Empty),
        Ok(_) if iova.checked_add(len_bytes).is_some() => Ok(()),
        _ => Err(DataPointerError::TooMany { entries_max: PRPS_MAX + 1 }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIST: u64 = 0x7777_0000;

    fn describer(format: DataPointerFormat) -> Describer {
        Describer { page_bytes: 4096, sgl: SglSupport::Bytes, format }
    }

    fn segment(iova: u64, len_bytes: u64) -> Segment {
        Segment { iova: Iova::new(iova), len_bytes }
    }

    fn describe(
        describer: Describer,
        segments: &[Segment],
    ) -> Result<(DataPointer, Vec<u64>), DataPointerError> {
        let mut list = [0; LIST_BYTES];
        let described = describer.describe(segments, LIST, &mut list)?;
        let words = list[..described.list_len_bytes].as_chunks().0;
        Ok((described.pointer, words.iter().copied().map(u64::from_le_bytes).collect()))
    }

    /// Returns the ranges that a controller accesses according to the specification.
    fn found(pointer: DataPointer, list: &[u64], len_bytes: u64) -> Vec<(u64, u64)> {
        match pointer {
            DataPointer::None => vec![],
            DataPointer::Prp(first, second) => {
                let head = len_bytes.min(4096 - first % 4096);
                let mut ranges = vec![(first, head)];
                let rest = len_bytes - head;
                let pages = match rest.div_ceil(4096) {
                    0 => vec![],
                    1 => vec![second],
                    _ => {
                        assert_eq!(second, LIST);
                        list.to_vec()
                    }
                };
                assert_eq!(pages.len() as u64, rest.div_ceil(4096));
                for (index, page) in pages.iter().enumerate() {
                    assert_eq!(page % 4096, 0);
                    ranges.push((*page, (rest - index as u64 * 4096).min(4096)));
                }
                ranges
            }
            DataPointer::Sgl(address, rest) if rest >> 56 == 0 => vec![(address, rest)],
            DataPointer::Sgl(address, rest) => {
                assert_eq!((address, rest >> 56), (LIST, 0x30));
                assert_eq!(rest as u32 as usize, list.len() * 8);
                list.as_chunks::<2>().0.iter().map(|[iova, len]| (*iova, *len)).collect()
            }
        }
    }

    /// Joins adjacent ranges.
    fn bytes(ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for &(start, len) in ranges {
            match joined.last_mut() {
                Some((last, bytes)) if *last + *bytes == start => *bytes += len,
                _ => joined.push((start, len)),
            }
        }
        joined
    }

    #[test]
    fn prp_entries_are_one_two_or_a_list() {
        let prp =
            |iova, len| describe(describer(DataPointerFormat::Prp), &[segment(iova, len)]).unwrap();
        assert_eq!(prp(0x1004, 0xffc), (DataPointer::Prp(0x1004, 0), vec![]));
        assert_eq!(prp(0x1004, 0x1000), (DataPointer::Prp(0x1004, 0x2000), vec![]));
        let (pointer, list) = prp(0x1e00, 0x2000);
        assert_eq!((pointer, list), (DataPointer::Prp(0x1e00, LIST), vec![0x2000, 0x3000]));
    }

    #[test]
    fn segments_that_cannot_be_described_are_refused() {
        let prp = |segments: &[Segment]| {
            describe(describer(DataPointerFormat::Prp), segments).unwrap_err()
        };
        assert_eq!(prp(&[]), DataPointerError::Empty);
        assert_eq!(prp(&[segment(0x1000, 0)]), DataPointerError::Empty);
        assert!(matches!(prp(&[segment(0x1002, 512)]), DataPointerError::Unaligned { .. }));
        let torn = [segment(0x1000, 512), segment(0x2000, 512)];
        assert!(matches!(prp(&torn), DataPointerError::PartialPage { iova: 0x1000, .. }));
        let torn = [segment(0x1000, 4096), segment(0x3200, 512)];
        assert!(matches!(prp(&torn), DataPointerError::PartialPage { iova: 0x3200, .. }));
        assert!(describe(describer(DataPointerFormat::Sgl), &torn).is_ok());
        let most = (PRPS_MAX as u64 + 1) * 4096;
        assert!(describe(describer(DataPointerFormat::Prp), &[segment(0, most)]).is_ok());
        assert!(matches!(prp(&[segment(0, most + 4)]), DataPointerError::TooMany { .. }));
        assert!(matches!(prp(&[segment(0, u64::MAX - 3)]), DataPointerError::TooMany { .. }));
        let none = Describer { sgl: SglSupport::None, ..describer(DataPointerFormat::Sgl) };
        assert_eq!(describe(none, &[segment(0, 4)]).unwrap_err(), DataPointerError::NoSgl);
        let dwords = Describer { sgl: SglSupport::Dwords, ..none };
        assert!(matches!(
            describe(dwords, &[segment(0, 6)]).unwrap_err(),
            DataPointerError::Unaligned { .. }
        ));
    }

    #[test]
    fn the_shortest_format_avoids_lists() {
        let shortest = describer(DataPointerFormat::Shortest);
        let one = |iova, len| describe(shortest, &[segment(iova, len)]).unwrap();
        assert!(matches!(one(0x1000, 0x2000), (DataPointer::Prp(0x1000, 0x2000), _)));
        assert_eq!(one(0x1000, 0x3000), (DataPointer::Sgl(0x1000, 0x3000), vec![]));
        let none = Describer { sgl: SglSupport::None, ..shortest };
        let (pointer, list) = describe(none, &[segment(0x1000, 0x3000)]).unwrap();
        assert_eq!((pointer, list.len()), (DataPointer::Prp(0x1000, LIST), 2));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 8 } else { 512 }, failure_persistence: None, ..ProptestConfig::default() })]

        /// A controller accesses the bytes of the segments, in order.
        #[test]
        fn a_controller_finds_each_byte(
            head in 0_u64..1024,
            pages in prop::collection::vec((0_u64..1 << 20, 1_u64..40), 1..8),
            cut in 0_u64..1024,
            format in prop::sample::select(vec![DataPointerFormat::Prp, DataPointerFormat::Sgl, DataPointerFormat::Shortest]),
            has_sgl: bool,
        ) {
            let mut segments: Vec<_> =
                pages.iter().map(|(page, count)| segment(page * 4096, count * 4096)).collect();
            segments[0] = segment(segments[0].iova.raw() + head * 4, segments[0].len_bytes - head * 4);
            let last = segments.last_mut().unwrap();
            last.len_bytes = last.len_bytes.saturating_sub(cut * 4).max(4);
            let len_bytes = segments.iter().map(|segment| segment.len_bytes).sum();
            let sgl = if has_sgl { SglSupport::Dwords } else { SglSupport::None };
            let describer = Describer { page_bytes: 4096, sgl, format };
            prop_assume!(segments.iter().all(|segment| segment.len_bytes != 0));
            match describe(describer, &segments) {
                Ok((pointer, list)) => {
                    let wanted: Vec<_> =
                        segments.iter().map(|s| (s.iova.raw(), s.len_bytes)).collect();
                    prop_assert_eq!(bytes(&found(pointer, &list, len_bytes)), bytes(&wanted));
                }
                Err(error) => {
                    prop_assert!(error == DataPointerError::NoSgl && !has_sgl && format == DataPointerFormat::Sgl);
                }
            }
        }
    }
}
