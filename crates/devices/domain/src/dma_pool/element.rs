//! Handles of elements.
#![expect(unsafe_code, reason = "views memory that a device writes to")]

use std::fmt;
use std::ops::Range;

use longshore_mem::Iova;
use longshore_mem::copy::{self, CopyFault};
use longshore_mem::dispatch_isa;
use longshore_mem::isa::IsaToken;
use longshore_mem::{OutOfBounds, VolatileSlice, VolatileSliceMut};

use super::shared::Spare;
use super::threads;

/// An element of a [`DmaPool`](crate::DmaPool), or a part of one, with exclusive access for this
/// process.
///
/// The device can reach it all the time, so its bytes are read and written by copies and never lent
/// out as a slice. Dropped, the element returns to its pool, and the next owner may take it: keep it
/// until the device has finished with it.
///
/// [`split_to`](Self::split_to) divides it; [`freeze`](Self::freeze) turns it into a [`DmaSlice`],
/// which can be cloned. The element returns to the pool when the last part of it is dropped.
#[must_use = "if dropped, the element returns to the pool"]
pub struct DmaElement(Part);

/// A reference-counted, read-only slice of an element, like `bytes::Bytes` for ordinary memory. Cloning
/// and slicing copy nothing.
#[must_use = "if dropped, the element may return to the pool"]
#[derive(Clone)]
pub struct DmaSlice(Part);

/// The error for a range that does not lie in a [`DmaSlice`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SliceError {
    /// The range that was requested, in bytes from the start of the slice.
    pub range: Range<usize>,
    /// The length of the slice in bytes.
    pub len: usize,
}

impl fmt::Display for SliceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { range, len } = self;
        if range.end < range.start {
            write!(f, "the range {range:?} ends before it begins")
        } else {
            write!(f, "the range {range:?} ends beyond the last of {len} bytes")
        }
    }
}

impl std::error::Error for SliceError {}

/// A counted reference to an element, and a range that lies in it.
struct Part {
    element: Spare,
    offset: u32,
    len: u32,
}

impl DmaElement {
    /// Returns a handle to all of an element that has no other handle.
    #[inline]
    pub(super) fn whole(element: Spare) -> Self {
        let len = element.state().pool().element_len();
        Self(Part { element, offset: 0, len })
    }

    /// Returns the address of the first byte for the device.
    #[inline]
    pub fn iova(&self) -> Iova {
        self.0.iova()
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len as usize
    }

    /// Returns true if it has no bytes: all were split off.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Returns a view to read.
    pub fn view(&self) -> VolatileSlice<'_> {
        self.0.view()
    }

    /// Returns a view to read and write.
    pub fn view_mut(&mut self) -> VolatileSliceMut<'_> {
        let view = self.0.view();
        // SAFETY: as in `Part::view`; no other live handle has these bytes, so this process reads and
        // writes them only through this view.
        unsafe { VolatileSliceMut::from_raw_parts(view.start(), view.len()) }
    }

    /// Copies the bytes from `offset` on into all of `into`.
    ///
    /// # Errors
    /// [`OutOfBounds`] if there are fewer; nothing is copied then.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfBounds> {
        self.view().read(offset, into)
    }

    /// Copies all of `from` to the bytes from `offset` on.
    ///
    /// # Errors
    /// [`OutOfBounds`] if there are fewer; nothing is copied then.
    pub fn write_at(&mut self, offset: usize, from: &[u8]) -> Result<(), OutOfBounds> {
        self.view_mut().write(offset, from)
    }

    /// Splits off the bytes before `at` and returns them; the others stay.
    ///
    /// # Errors
    /// [`OutOfBounds`] if there are fewer than `at` bytes; nothing changes then.
    pub fn split_to(&mut self, at: usize) -> Result<Self, OutOfBounds> {
        let head = self.0.part(0, at)?;
        self.0.offset += head.len;
        self.0.len -= head.len;
        Ok(Self(head))
    }

    /// Splits off the bytes from `at` on and returns them; the others stay.
    ///
    /// # Errors
    /// [`OutOfBounds`] if there are fewer than `at` bytes; nothing changes then.
    pub fn split_off(&mut self, at: usize) -> Result<Self, OutOfBounds> {
        let view_len_bytes = self.len();
        let tail_len = view_len_bytes.checked_sub(at);
        let tail_len = tail_len.ok_or(OutOfBounds { offset: 0, len_bytes: at, view_len_bytes })?;
        let tail = self.0.part(at, tail_len)?;
        self.0.len -= tail.len;
        Ok(Self(tail))
    }

    /// Converts the element into a read-only slice, which can be cloned and shared.
    pub fn freeze(self) -> DmaSlice {
        DmaSlice(self.0)
    }

    /// Sets all bytes to zero.
    pub(super) fn zero(&mut self) -> Result<(), CopyFault> {
        let (start, len) = (self.0.view().start().as_ptr(), self.len());
        // SAFETY: as in `view_mut`.
        dispatch_isa!(IsaToken::active(), isa => unsafe { copy::fill(isa, start, 0, len) })
    }
}

