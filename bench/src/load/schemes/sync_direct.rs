//! Allocate everything, then read it directly.

use anyhow::Result;
use longshore_heap::{Sealing, SharedBuffer};

use super::reading::{direct_refusal, open_direct, read_whole};
use super::{Kinds, Scheme};
use crate::load::data::DataFile;

pub(super) struct SyncDirect;

impl Scheme for SyncDirect {
    fn name(&self) -> &'static str {
        "sync direct"
    }

    fn published_name(&self) -> Option<&'static str> {
        Some("alloc+read sync direct (patch 1)")
    }

    fn reads_directly(&self) -> bool {
        true
    }

    fn fill(&self, file: &DataFile, kinds: &Kinds) -> Result<SharedBuffer> {
        let source = open_direct(file)?;
        let memory = kinds.populated().reserve(file.len_bytes)?;
        memory.populate(0..file.len_bytes)?;
        read_whole(&source, &memory)?;
        Ok(memory.finish()?.share(Sealing::Size)?)
    }

    fn refusal(&self, file: &DataFile, kinds: &Kinds) -> Option<String> {
        direct_refusal(file, &kinds.dma_heap()?.reserve(file.len_bytes).ok()?)
    }
}
