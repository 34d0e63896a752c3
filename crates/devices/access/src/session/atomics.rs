//! Atomic accesses to words such as the indices of rings.
#![expect(unsafe_code, reason = "accesses translated addresses while the slot is entered")]

use std::sync::atomic::{Ordering, fence};

use longshore_mem::Iova;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::Place;
use super::{Session, last_of};
use crate::fault::{Fault, Reason};
use crate::tlb::{BOTH_FAST, READ, WRITE, WRITE_FAST};
use crate::words;

mod sealed {
    pub trait Sealed {
        fn into_word(self) -> u64;
        fn from_word(word: u64) -> Self;
    }
}

/// An integer that the processor accesses atomically: `u8`, `u16`, `u32`, `u64`.
pub trait Word: FromBytes + IntoBytes + Immutable + Copy + PartialEq + sealed::Sealed {}

macro_rules! words {
    ($($type:ty)*) => {$(
        impl sealed::Sealed for $type {
            #[inline(always)]
            fn into_word(self) -> u64 {
                u64::from(self)
            }

            #[inline(always)]
            fn from_word(word: u64) -> Self {
                word as $type
            }
        }

        impl Word for $type {}
    )*};
}

words! { u8 u16 u32 u64 }

/// Evaluates `$body` with `$n` as a constant, the size of `$type`.
macro_rules! sized {
    ($type:ty, $n:ident => $body:expr) => {
        match size_of::<$type>() {
            1 => {
                const $n: usize = 1;
                $body
            }
            2 => {
                const $n: usize = 2;
                $body
            }
            4 => {
                const $n: usize = 4;
                $body
            }
            _ => {
                const $n: usize = 8;
                $body
            }
        }
    };
}

/// Atomic accesses. The address must be a multiple of the size ([`Reason::Misaligned`]), and lead to
/// memory of this process ([`Reason::NotDirect`]).
impl Session {
    /// Reads a word atomically. An `order` that does not apply to loads is treated as relaxed.
    ///
    /// # Errors
    /// [`Fault`].
    #[inline]
    pub fn load<T: Word>(&self, iova: Iova, order: Ordering) -> Result<T, Fault> {
        if order == Ordering::SeqCst {
            fence(Ordering::SeqCst);
        }
        // SAFETY: `access` passes the address of a mapped, aligned word while the slot is entered.
        let load = |at: *mut u8| sized!(T, N => unsafe { words::load::<N>(at) });
        let word = self.access::<T, _>(iova, READ, READ, load)?;
        if !matches!(order, Ordering::Relaxed | Ordering::Release) {
            fence(Ordering::Acquire);
        }
        Ok(T::from_word(word))
    }

    /// Writes a word atomically. An `order` that does not apply to stores is treated as relaxed.
    ///
    /// # Errors
    /// [`Fault`].
    #[inline]
    pub fn store<T: Word>(&self, iova: Iova, value: T, order: Ordering) -> Result<(), Fault> {
        if !matches!(order, Ordering::Relaxed | Ordering::Acquire) {
            fence(Ordering::Release);
        }
        let store = |at| {
            // SAFETY: as above, and the word may be written.
            let done = sized!(T, N => unsafe { words::store::<N>(at, value.into_word()) });
            done.then_some(())
        };
        self.access::<T, _>(iova, WRITE, WRITE_FAST, store)?;
        if order == Ordering::SeqCst {
            fence(Ordering::SeqCst);
        }
        Ok(())
    }

    /// Writes `new` if the word is `current`, atomically and as a full barrier. Returns the previous
    /// word: as `Ok` if it was `current`, and as `Err` otherwise.
    ///
    /// # Errors
    /// [`Fault`].
    #[inline]
    pub fn compare_exchange<T: Word>(
        &self,
        iova: Iova,
        current: T,
        new: T,
    ) -> Result<Result<T, T>, Fault> {
        let (current, new) = (current.into_word(), new.into_word());
        let exchange =
            // SAFETY: as above, and it may be read and written.
            |at| sized!(T, N => unsafe { words::compare_exchange::<N>(at, current, new) });
        let found = self.access::<T, _>(iova, READ | WRITE, BOTH_FAST, exchange)?;
        Ok(found.map(T::from_word).map_err(T::from_word))
    }

