//! The layout of a scattered transfer at IOVAs: see [`SgMapping`](super::SgMapping).

use std::ops::Range;
use std::ptr::NonNull;

use longshore_mem::Granule;

/// Adjacent bytes of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) host: NonNull<u8>,
    pub(super) len_bytes: u64,
}

impl Run {
    fn start(&self) -> u64 {
        self.host.addr().get() as u64
    }

    /// Returns the address after `bytes` of its bytes.
    fn at(&self, bytes: u64) -> NonNull<u8> {
        let at = self.host.as_ptr().wrapping_add(bytes as usize);
        NonNull::new(at).expect("memory does not wrap")
    }
}

/// Returns the runs of these places, in their order. Places of no bytes are left out.
pub(super) fn runs(places: impl IntoIterator<Item = Run>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for place in places.into_iter().filter(|place| place.len_bytes != 0) {
        // A run can join memory of several owners, so its pointer needs the provenance of all of them.
        place.host.as_ptr().expose_provenance();
        match runs.last_mut() {
            Some(last) if last.start() + last.len_bytes == place.start() => {
                last.host = NonNull::with_exposed_provenance(last.host.addr());
                last.len_bytes += place.len_bytes;
            }
            _ => runs.push(place),
        }
    }
    runs
}

/// Returns the range of each run in one slot. Runs are adjacent there, except for gaps that keep the
/// bits of `align_mask` of each address. A slot begins at a granule.
pub(super) fn gathered(runs: &[Run], align_mask: u64) -> impl Iterator<Item = Range<u64>> {
    let align = (align_mask + 1).next_power_of_two();
    let mut end = 0u64;
    runs.iter().map(move |run| {
        let bits = run.start() & align_mask;
        let before = end & !(align - 1);
        let start = if before + bits < end { before + align + bits } else { before + bits };
        end = start + run.len_bytes;
        start..end
    })
}

/// Granules of the range at which memory is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    /// The offset in the range.
    pub(super) at: u64,
    pub(super) host: NonNull<u8>,
    pub(super) len_bytes: u64,
}

/// Bytes within one granule of the range, which go through a bounce buffer of one granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copied {
    /// The offset of the granule in the range, and that of the bytes in the granule.
    pub(super) at: u64,
    pub(super) in_slot: u64,
    pub(super) host: NonNull<u8>,
    /// The offset in the transfer, and the length.
    pub(super) in_transfer: u64,
    pub(super) len_bytes: u64,
}

/// The layout of a transfer.
#[derive(Debug, Default)]
pub(super) struct Layout {
    pub(super) mapped: Vec<Mapped>,
    pub(super) copied: Vec<Copied>,
    /// The offsets of its bytes in the range, and their lengths.
    pub(super) segments: Vec<(u64, u64)>,
    /// The length of the range.
    pub(super) range_bytes: u64,
}

impl Layout {
    /// Lays out the runs. If `is_trusted`, whole granules are mapped, even with other bytes in them.
    pub(super) fn new(runs: &[Run], granule: Granule, is_trusted: bool) -> Self {
        let bytes = granule.bytes();
        let mut layout = Self::default();
        let (mut end, mut done) = (0u64, 0);
        for run in runs {
            let offset = run.start() & (bytes - 1);
            let start = end.next_multiple_of(bytes) + offset;
            match layout.segments.last_mut() {
                Some((_, len)) if start == end => *len += run.len_bytes,
                _ => layout.segments.push((start, run.len_bytes)),
            }
            if is_trusted {
                let host = run.host.as_ptr().wrapping_sub(offset as usize);
                let host = NonNull::new(host).expect("no memory begins at zero");
                let len_bytes = (offset + run.len_bytes).next_multiple_of(bytes);
                layout.mapped.push(Mapped { at: start - offset, host, len_bytes });
            } else {
                layout.add(run, start, done, bytes);
            }
            end = start + run.len_bytes;
            done += run.len_bytes;
        }
        layout.range_bytes = end.next_multiple_of(bytes);
        layout
    }

