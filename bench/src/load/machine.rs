//! Prepares the machine for a run: the page cache and the memory.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use longshore_heap::Heap;
use longshore_mem::FileOffset;
use longshore_sys::{memory, page_cache, page_size_bytes};

use crate::harness::Trouble;

const TRIES_MAX: u32 = 5;
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// The state of a file in the page cache when a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// None of its pages is in the page cache.
    Cold,
    /// All of its pages are in the page cache.
    Warm,
}

impl Start {
    /// Returns how many bytes of a file are in the page cache when a run begins.
    pub(crate) fn cached_bytes(self, len_bytes: u64) -> u64 {
        if self == Self::Warm { len_bytes } else { 0 }
    }
}

/// The preparation of the machine before each run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    drops_all_caches: bool,
    touches_memory: bool,
}

impl Machine {
    /// Chooses the preparation. Before a cold run the file is evicted, and with permission and without
    /// `evict_only` the whole page cache is dropped. With `quick` memory is not touched, which saves
    /// seconds in each run.
    pub(crate) fn new(evict_only: bool, quick: bool) -> Self {
        let may = || File::options().write(true).open(DROP_CACHES).is_ok();
        Self { drops_all_caches: !evict_only && may(), touches_memory: !quick }
    }

    /// Returns what is dropped before a cold run, for the environment.
    pub(crate) fn describe(&self) -> &'static str {
        if self.drops_all_caches {
            "the whole page cache is dropped before each cold run"
        } else {
            "the file is evicted from the page cache before each cold run"
        }
    }

    /// Makes `file` cold or warm, and touches memory for a run that takes up to `memory_bytes`.
    ///
    /// # Errors
    /// Returns [`Trouble::NotRun`] if the page cache cannot be brought into that state.
    pub(crate) fn prepare(
        &self,
        file: &Path,
        start: Start,
        memory_bytes: u64,
    ) -> std::result::Result<(), Trouble> {
        for _ in 0..TRIES_MAX {
            let whole = fs::metadata(file)?.len();
            match start {
                Start::Cold => {
                    self.make_cold(file)?;
                    self.touch_memory(memory_bytes)?;
                }
                Start::Warm => {
                    // First touch memory, because that may evict the file from the page cache.
                    self.touch_memory(memory_bytes + whole)?;
                    make_warm(file)?;
                }
            }
            let resident = resident_bytes(file)?;
            match start {
                Start::Cold if resident == 0 => return Ok(()),
                Start::Warm if resident >= whole => return Ok(()),
                _ => {}
            }
        }
        Err(Trouble::NotRun(match start {
            Start::Cold => "the file could not be evicted from the page cache".to_owned(),
            Start::Warm => {
                "the page cache did not keep the file: too little memory is free".to_owned()
            }
        }))
    }

    fn touch_memory(&self, memory_bytes: u64) -> Result<()> {
        if self.touches_memory { touch_memory(memory_bytes) } else { Ok(()) }
    }

    fn make_cold(&self, file: &Path) -> Result<()> {
        let open = File::open(file)?;
        page_cache::evict(&open).context("evicting the file from the page cache")?;
        if self.drops_all_caches {
            fs::write(DROP_CACHES, "3").context("dropping the page cache")?;
        }
        Ok(())
    }
}

/// Reads the file through the page cache, twice, because pages that were read once are evicted first.
fn make_warm(file: &Path) -> Result<()> {
    let mut open = File::open(file)?;
    let mut chunk = vec![0; 8 << 20];
    for _ in 0..2 {
        open.rewind()?;
        while open.read(&mut chunk)? > 0 {}
    }
    Ok(())
}

