//! Views of memory that a device, a guest or another process may change at any time.
#![expect(unsafe_code, reason = "reads and writes memory through the pointers of the views")]

use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;

use crate::copy::copy_bytes;

/// An access past the end of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBounds {
    /// The offset of the access in the view, in bytes.
    pub offset: usize,
    /// The length of the access in bytes.
    pub len_bytes: usize,
    /// The length of the view in bytes.
    pub view_len_bytes: usize,
}

impl fmt::Display for OutOfBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, len_bytes, view_len_bytes } = self;
        write!(f, "{len_bytes} bytes at offset {offset} are not inside a view of {view_len_bytes}")
    }
}

impl core::error::Error for OutOfBounds {}

/// A readable view of memory that may change at any time.
///
/// # Why no reference
///
/// A `&[u8]` tells the compiler that the bytes do not change while it lives, and a `&mut [u8]` that
/// they are neither read nor written through another pointer. Neither is true for memory that is
/// shared with a device, a guest or another process, so no reference to it is ever formed: a view
/// holds a pointer and a length. Aligned numbers are read by `read_volatile`, and all other bytes
/// by the assembly of [`copy`](crate::copy). Under Miri, all bytes are read by relaxed atomic
/// loads, so that Miri accepts a writer in another thread.
///
/// # Why that is sound
///
/// * The pointer is valid for the length and lifetime of the view (see
///   [`VolatileSlice::from_raw_parts`]), so an access within bounds touches mapped memory.
/// * A volatile access or a block of assembly is executed exactly once, as written. The compiler
///   may not repeat it, so a value cannot change between its check and its use. Each foreign byte
///   is read once, into private memory, and only that copy is used.
/// * A write from outside this process is not part of the language's model of data races: to the
///   compiler, a volatile read has an unknown effect. Writers in this process must be ordered by
///   the code that creates the views (`heap` shares memory only after the last write of this
///   process).
/// * A mix of old and new bytes is still valid: `u8` and the unsigned integers have no invalid
///   values.
#[derive(Clone, Copy)]
pub struct VolatileSlice<'a> {
    start: NonNull<u8>,
    len_bytes: usize,
    lifetime: PhantomData<&'a ()>,
}

/// A view of memory that may change at any time, for reading and writing.
///
/// It is not `Copy`, so that there is only one writer.
pub struct VolatileSliceMut<'a> {
    readable: VolatileSlice<'a>,
}

// SAFETY: a view is a pointer to memory that is valid for its lifetime in every thread. All
// accesses are volatile, so they may come from any thread.
unsafe impl Send for VolatileSlice<'_> {}
// SAFETY: as above; a shared view only reads.
unsafe impl Sync for VolatileSlice<'_> {}

impl<'a> VolatileSlice<'a> {
    /// Returns a view of `len_bytes` bytes at `start`.
    ///
    /// # Safety
    /// For all of `'a`, the bytes must stay mapped and readable, and code in this process may write
    /// to them only by volatile or atomic accesses or by system calls.
    pub const unsafe fn from_raw_parts(start: NonNull<u8>, len_bytes: usize) -> Self {
        Self { start, len_bytes, lifetime: PhantomData }
    }

    /// Returns the view's length in bytes.
    pub const fn len(&self) -> usize {
        self.len_bytes
    }

    /// Returns `true` if the view has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Returns the address of the first byte, for a system call or a device that reads it.
    pub const fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Returns the address of the first byte.
    pub const fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns a view of the `len_bytes` bytes at `offset`.
    ///
    /// # Errors
    /// [`OutOfBounds`] if that reaches past the end.
    pub fn subslice(&self, offset: usize, len_bytes: usize) -> Result<Self, OutOfBounds> {
        self.check(offset, len_bytes)?;
        // SAFETY: `offset` is within the view, so the pointer stays within its allocation.
        let start = unsafe { self.start.add(offset) };
        Ok(Self { start, len_bytes, lifetime: PhantomData })
    }

