//! A contiguous range of memory, as a step gets it.
#![expect(unsafe_code, reason = "makes views out of addresses and lengths")]

use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use longshore_mem::Page;
use longshore_mem::{VolatileSlice, VolatileSliceMut};

use crate::direction::{Dest, Direction, Source};
use crate::error::Error;

/// A contiguous range of memory that is read or written, depending on `D`, and only by volatile
/// accesses: others may change it at any time.
///
/// It has the layout of `struct iovec`, so a list of segments can be passed to a system call
/// ([`Segment::as_iovecs`]).
#[repr(C)]
pub struct Segment<'m, D> {
    start: NonNull<u8>,
    len_bytes: usize,
    memory: PhantomData<(&'m (), D)>,
}

// SAFETY: a segment is a volatile view, which may be used from any thread.
unsafe impl<D: Direction> Send for Segment<'_, D> {}
// SAFETY: a shared segment only allows volatile reads.
unsafe impl<D: Direction> Sync for Segment<'_, D> {}

impl Clone for Segment<'_, Source> {
    fn clone(&self) -> Self {
        *self
    }
}

impl Copy for Segment<'_, Source> {}

impl<'m, D: Direction> Segment<'m, D> {
    /// # Safety
    /// The bytes must be valid for `'m` as a [`VolatileSlice`] requires, or, for [`Dest`], a
    /// [`VolatileSliceMut`], of which only one may be in use at a time.
    #[inline(always)]
    pub(crate) const unsafe fn from_raw(start: NonNull<u8>, len_bytes: usize) -> Self {
        Self { start, len_bytes, memory: PhantomData }
    }

    /// Returns the length in bytes.
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.len_bytes
    }

    /// Returns `true` if the segment has no bytes.
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Returns the address of the first byte.
    #[inline(always)]
    pub const fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the address of the first byte, for a device or a system call that reads it.
    #[inline(always)]
    pub const fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Returns a list of segments as an array of `struct iovec` with `list.len()` entries.
    pub const fn as_iovecs(list: &[Self]) -> *const () {
        list.as_ptr().cast()
    }
}

impl<'m> Segment<'m, Source> {
    /// Returns the bytes as a view.
    #[inline(always)]
    pub const fn view(&self) -> VolatileSlice<'m> {
        // SAFETY: a segment upholds the requirements of a view.
        unsafe { VolatileSlice::from_raw_parts(self.start, self.len_bytes) }
    }
}

impl<'m> Segment<'m, Dest> {
    /// Returns the address of the first byte, for a device or a system call that writes it.
    #[inline(always)]
    pub const fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the bytes as a view that can be written.
    #[inline(always)]
    pub const fn into_view(self) -> VolatileSliceMut<'m> {
        // SAFETY: a segment upholds the requirements of a view, and is consumed here.
        unsafe { VolatileSliceMut::from_raw_parts(self.start, self.len_bytes) }
    }
}

impl<'m> From<VolatileSlice<'m>> for Segment<'m, Source> {
    fn from(view: VolatileSlice<'m>) -> Self {
        Self { start: view.start(), len_bytes: view.len(), memory: PhantomData }
    }
}

impl<'m> From<VolatileSliceMut<'m>> for Segment<'m, Dest> {
    fn from(view: VolatileSliceMut<'m>) -> Self {
        let readable = view.as_readable();
        Self { start: readable.start(), len_bytes: view.len(), memory: PhantomData }
    }
}

impl<'m> From<&'m Page<'_>> for Segment<'m, Source> {
    fn from(page: &'m Page<'_>) -> Self {
        page.view().into()
    }
}

impl<'m> From<&'m mut Page<'_>> for Segment<'m, Dest> {
    fn from(page: &'m mut Page<'_>) -> Self {
        page.view_mut().into()
    }
}

impl<D> fmt::Debug for Segment<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({:p} + {:#x})", self.start, self.len_bytes)
    }
}

/// A list of foreign ranges that was copied and validated. A walk uses the validated copy, even if
/// the original array lies in memory that others change.
#[derive(Debug)]
pub struct SegmentList<'m, D> {
    segments: Box<[Segment<'m, D>]>,
    len_bytes: usize,
}

/// A `struct iovec` of the system (POSIX `<sys/uio.h>`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawSegment {
    /// The address of the first byte.
    pub base: *mut u8,
    /// The length in bytes.
    pub len_bytes: usize,
}

impl RawSegment {
    /// Reads the entry at `entry`. Each field is read once, by a relaxed atomic load: a concurrent
    /// write is not a data race, but the two fields may be from different moments.
    ///
    /// # Safety
    /// `entry` must be readable and aligned.
    unsafe fn read_foreign(entry: *const Self) -> Self {
        let entry = entry.cast_mut();
        // SAFETY: inside the entry.
        let base = unsafe { &raw mut (*entry).base };
        // SAFETY: readable and aligned by the caller's promise, and only read.
        let base = unsafe { AtomicPtr::from_ptr(base) }.load(Ordering::Relaxed);
        // SAFETY: inside the entry.
        let len_bytes = unsafe { &raw mut (*entry).len_bytes };
        // SAFETY: as for the first field.
        let len_bytes = unsafe { AtomicUsize::from_ptr(len_bytes) }.load(Ordering::Relaxed);
        Self { base, len_bytes }
    }
}

