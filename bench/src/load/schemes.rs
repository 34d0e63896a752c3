//! The eight published schemes that read a file into a buffer, and the library's own load.
//!
//! The published figures come from a modified kernel. Here each scheme does what a program can do on an
//! unmodified one:
//!
//! | scheme | memory | pages | reads |
//! | --- | --- | --- | --- |
//! | normal | dma-heap | all before the reads | through the page cache, one thread |
//! | udmabuf buffered | memfd, then udmabuf | allocated by the reads | the same |
//! | sendfile buffered | memfd, then udmabuf | allocated by `sendfile` | `sendfile` |
//! | async buffered | memfd, then udmabuf | 128 MiB at a time, by another thread | batch by batch |
//! | sendfile direct | memfd, then udmabuf | allocated by `sendfile` | `sendfile`, `O_DIRECT` |
//! | sync direct | memfd, then udmabuf | all before the reads | `O_DIRECT`, one thread |
//! | udmabuf direct | memfd, then udmabuf | allocated by the reads | the same |
//! | async direct | memfd, then udmabuf | 128 MiB at a time, by another thread | batch by batch |
//!
//! If the kernel refuses a published operation (`sendfile` into a dma-buf, direct reads into a
//! dma-heap's mapping), the bench tries it, reports the error, and measures it into the memfd. If the
//! kernel has no dma-heap or udmabuf, a memfd replaces it: with the largest pages for schemes that
//! allocate at once or in batches, like a dma-heap, and with base pages for the others, like
//! `memfd_create`.

mod batches;
mod kinds;
mod reading;

use std::os::fd::AsFd;

use anyhow::{Context, Result, anyhow, ensure};
use longshore_heap::{Reservation, Sealing, SharedBuffer};
use longshore_load::{Loader, Plan};
use longshore_mem::FileOffset;
use longshore_sys::file::{self, ReadFlags};

use self::reading::{DIRECT_BYTES, direct_refusal, open, read_range};
use crate::harness::Trouble;
use crate::load::data::DataFile;
use crate::load::worker::finished::{Finished, Prepared};
pub(crate) use kinds::Kinds;

/// One scheme that reads a file into a buffer.
#[derive(Clone, Copy)]
pub(crate) struct Scheme {
    /// The name in rows.
    pub(crate) name: &'static str,
    /// The name in the published table; `None` if it is not there.
    pub(crate) published_name: Option<&'static str>,
    /// `true` if it bypasses the page cache, which not every file system supports.
    direct: bool,
    way: Way,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Allocates, maps and reads.
    Allocated,
    /// Maps and reads; the reads allocate the pages.
    Mapped,
    /// Uses `sendfile`, which allocates the pages.
    Sent,
    /// Allocates all pages, then reads.
    Populated,
    /// Reads batch by batch behind the allocation.
    Batches,
    /// The library's own load, with its default settings.
    Ours,
}

const fn scheme(
    name: &'static str,
    published_name: &'static str,
    direct: bool,
    way: Way,
) -> Scheme {
    Scheme { name, published_name: Some(published_name), direct, way }
}

/// The schemes in the order of the published table, then the library's own load.
pub(crate) const ALL: [Scheme; 9] = [
    scheme("normal", "normal (dma-heap + mmap + buffered read)", false, Way::Allocated),
    scheme("udmabuf buffered", "udmabuf buffered", false, Way::Mapped),
    scheme("sendfile buffered", "sendfile buffered", false, Way::Sent),
    scheme("async buffered", "alloc+read async buffered (patch 1-4)", false, Way::Batches),
    scheme("sendfile direct", "sendfile direct", true, Way::Sent),
    scheme("sync direct", "alloc+read sync direct (patch 1)", true, Way::Populated),
    scheme("udmabuf direct", "udmabuf direct", true, Way::Mapped),
    scheme("async direct", "alloc+read async direct (patch 1-4)", true, Way::Batches),
    Scheme { name: "longshore auto", published_name: None, direct: false, way: Way::Ours },
];

/// A size of the published table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// The name in the table.
    pub(crate) name: &'static str,
    pub(crate) bytes: u64,
}

/// The sizes of the published table.
pub(crate) const SIZES: [Size; 4] = [
    Size { name: "512KB", bytes: 512 << 10 },
    Size { name: "8MB", bytes: 8 << 20 },
    Size { name: "1GB", bytes: 1 << 30 },
    Size { name: "3GB", bytes: 3 << 30 },
];

impl Scheme {
    /// Fills a buffer and shares it.
    fn fill(&self, file: &DataFile, kinds: &Kinds) -> Result<SharedBuffer> {
        let len_bytes = file.len_bytes;
        let filled = |memory: Reservation| Ok(memory.finish()?.share(Sealing::Size)?);
        match self.way {
            Way::Allocated => allocate_and_read(file, kinds),
            Way::Sent => send(file, self.direct, kinds),
            Way::Mapped => {
                let (source, memory) =
                    (open(file, self.direct)?, kinds.plain().reserve(len_bytes)?);
                read_range(&source, &memory, 0..len_bytes)?;
                filled(memory)
            }
            Way::Populated => {
                let (source, memory) =
                    (open(file, self.direct)?, kinds.populated().reserve(len_bytes)?);
                memory.populate(0..len_bytes)?;
                read_range(&source, &memory, 0..len_bytes)?;
                filled(memory)
            }
            Way::Batches => {
                let (source, memory) =
                    (open(file, self.direct)?, kinds.populated().reserve(len_bytes)?);
                batches::fill_behind_allocation(&source, &memory)?;
                filled(memory)
            }
            Way::Ours => {
                let loaded = Loader::new().load(&Plan::from_path(&file.path)?)?;
                Ok(loaded.buffer.share(Sealing::Size)?)
            }
        }
    }

