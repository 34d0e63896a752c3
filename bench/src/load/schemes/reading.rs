//! Reads into windows of memory, by one thread.
#![expect(unsafe_code, reason = "takes windows of the memory it reads into")]

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result, ensure};
use longshore_heap::Reservation;
use longshore_mem::FileOffset;
use longshore_sys::file::{self, ReadFlags};
use longshore_sys::page_cache;

use crate::load::data::DataFile;

/// Direct reads begin and end at multiples of this.
pub(super) const DIRECT_BYTES: u64 = 4096;

/// Opens a file to be read from its start to its end, past the page cache if `direct`.
pub(super) fn open(file: &DataFile, direct: bool) -> Result<OwnedFd> {
    let open = File::open(&file.path)?;
    if direct {
        return file::reopen_direct(open).context("opening the file for direct reads");
    }
    page_cache::expect_sequential_reads(&open)?;
    Ok(open.into())
}

/// Reads a range of a file to the same place in memory. It begins at a multiple of a page.
pub(super) fn read_range(source: &OwnedFd, memory: &Reservation, range: Range<u64>) -> Result<()> {
    let _filling = memory.begin_filling()?;
    // A direct read ends at a page; there is room for it, and `finish` clears it.
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

/// What the kernel says to a direct read into a kernel heap's mapping, where it is a refusal.
pub(super) fn direct_refusal(file: &DataFile, memory: &Reservation) -> Option<String> {
    let source = open(file, true).ok()?;
    let error = read_range(&source, memory, 0..memory.len()).err()?;
    Some(format!(
        "a direct read into a dma-heap's mapping is refused ({}), measured into a memfd",
        error.root_cause()
    ))
}