    /// Adds a run without making other bytes reachable.
    fn add(&mut self, run: &Run, start: u64, in_transfer: u64, granule_bytes: u64) {
        let in_slot = start & (granule_bytes - 1);
        let to_granule = (granule_bytes - in_slot) & (granule_bytes - 1);
        let head = to_granule.min(run.len_bytes);
        let tail = (run.len_bytes - head) & (granule_bytes - 1);
        let middle = run.len_bytes - head - tail;
        if head != 0 {
            let at = start - in_slot;
            let host = run.host;
            self.copied.push(Copied { at, in_slot, host, in_transfer, len_bytes: head });
        }
        if middle != 0 {
            let host = run.at(head);
            self.mapped.push(Mapped { at: start + head, host, len_bytes: middle });
        }
        if tail != 0 {
            let (before, host) = (head + middle, run.at(head + middle));
            let in_transfer = in_transfer + before;
            let at = start + before;
            self.copied.push(Copied { at, in_slot: 0, host, in_transfer, len_bytes: tail });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GRANULE: Granule = Granule::SIZE_4K;
    const PAGE: u64 = 4096;

    fn run(start: u64, len_bytes: u64) -> Run {
        let host = NonNull::new(std::ptr::without_provenance_mut(start as usize)).unwrap();
        Run { host, len_bytes }
    }

    fn addr(host: NonNull<u8>) -> u64 {
        host.addr().get() as u64
    }

    #[test]
    fn adjacent_places_are_one_run() {
        let places = [run(100, 5), run(105, 0), run(105, 7), run(200, 1), run(100, 1)];
        assert_eq!(runs(places), [run(100, 12), run(200, 1), run(100, 1)]);
    }

    #[test]
    fn whole_granules_are_one_segment() {
        let places = [run(3 * PAGE, PAGE), run(9 * PAGE, 2 * PAGE), run(5 * PAGE, 100)];
        let layout = Layout::new(&places, GRANULE, false);
        assert_eq!(layout.segments, [(0, 3 * PAGE + 100)]);
        assert_eq!((layout.mapped.len(), layout.copied.len()), (2, 1));
        assert_eq!(layout.range_bytes, 4 * PAGE);
        // A granule that is not full ends a segment, and an offset in a granule begins one.
        let layout = Layout::new(&[places[2], places[0], run(PAGE + 1, 9)], GRANULE, true);
        assert_eq!(layout.segments, [(0, 100), (PAGE, PAGE), (2 * PAGE + 1, 9)]);
        assert_eq!((layout.mapped.len(), layout.copied.len()), (3, 0));
    }

    proptest! {
        /// A device can reach each byte of the transfer once, and no byte of other objects.
        #[test]
        fn every_byte_is_reachable_once(
            gaps in proptest::collection::vec((0u64..9000, 1u64..20_000), 1..6),
            is_trusted: bool,
        ) {
            let mut at = PAGE;
            let places: Vec<_> = gaps
                .iter()
                .map(|(gap, len)| {
                    let place = run(at + gap, *len);
                    at += gap + len;
                    place
                })
                .collect();
            let runs = runs(places.iter().copied());
            let layout = Layout::new(&runs, GRANULE, is_trusted);
            // For each offset in the range, the address of the byte of memory there, or 0.
            let mut found = vec![0; layout.range_bytes as usize];
            for mapped in &layout.mapped {
                prop_assert!(GRANULE.is_aligned(mapped.at | mapped.len_bytes | addr(mapped.host)));
                for nth in 0..mapped.len_bytes {
                    prop_assert_eq!(found[(mapped.at + nth) as usize], 0);
                    found[(mapped.at + nth) as usize] = addr(mapped.host) + nth;
                }
            }
            for copied in &layout.copied {
                prop_assert!(!is_trusted && copied.in_slot + copied.len_bytes <= PAGE);
                let start = copied.at as usize;
                prop_assert!(found[start..start + 4096].iter().all(|byte| *byte == 0));
                for nth in 0..copied.len_bytes {
                    found[start + (copied.in_slot + nth) as usize] = addr(copied.host) + nth;
                }
            }
            let seen: Vec<u64> = layout
                .segments
                .iter()
                .flat_map(|(at, len)| found[*at as usize..(at + len) as usize].to_vec())
                .collect();
            let bytes: Vec<u64> = places
                .iter()
                .flat_map(|place| (0..place.len_bytes).map(|nth| addr(place.host) + nth))
                .collect();
            prop_assert_eq!(&seen, &bytes);
            for copied in &layout.copied {
                prop_assert_eq!(bytes[copied.in_transfer as usize], addr(copied.host));
            }
            if !is_trusted {
                prop_assert_eq!(found.iter().filter(|byte| **byte != 0).count(), bytes.len());
            }
        }
    }
}
