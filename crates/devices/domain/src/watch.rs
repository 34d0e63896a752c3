//! A debug checker for misuse of mappings that types cannot prevent, like the kernel's dma-debug.
#![expect(unsafe_code, reason = "reads bytes of a slot that a device may have written")]

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use longshore_mem::Iova;

use crate::direction::Direction;

/// A mapping, as the checker reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MappingInfo {
    /// The IOVA.
    pub iova: Iova,
    /// The length in bytes.
    pub len_bytes: u64,
    /// The direction.
    pub direction: Direction,
    /// `true` if it or one of its ends goes through a bounce buffer.
    pub is_bounced: bool,
    /// The source location at which it was made.
    pub by: &'static Location<'static>,
}

/// A misuse of a mapping, by the program or by the device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misuse {
    /// The mapping still exists when the domain is dropped: it was leaked, or could not be unmapped.
    Leaked {
        /// The mapping.
        mapping: MappingInfo,
    },
    /// The CPU reads or writes bytes that the device owns, because
    /// [`sync_for_cpu`](crate::Mapping::sync_for_cpu) was not called for them.
    DeviceOwns {
        /// The mapping.
        mapping: MappingInfo,
        /// The bytes, as offsets from the start of the mapping.
        bytes: Range<u64>,
        /// The operation of the program.
        operation: &'static str,
        /// The source location of the operation.
        at: &'static Location<'static>,
    },
    /// The program reports bytes that the device has written, but in this direction the device cannot
    /// write.
    WrongDirection {
        /// The mapping.
        mapping: MappingInfo,
        /// The source location of the report.
        at: &'static Location<'static>,
    },
    /// The device reports how many bytes it writes, but the program unmapped the memory without that
    /// number. All bytes are treated as not written then.
    NotReported {
        /// The mapping.
        mapping: MappingInfo,
    },
    /// Two mappings contain the same bytes of memory, and at least one of them is written to.
    Overlap {
        /// The later mapping.
        mapping: MappingInfo,
        /// The earlier mapping.
        with: MappingInfo,
    },
    /// The device has written beyond the end of its transfer, or more than it reports.
    WroteBeyond {
        /// The mapping.
        mapping: MappingInfo,
        /// The offset of the first such byte from the start of the mapping.
        offset: u64,
    },
}

impl fmt::Display for MappingInfo {
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
                "bytes {start:#x} to {end:#x}, which the device owns, are {operation} at {at}: \
                 {mapping}"
            ),
            Self::WrongDirection { mapping, at } => {
                write!(
                    f,
                    "bytes written by a device that only reads are reported at {at}: {mapping}"
                )
            }
            Self::NotReported { mapping } => {
                write!(f, "unmapped without the number of written bytes; use `complete`: {mapping}")
            }
            Self::Overlap { mapping, with } => {
                write!(f, "the same memory is mapped twice: {mapping}; {with}")
            }
            Self::WroteBeyond { mapping, offset } => {
                write!(
                    f,
                    "the device has written beyond its transfer, from byte {offset:#x} on: {mapping}"
                )
            }
        }
    }
}

/// The checker of a domain.
pub(crate) struct Watch {
    report: Box<dyn Fn(&Misuse) + Send + Sync>,
    /// The live mappings, by IOVA.
    live: Mutex<BTreeMap<u64, Live>>,
}

struct Live {
    made: MappingInfo,
    /// The address range in this process.
    host: Range<u64>,
    /// The bytes that the CPU owns: sorted ranges that do not overlap.
    of_cpu: Vec<Range<u64>>,
}

impl Watch {
    pub(crate) fn new(report: Box<dyn Fn(&Misuse) + Send + Sync>) -> Self {
        Self { report, live: Mutex::default() }
    }

    /// Returns all live mappings, by IOVA.
    pub(crate) fn live(&self) -> Vec<MappingInfo> {
        self.lock().values().map(|live| live.made).collect()
    }

