//! Where the data of a command is: PRP entries and lists (NVM Express Base Specification 2.0, section
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
//! A PRP leads to one page, however many lie side by side; a data block of an SGL is any range. Only the
//! first PRP may begin, and only the last page end, within a page.

use longshore_mem::Iova;

use crate::command::DataPointer;
use crate::identify::SglSupport;

/// Bytes of a list, PRP or SGL: one for each command that may be in flight.
pub const LIST_BYTES: usize = 4096;
/// The most PRP entries of a list. More would need a list of lists, which this driver does not make.
pub const PRPS_MAX: usize = LIST_BYTES / 8;
/// The most data blocks of a list.
pub const BLOCKS_MAX: usize = LIST_BYTES / 16;

/// A range of what a device can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins.
    pub iova: Iova,
    /// How many bytes.
    pub len_bytes: u64,
}

/// How data is described.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Format {
    /// By PRP entries.
    Prp,
    /// By scatter-gather lists.
    Sgl,
    /// By a scatter-gather list where PRP entries would need a list and the controller takes the
    /// other, else by PRP entries.
    #[default]
    Shortest,
}

/// Why data cannot be described.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A segment has no bytes, or there is none.
    #[error("a transfer of no bytes")]
    Empty,
    /// An address or a length that the controller cannot take.
    #[error("{len_bytes:#x} bytes at IOVA {iova:#x}: the controller wants multiples of four")]
    Unaligned {
        /// The address.
        iova: u64,
        /// The length.
        len_bytes: u64,
    },
    /// Segments that touch within a page.
    #[error(
        "the segment at IOVA {iova:#x} begins or ends within a page of {page_bytes:#x} bytes in the \
         middle of a transfer, which PRP entries cannot say"
    )]
    Ragged {
        /// The address.
        iova: u64,
        /// The page's length.
        page_bytes: u64,
    },
    /// A list has no room for it.
    #[error("a transfer of more than {entries_max} pieces: no list has room for it")]
    TooMany {
        /// What it has room for.
        entries_max: usize,
    },
    /// The controller has no scatter-gather lists.
    #[error("the controller takes no scatter-gather lists")]
    NoSgl,
}

/// What a controller takes.
#[derive(Clone, Copy, Debug)]
pub struct Describer {
    /// The length of its memory pages, a power of two.
    pub page_bytes: u64,
    /// Whether it takes scatter-gather lists.
    pub sgl: SglSupport,
    /// Which of them are made.
    pub format: Format,
}

/// Where the data is, and how many bytes of the list that takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Described {
    /// For the command.
    pub pointer: DataPointer,
    /// So many bytes of the list are the controller's to read.
    pub list_len_bytes: usize,
}