impl DmaSlice {
    /// Returns the address of the first byte for the device.
    #[inline]
    pub fn iova(&self) -> Iova {
        self.0.iova()
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len as usize
    }

    /// Returns true if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Returns a view to read.
    pub fn view(&self) -> VolatileSlice<'_> {
        self.0.view()
    }

    /// Copies the bytes from `offset` on into all of `into`.
    ///
    /// # Errors
    /// [`OutOfBounds`] if there are fewer; nothing is copied then.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfBounds> {
        self.view().read(offset, into)
    }

    /// Returns the bytes in `range`, as another reference to the element.
    ///
    /// # Errors
    /// [`SliceError`] if the range ends beyond the last byte, or before it begins.
    pub fn slice(&self, range: Range<usize>) -> Result<Self, SliceError> {
        let len = range.end.checked_sub(range.start);
        len.and_then(|len| self.0.part(range.start, len).ok())
            .map(Self)
            .ok_or(SliceError { range, len: self.len() })
    }

    /// Converts the slice into a writable element if it is the only handle to its element.
    ///
    /// # Errors
    /// The slice, if there are other handles. They are counted for the whole element: clones and slices,
    /// and also parts that [`split_to`](DmaElement::split_to) or [`split_off`](DmaElement::split_off)
    /// made, although they have no byte in common with this one.
    pub fn try_into_element(self) -> Result<DmaElement, Self> {
        if self.0.element.state().refs.is_only() { Ok(DmaElement(self.0)) } else { Err(self) }
    }
}

impl Part {
    #[inline]
    fn iova(&self) -> Iova {
        Iova::new(self.element.iova().raw() + u64::from(self.offset))
    }

    fn view(&self) -> VolatileSlice<'_> {
        // SAFETY: within the element, or at its end.
        let start = unsafe { self.element.host().add(self.offset as usize) };
        // SAFETY: the element is mapped as long as a part of it lives. It is written by devices, and
        // through views of a `DmaElement`, which shares no bytes with any other handle.
        unsafe { VolatileSlice::from_raw_parts(start, self.len as usize) }
    }

    fn part(&self, offset: usize, len_bytes: usize) -> Result<Self, OutOfBounds> {
        let view_len_bytes = self.len as usize;
        if offset > view_len_bytes || len_bytes > view_len_bytes - offset {
            return Err(OutOfBounds { offset, len_bytes, view_len_bytes });
        }
        let mut part = self.clone();
        part.offset += offset as u32;
        part.len = len_bytes as u32;
        Ok(part)
    }
}

impl Clone for Part {
    #[inline]
    fn clone(&self) -> Self {
        self.element.state().refs.add();
        // SAFETY: the new handle is counted, and the last one that ends gives the element back.
        let element = unsafe { self.element.share() };
        Self { element, offset: self.offset, len: self.len }
    }
}

impl Drop for Part {
    #[inline]
    fn drop(&mut self) {
        if self.element.state().refs.end() {
            // SAFETY: this was the last handle, and is not used again.
            threads::keep(unsafe { self.element.share() });
        }
    }
}

impl fmt::Debug for DmaElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.describe("DmaElement", f)
    }
}

impl fmt::Debug for DmaSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.describe("DmaSlice", f)
    }
}

impl Part {
    fn describe(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name).field("iova", &self.iova()).field("len", &self.len).finish()
    }
}
