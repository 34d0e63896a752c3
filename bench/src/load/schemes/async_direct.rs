//! Allocate batch by batch, and read each batch directly while the next is made.

use anyhow::Result;
use longshore_heap::{Sealing, SharedBuffer};

use super::batches::fill_behind_allocation;
use super::reading::{direct_refusal, open_direct};
use super::{Kinds, Scheme};
use crate::load::data::DataFile;

pub(super) struct AsyncDirect;

impl Scheme for AsyncDirect {
    fn name(&self) -> &'static str {
        "async direct"
    }

    fn published_name(&self) -> Option<&'static str> {
        Some("alloc+read async direct (patch 1-4)")
    }

    fn reads_directly(&self) -> bool {
        true
    }

    fn fill(&self, file: &DataFile, kinds: &Kinds) -> Result<SharedBuffer> {
        let source = open_direct(file)?;
        let memory = kinds.populated().reserve(file.len_bytes)?;
        fill_behind_allocation(&source, &memory)?;
        Ok(memory.finish()?.share(Sealing::Size)?)
    }

    fn refusal(&self, file: &DataFile, kinds: &Kinds) -> Option<String> {
        direct_refusal(file, &kinds.dma_heap()?.reserve(file.len_bytes).ok()?)
    }
}
