//! Resources that a load or a buffer may leave behind, counted before and after.

use std::{
    collections::BTreeSet,
    fs, io, thread,
    time::{Duration, Instant},
};

/// The maximum time that the kernel may take to free everything; it frees some resources in the
/// background.
const SETTLING_LIMIT: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(20);

/// The resources that this process and the kernel hold at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holdings {
    /// This process's descriptors, with their targets.
    descriptors: BTreeSet<String>,
    /// The number of this process's threads.
    threads: usize,
    /// The shared memory of the whole machine, in bytes: memfds and tmpfs.
    shmem_bytes: u64,
    /// The machine's dma-bufs.
    dma_bufs: DmaBufs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DmaBufs {
    count: u64,
    bytes: u64,
}

impl Holdings {
    /// Counts the resources.
    pub(crate) fn now() -> io::Result<Self> {
        Ok(Self {
            descriptors: descriptors()?,
            threads: fs::read_dir("/proc/self/task")?.count(),
            shmem_bytes: shmem_bytes()?,
            dma_bufs: parse_dma_bufs(&fs::read_to_string("/sys/kernel/debug/dma_buf/bufinfo")?)?,
        })
    }

    /// Returns `true` if there is more shared memory, or more memory in dma-bufs, than in `other`.
    pub(crate) fn holds_more_memory_than(&self, other: &Self) -> bool {
        self.shmem_bytes > other.shmem_bytes || self.dma_bufs.bytes > other.dma_bufs.bytes
    }

    /// Fails if the resources differ from those at this moment.
    pub(crate) fn ensure_unchanged(&self) -> Result<(), String> {
        let started = Instant::now();
        loop {
            let now = Self::now().map_err(|error| format!("counting what is held: {error}"))?;
            if now == *self {
                return Ok(());
            }
            if started.elapsed() > SETTLING_LIMIT {
                return Err(format!("something was left behind: before {self:?}, now {now:?}"));
            }
            thread::sleep(POLL);
        }
    }
}

fn shmem_bytes() -> io::Result<u64> {
    // The kernel adds up the processors' counters only at intervals, unless this is written.
    fs::write("/proc/sys/vm/stat_refresh", "1")?;
    longshore_sys::memory::meminfo_bytes("Shmem:").ok_or(io::ErrorKind::InvalidData.into())
}

fn descriptors() -> io::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        // The descriptor that lists the folder is closed before its link is read, so its number appears,
        // but its link fails or leads into /proc.
        if let Ok(target) = fs::read_link(entry.path())
            && !target.starts_with("/proc")
        {
            found.insert(format!("{:?} -> {}", entry.file_name(), target.display()));
        }
    }
    Ok(found)
}

/// Parses the last line of the kernel's list: "Total N objects, M bytes".
fn parse_dma_bufs(list: &str) -> io::Result<DmaBufs> {
    let total = list.lines().rev().find_map(|line| line.trim().strip_prefix("Total "));
    let numbers = total.and_then(|total| {
        let (count, bytes) = total.strip_suffix(" bytes")?.split_once(" objects, ")?;
        Some(DmaBufs { count: count.parse().ok()?, bytes: bytes.parse().ok()? })
    });
    numbers.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "an unknown list of dma-bufs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_list_of_dma_bufs_is_read() {
        let list =
            "\nDma-buf Objects:\nsize    \tflags\n00004096\t2\n\nTotal 3 objects, 12288 bytes\n";
        assert_eq!(parse_dma_bufs(list).unwrap(), DmaBufs { count: 3, bytes: 12288 });
        assert!(parse_dma_bufs("").is_err());
        assert!(parse_dma_bufs("Total many objects, 1 bytes").is_err());
    }

    #[test]
    fn a_new_descriptor_is_found() {
        let before = descriptors().unwrap();
        let file = fs::File::open("/dev/null").unwrap();
        let with = descriptors().unwrap();
        assert!(with.difference(&before).any(|shown| shown.ends_with("/dev/null")), "{with:?}");
        drop(file);
    }
}