    /// Copies the bytes at `offset` into all of `into`, reading each byte once. If the memory
    /// vanishes during the copy, the signal kills the process, even while a `FaultGuard` lives.
    ///
    /// # Errors
    /// [`OutOfBounds`] if the view is too short; then no bytes are copied.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = self.subslice(offset, into.len())?.start.as_ptr().cast_const();
        // SAFETY: `from` is valid for `into.len()` bytes by the check above, and `into` is private.
        unsafe { copy_all(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Reads eight bytes at `offset` as a little-endian number.
    ///
    /// If its address is a multiple of eight, the number is read by one access, so it cannot be
    /// torn. At other addresses, and always under Miri, it may be torn: some bytes are from before
    /// a write, and some from after it.
    ///
    /// # Errors
    /// [`OutOfBounds`] if the view is too short.
    pub fn read_u64_le(&self, offset: usize) -> Result<u64, OutOfBounds> {
        let word = self.subslice(offset, size_of::<u64>())?.as_ptr().cast::<u64>();
        if word.is_aligned() && !cfg!(miri) {
            // SAFETY: valid by the check above, and aligned.
            return Ok(u64::from_le(unsafe { word.read_volatile() }));
        }
        let mut bytes = [0; 8];
        self.read(offset, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn check(&self, offset: usize, len_bytes: usize) -> Result<(), OutOfBounds> {
        if offset <= self.len_bytes && len_bytes <= self.len_bytes - offset {
            Ok(())
        } else {
            Err(OutOfBounds { offset, len_bytes, view_len_bytes: self.len_bytes })
        }
    }
}

impl<'a> From<&'a mut [u8]> for VolatileSliceMut<'a> {
    /// Returns a view of memory that no other code can access while the view lives.
    fn from(bytes: &'a mut [u8]) -> Self {
        let len_bytes = bytes.len();
        // SAFETY: the bytes are borrowed exclusively for the whole of `'a`.
        unsafe { Self::from_raw_parts(NonNull::from(bytes).cast(), len_bytes) }
    }
}

impl<'a> VolatileSliceMut<'a> {
    /// Returns a writable view of `len_bytes` bytes at `start`.
    ///
    /// # Safety
    /// As [`VolatileSlice::from_raw_parts`], and the bytes must stay writable.
    pub const unsafe fn from_raw_parts(start: NonNull<u8>, len_bytes: usize) -> Self {
        // SAFETY: the caller's promise includes the requirements of a readable view.
        Self { readable: unsafe { VolatileSlice::from_raw_parts(start, len_bytes) } }
    }

    /// Returns a view of the same bytes, for reading.
    pub fn as_readable(&self) -> VolatileSlice<'_> {
        self.readable
    }

    /// Returns the view's length in bytes.
    pub const fn len(&self) -> usize {
        self.readable.len_bytes
    }

    /// Returns `true` if the view has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.readable.len_bytes == 0
    }

    /// Returns the address of the first byte, for a system call or a device that writes it.
    pub const fn as_mut_ptr(&mut self) -> *mut u8 {
        self.readable.start.as_ptr()
    }

    /// Borrows the `len_bytes` bytes at `offset` as a view.
    ///
    /// # Errors
    /// [`OutOfBounds`] if that reaches past the end.
    pub fn subslice_mut(
        &mut self,
        offset: usize,
        len_bytes: usize,
    ) -> Result<VolatileSliceMut<'_>, OutOfBounds> {
        self.readable.subslice(offset, len_bytes).map(|readable| VolatileSliceMut { readable })
    }

    /// Splits the view in two at `offset`, for two writers.
    ///
    /// # Errors
    /// [`OutOfBounds`] if `offset` is past the end; the view is consumed all the same.
    pub fn split_at_mut(self, offset: usize) -> Result<(Self, Self), OutOfBounds> {
        let head = self.readable.subslice(0, offset)?;
        let tail = self.readable.subslice(offset, self.readable.len_bytes - offset)?;
        Ok((Self { readable: head }, Self { readable: tail }))
    }

    /// Copies all of `from` to the bytes at `offset`, writing each byte once.
    ///
    /// # Errors
    /// [`OutOfBounds`] if the view is too short; then no bytes are written.
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result<(), OutOfBounds> {
        let into = self.readable.subslice(offset, from.len())?.start.as_ptr();
        // SAFETY: `into` is valid for `from.len()` bytes by the check above, and `from` is private.
        unsafe { copy_all(from.as_ptr(), into, from.len()) };
        Ok(())
    }

    /// Sets the `len_bytes` bytes at `offset` to zero.
    ///
    /// # Errors
    /// [`OutOfBounds`] if the view is too short; then no bytes are written.
    pub fn zero(&mut self, offset: usize, len_bytes: usize) -> Result<(), OutOfBounds> {
        const ZEROS: [u8; 256] = [0; 256];
        let mut target = self.subslice_mut(offset, len_bytes)?;
        for at in (0..len_bytes).step_by(ZEROS.len()) {
            target.write(at, &ZEROS[..ZEROS.len().min(len_bytes - at)])?;
        }
        Ok(())
    }
}

impl fmt::Debug for VolatileSlice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VolatileSlice({:p} + {:#x})", self.start, self.len_bytes)
    }
}

