//! The disk's limit in this program: direct reads into 64 MiB that exist already.
#![expect(unsafe_code, reason = "takes windows of the memory it reads into")]

use std::ops::Range;
use std::os::fd::AsFd;

use longshore_heap::Heap;

use super::ring::{self, BLOCK_BYTES, DEPTH};
use super::{Finished, Prepared};
use crate::harness::Trouble;
use crate::load::data::DataFile;

pub(super) fn prepare(file: &DataFile) -> Result<Prepared, Trouble> {
    ring::require()?;
    let (path, len_bytes) = (file.path.clone(), file.len_bytes);
    let memory_bytes = u64::from(DEPTH) * BLOCK_BYTES;
    let memory = Heap::Memfd.reserve(memory_bytes)?;
    memory.populate(0..memory_bytes)?;
    let note = Some(format!("into {} pages", memory.page_report()));
    Ok(Box::new(move || {
        let file = ring::open_direct(&path)?;
        ring::read_all(file.as_fd(), len_bytes, |slot, range: Range<u64>| {
            let start = u64::from(slot) * BLOCK_BYTES;
            let end = start + (range.end - range.start).next_multiple_of(4096);
            // SAFETY: slots do not overlap, and the last read of this one has completed.
            Ok(unsafe { memory.window(start..end) }?)
        })?;
        // What was read is overwritten by what was read next; there is nothing to compare.
        Ok(Finished { check: Box::new(|| Ok(())), note })
    }))
}
