//! Streams with injected faults: reads that fail, hang, are short or find no resident page.

use std::fs::FileTimes;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use longshore_mem::{FileOffset, Granule, VolatileSliceMut};

use super::{Order, Selection, Stream, StreamOptions, StreamProblem};
use crate::digest_kind::DigestKind;
use crate::error::{Error, Result};
use crate::fill::{KernelReads, Reads, Route};
use crate::loader::Loader;
use crate::mode::ReadMode;
use crate::open::FormatChoice;
use crate::progress::CancelToken;
use crate::reason::Change;
use crate::source::SourceFile;
use crate::verify::Manifest;

const TENSOR_BYTES: usize = 3 << 20;
const TENSORS: usize = 6;

/// Writes a model of [`TENSORS`] tensors, each filled with its index.
fn model() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = folder.path().join("model.safetensors");
    let entries: Vec<String> = (0..TENSORS)
        .map(|at| {
            let (start, end) = (at * TENSOR_BYTES, (at + 1) * TENSOR_BYTES);
            format!(
                r#""t{at}":{{"dtype":"U8","shape":[{TENSOR_BYTES}],"data_offsets":[{start},{end}]}}"#
            )
        })
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    for at in 0..TENSORS {
        file.write_all(&vec![at as u8; TENSOR_BYTES]).unwrap();
    }
    file.sync_all().unwrap();
    (folder, path)
}

/// The kernel's reads, with a function of the test that is called before each, with its route and the range of
/// the file. It returns the limit on the bytes that the read may return, or its error.
struct Mocked<F>(F);

impl<F: Fn(Route, u64, usize) -> io::Result<usize> + Sync> Reads for Mocked<F> {
    fn read(
        &self,
        source: &SourceFile,
        route: Route,
        memory: &mut VolatileSliceMut<'_>,
        offset: FileOffset,
    ) -> io::Result<usize> {
        let len_bytes = memory.len();
        let allowed = (self.0)(route, offset.raw(), len_bytes)?.min(len_bytes);
        let mut part = memory.subslice_mut(0, allowed).map_err(io::Error::other)?;
        KernelReads.read(source, route, &mut part, offset)
    }

    fn through_ring(&self) -> bool {
        false
    }
}

fn stream(
    path: &PathBuf,
    loader: Loader<'_>,
    options: &StreamOptions,
    reads: impl Fn(Route, u64, usize) -> io::Result<usize> + Send + Sync + 'static,
) -> Stream {
    let opened = crate::open(&[path], FormatChoice::Auto).unwrap();
    loader.stream_by(opened, &Selection::all(), options, Mocked(reads)).unwrap()
}

fn values(stream: &Stream) -> Result<Vec<u8>> {
    stream
        .tensors()
        .map(|tensor| {
            let tensor = tensor?;
            assert!(tensor.iter().all(|byte| *byte == tensor[0]) && tensor.len() == TENSOR_BYTES);
            Ok(tensor[0])
        })
        .collect()
}

#[test]
fn a_disk_error_ends_the_stream_after_the_tensors_before_it() {
    let (_folder, path) = model();
    let bad = 4 * TENSOR_BYTES as u64;
    let reads = move |_: Route, offset: u64, len: usize| {
        if offset <= bad && bad < offset + len as u64 {
            // The tensors before it are complete by now.
            std::thread::sleep(Duration::from_millis(300));
            return Err(io::Error::from_raw_os_error(5));
        }
        Ok(len)
    };
    let stream = stream(&path, Loader::new().mode(ReadMode::Direct), &StreamOptions::new(), reads);
    for at in 0..3 {
        assert_eq!(stream.next_tensor().unwrap().unwrap()[0], at);
    }
    let failed = stream.tensors().find_map(Result::err).unwrap();
    let Error::Read { range, source, .. } = &failed else { panic!("{failed}") };
    assert!(range.contains(&bad) && source.raw_os_error() == Some(5), "{failed}");
    let again = stream.next_tensor().unwrap_err().to_string();
    assert!(again.contains("failed before") && again.contains("Input/output"), "{again}");
    assert_eq!(stream.tensors().count(), 1);
}

/// Sums of the original content, in the format of `sha256sum`.
fn manifest(path: &Path) -> Manifest {
    let opened = crate::open(&[path], FormatChoice::Auto).unwrap();
    let loaded = Loader::new().digest(DigestKind::Sha256).load(&opened.plan).unwrap();
    let sums = path.with_extension("sums");
    let line = format!("{}  {}\n", loaded.files[0].digests[0].1, path.display());
    std::fs::write(&sums, line).unwrap();
    Manifest::open(&sums).unwrap()
}

