//! A backend whose devices are not code of this process, as far as a domain knows.

use longshore_domain::backend::{Backend, BackendError, Limits, Piece, Soft};
use longshore_mem::{AddrRange, Iova};
use longshore_pagetable::Prot;

#[derive(Debug)]
pub(crate) struct Outside(pub(crate) Soft);

// SAFETY: the calls are passed on to a space. The sessions of a test access only memory of the test.
#[allow(unsafe_code, reason = "passes on what a domain maps")]
unsafe impl Backend for Outside {
    fn name(&self) -> &'static str {
        "outside"
    }

    fn limits(&self) -> Limits {
        let mut limits = self.0.limits();
        limits.in_process = false;
        limits
    }

    unsafe fn map(&self, iova: Iova, piece: Piece<'_>, prot: Prot) -> Result<(), BackendError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.map(iova, piece, prot) }
    }

    unsafe fn unmap(&self, ranges: &[AddrRange<Iova>]) -> Result<(), BackendError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.unmap(ranges) }
    }
}
