//! Several mappings that are made together or not at all, and taken back together.
#![expect(unsafe_code, reason = "maps what its callers own")]

use std::ptr::NonNull;

use longshore_mem::{AddrRange, Iova};

use crate::backend::Piece;
use crate::counters::Event;
use crate::direction::Direction;
use crate::error::Error;
use crate::local::Door;

/// Not all of it was mapped, and perhaps not all of that unmapped again.
pub(crate) struct Partly {
    pub(crate) error: Error,
    pub(crate) is_undone: bool,
}

/// Maps whole granules of memory, each at its range.
///
/// # Errors
/// Those that were mapped are unmapped again, where the backend does that.
///
/// # Safety
/// The ranges must be the caller's alone, and not mapped. The memory must stay, with no reference to
/// it, until it is unmapped, and where it is not undone, for ever.
pub(crate) unsafe fn map_all<D: Door>(
    door: &D,
    pieces: impl Iterator<Item = (AddrRange<Iova>, NonNull<u8>)> + Clone,
    direction: Direction,
) -> Result<(), Partly> {
    let backend = &door.inner().core.backend;
    for (nth, (range, host)) in pieces.clone().enumerate() {
        let piece = Piece { host, len_bytes: range.len_bytes(), file: None };
        // SAFETY: the caller's promise.
        let Err(source) = (unsafe { backend.map(range.start(), piece, direction.prot()) }) else {
            continue;
        };
        let before: Vec<_> = pieces.take(nth).map(|(range, _)| range).collect();
        let (iova, len_bytes) = (range.start(), range.len_bytes());
        let error = Error::Backend { operation: "mapping", iova, len_bytes, source };
        // SAFETY: mapped just now, and nobody else's.
        let is_undone = before.is_empty() || unsafe { backend.unmap(&before) }.is_ok();
        return Err(Partly { error, is_undone });
    }
    Ok(())
}

/// Unmaps these ranges of a transfer of `len_bytes` at `iova`.
///
/// # Errors
/// [`Error::Backend`]; each of them may still be mapped.
///
/// # Safety
/// Each was mapped as it is, and is the caller's alone.
pub(crate) unsafe fn unmap_all<D: Door>(
    door: &D,
    ranges: &[AddrRange<Iova>],
    iova: Iova,
    len_bytes: u64,
) -> Result<(), Error> {
    // SAFETY: the caller's promise.
    let unmapped = unsafe { door.inner().core.backend.unmap(ranges) };
    let operation = "unmapping";
    unmapped.map_err(|source| Error::Backend { operation, iova, len_bytes, source })?;
    door.add(Event::Flush, 1);
    Ok(())
}
