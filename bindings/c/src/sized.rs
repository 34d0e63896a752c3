//! Structs that C passes by pointer. Each begins with its size and grows only at its end, so the
//! size shows the version that the program was compiled for.
#![expect(unsafe_code, reason = "copies C structs whose length is in their first field")]

use std::mem::MaybeUninit;
use std::ptr;

use crate::error::Failure;
use crate::ffi;

/// An upper bound for all versions of all structs: a larger `size` was not initialized.
const SIZE_MAX_BYTES: usize = 4096;

/// A struct whose first field is its size.
pub(crate) struct SizedStruct {
    /// Its name in C.
    pub(crate) name: &'static str,
    /// Its length in its first version.
    pub(crate) first_bytes: usize,
}

impl SizedStruct {
    /// Copies the fields that this version has; fields that an older program lacks are zero.
    ///
    /// # Safety
    /// `T` is this struct: it is `repr(C)`, its first field is its size as a `usize`, and zero is
    /// valid for each field. `place` is NULL, not aligned, or points to as many bytes as its first
    /// field declares, of which those behind the fields of `T` are initialized.
    pub(crate) unsafe fn read<T: Copy>(
        &self,
        place: *const T,
        argument: &str,
    ) -> Result<T, Failure> {
        // SAFETY: by this function's contract.
        let size = unsafe { self.size(place, argument) }?;
        let known_size = size_of::<T>();
        // SAFETY: by the contract, there are `size` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(place.cast::<MaybeUninit<u8>>(), size) };
        if let Some(more) = bytes.get(known_size..) {
            let more: *const [MaybeUninit<u8>] = more;
            // SAFETY: the program that set `size` initialized the fields after those of this
            // version.
            let more = unsafe { &*(more as *const [u8]) };
            if more.iter().any(|byte| *byte != 0) {
                return Err(Failure::argument(format!(
                    "{argument}: a field is set that this version of the library does not have; use \
                     the version that the program was compiled for"
                )));
            }
        }
        let mut known = MaybeUninit::<T>::zeroed();
        let copied = size.min(known_size);
        // SAFETY: both have at least that many bytes, and they do not overlap.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), known.as_mut_ptr().cast(), copied) };
        // SAFETY: it was zeroed, and by the contract zero is valid for each field.
        Ok(unsafe { known.assume_init() })
    }

    /// Stores a value. The caller's `size` is kept, and fields that this version lacks are set to
    /// zero.
    ///
    /// # Safety
    /// `T` is this struct: it is `repr(C)`, and its first field is its size as a `usize`. `place` is
    /// NULL, not aligned, or valid for writes of as many bytes as its first field declares.
    pub(crate) unsafe fn write<T: Copy>(
        &self,
        value: &T,
        place: *mut T,
        argument: &str,
    ) -> Result<(), Failure> {
        // SAFETY: by this function's contract.
        let size = unsafe { self.size(place, argument) }?;
        // SAFETY: by the contract, `size` bytes are valid for writes.
        unsafe { ptr::write_bytes(place.cast::<u8>(), 0, size) };
        let (from, copied) = (ptr::from_ref(value).cast::<u8>(), size.min(size_of::<T>()));
        // SAFETY: both have at least `copied` bytes, and C has no pointer to `value`.
        unsafe { ptr::copy_nonoverlapping(from, place.cast(), copied) };
        // SAFETY: every version has the first field.
        unsafe { place.cast::<usize>().write(size) };
        Ok(())
    }

    /// Returns the checked size of the struct at `place`.
    ///
    /// # Safety
    /// `place` is NULL, not aligned, or points to a struct whose first field is its size as a
    /// `usize`.
    unsafe fn size<T>(&self, place: *const T, argument: &str) -> Result<usize, Failure> {
        ffi::checked(place, argument)?;
        // SAFETY: every version has the first field.
        let size = unsafe { place.cast::<usize>().read() };
        if !(self.first_bytes..=SIZE_MAX_BYTES).contains(&size) {
            return Err(Failure::argument(format!(
                "{argument}: size is {size}; set it to sizeof({})",
                self.name
            )));
        }
        Ok(size)
    }
}
