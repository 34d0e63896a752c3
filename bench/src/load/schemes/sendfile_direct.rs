//! `sendfile` past the page cache into a memfd, which makes its pages; then the dma-buf.

use anyhow::Result;
use longshore_heap::SharedBuffer;

use super::reading::open_direct;
use super::{Kinds, Scheme, sendfile_buffered};
use crate::load::data::DataFile;

pub(super) struct SendfileDirect;

impl Scheme for SendfileDirect {
    fn name(&self) -> &'static str {
        "sendfile direct"
    }

    fn published_name(&self) -> Option<&'static str> {
        Some("sendfile direct")
    }

    fn reads_directly(&self) -> bool {
        true
    }

    fn fill(&self, file: &DataFile, kinds: &Kinds) -> Result<SharedBuffer> {
        sendfile_buffered::send(&open_direct(file)?, file, kinds)
    }

    fn refusal(&self, file: &DataFile, kinds: &Kinds) -> Option<String> {
        sendfile_buffered::refusal(&open_direct(file).ok()?, file, kinds)
    }
}