    /// Adds a mapping. `host` is empty if its bytes are in several places.
    pub(crate) fn made(&self, made: MappingInfo, host: Range<u64>) {
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

    /// Removes a mapping that was unmapped.
    #[cold]
    #[inline(never)]
    pub(crate) fn ended(&self, iova: Iova) {
        self.lock().remove(&iova.raw());
    }

    /// Moves bytes of a mapping to the CPU, or back to the device.
    pub(crate) fn synced(&self, iova: Iova, bytes: &Range<u64>, for_cpu: bool) {
        let mut live = self.lock();
        let Some(live) = live.get_mut(&iova.raw()) else { return };
        live.of_cpu = without(&live.of_cpu, bytes);
        if for_cpu && !bytes.is_empty() {
            live.of_cpu.push(bytes.clone());
            live.of_cpu.sort_by_key(|range| range.start);
        }
    }

    /// Checks an access by the CPU.
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

    /// Reports a misuse of a live mapping.
    fn misused(&self, iova: Iova, misuse: impl FnOnce(MappingInfo) -> Misuse) {
        self.misused_if(iova, |made| Some(misuse(made)));
    }

    fn misused_if(&self, iova: Iova, misuse: impl FnOnce(MappingInfo) -> Option<Misuse>) {
        let made = self.lock().get(&iova.raw()).map(|live| live.made);
        if let Some(misuse) = made.and_then(misuse) {
            self.report(&misuse);
        }
    }

    /// Reports all live mappings as leaked, because the domain is dropped.
    pub(crate) fn end(&self) {
        for mapping in self.live() {
            self.report(&Misuse::Leaked { mapping });
        }
    }

    /// Calls the callback. The lock is not held, because the callback may map.
    fn report(&self, misuse: &Misuse) {
        (self.report)(misuse);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bytes of a bounce buffer that the device must not write: address, length, and offset in the
/// transfer.
pub(crate) type Slack = (NonNull<u8>, u64, u64);

/// Events of mappings. The arguments are values: a mapping whose address is taken cannot stay in
/// registers, which costs more than making and ending it.
impl Watch {
    /// Adds a mapping, and clears its slack.
    ///
    /// # Safety
    /// `slack` must be bytes of the mapping.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn begin(&self, made: MappingInfo, host: u64, slack: Option<Slack>) {
        if let Some((start, count, _)) = slack {
            // Cleared, so that bytes that the device writes are found at the end.
            // SAFETY: the caller's promise.
            unsafe { start.as_ptr().write_bytes(0, count as usize) };
        }
        self.made(made, host..host + made.len_bytes);
    }

    /// Reports a mapping that was unmapped without the number of written bytes.
    #[cold]
    #[inline(never)]
    pub(crate) fn silent(&self, iova: Iova) {
        self.misused(iova, |mapping| Misuse::NotReported { mapping });
    }

    /// Checks the number of written bytes that the program reports.
    #[cold]
    #[inline(never)]
    pub(crate) fn completed(&self, iova: Iova, written: u64, at: &'static Location<'static>) {
        self.misused_if(iova, |mapping| {
            let is_odd = mapping.direction == Direction::ToDevice && written != 0;
            is_odd.then_some(Misuse::WrongDirection { mapping, at })
        });
    }

    /// Reports bytes of the slack that the device has written.
    ///
    /// # Safety
    /// `slack` must be bytes of the mapping.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn ending(&self, iova: Iova, slack: Option<Slack>) {
        let Some((start, count, offset)) = slack else { return };
        let is_written = |nth: &u64| {
            let byte = start.as_ptr().wrapping_add(*nth as usize);
            // SAFETY: the caller's promise; the read is volatile, because a device may still write.
            unsafe { byte.read_volatile() != 0 }
        };
        if let Some(nth) = (0..count).find(is_written) {
            let offset = offset + nth;
            self.misused(iova, |mapping| Misuse::WroteBeyond { mapping, offset });
        }
    }
}

/// Returns the parts of the ranges that are outside `of`.
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
