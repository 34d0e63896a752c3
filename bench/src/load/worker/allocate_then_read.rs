//! What a load is without the overlap: every page first, then the reads. The same heap, the same
//! single thread that makes pages, the same reads in flight as the library's.
#![expect(unsafe_code, reason = "takes windows of the memory it reads into")]

use std::os::fd::AsFd;

use longshore_heap::{Heap, Sealing};

use super::ring;
use super::{Finished, Prepared};
use crate::harness::Trouble;
use crate::load::data::DataFile;

pub(super) fn prepare(file: &DataFile) -> Result<Prepared, Trouble> {
    ring::require()?;
    let file = file.clone();
    Ok(Box::new(move || {
        let (len_bytes, direct) = (file.len_bytes, ring::open_direct(&file.path)?);
        let memory = Heap::Memfd.reserve(len_bytes)?;
        memory.populate(0..len_bytes)?;
        ring::read_all(direct.as_fd(), len_bytes, |_, range| {
            // Direct reads end at a page; what lies behind the content is cleared by `finish`.
            let end = range.end.next_multiple_of(4096).min(memory.capacity_bytes());
            // SAFETY: each range of the file is read once, and they do not overlap.
            Ok(unsafe { memory.window(range.start..end) }?)
        })?;
        let note = format!("into {} pages", memory.page_report());
        let buffer = memory.finish()?.share(Sealing::Size)?;
        Ok(Finished::loaded(file, buffer, Some(note)))
    }))
}
