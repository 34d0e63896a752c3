//! What VFIO and iommufd have in common: they pin pages of this process.

use std::io;
use std::iter;

use longshore_mem::{AddrRange, Iova};
use longshore_pagetable::Prot;
use longshore_sys::vfio::DmaAccess;

pub(super) fn access(prot: Prot) -> DmaAccess {
    DmaAccess { read: prot.contains(Prot::READ), write: prot.contains(Prot::WRITE) }
}

/// What to say of a call that failed: `operation`, with what can be done about the commonest reason.
pub(super) fn memory_advice(source: &io::Error, operation: &'static str) -> &'static str {
    match (source.raw_os_error(), operation) {
        (Some(libc::ENOMEM), _) => {
            "pinning memory (the limit of locked memory is reached: raise RLIMIT_MEMLOCK, as `ulimit \
             -l` shows it, or give the process CAP_IPC_LOCK)"
        }
        (Some(libc::EFAULT), _) => {
            "pinning memory (it cannot be pinned where it is mapped: it is a dma-buf, or is not there)"
        }
        _ => operation,
    }
}

/// Ranges that touch, as one: unmapped by one call, with one invalidation.
pub(super) fn runs(ranges: &[AddrRange<Iova>]) -> impl Iterator<Item = AddrRange<Iova>> {
    let mut rest = ranges.iter().copied().peekable();
    iter::from_fn(move || {
        let mut run = rest.next()?;
        while let Some(longer) = rest.peek().and_then(|next| joined(run, *next)) {
            run = longer;
            rest.next();
        }
        Some(run)
    })
}

fn joined(run: AddrRange<Iova>, next: AddrRange<Iova>) -> Option<AddrRange<Iova>> {
    let touches = run.last()?.checked_add(1)? == next.start();
    let len_bytes = run.len_bytes().checked_add(next.len_bytes())?;
    touches.then(|| AddrRange::new(run.start(), len_bytes).ok()).flatten()
}

/// Memory that cannot be pinned where it is mapped, but where its file is.
pub(super) mod at_file {
    use std::io;
    use std::ptr::NonNull;

    use longshore_mem::Granule;
    use longshore_sys::mapping::{Access, Mapping};

    use super::super::Piece;

    /// Whether that is what failed, and there is a file.
    pub(in super::super) fn is_called_for(done: &io::Result<()>, piece: &Piece<'_>) -> bool {
        let is_fault = done.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EFAULT));
        is_fault && piece.file.is_some()
    }

    /// Does `pin` with the address of a mapping of the file, for that time only: pages that are pinned
    /// stay so when it is gone.
    pub(in super::super) fn with(
        piece: &Piece<'_>,
        pin: impl FnOnce(NonNull<u8>) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some((file, at)) = piece.file else {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        };
        let too_long = || io::Error::from(io::ErrorKind::InvalidInput);
        let end = at.raw().checked_add(piece.len_bytes).ok_or_else(too_long)?;
        let page = Granule::new(longshore_sys::page_size_bytes() as u64).map_err(|_| too_long())?;
        let mapping = Mapping::of_file(file, end, page, Access::ReadWrite)?;
        let skip = usize::try_from(at.raw()).map_err(|_| too_long())?;
        let host = mapping.start().as_ptr().wrapping_add(skip);
        pin(NonNull::new(host).ok_or_else(too_long)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_unmapped_as_one() {
        let range = |(start, len)| AddrRange::new(Iova::new(start), len).unwrap();
        let joined = |ranges: &[(u64, u64)]| {
            let ranges: Vec<_> = ranges.iter().copied().map(range).collect();
            runs(&ranges).map(|run| (run.start().raw(), run.len_bytes())).collect::<Vec<_>>()
        };
        assert_eq!(joined(&[]), []);
        assert_eq!(joined(&[(0x1000, 0x1000)]), [(0x1000, 0x1000)]);
        assert_eq!(
            joined(&[(0x1000, 0x1000), (0x2000, 0x3000), (0x5000, 0x1000), (0x7000, 0x1000)]),
            [(0x1000, 0x5000), (0x7000, 0x1000)]
        );
        // Not in order, and up to the last address.
        let last = (u64::MAX - 0xfff, 0x1000);
        assert_eq!(joined(&[(0x2000, 0x1000), (0x1000, 0x1000), last, (0, 0x1000)]).len(), 4);
    }
}