/// Touches and frees more memory than a run will take.
///
/// On a virtual machine whose host reclaims free memory, untouched memory is backed at only 0.3 to 0.8
/// GB/s, and the first run would pay for it. This function touches memory as a heap does, in the largest
/// pages available, so that such pages are free afterwards; and twice as much, because the run may get
/// any of the free pages. Then it waits until the kernel has reported the pages that earlier runs freed
/// to the host, because that would otherwise continue during the run: without the wait such a machine
/// read 1.3 to 1.9 GB/s, with it 1.7 to 2.5.
pub(crate) fn touch_memory(memory_bytes: u64) -> Result<()> {
    const STEP_BYTES: u64 = 64 << 20;
    let bytes = (2 * memory_bytes).min(available_bytes() / 10 * 7);
    let memory = Heap::Memfd.reserve(bytes).context("touching memory before a run")?;
    let steps = AtomicU64::new(0);
    let touch = || {
        loop {
            let start = steps.fetch_add(1, Ordering::Relaxed) * STEP_BYTES;
            if start >= bytes {
                return Ok(());
            }
            memory.populate(start..bytes.min(start + STEP_BYTES))?;
        }
    };
    let others = thread::available_parallelism().map_or(0, |cores| cores.get() - 1);
    let touched: Result<(), longshore_heap::Error> = thread::scope(|scope| {
        let others: Vec<_> = (0..others).map(|_| scope.spawn(touch)).collect();
        let mine = touch();
        let joined = others
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        joined.chain([mine]).collect()
    });
    touched.context("touching memory before a run")?;
    await_free_page_reporting();
    Ok(())
}

/// Waits until the kernel has reported all free pages to the host, so that it does not do so during the
/// run. Reporting begins two seconds after pages became free (`PAGE_REPORTING_DELAY` in Linux's
/// mm/page_reporting.c); some kernels count the reported pages.
fn await_free_page_reporting() {
    const COUNT: &str = "/sys/module/page_reporting/parameters/reported_kib";
    const QUIET: Duration = Duration::from_millis(2500);
    const WAITS_MAX: usize = 20;
    let mut before: Option<Option<String>> = None;
    for _ in 0..WAITS_MAX {
        let reported = fs::read_to_string(COUNT).ok();
        if before.as_ref() == Some(&reported) {
            return;
        }
        before = Some(reported);
        thread::sleep(QUIET);
    }
}

/// Checks that `bytes` of memory are available.
pub(crate) fn require_memory(bytes: u64) -> std::result::Result<(), Trouble> {
    match available_bytes() {
        available if available < bytes => Err(Trouble::NotRun(format!(
            "{} MiB of memory are needed, but only {} MiB are available",
            bytes >> 20,
            available >> 20
        ))),
        _ => Ok(()),
    }
}

/// Returns the memory that is available to the machine and to this process's control group.
fn available_bytes() -> u64 {
    let available = memory::available();
    let limits = [available.machine_bytes, available.control_group.map(|(bytes, _)| bytes)];
    limits.into_iter().flatten().min().unwrap_or(u64::MAX)
}

/// Returns how many bytes of a file are in the page cache, in whole pages.
///
/// # Errors
/// Returns an error if the kernel cannot report this, as before Linux 6.5.
pub(crate) fn resident_bytes(file: &Path) -> Result<u64> {
    let open = File::open(file)?;
    let answer = page_cache::stat(&open, FileOffset::new(0), open.metadata()?.len());
    let answer = answer.context("asking which pages of the file are in memory")?;
    Ok(answer.cached_pages * page_size_bytes() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::data::Folder;

    #[test]
    fn a_file_becomes_warm_and_cold() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let folder = Folder::open(Some(dir.path()), false).unwrap();
        let file = folder.raw_file((1 << 20) + 5).unwrap();
        let whole = file.len_bytes.next_multiple_of(page_size_bytes() as u64);
        for (start, bytes) in [(Start::Warm, whole), (Start::Cold, 0), (Start::Warm, whole)] {
            Machine::new(true, false).prepare(&file.path, start, 4 << 20).unwrap();
            assert_eq!(resident_bytes(&file.path).unwrap(), bytes);
        }
    }
}
