//! A file that the test maps without the libraries under test, to look at memory like another program.
#![expect(unsafe_code, reason = "makes views of mapped memory")]

use std::{io, os::fd::AsFd};

use longshore_mem::{Granule, OutOfBounds, VolatileSlice, VolatileSliceMut};
use longshore_sys::mapping::{Access, Mapping};
use longshore_vm_tests::pattern;
use rustix::fs::{SeekFrom, seek};

/// Large enough that copying out of the mapping costs little compared to the comparison.
const CHUNK_BYTES: usize = 64 << 10;

/// The first bytes of a file, mapped for reading and writing.
pub(crate) struct Mapped {
    mapping: Mapping,
}

impl Mapped {
    /// Maps the first `len_bytes` of `file`, which must have them.
    pub(crate) fn new(file: impl AsFd, len_bytes: u64) -> io::Result<Self> {
        let has_bytes = seek(&file, SeekFrom::End(0))?;
        if has_bytes < len_bytes {
            let reason = format!("{len_bytes} bytes to map, but the file has {has_bytes}");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
        }
        // hugetlb memory must be mapped at a huge page. A dma-buf must not be mapped beyond its end, so
        // it is not rounded up to a huge page.
        let huge = Granule::SIZE_2M.is_aligned(len_bytes);
        let alignment = if huge { Granule::SIZE_2M } else { Granule::SIZE_4K };
        let mapping = Mapping::of_file(file, len_bytes, alignment, Access::ReadWrite)?;
        Ok(Self { mapping })
    }

    /// Returns the address of its start in this process.
    pub(crate) fn address(&self) -> usize {
        self.mapping.start().addr().get()
    }

    /// Returns the memory for reading.
    pub(crate) fn view(&self) -> VolatileSlice<'_> {
        let (start, len_bytes) = (self.mapping.start(), self.mapping.len_bytes());
        // SAFETY: the mapping is readable, lives as long as `self` is borrowed, and only this type's
        // views access it.
        unsafe { VolatileSlice::from_raw_parts(start, len_bytes) }
    }

    /// Returns the memory for writing.
    pub(crate) fn view_mut(&mut self) -> VolatileSliceMut<'_> {
        let (start, len_bytes) = (self.mapping.start(), self.mapping.len_bytes());
        // SAFETY: the mapping is writable, lives as long as `self` is borrowed, and `self` is
        // borrowed exclusively.
        unsafe { VolatileSliceMut::from_raw_parts(start, len_bytes) }
    }

    /// Returns the offset of the first byte that differs from the content with this seed.
    pub(crate) fn first_difference(&self, seed: u64) -> Result<Option<u64>, OutOfBounds> {
        let view = self.view();
        let mut chunk = vec![0; CHUNK_BYTES.min(view.len())];
        let mut at = 0;
        while at < view.len() {
            let len = chunk.len().min(view.len() - at);
            view.read(at, &mut chunk[..len])?;
            let difference = pattern::first_difference(seed, at as u64, &chunk[..len]);
            if difference.is_some() {
                return Ok(difference);
            }
            at += len;
        }
        Ok(None)
    }
}