impl fmt::Debug for VolatileSliceMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VolatileSliceMut({:p} + {:#x})", self.readable.start, self.len())
    }
}

/// Copies `len_bytes` bytes with the best instructions of the machine. If the memory of a view is
/// missing, contrary to the promise of `from_raw_parts`, the access kills the process, with or
/// without a `FaultGuard`. Code that must survive that calls [`copy`](crate::copy) directly.
///
/// # Safety
/// Both sides must be valid for `len_bytes` bytes and must not overlap.
unsafe fn copy_all(mut from: *const u8, mut to: *mut u8, mut len_bytes: usize) {
    // SAFETY: the caller's promise, which includes the rest of the range in later iterations.
    while let Err(stop) = unsafe { copy_bytes(from, to, len_bytes) } {
        len_bytes -= stop.done_bytes;
        // SAFETY: the byte that faulted is within the range.
        from = unsafe { from.add(stop.done_bytes) };
        // SAFETY: as above.
        to = unsafe { to.add(stop.done_bytes) };
        // SAFETY: valid by the caller's promise; if it is not, the process dies here.
        let byte = unsafe { from.read_volatile() };
        // SAFETY: as above.
        unsafe { to.write_volatile(byte) };
    }
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn view_of(bytes: &mut [u8]) -> VolatileSliceMut<'_> {
        let len_bytes = bytes.len();
        let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
        // SAFETY: the view borrows `bytes` for as long as it lives.
        unsafe { VolatileSliceMut::from_raw_parts(start, len_bytes) }
    }

    #[test]
    fn access_past_the_end_is_refused_and_copies_nothing() {
        let mut memory = [7u8; 16];
        let mut view = view_of(&mut memory);
        let error = OutOfBounds { offset: 10, len_bytes: 7, view_len_bytes: 16 };
        assert_eq!(view.write(10, &[0; 7]), Err(error));
        let mut out = [1u8; 7];
        assert_eq!(view.as_readable().read(10, &mut out), Err(error));
        assert_eq!(out, [1; 7]);
        let past = view.as_readable().subslice(17, 0).unwrap_err();
        assert_eq!((past.offset, past.len_bytes), (17, 0));
        assert!(view.as_readable().read(usize::MAX, &mut out).is_err());
        assert_eq!(memory, [7; 16]);
    }

    #[test]
    fn numbers_are_little_endian_at_any_alignment() {
        let mut memory = [0u8; 17];
        memory[3..11].copy_from_slice(&0x0102_0304_0506_0708u64.to_le_bytes());
        let view = view_of(&mut memory);
        assert_eq!(view.as_readable().read_u64_le(3).unwrap(), 0x0102_0304_0506_0708);
    }

    #[test]
    fn split_views_cover_the_whole_and_do_not_overlap() {
        let mut memory = [0u8; 10];
        let (mut low, mut high) = view_of(&mut memory).split_at_mut(4).unwrap();
        low.write(0, &[1; 4]).unwrap();
        high.write(0, &[2; 6]).unwrap();
        assert!(low.write(4, &[9]).is_err());
        assert_eq!(memory, [1, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
    }

    #[test]
    fn zeroing_leaves_the_other_bytes() {
        let mut memory = vec![0xff; 1000];
        view_of(&mut memory).zero(3, 900).unwrap();
        let expected: Vec<u8> =
            (0..1000).map(|at| if (3..903).contains(&at) { 0 } else { 0xff }).collect();
        assert_eq!(memory, expected);
    }

    // Miri runs these, too, with fewer cases.
    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 8 } else { 256 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn copies_equal_slices_at_every_alignment(
            skew in 0usize..8, own_skew in 0usize..8, len in 0usize..70,
        ) {
            let pattern: Vec<u8> = (0..len as u8).map(|at| at.wrapping_mul(37) ^ 0x5a).collect();
            let mut own = vec![0u8; own_skew + len];
            own[own_skew..].copy_from_slice(&pattern);
            let mut memory = vec![0xeeu8; 8 + 70 + 8];
            view_of(&mut memory).write(skew, &own[own_skew..]).unwrap();
            prop_assert_eq!(&memory[skew..skew + len], &pattern[..]);
            prop_assert!(memory[..skew].iter().chain(&memory[skew + len..]).all(|byte| *byte == 0xee));
            let mut back = vec![0u8; own_skew + len];
            view_of(&mut memory).as_readable().read(skew, &mut back[own_skew..]).unwrap();
            prop_assert_eq!(&back[own_skew..], &pattern[..]);
        }
    }
}
