//! Several ranges that are mapped together or not at all, and unmapped together.
#![expect(unsafe_code, reason = "maps memory that its callers own")]

use std::process;
use std::ptr::NonNull;

use longshore_mem::{AddrRange, Iova};

use crate::backend::Piece;
use crate::counters::Event;
use crate::direction::Direction;
use crate::error::Error;
use crate::handle::Handle;
use crate::undo::Undo;

/// The error if not all pieces could be mapped.
pub(crate) struct Partly {
    pub(crate) error: Error,
    /// The number of pieces, from the first, that are still mapped because the backend did not
    /// unmap them again.
    pub(crate) still_mapped: usize,
}

/// Maps pieces of whole granules, each at its range of IOVAs.
///
/// # Errors
/// [`Partly`]. Nothing is mapped if the calling thread could not unmap it.
///
/// # Safety
/// The ranges must belong to the caller alone, and must not be mapped. The memory must stay, with no
/// reference to it, until it is unmapped. If pieces are still mapped after an error, their memory must
/// stay for ever.
pub(crate) unsafe fn map_all<D: Handle>(
    handle: &D,
    pieces: &(impl Iterator<Item = (AddrRange<Iova>, NonNull<u8>)> + Clone),
    direction: Direction,
) -> Result<(), Partly> {
    if let Some((range, _)) = pieces.clone().next() {
        check_unmap(handle, range).map_err(|error| Partly { error, still_mapped: 0 })?;
    }
    let backend = &handle.state().core.backend;
    let unmap_first = |count| {
        let before: Vec<_> = pieces.clone().take(count).map(|(range, _)| range).collect();
        // SAFETY: mapped just now, and used by no other code.
        before.is_empty() || unsafe { backend.unmap(&before) }.is_ok()
    };
    for (nth, (range, host)) in pieces.clone().enumerate() {
        // Unwinding frees the memory of the first pieces, so a device must not reach it any more.
        let unwinding = Undo::new(nth, |nth| {
            if !unmap_first(nth) {
                process::abort();
            }
        });
        let piece = Piece { host, len_bytes: range.len(), file: None };
        // SAFETY: the caller's promise.
        let mapped = unsafe { backend.map(range.start(), piece, direction.prot()) };
        unwinding.keep();
        let Err(source) = mapped else { continue };
        let (iova, len_bytes) = (range.start(), range.len());
        let error = Error::Backend { operation: "mapping", iova, len_bytes, source };
        return Err(Partly { error, still_mapped: if unmap_first(nth) { 0 } else { nth } });
    }
    Ok(())
}

/// Returns an error if the calling thread could not unmap these addresses after mapping them now.
///
/// # Errors
/// [`Error::Backend`].
pub(crate) fn check_unmap<D: Handle>(handle: &D, range: AddrRange<Iova>) -> Result<(), Error> {
    let checked = handle.state().core.backend.check_unmap(range);
    let (iova, len_bytes) = (range.start(), range.len());
    checked.map_err(|source| Error::Backend { operation: "mapping", iova, len_bytes, source })
}

/// Unmaps these ranges of a transfer of `len_bytes` at `iova`.
///
/// # Errors
/// [`Error::Backend`]; each of them may still be mapped.
///
/// # Safety
/// Each must be exactly a range that was mapped, and must belong to the caller alone.
pub(crate) unsafe fn unmap_all<D: Handle>(
    handle: &D,
    ranges: &[AddrRange<Iova>],
    iova: Iova,
    len_bytes: u64,
) -> Result<(), Error> {
    // SAFETY: the caller's promise.
    let unmapped = unsafe { handle.state().core.backend.unmap(ranges) };
    let operation = "unmapping";
    unmapped.map_err(|source| Error::Backend { operation, iova, len_bytes, source })?;
    handle.add(Event::Flush, 1);
    Ok(())
}