/// The largest number of segments in a list: Linux's `UIO_MAXIOV`.
pub const SEGMENTS_MAX: usize = 1024;

impl<'m, D: Direction> SegmentList<'m, D> {
    /// Makes a list of `views`.
    ///
    /// # Errors
    /// [`Error::TooManySegments`] for more than [`SEGMENTS_MAX`] views, [`Error::TooLong`] if their
    /// lengths add up to more than an object can have.
    pub fn new(views: impl IntoIterator<Item = impl Into<Segment<'m, D>>>) -> Result<Self, Error> {
        let mut segments = Vec::new();
        let mut len_bytes = 0usize;
        for view in views {
            if segments.len() == SEGMENTS_MAX {
                return Err(Error::TooManySegments { count: SEGMENTS_MAX + 1, max: SEGMENTS_MAX });
            }
            let segment = view.into();
            len_bytes = total(len_bytes, segment.len_bytes, segments.len() + 1)?;
            segments.push(segment);
        }
        Ok(Self { segments: segments.into(), len_bytes })
    }

    /// Copies the array of `count` `struct iovec` at `array`. Each field is read once, so the array
    /// may lie in foreign memory. Entries without bytes are left out.
    ///
    /// # Errors
    /// [`Error::TooManySegments`] for more than [`SEGMENTS_MAX`] entries, before any is read.
    /// [`Error::TooLong`] if the lengths add up to more than an object can have, or an entry
    /// reaches past the end of the address space. [`Error::NullSegment`] for an entry with a length
    /// at address zero.
    ///
    /// # Safety
    /// `array` must be readable for `count` entries. Each range with a length must be valid for
    /// `'m` as a [`VolatileSlice`] or [`VolatileSliceMut`] requires. The ranges of a [`Dest`] must
    /// not overlap, and no other writer may use them. (Ranges may fault as
    /// [`copy`](longshore_mem::copy) allows.)
    pub unsafe fn from_iovecs(array: *const RawSegment, count: usize) -> Result<Self, Error> {
        if count > SEGMENTS_MAX {
            return Err(Error::TooManySegments { count, max: SEGMENTS_MAX });
        }
        let mut segments = Vec::with_capacity(count);
        let mut len_bytes = 0usize;
        for index in 0..count {
            // SAFETY: within the array, by the caller's promise.
            let entry = unsafe { array.add(index) };
            // SAFETY: readable by the caller's promise.
            let raw = unsafe { RawSegment::read_foreign(entry) };
            if raw.len_bytes == 0 {
                continue;
            }
            let Some(start) = NonNull::new(raw.base) else {
                return Err(Error::NullSegment { index, len_bytes: raw.len_bytes });
            };
            len_bytes = total(len_bytes, raw.len_bytes, index + 1)?;
            if start.addr().get().checked_add(raw.len_bytes).is_none() {
                return Err(Error::TooLong { segments: index + 1 });
            }
            // SAFETY: the caller's promise.
            segments.push(unsafe { Segment::from_raw(start, raw.len_bytes) });
        }
        Ok(Self { segments: segments.into(), len_bytes })
    }

    /// Returns the length of all segments together, in bytes.
    pub const fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Returns `true` if the list has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Returns the number of segments.
    pub const fn segments(&self) -> usize {
        self.segments.len()
    }

    pub(crate) const fn as_slice(&self) -> &[Segment<'m, D>] {
        &self.segments
    }
}

/// Returns `sum + len_bytes`, or an error if that is more than an object can have.
fn total(sum: usize, len_bytes: usize, segments: usize) -> Result<usize, Error> {
    sum.checked_add(len_bytes)
        .filter(|total| *total <= isize::MAX as usize)
        .ok_or(Error::TooLong { segments })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_validated_before_anything_is_walked() {
        let raw = |base: usize, len_bytes| RawSegment {
            base: std::ptr::without_provenance_mut(base),
            len_bytes,
        };
        // SAFETY: no range is accessed here.
        let list_of = |list: &[RawSegment]| unsafe {
            SegmentList::<'static, Source>::from_iovecs(list.as_ptr(), list.len())
                .map(|list| list.len_bytes())
        };
        assert_eq!(list_of(&[]), Ok(0));
        assert_eq!(list_of(&[raw(0, 0), raw(16, 5)]), Ok(5));
        assert_eq!(
            list_of(&[raw(16, 5), raw(0, 1)]),
            Err(Error::NullSegment { index: 1, len_bytes: 1 })
        );
        let half = isize::MAX as usize;
        assert_eq!(list_of(&[raw(16, half)]), Ok(half));
        assert_eq!(list_of(&[raw(16, half), raw(16, 1)]), Err(Error::TooLong { segments: 2 }));
        assert_eq!(
            list_of(&[raw(16, usize::MAX), raw(16, 2)]),
            Err(Error::TooLong { segments: 1 })
        );
        let many = [raw(16, 1); SEGMENTS_MAX + 1];
        assert_eq!(list_of(&many[..SEGMENTS_MAX]), Ok(SEGMENTS_MAX));
        let error = Error::TooManySegments { count: SEGMENTS_MAX + 1, max: SEGMENTS_MAX };
        assert_eq!(list_of(&many), Err(error));
    }
}
