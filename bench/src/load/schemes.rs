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

mod async_buffered;
mod async_direct;
mod batches;
mod kinds;
mod longshore_auto;
mod normal;
mod reading;
mod sendfile_buffered;
mod sendfile_direct;
mod sync_direct;
mod udmabuf_buffered;
mod udmabuf_direct;

use anyhow::{Result, anyhow};
use longshore_heap::SharedBuffer;

use crate::harness::Trouble;
use crate::load::data::DataFile;
use crate::load::worker::{Finished, Prepared};
pub(crate) use kinds::Kinds;

/// One way to get a file into a buffer.
pub(crate) trait Scheme: Sync {
    /// As rows call it.
    fn name(&self) -> &'static str;

    /// As the published table calls it; `None` for what is not in it.
    fn published_name(&self) -> Option<&'static str>;

    /// Fills a buffer and gives it descriptors.
    fn fill(&self, file: &DataFile, kinds: &Kinds) -> Result<SharedBuffer>;

    /// Whether it reads past the page cache, which not every file system can do.
    fn reads_directly(&self) -> bool {
        false
    }

    /// What the kernel says to the scheme as it was published, where that is a refusal.
    fn refusal(&self, _file: &DataFile, _kinds: &Kinds) -> Option<String> {
        None
    }
}

/// The schemes in the order of the published table, and the library's own after them.
pub(crate) const ALL: [&dyn Scheme; 9] = [
    &normal::Normal,
    &udmabuf_buffered::UdmabufBuffered,
    &sendfile_buffered::SendfileBuffered,
    &async_buffered::AsyncBuffered,
    &sendfile_direct::SendfileDirect,
    &sync_direct::SyncDirect,
    &udmabuf_direct::UdmabufDirect,
    &async_direct::AsyncDirect,
    &longshore_auto::LongshoreAuto,
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

fn named(name: &str) -> Option<&'static dyn Scheme> {
    ALL.into_iter().find(|scheme| scheme.name() == name)
}

/// The scheme called `name` as a worker's job.
///
/// # Errors
/// Where there is no such scheme.
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
    named(name).is_some_and(Scheme::reads_directly)
}

/// What the kernel says to the scheme called `name` as it was published.
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
                let buffer = scheme
                    .fill(&file, &kinds)
                    .unwrap_or_else(|error| panic!("{}: {error:#}", scheme.name()));
                check(&file, buffer.view().unwrap().bytes())
                    .unwrap_or_else(|error| panic!("{}: {error:#}", scheme.name()));
            }
        }
    }

    #[test]
    fn names_are_told_apart() {
        for scheme in ALL {
            assert_eq!(named(scheme.name()).unwrap().name(), scheme.name());
        }
        assert!(named("no such scheme").is_none());
    }
}
