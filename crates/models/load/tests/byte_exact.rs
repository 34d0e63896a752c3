//! Loads are exact to the byte for every size, mode and page size, and readers see no bytes behind the
//! content.

use std::fs::File;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use longshore_heap::{Heap, Sealing};
use longshore_load::{Error, Loaded, Loader, Plan, ReadMode, SourceFile};
use longshore_mem::FileOffset;
use longshore_sys::page_cache;

const MIB: usize = 1 << 20;
const AHEAD_BYTES: u64 = 16 << 20;

/// Sizes around boundaries: blocks, pages, huge pages, and the prefault window.
const SIZES: [usize; 13] = [
    0,
    1,
    511,
    512,
    513,
    4095,
    4096,
    4097,
    2 * MIB - 1,
    2 * MIB,
    2 * MIB + 1,
    AHEAD_BYTES as usize - 1,
    AHEAD_BYTES as usize + 1,
];

fn content(len_bytes: usize) -> Vec<u8> {
    (0..len_bytes).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}

/// A folder for test files.
struct Fixture {
    dir: tempfile::TempDir,
}

impl Fixture {
    /// Makes a folder in `/var/tmp`, because `/tmp` may be a tmpfs.
    fn new() -> Self {
        Self { dir: tempfile::tempdir_in("/var/tmp").unwrap() }
    }

    /// Writes a file of this content, and evicts it from the page cache if `cold`.
    fn file(&self, name: &str, content: &[u8], cold: bool) -> PathBuf {
        let path = self.dir.path().join(name);
        let mut file = File::create(&path).unwrap();
        file.write_all(content).unwrap();
        file.sync_all().unwrap();
        if cold {
            page_cache::evict(&file).unwrap();
        }
        path
    }
}

fn has_direct_io(path: &Path) -> bool {
    let file = File::open(path).unwrap();
    longshore_sys::file::status(&file).unwrap().direct.is_some()
}

fn plan(path: &Path) -> Plan {
    Plan::from_path(path).unwrap()
}

/// Loads while a range of a file is in the page cache. Because the kernel can evict it at any time, the
/// load is repeated until the range was resident before and after it. Returns `None` if it never was.
fn load_while_resident(
    path: &Path,
    range: Range<usize>,
    load: impl Fn() -> Loaded,
) -> Option<Loaded> {
    let file = File::open(path).unwrap();
    let (start, len_bytes) = (range.start as u64, range.len() as u64);
    let pages = len_bytes.div_ceil(longshore_sys::page_size_bytes() as u64);
    let is_resident = || {
        let stat = page_cache::stat(&file, FileOffset::new(start), len_bytes);
        stat.is_ok_and(|stat| stat.cached_pages >= pages)
    };
    for _ in 0..100 {
        file.read_exact_at(&mut vec![0; range.len()], start).unwrap();
        let was_resident = is_resident();
        let loaded = load();
        if was_resident && is_resident() {
            return Some(loaded);
        }
    }
    println!(
        "SKIPPED: the page cache does not keep {len_bytes} bytes, or the kernel does not report it"
    );
    None
}

#[test]
fn every_size_in_every_mode_and_page_size() {
    let fixture = Fixture::new();
    for len_bytes in SIZES {
        let content = content(len_bytes);
        for mode in [ReadMode::Auto, ReadMode::Direct, ReadMode::Buffered, ReadMode::Uncached] {
            for (heap, use_uring) in
                [(Heap::Memfd, true), (Heap::Memfd, false), (Heap::MemfdBasePages, true)]
            {
                let case = format!("{len_bytes} bytes, {mode}, {heap}, io_uring {use_uring}");
                let path = fixture.file("file", &content, mode != ReadMode::Buffered);
                let loader = Loader::new().heap(heap).mode(mode).use_uring(use_uring);
                let loaded = match loader.populate_ahead(AHEAD_BYTES).load(&plan(&path)) {
                    Err(Error::ModeUnavailable { mode, reason, .. }) => {
                        eprintln!("SKIPPED: {mode} in /var/tmp: {reason}");
                        continue;
                    }
                    loaded => loaded.unwrap(),
                };
                assert!(*loaded.buffer.read().unwrap() == *content, "{case}");
                let shared = loaded.buffer.share(Sealing::Content).unwrap();
                let memfd: OwnedFd =
                    longshore_sys::file::reopen_read_only(shared.memfd().unwrap()).unwrap();
                let mut back = Vec::new();
                File::from(memfd).read_to_end(&mut back).unwrap();
                assert!(back == content, "{case}, through the descriptor");
            }
        }
    }
}

#[test]
fn one_byte_more_than_many_pieces() {
    let fixture = Fixture::new();
    let content = content(64 * MIB + 1);
    let path = fixture.file("file", &content, true);
    let loaded = Loader::new().heap(Heap::Memfd).load(&plan(&path)).unwrap();
    assert!(*loaded.buffer.read().unwrap() == *content);
    if has_direct_io(&path) {
        assert_eq!(loaded.report.by_route.direct, content.len() as u64);
        let grown = loaded.report.page_cache_growth_bytes.unwrap_or(0);
        assert!(grown < 1 << 20, "the page cache grew by {grown} bytes");
    }
}

