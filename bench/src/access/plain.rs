//! Copies to and from addresses of this process, which each candidate translates in its own way. The
//! lower limit is a copy at an address that was translated before.
#![expect(unsafe_code, reason = "copies from and to addresses of memory that is borrowed")]

use std::ptr;

use longshore_pagetable::Prot;

use super::accessor::Accessor;

/// A translation to an address of this process.
pub(super) trait Translate {
    fn with<R>(&self, at: u64, len: usize, want: Prot, access: impl FnOnce(u64) -> R) -> R;
}

/// No translation: the address itself.
pub(super) struct Translated;

impl Translate for Translated {
    #[inline(always)]
    fn with<R>(&self, at: u64, _len: usize, _want: Prot, access: impl FnOnce(u64) -> R) -> R {
        access(at)
    }
}

/// Plain copies after a translation.
pub(super) struct Copies<T>(pub(super) T);

impl<T: Translate> Accessor for Copies<T> {
    #[inline(always)]
    fn read(&self, at: u64, into: &mut [u8]) {
        let len = into.len();
        self.0.with(at, len, Prot::READ, |host| {
            let from = ptr::with_exposed_provenance::<u8>(host as usize);
            // SAFETY: the address is in the memory, which the case borrows; each thread has its own list
            // of addresses.
            unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), len) }
        });
    }

    #[inline(always)]
    fn write(&self, at: u64, from: &[u8]) {
        self.0.with(at, from.len(), Prot::WRITE, |host| {
            let to = ptr::with_exposed_provenance_mut::<u8>(host as usize);
            // SAFETY: as in `read`.
            unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
        });
    }

    #[inline(always)]
    fn read_word(&self, at: u64) -> u64 {
        self.0.with(at, 8, Prot::READ, |host| {
            let from = ptr::with_exposed_provenance::<u64>(host as usize);
            // SAFETY: as in `read`; lists contain aligned words only.
            unsafe { from.read_volatile() }
        })
    }

    #[inline(always)]
    fn write_word(&self, at: u64, word: u64) {
        self.0.with(at, 8, Prot::WRITE, |host| {
            let to = ptr::with_exposed_provenance_mut::<u64>(host as usize);
            // SAFETY: as in `read`; lists contain aligned words only.
            unsafe { to.write_volatile(word) }
        });
    }
}
