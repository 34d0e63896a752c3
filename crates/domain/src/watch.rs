//! What types cannot forbid, seen while a program is tested: as the kernel's `dma-debug` does.
#![expect(unsafe_code, reason = "looks at what a device may have written to a slot")]

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use longshore_mem::Iova;

use crate::direction::Direction;

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
    #[cold]
    #[inline(never)]
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
    fn misused(&self, iova: Iova, misuse: impl FnOnce(Made) -> Misuse) {
        self.misused_if(iova, |made| Some(misuse(made)));
    }

    fn misused_if(&self, iova: Iova, misuse: impl FnOnce(Made) -> Option<Misuse>) {
        let made = self.lock().get(&iova.raw()).map(|live| live.made);
        if let Some(misuse) = made.and_then(misuse) {
            self.report(&misuse);
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

/// Bytes of a bounce buffer behind what the device may write: where, how many, and where in the transfer.
pub(crate) type Slack = (NonNull<u8>, u64, u64);

/// What mappings tell, by value: a mapping whose address is given to anybody lies in memory, which costs
/// more than making and ending it.
impl Watch {
    /// # Safety
    /// The slack must be the mapping's.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn begin(&self, made: Made, host: u64, slack: Option<Slack>) {
        if let Some((start, count, _)) = slack {
            // So that what the device writes there is seen at the end.
            // SAFETY: the caller's promise.
            unsafe { start.as_ptr().write_bytes(0, count as usize) };
        }
        self.made(made, host..host + made.len_bytes);
    }

    /// Unmapped, and nobody has said how much was written.
    #[cold]
    #[inline(never)]
    pub(crate) fn silent(&self, iova: Iova) {
        self.misused(iova, |mapping| Misuse::NotReported { mapping });
    }

    /// The program says how much was written.
    #[cold]
    #[inline(never)]
    pub(crate) fn completed(&self, iova: Iova, written: u64, at: &'static Location<'static>) {
        self.misused_if(iova, |mapping| {
            let is_odd = mapping.direction == Direction::ToDevice && written != 0;
            is_odd.then_some(Misuse::WrongDirection { mapping, at })
        });
    }

    /// # Safety
    /// The slack must be the mapping's.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn ending(&self, iova: Iova, slack: Option<Slack>) {
        let Some((start, count, offset)) = slack else { return };
        let is_written = |nth: &u64| {
            let byte = start.as_ptr().wrapping_add(*nth as usize);
            // SAFETY: the caller's promise; each byte by itself, as a device may still write.
            unsafe { byte.read_volatile() != 0 }
        };
        if let Some(nth) = (0..count).find(is_written) {
            let offset = offset + nth;
            self.misused(iova, |mapping| Misuse::WroteBeyond { mapping, offset });
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
