//! Loaded content equals the content of the file.

use std::{error::Error, fs, os::fd::AsFd, path::Path};

use longshore_heap::{Heap, Sealing};
use longshore_load::{Engine, Loader, Plan, ReadMode, Report, SourceFile};
use longshore_sys::page_cache;
use longshore_vm_tests::{
    fixture::{FILE_SIZES, file_name, write_sized_files},
    pattern,
};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::{
    leftovers::Holdings,
    outcome::{Passed, TestResult, ensure},
    peer,
};

const EXT4: &str = "/disk/ext4";
const LARGE: u64 = (2 << 20) + 1;

pub(super) fn ext4_into_udmabuf() -> TestResult {
    every_size(EXT4, &Heap::Udmabuf, ReadMode::Direct, only_direct)
}

pub(super) fn ext4_into_system_heap() -> TestResult {
    // The kernel refuses direct reads into this heap, so the bytes are read into staging memory and
    // copied.
    let heap = Heap::DmaHeap("system".to_owned());
    every_size(EXT4, &heap, ReadMode::Direct, |report| {
        past_the_page_cache(report, report.by_route.staged)
    })
}

pub(super) fn ext4_into_memfd() -> TestResult {
    every_size(EXT4, &Heap::Memfd, ReadMode::Direct, only_direct)
}

pub(super) fn xfs_into_udmabuf() -> TestResult {
    every_size("/disk/xfs", &Heap::Udmabuf, ReadMode::Direct, only_direct)
}

pub(super) fn erofs_into_udmabuf() -> TestResult {
    // Small files are stored beside their metadata there, where direct reads are impossible.
    every_size("/disk/erofs", &Heap::Udmabuf, ReadMode::Auto, |_| Ok(()))
}

pub(super) fn overlayfs_into_udmabuf() -> TestResult {
    let work = Path::new("/tmp/overlay");
    for dir in ["upper", "work", "merged"] {
        fs::create_dir_all(work.join(dir))?;
    }
    let options = c"lowerdir=/disk/ext4,upperdir=/tmp/overlay/upper,workdir=/tmp/overlay/work";
    mount("overlay", "/tmp/overlay/merged", "overlay", MountFlags::empty(), options)?;
    let result = every_size("/tmp/overlay/merged", &Heap::Udmabuf, ReadMode::Auto, |_| Ok(()));
    unmount("/tmp/overlay/merged", UnmountFlags::empty())?;
    fs::remove_dir_all(work)?;
    result
}

pub(super) fn tmpfs_into_udmabuf() -> TestResult {
    let dir = Path::new("/tmp/sized");
    fs::create_dir(dir)?;
    write_sized_files(dir)?;
    let result = every_size("/tmp/sized", &Heap::Udmabuf, ReadMode::Auto, |_| Ok(()));
    fs::remove_dir_all(dir)?;
    result
}

pub(super) fn every_mode_loads_the_same_content() -> TestResult {
    let path = Path::new(EXT4).join(file_name(LARGE));
    for mode in [ReadMode::Auto, ReadMode::Direct, ReadMode::Buffered] {
        page_cache::evict(fs::File::open(&path)?)?;
        let report = load_and_check(&path, LARGE, &Heap::Udmabuf, Loader::new().mode(mode))
            .map_err(|error| format!("mode {mode}: {error}"))?;
        if mode == ReadMode::Buffered {
            ensure!(report.by_route.buffered == LARGE, "the bytes came {:?}", report.by_route);
        } else {
            only_direct(&report).map_err(|why| format!("mode {mode}: {why}"))?;
        }
    }
    // Pages that are now in the page cache are copied from there.
    let report = load_and_check(&path, LARGE, &Heap::Udmabuf, Loader::new())?;
    ensure!(report.by_route.page_cache == LARGE, "the bytes came {:?}", report.by_route);
    // This kernel lacks RWF_DONTCACHE, which must be an error and not another route.
    let plan = Plan::from_path(&path)?;
    let refused = Loader::new().mode(ReadMode::Uncached).load(&plan);
    let said = refused.err().ok_or("mode uncached was not refused")?.to_string();
    ensure!(said.contains("uncached"), "the error does not name the mode: {said}");
    Ok(Passed::Yes)
}

pub(super) fn direct_reads_use_io_uring() -> TestResult {
    let path = Path::new(EXT4).join(file_name(LARGE));
    let loader = Loader::new().mode(ReadMode::Direct);
    let report = load_and_check(&path, LARGE, &Heap::Udmabuf, loader)?;
    ensure!(report.engine == Engine::Uring, "the engine is {:?}", report.engine);
    Ok(Passed::Yes)
}