impl Describer {
    /// Describes `segments`. What goes into the list, which the controller finds at `list_iova`, is put
    /// into `list`.
    ///
    /// # Errors
    /// [`DataError`].
    #[inline]
    pub fn describe(
        &self,
        segments: &[Segment],
        list_iova: u64,
        list: &mut [u8; LIST_BYTES],
    ) -> Result<Described, DataError> {
        match self.format {
            Format::Prp => self.prp(segments, list_iova, list),
            Format::Sgl => self.sgl(segments, list_iova, list),
            Format::Shortest if self.sgl == SglSupport::None => self.prp(segments, list_iova, list),
            Format::Shortest => match segments {
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
    ) -> Result<Described, DataError> {
        let mask = self.page_bytes - 1;
        let (mut first, mut second, mut count) = (0, 0, 0_usize);
        for (index, segment) in segments.iter().enumerate() {
            let (iova, len_bytes) = (segment.iova.raw(), segment.len_bytes);
            check(segment, SglSupport::Dwords)?;
            let begins_within = index != 0 && iova & mask != 0;
            let ends_within = index + 1 != segments.len() && (iova + len_bytes) & mask != 0;
            if begins_within || ends_within {
                return Err(DataError::Ragged { iova, page_bytes: self.page_bytes });
            }
            let mut page = iova;
            for _ in 0..self.pages(segment) {
                match count {
                    0 => first = page,
                    _ => {
                        let at = (count - 1) * 8;
                        let entry = list.get_mut(at..at + 8);
                        let entry =
                            entry.ok_or(DataError::TooMany { entries_max: PRPS_MAX + 1 })?;
                        entry.copy_from_slice(&page.to_le_bytes());
                        second = page;
                    }
                }
                count += 1;
                page = (page & !mask) + self.page_bytes;
            }
        }
        let (second, list_len_bytes) = match count {
            0 => return Err(DataError::Empty),
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
    ) -> Result<Described, DataError> {
        /// SGL Last Segment descriptor, in the descriptor's last byte. A Data Block's is 0.
        const LAST_SEGMENT: u64 = 0x30 << 56;
        for segment in segments {
            check(segment, self.sgl)?;
        }
        match segments {
            [] => Err(DataError::Empty),
            [one] => Ok(Described {
                pointer: DataPointer::Sgl(one.iova.raw(), one.len_bytes),
                list_len_bytes: 0,
            }),
            _ => {
                let list_len_bytes = segments.len() * 16;
                let into = list.get_mut(..list_len_bytes);
                let into = into.ok_or(DataError::TooMany { entries_max: BLOCKS_MAX })?;
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

/// Whether the controller can take the segment at all.
fn check(segment: &Segment, support: SglSupport) -> Result<(), DataError> {
    let (iova, len_bytes) = (segment.iova.raw(), segment.len_bytes);
    match support {
        SglSupport::None => return Err(DataError::NoSgl),
        SglSupport::Dwords if (iova | len_bytes) & 3 != 0 => {
            return Err(DataError::Unaligned { iova, len_bytes });
        }
        _ => {}
    }
    match u32::try_from(len_bytes) {
        Ok(0) => Err(DataError::Empty),
        Ok(_) if iova.checked_add(len_bytes).is_some() => Ok(()),
        _ => Err(DataError::TooMany { entries_max: PRPS_MAX + 1 }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIST: u64 = 0x7777_0000;

    fn describer(format: Format) -> Describer {
        Describer { page_bytes: 4096, sgl: SglSupport::Bytes, format }
    }

    fn segment(iova: u64, len_bytes: u64) -> Segment {
        Segment { iova: Iova::new(iova), len_bytes }
    }

    fn describe(
        describer: Describer,
        segments: &[Segment],
    ) -> Result<(DataPointer, Vec<u64>), DataError> {
        let mut list = [0; LIST_BYTES];
        let described = describer.describe(segments, LIST, &mut list)?;
        let words = list[..described.list_len_bytes].as_chunks().0;
        Ok((described.pointer, words.iter().copied().map(u64::from_le_bytes).collect()))
    }

    /// The bytes that a controller finds, as ranges, by the specification's words alone.
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

    /// Each byte's address, in order.
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
    fn the_three_kinds_of_prp() {
        let prp = |iova, len| describe(describer(Format::Prp), &[segment(iova, len)]).unwrap();
        assert_eq!(prp(0x1004, 0xffc), (DataPointer::Prp(0x1004, 0), vec![]));
        assert_eq!(prp(0x1004, 0x1000), (DataPointer::Prp(0x1004, 0x2000), vec![]));
        let (pointer, list) = prp(0x1e00, 0x2000);
        assert_eq!((pointer, list), (DataPointer::Prp(0x1e00, LIST), vec![0x2000, 0x3000]));
    }

    #[test]
    fn what_cannot_be_said_is_refused() {
        let prp = |segments: &[Segment]| describe(describer(Format::Prp), segments).unwrap_err();
        assert_eq!(prp(&[]), DataError::Empty);
        assert_eq!(prp(&[segment(0x1000, 0)]), DataError::Empty);
        assert!(matches!(prp(&[segment(0x1002, 512)]), DataError::Unaligned { .. }));
        let torn = [segment(0x1000, 512), segment(0x2000, 512)];
        assert!(matches!(prp(&torn), DataError::Ragged { iova: 0x1000, .. }));
        let torn = [segment(0x1000, 4096), segment(0x3200, 512)];
        assert!(matches!(prp(&torn), DataError::Ragged { iova: 0x3200, .. }));
        assert!(describe(describer(Format::Sgl), &torn).is_ok());
        let most = (PRPS_MAX as u64 + 1) * 4096;
        assert!(describe(describer(Format::Prp), &[segment(0, most)]).is_ok());
        assert!(matches!(prp(&[segment(0, most + 4)]), DataError::TooMany { .. }));
        assert!(matches!(prp(&[segment(0, u64::MAX - 3)]), DataError::TooMany { .. }));
        let none = Describer { sgl: SglSupport::None, ..describer(Format::Sgl) };
        assert_eq!(describe(none, &[segment(0, 4)]).unwrap_err(), DataError::NoSgl);
        let dwords = Describer { sgl: SglSupport::Dwords, ..none };
        assert!(matches!(
            describe(dwords, &[segment(0, 6)]).unwrap_err(),
            DataError::Unaligned { .. }
        ));
    }

    #[test]
    fn the_shortest_has_no_list_where_that_is_possible() {
        let shortest = describer(Format::Shortest);
        let one = |iova, len| describe(shortest, &[segment(iova, len)]).unwrap();
        assert!(matches!(one(0x1000, 0x2000), (DataPointer::Prp(0x1000, 0x2000), _)));
        assert_eq!(one(0x1000, 0x3000), (DataPointer::Sgl(0x1000, 0x3000), vec![]));
        let none = Describer { sgl: SglSupport::None, ..shortest };
        let (pointer, list) = describe(none, &[segment(0x1000, 0x3000)]).unwrap();
        assert_eq!((pointer, list.len()), (DataPointer::Prp(0x1000, LIST), 2));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 8 } else { 512 }, failure_persistence: None, ..ProptestConfig::default() })]

        /// What a controller reads out of it are the segments, byte by byte.
        #[test]
        fn a_controller_finds_each_byte(
            head in 0_u64..1024,
            pages in prop::collection::vec((0_u64..1 << 20, 1_u64..40), 1..8),
            cut in 0_u64..1024,
            format in prop::sample::select(vec![Format::Prp, Format::Sgl, Format::Shortest]),
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
                    prop_assert!(error == DataError::NoSgl && !has_sgl && format == Format::Sgl);
                }
            }
        }
    }
}