    /// Sets the bits of `bits`, atomically and as a full barrier. Returns the previous word.
    ///
    /// # Errors
    /// [`Fault`].
    #[inline]
    pub fn fetch_or<T: Word>(&self, iova: Iova, bits: T) -> Result<T, Fault> {
        self.fetch(iova, |word| word | bits.into_word())
    }

    /// Clears the bits that are not in `bits`, atomically and as a full barrier. Returns the previous
    /// word.
    ///
    /// # Errors
    /// [`Fault`].
    #[inline]
    pub fn fetch_and<T: Word>(&self, iova: Iova, bits: T) -> Result<T, Fault> {
        self.fetch(iova, |word| word & bits.into_word())
    }

    /// Adds `more`, wrapping around, atomically and as a full barrier. Returns the previous word.
    ///
    /// # Errors
    /// [`Fault`].
    #[inline]
    pub fn fetch_add<T: Word>(&self, iova: Iova, more: T) -> Result<T, Fault> {
        self.fetch(iova, |word| word.wrapping_add(more.into_word()))
    }

    /// Writes `new`, atomically and as a full barrier. Returns the previous word.
    ///
    /// # Errors
    /// [`Fault`].
    #[inline]
    pub fn swap<T: Word>(&self, iova: Iova, new: T) -> Result<T, Fault> {
        self.fetch(iova, |_| new.into_word())
    }

    fn fetch<T: Word>(&self, iova: Iova, change: impl Fn(u64) -> u64) -> Result<T, Fault> {
        let exchange = |at: *mut u8| {
            sized!(T, N => {
                // SAFETY: as above, and it may be read and written.
                let mut word = unsafe { words::load::<N>(at) }?;
                loop {
                    // SAFETY: as above.
                    match unsafe { words::compare_exchange::<N>(at, word, change(word)) }? {
                        Ok(before) => return Some(before),
                        Err(now) => word = now,
                    }
                }
            })
        };
        Ok(T::from_word(self.access::<T, _>(iova, READ | WRITE, BOTH_FAST, exchange)?))
    }

    /// Calls `access` with the address of the word at `iova`, after the first probe if the extent has
    /// the flag `fast`. `access` returns `None` if the memory is missing.
    #[inline(always)]
    fn access<T: Word, R>(
        &self,
        iova: Iova,
        want: u64,
        fast: u64,
        mut access: impl FnMut(*mut u8) -> Option<R>,
    ) -> Result<R, Fault> {
        if !iova.raw().is_multiple_of(size_of::<T>() as u64) {
            return Err(Fault::at(iova, 0, Reason::Misaligned));
        }
        let slot = self.slot();
        slot.enter();
        if let Some(at) = self.hit(iova, size_of::<T>(), fast) {
            let outcome = access(at);
            slot.leave();
            return outcome.ok_or(Fault::at(iova, 0, Reason::BackingLost));
        }
        self.access_slow(iova, size_of::<T>(), want, access)
    }

    #[inline(never)]
    fn access_slow<R>(
        &self,
        iova: Iova,
        len: usize,
        want: u64,
        mut access: impl FnMut(*mut u8) -> Option<R>,
    ) -> Result<R, Fault> {
        let _entered = self.enter();
        last_of(iova, len)?;
        let fault = |reason| Fault::at(iova, 0, reason);
        let Place::Direct(entry) = self.translate(iova.raw(), len, want).map_err(fault)? else {
            return Err(fault(Reason::NotDirect));
        };
        let outcome = access(entry.place(iova.raw()).0).ok_or(fault(Reason::BackingLost))?;
        if want & WRITE != 0 {
            self.after_write(&entry, iova.raw(), len);
        }
        Ok(outcome)
    }
}
