//! Allocate, map, read through the page cache.

use anyhow::{Result, ensure};
use longshore_heap::{Sealing, SharedBuffer};
use longshore_mem::FileOffset;
use longshore_sys::file::{self, ReadFlags};

use super::reading::open_buffered;
use super::{Kinds, Scheme};
use crate::load::data::DataFile;

pub(super) struct Normal;

impl Scheme for Normal {
    fn name(&self) -> &'static str {
        "normal"
    }

    fn published_name(&self) -> Option<&'static str> {
        Some("normal (dma-heap + mmap + buffered read)")
    }

    fn fill(&self, file: &DataFile, kinds: &Kinds) -> Result<SharedBuffer> {
        let source = open_buffered(file)?;
        let mut buffer = kinds.allocated().allocate(file.len_bytes)?;
        let mut content = buffer.write()?;
        let mut done = 0;
        while done < content.len() {
            let offset = FileOffset::new(done as u64);
            let read =
                file::read_into(&source, &mut content[done..], offset, ReadFlags::default())?;
            ensure!(read > 0, "the file ended at byte {done}");
            done += read;
        }
        drop(content);
        Ok(buffer.share(Sealing::Size)?)
    }
}
