//! Fills with injected faults: reads that fail or are short, and files that change meanwhile.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use longshore_formats::{Image, Part};
use longshore_heap::Heap;
use longshore_mem::{FileOffset, Granule, VolatileSliceMut};
use proptest::prelude::*;

use super::{KernelReads, Reads, Route, Tuning};
use crate::digest_kind::DigestKind;
use crate::error::Error;
use crate::loader::{Loaded, Loader};
use crate::mode::ReadMode;
use crate::plan::Plan;
use crate::progress::{CancelToken, Progress};
use crate::reason::Change;
use crate::source::SourceFile;

/// Writes a file with random content. It is in `/var/tmp`, because `/tmp` may be a tmpfs.
fn file_of(len_bytes: usize) -> (tempfile::NamedTempFile, Vec<u8>) {
    let mut state = len_bytes as u64 ^ 0x9e37_79b9_7f4a_7c15;
    let content: Vec<u8> = (0..len_bytes)
        .map(|_| {
            // xorshift64 (Marsaglia 2003)
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect();
    let mut file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    file.write_all(&content).unwrap();
    file.as_file().sync_all().unwrap();
    (file, content)
}

fn load(path: &Path, loader: Loader<'_>, reads: &dyn Reads) -> crate::Result<Loaded> {
    loader.heap(Heap::Memfd).load_by(&Plan::from_path(path)?, reads)
}

/// The kernel's reads, with a function of the test that is called before each.
struct Mocked<F> {
    before: F,
    count: AtomicU64,
}

impl<F: Fn(u64, Route, u64, usize) -> io::Result<usize> + Sync> Mocked<F> {
    /// Makes a mock. `before` gets the number of the read, its route, offset and length. It returns the
    /// limit on the bytes that the read may return, or the error with which it fails.
    fn new(before: F) -> Self {
        Self { before, count: AtomicU64::new(0) }
    }
}

impl<F: Fn(u64, Route, u64, usize) -> io::Result<usize> + Sync> Reads for Mocked<F> {
    fn read(
        &self,
        source: &SourceFile,
        route: Route,
        memory: &mut VolatileSliceMut<'_>,
        offset: FileOffset,
    ) -> io::Result<usize> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let len_bytes = memory.len();
        let allowed = (self.before)(number, route, offset.raw(), len_bytes)?.min(len_bytes);
        let mut part = memory.subslice_mut(0, allowed).map_err(io::Error::other)?;
        KernelReads.read(source, route, &mut part, offset)
    }

    fn through_ring(&self) -> bool {
        false
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn short_and_interrupted_reads_lose_nothing(
        len_bytes in 1usize..5_000_000, seed: u64, direct: bool, mode_buffered: bool,
    ) {
        let (file, content) = file_of(len_bytes);
        if direct {
            longshore_sys::page_cache::evict(file.as_file()).unwrap();
        }
        // At most eight interruptions in a row, then a short read: whole blocks if it is direct.
        let reads = Mocked::new(|number, route, _, len_bytes| {
            let random = (seed ^ number).wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
            if number % 9 != 0 && random.is_multiple_of(3) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let unit = if route == Route::Direct { 4096 } else { 1 };
            Ok((random as usize % len_bytes + unit).next_multiple_of(unit))
        });
        let mode = if mode_buffered { ReadMode::Buffered } else { ReadMode::Auto };
        let loader = Loader::new().mode(mode).read_size(2 << 20).digest(DigestKind::Crc32c);
        let loaded = load(file.path(), loader, &reads).unwrap();
        prop_assert!(*loaded.buffer.read().unwrap() == *content);
        let whole = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &content);
        prop_assert_eq!(&loaded.files[0].digests[0].1, &format!("{whole:08x}"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_parts_of_an_aligned_layout_are_read_to_their_places(
        sizes in prop::collection::vec((0usize..700_000, 0usize..5000), 1..12), seed: u64,
        mode in prop::sample::select(vec![ReadMode::Auto, ReadMode::Buffered]), cold: bool,
        log2 in 0u32..13,
    ) {
        let alignment = Granule::new(1 << log2).unwrap();
        // In the file there is a gap before each part. In the layout the parts are aligned, in
        // reverse order.
        let (mut end, mut parts) = (0, Vec::new());
        for (len, gap) in sizes {
            parts.push(Part::new(end + gap as u64, 0, len as u64));
            end += (gap + len) as u64;
        }
        let head = b"a generated head".to_vec();
        let mut len_bytes = head.len() as u64;
        for part in parts.iter_mut().rev() {
            part.buffer_offset = alignment.checked_round_up(len_bytes).unwrap();
            len_bytes = part.buffer_offset + part.len_bytes;
        }
        let (file, content) = file_of(end as usize);
        if cold {
            longshore_sys::page_cache::evict(file.as_file()).unwrap();
        }
        let mut expected = vec![0; len_bytes as usize];
        expected[..head.len()].copy_from_slice(&head);
        for part in &parts {
            let from = &content[part.file_offset as usize..][..part.len_bytes as usize];
            expected[part.buffer_offset as usize..][..from.len()].copy_from_slice(from);
        }
        let mut plan = Plan::new();
        let image = Image::new(head, parts, len_bytes, alignment).unwrap();
        plan.push_image(SourceFile::open(file.path()).unwrap(), image).unwrap();
        let reads = Mocked::new(|number, route, _, len_bytes| {
            let random = (seed ^ number).wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
            if number % 9 != 0 && random.is_multiple_of(3) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let unit = if matches!(route, Route::Direct | Route::Staged) { 4096 } else { 1 };
            Ok((random as usize % len_bytes + unit).next_multiple_of(unit))
        });
        let loader = Loader::new().heap(Heap::Memfd).mode(mode).read_size(2 << 20);
        let loaded = loader.digest(DigestKind::Crc32c).load_by(&plan, &reads).unwrap();
        prop_assert!(*loaded.buffer.read().unwrap() == *expected);
        let whole = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &content);
        prop_assert_eq!(&loaded.files[0].digests[0].1, &format!("{whole:08x}"));
    }
}

#[test]
fn a_disk_error_has_the_file_the_range_and_the_progress() {
    let (file, _) = file_of(10 << 20);
    let reads = Mocked::new(|_, _, offset, len_bytes| {
        if offset >= 4 << 20 { Err(io::Error::from_raw_os_error(5)) } else { Ok(len_bytes) }
    });
    let loader = Loader::new().mode(ReadMode::Buffered).read_size(2 << 20);
    let error = load(file.path(), loader, &reads).unwrap_err();
    let Error::Read { path, range, done_bytes, source } = &error else { panic!("{error}") };
    assert_eq!(path, file.path());
    assert!(range.start >= 4 << 20 && range.end <= 10 << 20, "{range:?}");
    assert!(*done_bytes <= 4 << 20);
    assert_eq!(source.raw_os_error(), Some(5));
}

#[test]
fn evicted_pages_are_read_from_the_disk() {
    let (file, content) = file_of((6 << 20) + 123);
    // Every third read of resident pages finds them evicted.
    let reads = Mocked::new(|number, route, _, len_bytes| {
        if route == Route::Resident && number % 3 == 2 {
            Err(io::ErrorKind::WouldBlock.into())
        } else {
            Ok(len_bytes)
        }
    });
    let loader = Loader::new().read_size(2 << 20).digest(DigestKind::Xxh3);
    let loaded = load(file.path(), loader, &reads).unwrap();
    assert!(*loaded.buffer.read().unwrap() == *content);
    let routes = loaded.report.by_route;
    assert_eq!(
        routes.direct + routes.page_cache + routes.uncached + routes.buffered,
        content.len() as u64
    );
    assert!(routes.page_cache < content.len() as u64, "{routes:?}");
    let whole = xxhash_rust::xxh3::xxh3_64(&content);
    assert_eq!(loaded.files[0].digests, [(DigestKind::Xxh3, format!("{whole:016x}"))]);
}

#[test]
fn truncating_a_file_during_the_load_is_an_error() {
    let (file, _) = file_of(8 << 20);
    let reads = Mocked::new(|number, _, _, len_bytes| {
        if number == 0 {
            file.as_file().set_len(1 << 20)?;
        }
        Ok(len_bytes)
    });
    let loader = Loader::new().mode(ReadMode::Buffered).read_size(2 << 20);
    let error = load(file.path(), loader, &reads).unwrap_err();
    assert!(matches!(error, Error::Truncated { len_bytes, .. } if len_bytes == 8 << 20), "{error}");
}

#[test]
fn writing_to_a_file_during_the_load_is_an_error() {
    for grow in [false, true] {
        let (file, _) = file_of(4 << 20);
        let reads = Mocked::new(|number, _, _, len_bytes| {
            if number == 0 {
                // The clock of file timestamps ticks every few milliseconds.
                std::thread::sleep(Duration::from_millis(30));
                let offset = if grow { 4 << 20 } else { 17 };
                rustix::io::pwrite(file.as_file().as_fd(), b"changed", offset)?;
            }
            Ok(len_bytes)
        });
        let error = load(file.path(), Loader::new(), &reads).unwrap_err();
        let Error::Changed { change, .. } = &error else { panic!("{error}") };
        assert_eq!(matches!(change, Change::Grew { .. }), grow, "{change}");
    }
}

#[test]
fn a_cancelled_load_stops_soon_and_reports_its_progress() {
    let (file, _) = file_of(32 << 20);
    let token = CancelToken::new();
    let reads = Mocked::new(|number, _, _, len_bytes| {
        if number == 3 {
            token.cancel();
        }
        // Wait for the thread of that read, however late it runs again.
        while number > 3 && !token.is_cancelled() {
            std::thread::yield_now();
        }
        Ok(len_bytes)
    });
    let loader = Loader::new().mode(ReadMode::Buffered).read_size(2 << 20).cancel(&token);
    let error = load(file.path(), loader, &reads).unwrap_err();
    let Error::Cancelled { done_bytes, total_bytes } = error else { panic!("{error}") };
    assert_eq!(total_bytes, 32 << 20);
    assert!(done_bytes < 32 << 20);
    // Threads finish the read that they have begun, and begin no other.
    let reads_made = reads.count.load(Ordering::Relaxed);
    assert!(reads_made <= 4 + 4, "{reads_made} reads");
}

#[test]
fn a_cancelled_load_whose_reads_hang_releases_its_claim_on_memory() {
    let available = longshore_sys::memory::available();
    let group_bytes = available.control_group.map(|(bytes, _)| bytes);
    let Some(free_bytes) = available.machine_bytes.into_iter().chain(group_bytes).min() else {
        eprintln!("SKIPPED: how much memory is available is not known");
        return;
    };
    let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    if let Err(error) = file.as_file().set_len(free_bytes / 5 * 3) {
        eprintln!("SKIPPED: /var/tmp has no files of {} bytes: {error}", free_bytes / 5 * 3);
        return;
    }
    let plan = Plan::from_path(file.path()).unwrap();
    let cancel = CancelToken::new();
    let gate = Mutex::new(());
    let (hang, hangs) = mpsc::sync_channel(1);
    let hanging = Mocked::new(|_, _, _, _| {
        let _ = hang.try_send(());
        drop(gate.lock());
        Ok(0)
    });
    let failing = Mocked::new(|_, _, _, _| Err(io::Error::from_raw_os_error(5)));
    let load = |reads: &dyn Reads, cancel: &CancelToken| {
        let loader = Loader::new().heap(Heap::Memfd).mode(ReadMode::Buffered).cancel(cancel);
        loader.load_by(&plan, reads).unwrap_err()
    };
    // The two loads do not fit at once. The second takes almost no memory, because its first read fails.
    let second = || load(&failing, &CancelToken::new());
    std::thread::scope(|scope| {
        let held = gate.lock().unwrap();
        let first = scope.spawn(|| load(&hanging, &cancel));
        hangs.recv_timeout(Duration::from_secs(60)).unwrap();
        cancel.cancel();
        let is_accepted = |_| {
            std::thread::sleep(Duration::from_millis(50));
            matches!(second(), Error::Read { .. })
        };
        assert!((0..200).any(is_accepted), "{}", second());
        assert!(!first.is_finished());
        drop(held);
        assert!(matches!(first.join().unwrap(), Error::Cancelled { done_bytes: 0, .. }));
    });
}

#[test]
fn a_complete_fill_claims_no_memory_for_padding() {
    let (file, _) = file_of(4096);
    let parts = vec![Part::new(0, 16 << 20, 4096)];
    let image = Image::new(vec![3; 4096], parts, (16 << 20) + 4096, Granule::SIZE_4K).unwrap();
    let mut plan = Plan::new();
    plan.push_image(SourceFile::open(file.path()).unwrap(), image).unwrap();
    let reservation = Heap::Memfd.reserve(plan.len_bytes()).unwrap();
    let tuning = Tuning {
        mode: ReadMode::Buffered,
        populate_ahead_bytes: 8 << 20,
        piece_bytes: 2 << 20,
        depth: 1,
        use_uring: false,
        workers: 1,
        connections: None,
    };
    let (cancel, mut last) = (CancelToken::new(), None);
    let observe = |progress: Progress, left_bytes| last = Some((progress.done_bytes, left_bytes));
    super::fill(&plan, &reservation, &tuning, &[], &cancel, &KernelReads, observe).unwrap();
    assert_eq!(last, Some((plan.content_bytes(), 0)));
}

/// Returns an aligned layout of a sparse file that has two pages of data with `gap_bytes` between them.
/// Prints `SKIPPED` and returns `None` if `folder` cannot have a file of that length.
fn sparse_image(folder: &str, gap_bytes: u64) -> Option<(tempfile::NamedTempFile, Plan)> {
    let file = match tempfile::NamedTempFile::new_in(folder) {
        Ok(file) => file,
        Err(error) => {
            eprintln!("SKIPPED: {folder}: {error}");
            return None;
        }
    };
    let second = 4096 + gap_bytes;
    if let Err(error) = file.as_file().set_len(second + 4096) {
        eprintln!("SKIPPED: {folder} has no files of {second} bytes: {error}");
        return None;
    }
    for (offset, bytes) in [(0, [1; 4096]), (second, [2; 4096])] {
        assert_eq!(rustix::io::pwrite(file.as_file(), &bytes, offset).unwrap(), 4096);
    }
    let parts = [(0, 4096), (second, 8192)];
    let parts =
        parts.map(|(file_offset, buffer_offset)| Part::new(file_offset, buffer_offset, 4096));
    let image = Image::new(vec![3; 4096], parts.to_vec(), 3 * 4096, Granule::SIZE_4K).unwrap();
    let mut plan = Plan::new();
    plan.push_image(SourceFile::open(file.path()).unwrap(), image).unwrap();
    Some((file, plan))
}

#[test]
fn a_hole_of_exabytes_between_tensors_costs_nothing() {
    let Some((_file, plan)) = sparse_image("/dev/shm", 1 << 62) else { return };
    for mode in [ReadMode::Auto, ReadMode::Buffered] {
        let loaded = Loader::new().heap(Heap::Memfd).mode(mode).load(&plan).unwrap();
        let expected = [[3; 4096], [1; 4096], [2; 4096]].concat();
        assert!(*loaded.buffer.read().unwrap() == *expected, "{mode}");
    }
}

#[test]
fn a_load_is_cancelled_while_its_checksum_is_behind() {
    // The hole is hashed, too, which takes many times longer than the interval of progress reports.
    let Some((_file, plan)) = sparse_image("/var/tmp", 16 << 30) else { return };
    let token = CancelToken::new();
    let mut complete = 0;
    let observe = |progress: Progress| {
        if progress.done_bytes == progress.total_bytes {
            complete += 1;
            token.cancel();
        }
    };
    let loader = Loader::new().heap(Heap::Memfd).digest(DigestKind::Sha256).cancel(&token);
    let error = loader.observe(observe).load(&plan).unwrap_err();
    let Error::Cancelled { done_bytes, total_bytes } = error else { panic!("{error}") };
    assert_eq!((done_bytes, total_bytes), (8192, 8192));
    assert!(complete >= 1);
}

#[test]
fn routing_stops_when_the_load_is_cancelled() {
    let (file, _) = file_of(32 << 20);
    let plan = Plan::from_path(file.path()).unwrap();
    let reservation = Heap::Memfd.reserve(plan.len_bytes()).unwrap();
    let tuning = Tuning {
        mode: ReadMode::Buffered,
        populate_ahead_bytes: 8 << 20,
        piece_bytes: 2 << 20,
        depth: 1,
        use_uring: false,
        workers: 1,
        connections: None,
    };
    for (looks, pieces) in [(0, 0), (3, 3), (100, 16)] {
        let asked = AtomicU64::new(0);
        let should_stop = || asked.fetch_add(1, Ordering::Relaxed) >= looks;
        let routed = super::route::route(&plan, &reservation, &tuning, should_stop).unwrap();
        assert_eq!(routed.pieces.len(), pieces);
    }
}

#[test]
fn a_load_makes_no_more_reads_than_its_read_size_needs() {
    let (file, content) = file_of((20 << 20) + 1);
    let seen = Mutex::new(Vec::new());
    let reads = Mocked::new(|_, route, offset, len_bytes| {
        seen.lock().unwrap().push((route, offset, len_bytes as u64));
        Ok(len_bytes)
    });
    longshore_sys::page_cache::evict(file.as_file()).unwrap();
    let loaded = load(file.path(), Loader::new().mode(ReadMode::Direct), &reads);
    match loaded {
        Err(Error::ModeUnavailable { .. }) => eprintln!("SKIPPED: no direct I/O in /var/tmp"),
        loaded => {
            assert!(*loaded.unwrap().buffer.read().unwrap() == *content);
            let mut direct = seen.lock().unwrap().clone();
            direct.sort_unstable_by_key(|(_, offset, _)| *offset);
            let lengths: Vec<u64> = direct.iter().map(|(.., len_bytes)| *len_bytes).collect();
            // Two whole pieces, and the rest rounded up to a block.
            assert_eq!(lengths.len(), 3);
            assert_eq!(lengths[..2], [8 << 20, 8 << 20]);
            assert!(lengths[2] > 4 << 20 && lengths[2] <= (4 << 20) + 4096);
        }
    }
    seen.lock().unwrap().clear();
    load(file.path(), Loader::new().mode(ReadMode::Buffered), &reads).unwrap();
    // One read for each huge page, and one for the last byte.
    assert_eq!(seen.lock().unwrap().len(), 11);
}

#[test]
fn an_observer_that_panics_ends_the_load() {
    let (file, _) = file_of(8 << 20);
    let reads = Mocked::new(|number, route, _, len_bytes| {
        // This leaves a piece to be read later, which does not happen.
        if route == Route::Resident && number == 1 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        std::thread::sleep(Duration::from_millis(60));
        Ok(len_bytes)
    });
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let loader = Loader::new().read_size(2 << 20).digest(DigestKind::Crc32c);
        load(file.path(), loader.observe(|_| panic!("a panic of the observer")), &reads).map(drop)
    }));
    assert!(ended.is_err(), "the panic reaches the caller");
}

#[test]
fn read_sizes_are_clamped() {
    let (file, content) = file_of(5 << 20);
    for bytes in [0, 1, u64::MAX] {
        let loaded = load(file.path(), Loader::new().read_size(bytes), &KernelReads).unwrap();
        assert!(*loaded.buffer.read().unwrap() == *content);
    }
}
