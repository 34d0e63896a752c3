//! Reads into windows of memory, by one thread.
#![expect(unsafe_code, reason = "takes windows of the memory that it reads into")]

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result, ensure};
use longshore_heap::Reservation;
use longshore_mem::FileOffset;
use longshore_sys::file::{self, ReadFlags};
use longshore_sys::page_cache;

use crate::load::data::DataFile;

/// The alignment of direct reads.
pub(super) const DIRECT_BYTES: u64 = 4096;

/// Opens a file for sequential reading, bypassing the page cache if `direct`.
pub(super) fn open(file: &DataFile, direct: bool) -> Result<OwnedFd> {
    let open = File::open(&file.path)?;
    if direct {
        return file::reopen_direct(open).context("opening the file for direct reads");
    }
    page_cache::expect_sequential_reads(&open)?;
    Ok(open.into())
}

/// Reads a range of a file to the same place in memory. The range begins at a multiple of a page.
pub(super) fn read_range(source: &OwnedFd, memory: &Reservation, range: Range<u64>) -> Result<()> {
    let _filling = memory.begin_filling()?;
    // A direct read ends at a page boundary. There is room for it, and `finish` clears the rest.
    let end = range.end.next_multiple_of(DIRECT_BYTES).min(memory.capacity_bytes());
    // SAFETY: a scheme reads each range once, and its ranges do not overlap.
    let mut window = unsafe { memory.window(range.start..end) }?;
    let mut done = 0;
    while range.start + done < range.end {
        let rest = window.len() - done as usize;
        let mut target = window.subslice_mut(done as usize, rest)?;
        let offset = FileOffset::new(range.start + done);
        let read = file::read_at(source.as_fd(), &mut target, offset, ReadFlags::default())
            .with_context(|| format!("reading at byte {}", offset.raw()))?;
        ensure!(read > 0, "the file ended at byte {}", offset.raw());
        done += read as u64;
    }
    Ok(())
}

/// Returns the kernel's error if it refuses a direct read into a dma-heap's mapping.
pub(super) fn direct_refusal(file: &DataFile, memory: &Reservation) -> Option<String> {
    let source = open(file, true).ok()?;
    let error = read_range(&source, memory, 0..memory.len()).err()?;
    Some(format!(
        "a direct read into a dma-heap's mapping is refused ({}), measured into a memfd",
        error.root_cause()
    ))
}