pub(super) fn without_io_uring_threads_read() -> TestResult {
    let _refused = IoUringRefused::new()?;
    let path = Path::new(EXT4).join(file_name(LARGE));
    let loader = Loader::new().mode(ReadMode::Direct);
    let report = load_and_check(&path, LARGE, &Heap::Udmabuf, loader)?;
    let Engine::Threads { ring_refused: Some(why) } = &report.engine else {
        return Err(format!("the engine is {:?}", report.engine).into());
    };
    ensure!(why.contains("not permitted"), "the reason given is {why}");
    only_direct(&report)?;
    Ok(Passed::Yes)
}

pub(super) fn many_files_fill_one_buffer() -> TestResult {
    let before = Holdings::now()?;
    let mut plan = Plan::new();
    for len in FILE_SIZES {
        plan.push(SourceFile::open(Path::new(EXT4).join(file_name(len)))?)?;
    }
    let loaded = Loader::new().heap(Heap::Udmabuf).load(&plan)?;
    drop(plan);
    {
        let bytes = loaded.buffer.read()?;
        for (file, len) in loaded.files.iter().zip(FILE_SIZES) {
            let start = usize::try_from(file.buffer_offset)?;
            let part = &bytes[start..start + usize::try_from(len)?];
            let difference = pattern::first_difference(len, 0, part);
            ensure!(difference.is_none(), "{}: byte {difference:?}", file.path.display());
        }
    }
    drop(loaded);
    before.ensure_unchanged()?;
    Ok(Passed::Yes)
}

/// Loads every file of the folder, and another process checks it.
fn every_size(
    dir: &str,
    heap: &Heap,
    mode: ReadMode,
    expect: fn(&Report) -> Result<(), String>,
) -> TestResult {
    for len in FILE_SIZES {
        let path = Path::new(dir).join(file_name(len));
        let outcome = load_and_check(&path, len, heap, Loader::new().mode(mode))
            .and_then(|report| Ok(expect(&report)?));
        outcome.map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(Passed::Yes)
}

/// Loads one file, whose content has its length as seed. Checks it in this process and, if it is a
/// dma-buf, in another one, and checks that nothing is left.
fn load_and_check(
    path: &Path,
    len: u64,
    heap: &Heap,
    loader: Loader<'_>,
) -> Result<Report, Box<dyn Error>> {
    // A dma-buf without pages does not exist, so an empty file is loaded into a memfd.
    let heap = if len == 0 { &Heap::Memfd } else { heap };
    let before = Holdings::now()?;
    let loaded = loader.heap(heap.clone()).load(&Plan::from_path(path)?)?;
    ensure!(loaded.report.content_bytes == len, "{} bytes", loaded.report.content_bytes);
    ensure!(loaded.report.heap == *heap, "it came into heap {}", loaded.report.heap);
    let difference = pattern::first_difference(len, 0, &loaded.buffer.read()?);
    ensure!(difference.is_none(), "byte {difference:?} is not the file's");
    let shared = loaded.buffer.share(Sealing::Size)?;
    ensure!(shared.len() == len, "the shared buffer has {} bytes", shared.len());
    match shared.dma_buf() {
        Some(dma_buf) => peer::check_content(dma_buf.as_fd(), len, len)?,
        None => ensure!(*heap == Heap::Memfd, "heap {heap} gave no dma-buf"),
    }
    drop(shared);
    before.ensure_unchanged()?;
    Ok(loaded.report)
}

/// Checks that every byte was read directly, and that the page cache did not grow.
fn only_direct(report: &Report) -> Result<(), String> {
    past_the_page_cache(report, report.by_route.direct)
}

/// Checks that all bytes took the route that has `bytes`, and that the page cache did not grow.
fn past_the_page_cache(report: &Report, bytes: u64) -> Result<(), String> {
    let route = report.by_route;
    if bytes == report.content_bytes
        && report.page_cache_growth_bytes.is_none_or(|bytes| bytes <= 0)
    {
        return Ok(());
    }
    let growth = report.page_cache_growth_bytes;
    Err(format!("the bytes came {route:?}, and the page cache grew by {growth:?}"))
}

/// Forbids io_uring to every process until this is dropped.
struct IoUringRefused;

impl IoUringRefused {
    const SETTING: &str = "/proc/sys/kernel/io_uring_disabled";

    fn new() -> std::io::Result<Self> {
        fs::write(Self::SETTING, "2")?;
        Ok(Self)
    }
}

impl Drop for IoUringRefused {
    fn drop(&mut self) {
        // If this fails, the tests that need io_uring report it.
        let _ = fs::write(Self::SETTING, "0");
    }
}
