//! The common part of VFIO and iommufd, which both pin pages of this process.

use std::io;
use std::iter;

use longshore_mem::{AddrRange, Iova};
use longshore_pagetable::Prot;
use longshore_sys::iommufd::DmaAccess;

pub(super) fn access(prot: Prot) -> DmaAccess {
    DmaAccess { read: prot.contains(Prot::READ), write: prot.contains(Prot::WRITE) }
}

/// Returns the text for a call that failed: advice for the most common reasons, otherwise `operation`.
pub(super) fn memory_advice(source: &io::Error, operation: &'static str) -> &'static str {
    match (source.raw_os_error(), operation) {
        (Some(libc::ENOMEM), _) => {
            "pinning memory (the limit of locked memory is reached: raise RLIMIT_MEMLOCK, as `ulimit \
             -l` shows it, or give the process CAP_IPC_LOCK)"
        }
        (Some(libc::EFAULT), _) => {
            "pinning memory (it cannot be pinned at its address: it is a dma-buf, or it is missing)"
        }
        _ => operation,
    }
}

/// Joins adjacent ranges, which one call then unmaps with one invalidation.
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
    let len_bytes = run.len().checked_add(next.len())?;
    touches.then(|| AddrRange::new(run.start(), len_bytes).ok()).flatten()
}

/// Pins memory through another mapping of its file, if it cannot be pinned at its own address.
pub(super) mod at_file {
    use std::io;
    use std::ptr::NonNull;

    use longshore_mem::Granule;
    use longshore_sys::mapping::{Access, Mapping};

    use super::super::Piece;

    /// Returns true if pinning failed because of the address, and there is a file.
    pub(in super::super) fn is_called_for(done: &io::Result<()>, piece: &Piece<'_>) -> bool {
        let is_fault = done.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EFAULT));
        is_fault && piece.file.is_some()
    }

    /// Maps the piece's part of the file, calls `pin` with the address, and unmaps it again. Pinned
    /// pages stay pinned.
    pub(in super::super) fn with(
        piece: &Piece<'_>,
        pin: impl FnOnce(NonNull<u8>) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some((file, at)) = piece.file else {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        };
        let page = Granule::new(longshore_sys::page_size_bytes() as u64)
            .map_err(|_| io::ErrorKind::InvalidInput)?;
        let mapping = Mapping::of_file_part(file, at, piece.len_bytes, page, Access::ReadWrite)?;
        pin(mapping.start())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;
    use std::ptr::NonNull;

    use longshore_mem::FileOffset;

    use super::super::Piece;
    use super::*;

    /// The whole file is too long to be mapped.
    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    #[expect(unsafe_code, reason = "reads the mapping")]
    fn only_the_piece_of_a_file_is_mapped() {
        let at = (1 << 48) + 3 * 4096;
        let file: File = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(1 << 49).unwrap();
        file.write_all_at(b"here", at).unwrap();
        let file = Some((file.as_fd(), FileOffset::new(at)));
        let piece = Piece { host: NonNull::dangling(), len_bytes: 4096, file };
        let fault = Err(io::Error::from_raw_os_error(libc::EFAULT));
        assert!(at_file::is_called_for(&fault, &piece));
        let mut read = [0; 4];
        at_file::with(&piece, |host| {
            // SAFETY: a page is mapped there, and the file has it.
            read = unsafe { host.cast().read() };
            Ok(())
        })
        .unwrap();
        assert_eq!(&read, b"here");
    }

    #[test]
    fn adjacent_ranges_are_joined() {
        let range = |(start, len)| AddrRange::new(Iova::new(start), len).unwrap();
        let joined = |ranges: &[(u64, u64)]| {
            let ranges: Vec<_> = ranges.iter().copied().map(range).collect();
            runs(&ranges).map(|run| (run.start().raw(), run.len())).collect::<Vec<_>>()
        };
        assert_eq!(joined(&[]), []);
        assert_eq!(joined(&[(0x1000, 0x1000)]), [(0x1000, 0x1000)]);
        assert_eq!(
            joined(&[(0x1000, 0x1000), (0x2000, 0x3000), (0x5000, 0x1000), (0x7000, 0x1000)]),
            [(0x1000, 0x5000), (0x7000, 0x1000)]
        );
        // Ranges that are not in order, and one that ends at the last address.
        let last = (u64::MAX - 0xfff, 0x1000);
        assert_eq!(joined(&[(0x2000, 0x1000), (0x1000, 0x1000), last, (0, 0x1000)]).len(), 4);
    }
}
