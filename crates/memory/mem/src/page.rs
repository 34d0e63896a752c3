//! A page of memory: its address and size.
#![expect(unsafe_code, reason = "makes views of the page's memory")]

use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;

use crate::volatile::{VolatileSlice, VolatileSliceMut};

/// A page that is valid for `'a` and has no other writer in this process: a base page, a huge page,
/// or a block of memory whose length is a power of two and whose address is a multiple of its
/// length.
///
/// Other processes and devices may change it, so it is accessed only through volatile views.
pub struct Page<'a> {
    start: NonNull<u8>,
    size_log2: u32,
    lifetime: PhantomData<&'a ()>,
}

/// The memory is not a page: its length is not a power of two, or its address is not a multiple of
/// its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAPage {
    /// The address of the first byte.
    pub addr: usize,
    /// The length in bytes.
    pub len_bytes: usize,
}

impl fmt::Display for NotAPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { addr, len_bytes } = self;
        write!(
            f,
            "{len_bytes} bytes at {addr:#x} are not a page: a page has a power-of-two length, "
        )?;
        f.write_str("and its address is a multiple of that")
    }
}

impl core::error::Error for NotAPage {}

// SAFETY: a page is a pointer to memory that is valid for its lifetime in every thread.
unsafe impl Send for Page<'_> {}
// SAFETY: a shared page only allows volatile reads.
unsafe impl Sync for Page<'_> {}

impl<'a> Page<'a> {
    /// Returns all of `view` as a page.
    ///
    /// # Errors
    /// [`NotAPage`] if the length is not a power of two, or the address is not a multiple of it.
    pub fn new(mut view: VolatileSliceMut<'a>) -> Result<Self, NotAPage> {
        let (addr, len_bytes) = (view.as_readable().start().addr().get(), view.len());
        match NonNull::new(view.as_mut_ptr()) {
            Some(start) if len_bytes.is_power_of_two() && addr.is_multiple_of(len_bytes) => {
                Ok(Self { start, size_log2: len_bytes.trailing_zeros(), lifetime: PhantomData })
            }
            _ => Err(NotAPage { addr, len_bytes }),
        }
    }

    /// Returns the base-2 logarithm of the size in bytes.
    pub const fn size_log2(&self) -> u32 {
        self.size_log2
    }

    /// Returns the size in bytes.
    pub const fn size_bytes(&self) -> usize {
        1 << self.size_log2
    }

    /// Returns a view of the bytes, for reading.
    pub const fn view(&self) -> VolatileSlice<'_> {
        // SAFETY: the page was made from a view that is valid for the same bytes, and for longer.
        unsafe { VolatileSlice::from_raw_parts(self.start, self.size_bytes()) }
    }

    /// Returns a view of the bytes, for reading and writing.
    pub const fn view_mut(&mut self) -> VolatileSliceMut<'_> {
        // SAFETY: as for `view`; the page was made from a writable view, and is borrowed
        // exclusively.
        unsafe { VolatileSliceMut::from_raw_parts(self.start, self.size_bytes()) }
    }
}

impl fmt::Debug for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Page({:p}, 2^{} bytes)", self.start, self.size_log2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Aligned([u8; 64]);

    fn view(bytes: &mut [u8]) -> VolatileSliceMut<'_> {
        let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
        // SAFETY: the view borrows `bytes` for as long as it lives.
        unsafe { VolatileSliceMut::from_raw_parts(start, bytes.len()) }
    }

    #[test]
    fn a_page_is_aligned_to_its_size() {
        let mut memory = Aligned([3; 64]);
        let mut page = Page::new(view(&mut memory.0[..])).unwrap();
        assert_eq!((page.size_log2(), page.size_bytes()), (6, 64));
        page.view_mut().write(63, &[9]).unwrap();
        assert_eq!(memory.0[62..], [3, 9]);
        assert!(Page::new(view(&mut memory.0[32..])).is_ok());
        assert_eq!(Page::new(view(&mut memory.0[16..48])).unwrap_err().len_bytes, 32);
        assert!(Page::new(view(&mut memory.0[..48])).is_err(), "not a power of two");
        assert!(Page::new(view(&mut memory.0[..0])).is_err(), "empty");
    }
}