/// Writes to a file, and gives it the old time of its modification, so that only its content has changed.
fn write_unnoticed(path: &Path, offset: u64, bytes: &[u8]) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    file.write_all_at(bytes, offset).unwrap();
    file.set_times(FileTimes::new().set_modified(modified)).unwrap();
}

#[test]
fn the_bytes_of_a_block_that_two_tensors_share_are_hashed_where_they_are_used() {
    let (_folder, path) = model();
    let manifest = manifest(&path);
    let start = std::fs::metadata(&path).unwrap().len() - 5 * TENSOR_BYTES as u64;
    assert!(!start.is_multiple_of(512));
    let changed = path.clone();
    let is_changed = AtomicBool::new(false);
    let reads = move |_: Route, offset: u64, len: usize| {
        // The tensor before this one is complete, with the first bytes of this one behind it.
        let begins_here = offset <= start && start < offset + len.min(4096) as u64;
        if begins_here && !is_changed.swap(true, Ordering::Relaxed) {
            write_unnoticed(&changed, start, &[0xee; 16]);
        }
        Ok(len)
    };
    let options = StreamOptions::new().memory(TENSOR_BYTES as u64 + (1 << 20));
    let loader = Loader::new().mode(ReadMode::Direct).manifest(&manifest);
    let stream = stream(&path, loader, &options, reads);
    assert_eq!(stream.next_tensor().unwrap().unwrap()[0], 0);
    let failed =
        stream.tensors().find_map(Result::err).expect("the checksum is that of other bytes");
    assert!(matches!(failed, Error::Mismatch { .. }), "{failed}");
}

#[test]
fn the_header_that_is_hashed_is_the_one_that_was_parsed() {
    let (_folder, path) = model();
    let manifest = manifest(&path);
    let header = std::fs::read(&path).unwrap()[..200].to_vec();
    let at = header.windows(2).position(|pair| pair == b"t0").unwrap() as u64;
    write_unnoticed(&path, at, b"t9");
    let opened = || crate::open(&[&path], FormatChoice::Auto).unwrap();
    let (of_stream, of_load) = (opened(), opened());
    let of_slice = opened().align(Granule::SIZE_4K).unwrap();
    write_unnoticed(&path, at, b"t0");
    let loader = || Loader::new().manifest(&manifest);
    let stream = loader().stream(of_stream, &Selection::all(), &StreamOptions::new()).unwrap();
    let failures = [
        stream.tensors().find_map(Result::err).expect("the header was another one"),
        loader().load(&of_load.plan).unwrap_err(),
        loader().load(&of_slice.plan).unwrap_err(),
        loader()
            .load_into(&of_slice.plan, &mut vec![0; of_slice.plan.len_bytes() as usize])
            .unwrap_err(),
    ];
    for failed in failures {
        assert!(matches!(failed, Error::Changed { change: Change::Written, .. }), "{failed}");
    }
}

#[test]
fn short_reads_and_pages_that_are_evicted_meanwhile_are_read_again() {
    let (_folder, path) = model();
    std::fs::read(&path).unwrap();
    for order in [Order::File, Order::Completion] {
        let count = Mutex::new(0);
        let reads = move |route: Route, offset: u64, len: usize| {
            let mut count = count.lock().unwrap();
            *count += 1;
            match route {
                Route::Resident if *count % 3 == 0 => Err(io::ErrorKind::WouldBlock.into()),
                Route::Direct if *count % 2 == 0 && len > 8192 => Ok(4096 * (len / 8192)),
                Route::Direct => Ok(len),
                _ => Ok(1 + (offset as usize * 7 + 99_999) % len),
            }
        };
        let options = StreamOptions::new().memory(2 * TENSOR_BYTES as u64 + (1 << 20)).order(order);
        let stream = stream(&path, Loader::new(), &options, reads);
        let mut found = values(&stream).unwrap();
        found.sort_unstable();
        assert_eq!(found, [0, 1, 2, 3, 4, 5]);
        let routes = stream.report().by_route;
        assert!(routes.direct > 0 && routes.page_cache > 0, "{routes:?}");
    }
}

/// A read that hangs until the test ends it.
#[derive(Default)]
struct Hang {
    is_hanging: AtomicBool,
    ended: Mutex<bool>,
    changed: Condvar,
}