#[test]
fn a_file_that_is_partly_resident_is_read_both_ways() {
    let fixture = Fixture::new();
    let content = content(20 * MIB + 777);
    let path = fixture.file("file", &content, true);
    let load = || Loader::new().heap(Heap::Memfd).load(&plan(&path)).unwrap();
    let Some(loaded) = load_while_resident(&path, 9 * MIB..14 * MIB, load) else { return };
    assert!(*loaded.buffer.read().unwrap() == *content);
    let routes = loaded.report.by_route;
    assert!(routes.page_cache >= 4 * MIB as u64, "{routes:?}");
    if has_direct_io(&path) {
        assert!(routes.direct >= 10 * MIB as u64, "{routes:?}");
    }
}

#[test]
fn many_files_make_one_buffer_with_zeroes_between() {
    let fixture = Fixture::new();
    let sizes = [5 * MIB + 3, 0, 1, 4096, 3 * MIB - 1, 100];
    let contents: Vec<Vec<u8>> = sizes.iter().map(|len| content(*len)).collect();
    for cold in [true, false] {
        let mut plan = Plan::new();
        for (index, content) in contents.iter().enumerate() {
            let path = fixture.file(&index.to_string(), content, cold);
            plan.push(SourceFile::open(path).unwrap()).unwrap();
        }
        let loaded = Loader::new().heap(Heap::Memfd).load(&plan).unwrap();
        let buffer = loaded.buffer.read().unwrap();
        let mut at = 0;
        for (file, content) in loaded.files.iter().zip(&contents) {
            let start = usize::try_from(file.buffer_offset).unwrap();
            assert!(buffer[at..start].iter().all(|byte| *byte == 0), "before {start}");
            assert!(buffer[start..start + content.len()] == **content, "at {start}");
            at = start + content.len();
        }
        assert_eq!(at, buffer.len());
    }
}

#[test]
fn any_range_of_a_file() {
    let fixture = Fixture::new();
    let content = content(3 * MIB + 5000);
    for (start, end) in
        [(0, 1), (1, 2), (511, 4097), (4096, 8192), (4095, 2 * MIB + 1), (5000, 3 * MIB + 5000)]
    {
        for cold in [true, false] {
            let path = fixture.file("file", &content, cold);
            let mut plan = Plan::new();
            let source = SourceFile::open(&path).unwrap();
            plan.push_range(source, start as u64..end as u64).unwrap();
            let loaded = Loader::new().heap(Heap::Memfd).load(&plan).unwrap();
            assert!(*loaded.buffer.read().unwrap() == content[start..end], "{start}..{end}");
            if cold && has_direct_io(&path) {
                // This also holds if the misalignment differs between the file and the buffer.
                let routes = loaded.report.by_route;
                let past = routes.direct + routes.staged;
                assert!(routes.buffered < 4096, "{start}..{end}: {routes:?}");
                assert_eq!(past + routes.buffered, (end - start) as u64, "{start}..{end}");
            }
        }
    }
}

#[test]
fn a_descriptor_is_read_directly_if_it_has_o_direct() {
    let fixture = Fixture::new();
    let content = content(2 * MIB + 9);
    let path = fixture.file("file", &content, false);
    if !has_direct_io(&path) {
        eprintln!("SKIPPED: no direct I/O in /var/tmp");
        return;
    }
    let load = |fd: OwnedFd| {
        let mut plan = Plan::new();
        plan.push(SourceFile::from_fd(fd).unwrap()).unwrap();
        Loader::new().heap(Heap::Memfd).load(&plan).unwrap()
    };
    let default = || load(File::open(&path).unwrap().into());
    if let Some(by_default) = load_while_resident(&path, 0..content.len(), default) {
        assert_eq!(by_default.report.by_route.page_cache, content.len() as u64, "it is resident");
    }
    let direct = longshore_sys::file::reopen_direct(File::open(&path).unwrap()).unwrap();
    let as_asked = load(direct);
    assert_eq!(as_asked.report.by_route.direct, content.len() as u64, "O_DIRECT was set on it");
    assert!(*as_asked.buffer.read().unwrap() == *content);
}

#[test]
fn two_loaders_of_one_file_do_not_disturb_each_other() {
    let fixture = Fixture::new();
    let content = content(24 * MIB + 11);
    let path = fixture.file("file", &content, true);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let loaded = Loader::new().heap(Heap::Memfd).load(&plan(&path)).unwrap();
                assert!(*loaded.buffer.read().unwrap() == *content);
            });
        }
    });
}

#[test]
fn a_file_without_direct_io_is_loaded() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("SKIPPED: no tmpfs at /dev/shm");
        return;
    };
    let fixture = Fixture { dir };
    let content = content(5 * MIB + 17);
    let path = fixture.file("file", &content, false);
    let loaded = Loader::new().heap(Heap::Memfd).load(&plan(&path)).unwrap();
    assert!(*loaded.buffer.read().unwrap() == *content);
}
