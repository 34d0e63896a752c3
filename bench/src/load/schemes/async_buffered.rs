//! Allocate batch by batch, and read each batch through the page cache while the next is made.

use anyhow::Result;
use longshore_heap::{Sealing, SharedBuffer};

use super::batches::fill_behind_allocation;
use super::reading::open_buffered;
use super::{Kinds, Scheme};
use crate::load::data::DataFile;

pub(super) struct AsyncBuffered;

impl Scheme for AsyncBuffered {
    fn name(&self) -> &'static str {
        "async buffered"
    }

    fn published_name(&self) -> Option<&'static str> {
        Some("alloc+read async buffered (patch 1-4)")
    }

    fn fill(&self, file: &DataFile, kinds: &Kinds) -> Result<SharedBuffer> {
        let source = open_buffered(file)?;
        let memory = kinds.populated().reserve(file.len_bytes)?;
        fill_behind_allocation(&source, &memory)?;
        Ok(memory.finish()?.share(Sealing::Size)?)
    }
}