#[test]
fn a_read_that_hangs_delays_neither_a_cancellation_nor_the_end() {
    let (_folder, path) = model();
    for is_dropped in [false, true] {
        let hang = Arc::new(Hang::default());
        let reads = {
            let hang = Arc::clone(&hang);
            move |_: Route, offset: u64, len: usize| {
                if offset > 3 * TENSOR_BYTES as u64 {
                    hang.is_hanging.store(true, Ordering::Relaxed);
                    let mut ended = hang.ended.lock().unwrap();
                    while !*ended {
                        ended = hang.changed.wait(ended).unwrap();
                    }
                }
                Ok(len)
            }
        };
        let token = CancelToken::new();
        let loader = Loader::new().mode(ReadMode::Direct).cancel(&token);
        let stream = stream(&path, loader, &StreamOptions::new(), reads);
        let first = stream.next_tensor().unwrap().unwrap();
        while !hang.is_hanging.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let began = Instant::now();
        if !is_dropped {
            token.cancel();
            let cancelled = stream.tensors().find_map(Result::err).unwrap();
            assert!(matches!(cancelled, Error::Cancelled { .. }), "{cancelled}");
        }
        drop(stream);
        assert!(began.elapsed() < Duration::from_secs(20));
        assert!(first.iter().all(|byte| *byte == 0));
        *hang.ended.lock().unwrap() = true;
        hang.changed.notify_all();
    }
}

#[test]
#[expect(unsafe_code, reason = "forks")]
fn a_child_process_keeps_its_tensors_and_gets_no_others() {
    let (_folder, path) = model();
    let options = StreamOptions::new().memory(2 * TENSOR_BYTES as u64 + (1 << 20));
    let stream = stream(&path, Loader::new(), &options, |_, _, len| Ok(len));
    let first = stream.next_tensor().unwrap().unwrap();
    // SAFETY: the child calls only what this test is about, without memory of the allocator for messages, and
    // ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // The parent reads into the memory meanwhile.
        std::thread::sleep(Duration::from_millis(300));
        let is_same = first.iter().all(|byte| *byte == 0);
        drop(first);
        let is_refused = stream.next_tensor().is_err();
        // These get the memory of the stacks of threads that do not exist here.
        let start = || std::thread::Builder::new().stack_size(8 << 20).spawn(|| ()).unwrap();
        let threads: Vec<_> = (0..30).map(|_| start()).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let thread = start();
        drop(stream);
        thread.join().unwrap();
        // SAFETY: it ends the process at once.
        unsafe { libc::_exit(if is_same && is_refused { 7 } else { 8 }) };
    }
    assert!(child > 0);
    drop(first);
    assert_eq!(values(&stream).unwrap(), [1, 2, 3, 4, 5]);
    let mut status = 0;
    // SAFETY: `status` is valid for writes.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status >> 8), (child, 7), "status {status:#x}");
}

#[test]
#[expect(unsafe_code, reason = "forks")]
fn a_child_that_is_forked_while_its_parent_waits_gets_an_error() {
    let (_folder, path) = model();
    let options = StreamOptions::new()
        .memory(TENSOR_BYTES as u64 + (1 << 20))
        .wait(Duration::from_secs(3600));
    let stream = stream(&path, Loader::new(), &options, |_, _, len| Ok(len));
    let held = stream.next_tensor().unwrap().unwrap();
    let mut child = None;
    let failed = stream.next_while(|| match child {
        None => {
            // SAFETY: the child returns from `next_while`, compares the error, and ends by `_exit`.
            child = Some(unsafe { libc::fork() });
            true
        }
        // The parent stops waiting, and the child would wait for ever.
        Some(child) => child == 0,
    });
    let failed = failed.unwrap_err();
    if child == Some(0) {
        let is_forked = matches!(failed, Error::Stream { reason: StreamProblem::Forked });
        // SAFETY: it ends the process at once.
        unsafe { libc::_exit(if is_forked { 7 } else { 8 }) };
    }
    assert!(matches!(failed, Error::Cancelled { .. }), "{failed}");
    let (child, mut status) = (child.unwrap(), 0);
    let until = Instant::now() + Duration::from_secs(20);
    // SAFETY: `status` is valid for writes.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if Instant::now() > until {
            // SAFETY: the child has not been waited for, so the ID is its own.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(status >> 8, 7, "status {status:#x}");
    drop(held);
}
