//! What types cannot forbid, seen while a program is tested: as the kernel's `dma-debug` does.
#![expect(unsafe_code, reason = "looks at what a device may have written to a slot")]

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::sync::{Mutex, MutexGuard, PoisonError};

use longshore_mem::{DmaMemory, Iova};

use crate::direction::Direction;
use crate::local::Door;
use crate::mapping::Mapping;

/// A mapping that somebody has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Made {
    /// Where the device finds it.
    pub iova: Iova,
    /// How many bytes.
    pub len_bytes: u64,
    /// Who reads and who writes.
    pub direction: Direction,
    /// Whether it goes through bounce buffers, or its ends do.
    pub is_bounced: bool,
    /// Where the program made it.
    pub by: &'static Location<'static>,
}

/// What a program, or its device, should not have done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misuse {
    /// The domain ends, and the mapping was never unmapped nor dropped, or could not be.
    Leaked {
        /// The mapping.
        mapping: Made,
    },
    /// The processor reads or writes bytes that the device has: they were not synchronised for it
    /// before ([`sync_for_cpu`](crate::Mapping::sync_for_cpu)).
    DeviceOwns {
        /// The mapping.
        mapping: Made,
        /// Which of its bytes.
        bytes: Range<u64>,
        /// What the program does.
        operation: &'static str,
        /// Where it does that.
        at: &'static Location<'static>,
    },
    /// The program says that the device has written, which cannot in that direction.
    WrongDirection {
        /// The mapping.
        mapping: Made,
        /// Where it says so.
        at: &'static Location<'static>,
    },
    /// The device says how much it writes, and nobody has asked it: all of it counts as not written.
    NotReported {
        /// The mapping.
        mapping: Made,
    },
    /// Two mappings reach the same bytes of memory, and at least one of them is written to.
    Overlap {
        /// The later one.
        mapping: Made,
        /// The other.
        with: Made,
    },
    /// The device has written behind the end of its transfer, or more than it says.
    WroteBeyond {
        /// The mapping.
        mapping: Made,
        /// The first byte, from the mapping's start, that it should have left alone.
        offset: u64,
    },
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { iova, len_bytes, direction, is_bounced, by } = self;
        let bounced = if *is_bounced { ", bounced" } else { "" };
        write!(f, "IOVA {iova:#x}, {len_bytes:#x} bytes, {direction:?}{bounced}, made at {by}")
    }
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leaked { mapping } => write!(f, "a mapping was leaked: {mapping}"),
            Self::DeviceOwns { mapping, bytes: Range { start, end }, operation, at } => write!(
                f,
                "bytes {start:#x} to {end:#x}, which the device has, are {operation} at {at}: \
                 {mapping}"
            ),
            Self::WrongDirection { mapping, at } => {
                write!(f, "the device is said, at {at}, to have written what it may not: {mapping}")
            }
            Self::NotReported { mapping } => {
                write!(f, "what the device has written was not taken over: {mapping}")
            }
            Self::Overlap { mapping, with } => {
                write!(f, "the same memory is mapped twice: {mapping}; {with}")
            }
            Self::WroteBeyond { mapping, offset } => {
                write!(
                    f,
                    "the device has written from byte {offset:#x} on, beyond its transfer: {mapping}"
                )
            }
        }
    }
}

/// Sees what is done with a domain's mappings.
pub(crate) struct Watch {
    report: Box<dyn Fn(&Misuse) + Send + Sync>,
    /// By their IOVAs.
    live: Mutex<BTreeMap<u64, Live>>,
}

struct Live {
    made: Made,
    /// Its bytes in this process.
    host: Range<u64>,
    /// Bytes that the processor has, in order, none twice.
    of_cpu: Vec<Range<u64>>,
}

impl Watch {
    pub(crate) fn new(report: Box<dyn Fn(&Misuse) + Send + Sync>) -> Self {
        Self { report, live: Mutex::default() }
    }

    /// All mappings, by their addresses.
    pub(crate) fn live(&self) -> Vec<Made> {
        self.lock().values().map(|live| live.made).collect()
    }

    /// `host` is empty where its bytes are in several places.
    pub(crate) fn made(&self, made: Made, host: Range<u64>) {
        let mut live = self.lock();
        let is_shared = |other: &&Live| {
            let reads = [made.direction, other.made.direction] == [Direction::ToDevice; 2];
            let shares = host.start.max(other.host.start) < host.end.min(other.host.end);
            !reads && shares
        };
        let with = live.values().find(is_shared).map(|other| other.made);
        live.insert(made.iova.raw(), Live { made, host, of_cpu: Vec::new() });
        drop(live);
        if let Some(with) = with {
            self.report(&Misuse::Overlap { mapping: made, with });
        }
    }

    /// The mapping is unmapped, with all that it had.
    pub(crate) fn ended(&self, iova: Iova) {
        self.lock().remove(&iova.raw());
    }