    /// Returns the kernel's error if it refuses the scheme as it was published.
    fn refusal(&self, file: &DataFile, kinds: &Kinds) -> Option<String> {
        match self.way {
            Way::Sent => send_refusal(file, self.direct, kinds),
            Way::Populated | Way::Batches if self.direct => {
                direct_refusal(file, &kinds.dma_heap()?.reserve(file.len_bytes).ok()?)
            }
            _ => None,
        }
    }
}

fn allocate_and_read(file: &DataFile, kinds: &Kinds) -> Result<SharedBuffer> {
    let source = open(file, false)?;
    let mut buffer = kinds.allocated().allocate(file.len_bytes)?;
    let mut content = buffer.write()?;
    let mut done = 0;
    while done < content.len() {
        let (rest, offset) = (&mut content[done..], FileOffset::new(done as u64));
        let read = file::read_into(&source, rest, offset, ReadFlags::default())?;
        ensure!(read > 0, "the file ended at byte {done}");
        done += read;
    }
    drop(content);
    Ok(buffer.share(Sealing::Size)?)
}

/// Sends a file into a new memfd, and then creates the dma-buf.
fn send(file: &DataFile, direct: bool, kinds: &Kinds) -> Result<SharedBuffer> {
    let source = open(file, direct)?;
    let buffer = kinds.plain().reserve(file.len_bytes)?.finish()?.share(Sealing::Size)?;
    let memfd = buffer.memfd().context("the memory has no memfd")?;
    let mut offset = 0;
    while offset < file.len_bytes {
        // Direct reads end at a block boundary; beyond the end of the file nothing is sent.
        let count = (file.len_bytes - offset).next_multiple_of(DIRECT_BYTES);
        let count = usize::try_from(count).context("the size of an address")?;
        let sent = rustix::fs::sendfile(memfd, &source, Some(&mut offset), count)
            .with_context(|| format!("sendfile at byte {offset}"))?;
        ensure!(sent > 0, "the file ended at byte {offset}");
    }
    Ok(buffer)
}

/// Returns the kernel's error if it refuses `sendfile` into a dma-buf.
fn send_refusal(file: &DataFile, direct: bool, kinds: &Kinds) -> Option<String> {
    let source = open(file, direct).ok()?;
    let buffer = kinds.dma_buf()?.allocate(file.len_bytes).ok()?.share(Sealing::Size).ok()?;
    let dma_buf = buffer.dma_buf()?;
    let count = usize::try_from(file.len_bytes).ok()?;
    let error = rustix::fs::sendfile(dma_buf.as_fd(), &source, Some(&mut 0), count).err()?;
    Some(format!("sendfile into a dma-buf is refused ({error}), measured into a memfd"))
}

fn named(name: &str) -> Option<Scheme> {
    ALL.into_iter().find(|scheme| scheme.name == name)
}

/// Prepares the scheme called `name` as a worker's job.
pub(crate) fn prepare(name: &str, file: &DataFile) -> Result<Prepared, Trouble> {
    let scheme = named(name).ok_or_else(|| anyhow!("there is no scheme '{name}'"))?;
    let (file, kinds) = (file.clone(), Kinds::of_machine());
    Ok(Box::new(move || {
        let buffer = scheme.fill(&file, &kinds)?;
        let pages = match buffer.page_report() {
            report if report.total_bytes() > 0 => format!("in {report} pages"),
            _ => "in pages made by the reads".to_owned(),
        };
        let note = format!("{}, {pages}", buffer.heap());
        Ok(Finished::loaded(file, buffer, Some(note)))
    }))
}

/// Returns `true` if the scheme called `name` bypasses the page cache.
pub(crate) fn reads_directly(name: &str) -> bool {
    named(name).is_some_and(|scheme| scheme.direct)
}

/// Returns the kernel's error if it refuses the scheme called `name` as it was published.
pub(crate) fn refusal(name: &str, file: &DataFile) -> Option<String> {
    named(name)?.refusal(file, &Kinds::of_machine())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::data::{Folder, check};

    #[test]
    fn every_scheme_loads_the_file() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let folder = Folder::open(Some(dir.path()), false).unwrap();
        let kinds = Kinds::of_machine();
        for len_bytes in [4096, 512 << 10, (3 << 20) + 4097] {
            let file = folder.raw_file(len_bytes).unwrap();
            for scheme in ALL {
                let filled = scheme.fill(&file, &kinds);
                let checked =
                    filled.and_then(|buffer| check(&file, buffer.view().unwrap().bytes()));
                checked.unwrap_or_else(|error| panic!("{}: {error:#}", scheme.name));
            }
        }
    }
}
