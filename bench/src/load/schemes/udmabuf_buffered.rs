//! A memfd, mapped and read into through the page cache, which makes its pages; then the dma-buf.

use anyhow::Result;
use longshore_heap::{Sealing, SharedBuffer};

use super::reading::{open_buffered, read_whole};
use super::{Kinds, Scheme};
use crate::load::data::DataFile;

pub(super) struct UdmabufBuffered;

impl Scheme for UdmabufBuffered {
    fn name(&self) -> &'static str {
        "udmabuf buffered"
    }

    fn published_name(&self) -> Option<&'static str> {
        Some("udmabuf buffered")
    }

    fn fill(&self, file: &DataFile, kinds: &Kinds) -> Result<SharedBuffer> {
        let source = open_buffered(file)?;
        let memory = kinds.plain().reserve(file.len_bytes)?;
        read_whole(&source, &memory)?;
        Ok(memory.finish()?.share(Sealing::Size)?)
    }
}
