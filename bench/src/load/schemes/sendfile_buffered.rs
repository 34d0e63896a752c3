//! `sendfile` through the page cache into a memfd, which makes its pages; then the dma-buf.

use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result, ensure};
use longshore_heap::{Sealing, SharedBuffer};

use super::reading::{DIRECT_BYTES, open_buffered};
use super::{Kinds, Scheme};
use crate::load::data::DataFile;

pub(super) struct SendfileBuffered;

impl Scheme for SendfileBuffered {
    fn name(&self) -> &'static str {
        "sendfile buffered"
    }

    fn published_name(&self) -> Option<&'static str> {
        Some("sendfile buffered")
    }

    fn fill(&self, file: &DataFile, kinds: &Kinds) -> Result<SharedBuffer> {
        send(&open_buffered(file)?, file, kinds)
    }

    fn refusal(&self, file: &DataFile, kinds: &Kinds) -> Option<String> {
        refusal(&open_buffered(file).ok()?, file, kinds)
    }
}

/// Sends a file into a new memfd.
pub(super) fn send(source: &OwnedFd, file: &DataFile, kinds: &Kinds) -> Result<SharedBuffer> {
    let buffer = kinds.plain().reserve(file.len_bytes)?.finish()?.share(Sealing::Size)?;
    let memfd = buffer.memfd().context("the memory is no file")?;
    let mut offset = 0;
    while offset < file.len_bytes {
        // Direct reads end at a block; beyond the file's end there is nothing to send.
        let count = (file.len_bytes - offset).next_multiple_of(DIRECT_BYTES);
        let count = usize::try_from(count).context("the size of an address")?;
        let sent = rustix::fs::sendfile(memfd, source, Some(&mut offset), count)
            .with_context(|| format!("sendfile at byte {offset}"))?;
        ensure!(sent > 0, "the file ended at byte {offset}");
    }
    Ok(buffer)
}

/// What the kernel says to `sendfile` into a dma-buf, where it is a refusal.
pub(super) fn refusal(source: &OwnedFd, file: &DataFile, kinds: &Kinds) -> Option<String> {
    let buffer = kinds.dma_buf()?.allocate(file.len_bytes).ok()?.share(Sealing::Size).ok()?;
    let dma_buf = buffer.dma_buf()?;
    let count = usize::try_from(file.len_bytes).ok()?;
    let error = rustix::fs::sendfile(dma_buf.as_fd(), source, Some(&mut 0), count).err()?;
    Some(format!("sendfile into a dma-buf is refused ({error}), measured into a memfd"))
}