    /// The device is through with these bytes, or gets them again.
    pub(crate) fn synced(&self, iova: Iova, bytes: &Range<u64>, for_cpu: bool) {
        let mut live = self.lock();
        let Some(live) = live.get_mut(&iova.raw()) else { return };
        live.of_cpu = without(&live.of_cpu, bytes);
        if for_cpu && !bytes.is_empty() {
            live.of_cpu.push(bytes.clone());
            live.of_cpu.sort_by_key(|range| range.start);
        }
    }

    /// The processor reads or writes these bytes.
    pub(crate) fn touched(
        &self,
        iova: Iova,
        bytes: Range<u64>,
        operation: &'static str,
        at: &'static Location<'static>,
    ) {
        let live = self.lock();
        let Some(live_one) = live.get(&iova.raw()) else { return };
        let owned = live_one.of_cpu.iter().fold(vec![bytes], |left, range| without(&left, range));
        let mapping = live_one.made;
        drop(live);
        for bytes in owned {
            self.report(&Misuse::DeviceOwns { mapping, bytes, operation, at });
        }
    }

    /// Reports what is said of a mapping that is there.
    pub(crate) fn misused(&self, iova: Iova, misuse: impl FnOnce(Made) -> Misuse) {
        let made = self.lock().get(&iova.raw()).map(|live| live.made);
        if let Some(made) = made {
            self.report(&misuse(made));
        }
    }

    /// The domain ends.
    pub(crate) fn end(&self) {
        for mapping in self.live() {
            self.report(&Misuse::Leaked { mapping });
        }
    }

    /// Never under the lock: whoever is told may map.
    fn report(&self, misuse: &Misuse) {
        (self.report)(misuse);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a mapping tells. Its bounce buffers are zero behind the transfer from the start, so that what
/// the device writes there is seen at the end.
impl<B: DmaMemory + 'static, D: Door> Mapping<'_, B, D> {
    #[cold]
    pub(crate) fn begin_watching(&self, watch: &Watch, by: &'static Location<'static>) {
        let (iova, len_bytes, direction) = (self.iova(), self.len_bytes(), self.direction());
        let made = Made { iova, len_bytes, direction, is_bounced: self.is_bounced(), by };
        if let Some((start, count, _)) = self.slack(0) {
            // SAFETY: behind the transfer's bytes, in a slot that is this mapping's.
            unsafe { start.as_ptr().write_bytes(0, count as usize) };
        }
        let start = self.host().addr().get() as u64;
        watch.made(made, start..start + len_bytes);
    }

    #[cold]
    pub(crate) fn watch_silence(&self, watch: &Watch) {
        if self.is_reported() {
            watch.misused(self.iova(), |mapping| Misuse::NotReported { mapping });
        }
    }

    #[cold]
    pub(crate) fn watch_completion(
        &self,
        watch: &Watch,
        written_bytes: u64,
        at: &'static Location<'static>,
    ) {
        if self.direction() == Direction::ToDevice && written_bytes != 0 {
            watch.misused(self.iova(), |mapping| Misuse::WrongDirection { mapping, at });
        }
    }

    #[cold]
    pub(crate) fn watch_end(&self, watch: &Watch, written_bytes: u64) {
        let Some((start, count, offset)) = self.slack(written_bytes) else { return };
        let is_written = |nth: &u64| {
            let byte = start.as_ptr().wrapping_add(*nth as usize);
            // SAFETY: in a slot that is this mapping's, each byte by itself: a device may still write.
            unsafe { byte.read_volatile() != 0 }
        };
        if let Some(nth) = (0..count).find(is_written) {
            let offset = offset + nth;
            watch.misused(self.iova(), |mapping| Misuse::WroteBeyond { mapping, offset });
        }
    }
}

/// What is left of the ranges outside `of`.
fn without(ranges: &[Range<u64>], of: &Range<u64>) -> Vec<Range<u64>> {
    let cut = |range: &Range<u64>| {
        let before = range.start..range.end.min(of.start);
        let behind = range.start.max(of.end)..range.end;
        if of.is_empty() { [range.clone(), 0..0] } else { [before, behind] }
    };
    ranges.iter().flat_map(cut).filter(|range| !range.is_empty()).collect()
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("live", &self.lock().len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut() {
        let ranges = [0..4, 6..9, 9..12];
        assert_eq!(without(&ranges, &(4..6)), ranges);
        assert_eq!(without(&ranges, &(5..5)), ranges);
        assert_eq!(without(&ranges, &(2..2)), ranges);
        assert_eq!(without(&ranges, &(3..10)), [0..3, 10..12]);
        assert_eq!(without(&ranges, &(7..8)), [0..4, 6..7, 8..9, 9..12]);
        assert_eq!(without(&ranges, &(0..20)), []);
    }
}
