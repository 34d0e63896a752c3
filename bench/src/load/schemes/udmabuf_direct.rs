//! A memfd, mapped and read into directly, which makes its pages; then the dma-buf.

use anyhow::Result;
use longshore_heap::{Sealing, SharedBuffer};

use super::reading::{open_direct, read_whole};
use super::{Kinds, Scheme};
use crate::load::data::DataFile;

pub(super) struct UdmabufDirect;

impl Scheme for UdmabufDirect {
    fn name(&self) -> &'static str {
        "udmabuf direct"
    }

    fn published_name(&self) -> Option<&'static str> {
        Some("udmabuf direct")
    }

    fn reads_directly(&self) -> bool {
        true
    }

    fn fill(&self, file: &DataFile, kinds: &Kinds) -> Result<SharedBuffer> {
        let source = open_direct(file)?;
        let memory = kinds.plain().reserve(file.len_bytes)?;
        read_whole(&source, &memory)?;
        Ok(memory.finish()?.share(Sealing::Size)?)
    }
}
