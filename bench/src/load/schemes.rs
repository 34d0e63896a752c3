//! The eight published ways to get a file into a buffer, and the library's own.
//!
//! The published ones were measured with a changed kernel. Here each is what a program can do with
//! the kernel there is:
//!
//! | scheme | memory | pages | reads |
//! | --- | --- | --- | --- |
//! | normal | dma-heap | at once, before | through the page cache, one thread |
//! | udmabuf buffered | memfd, then udmabuf | made by the reads | the same |
//! | sendfile buffered | memfd, then udmabuf | made by `sendfile` | `sendfile` |
//! | async buffered | memfd, then udmabuf | 128 MiB at a time, by another thread | batch by batch |
//! | sendfile direct | memfd, then udmabuf | made by `sendfile` | `sendfile`, `O_DIRECT` |
//! | sync direct | memfd, then udmabuf | at once, before | `O_DIRECT`, one thread |
//! | udmabuf direct | memfd, then udmabuf | made by the reads | the same |
//! | async direct | memfd, then udmabuf | 128 MiB at a time, by another thread | batch by batch |
//!
//! Where the kernel refuses what was published (`sendfile` into a dma-buf, direct reads into a
//! dma-heap's mapping), that is tried, reported and measured into the memfd. Where it has no
//! dma-heap or udmabuf a memfd stands for them: in the largest pages for what allocates at once or
//! in batches, as a dma-heap does, and in base pages for the others, as `memfd_create` gives.

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
use crate::load::worker::{Finished, Prepared};
pub(crate) use kinds::Kinds;

/// One way to get a file into a buffer.
#[derive(Clone, Copy)]
pub(crate) struct Scheme {
    /// As rows call it.
    pub(crate) name: &'static str,
    /// As the published table calls it; `None` for what is not in it.
    pub(crate) published_name: Option<&'static str>,
    /// Whether it reads past the page cache, which not every file system can do.
    direct: bool,
    way: Way,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Allocated, mapped, read.
    Allocated,
    /// Mapped and read into, which makes the pages.
    Mapped,
    /// `sendfile`, which makes the pages.
    Sent,
    /// All pages made, then read.
    Populated,
    /// Read batch by batch behind the allocation.
    Batches,
    /// The library's own load, with nothing chosen for it.
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

/// The schemes in the order of the published table, and the library's own after them.
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
    /// As the table calls it.
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
    /// Fills a buffer and gives it descriptors.
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

/// Sends a file into a new memfd; then there is the dma-buf.
fn send(file: &DataFile, direct: bool, kinds: &Kinds) -> Result<SharedBuffer> {
    let source = open(file, direct)?;
    let buffer = kinds.plain().reserve(file.len_bytes)?.finish()?.share(Sealing::Size)?;
    let memfd = buffer.memfd().context("the memory is no file")?;
    let mut offset = 0;
    while offset < file.len_bytes {
        // Direct reads end at a block; beyond the file's end there is nothing to send.
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

/// The scheme called `name` as a worker's job.
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

/// Whether the scheme called `name` reads past the page cache.
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
    fn every_scheme_brings_the_file() {
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
