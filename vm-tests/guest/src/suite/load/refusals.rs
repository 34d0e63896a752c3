//! A load that cannot succeed returns the reason, and leaves nothing.

use std::{
    fs,
    os::unix::process::ExitStatusExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use longshore_heap::Heap;
use longshore_load::{CancelToken, Error, Loader, Plan, ReadMode};
use longshore_sys::memory;
use longshore_vm_tests::fixture::{BROKEN_AT, LARGE_FILE_BYTES, file_name};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::{
    leftovers::Holdings,
    outcome::{Passed, TestResult, described, ensure},
    peer,
};

/// The maximum wait until another process has started loading.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Returns every kind of memory, because each is freed in another way.
fn heaps() -> [Heap; 3] {
    [Heap::Udmabuf, Heap::Memfd, Heap::DmaHeap("system".to_owned())]
}

pub(super) fn bad_sector_fails_the_load() -> TestResult {
    let path = Path::new("/disk/broken").join(file_name(LARGE_FILE_BYTES));
    let before = Holdings::now()?;
    for heap in heaps() {
        for (mode, use_uring) in
            [(ReadMode::Auto, true), (ReadMode::Auto, false), (ReadMode::Buffered, false)]
        {
            let case = format!("heap {heap}, mode {mode}, io_uring {use_uring}");
            let loader = Loader::new().heap(heap.clone()).mode(mode).use_uring(use_uring);
            let error = loader.load(&Plan::from_path(&path)?).err();
            let error = error.ok_or_else(|| format!("{case}: it did not fail"))?;
            check_read_error(&error, &path).map_err(|why| format!("{case}: {why}"))?;
            before.ensure_unchanged().map_err(|why| format!("{case}: {why}"))?;
        }
    }
    Ok(Passed::Yes)
}

/// Checks that the error names the file, a range with the bad sector, EIO, and the bytes that were read
/// before.
fn check_read_error(error: &Error, file: &Path) -> Result<(), String> {
    let Error::Read { path, range, done_bytes, source } = error else {
        return Err(format!("the error is {error:?}"));
    };
    let eio = source.raw_os_error() == Some(libc::EIO);
    let done = *done_bytes < LARGE_FILE_BYTES;
    if path != file || !range.contains(&BROKEN_AT) || !eio || !done {
        return Err(format!("the error is {error:?}"));
    }
    let said = described(error);
    for part in [file.display().to_string(), "Input/output error".to_owned()] {
        if !said.contains(&part) {
            return Err(format!("the message does not contain {part}: {said}"));
        }
    }
    Ok(())
}

pub(super) fn cancelling_leaves_nothing() -> TestResult {
    // The disk is slow, so the load cannot end before it is cancelled.
    let path = Path::new("/disk/slow").join(file_name(LARGE_FILE_BYTES));
    let before = Holdings::now()?;
    for heap in heaps() {
        let token = CancelToken::new();
        let observer = token.clone();
        // Reads that the kernel has started cannot be cancelled, so only a few may be in flight.
        let loader = Loader::new().heap(heap.clone()).read_size(2 << 20).depth(2);
        let loader = loader.cancel(&token).observe(move |progress| {
            if progress.done_bytes > 0 {
                observer.cancel();
            }
        });
        let error = loader.load(&Plan::from_path(&path)?).err();
        let error = error.ok_or_else(|| format!("heap {heap}: it was not cancelled"))?;
        let Error::Cancelled { done_bytes, total_bytes } = error else {
            return Err(format!("heap {heap}: {error:?}").into());
        };
        ensure!(done_bytes < total_bytes, "heap {heap}: {done_bytes} of {total_bytes} were done");
        before.ensure_unchanged().map_err(|why| format!("heap {heap}: {why}"))?;
    }
    Ok(Passed::Yes)
}

pub(super) fn killing_leaves_nothing() -> TestResult {
    let path = Path::new("/disk/slow").join(file_name(LARGE_FILE_BYTES));
    let before = Holdings::now()?;
    for heap in heaps() {
        let mut loading = peer::start_load(&path, &heap)?;
        // When it holds memory, it is in the middle of the load, because the disk is slow.
        let started = Instant::now();
        while !Holdings::now()?.holds_more_memory_than(&before) {
            ensure!(started.elapsed() < START_LIMIT, "heap {heap}: it took no memory");
            thread::sleep(Duration::from_millis(10));
        }
        loading.kill()?;
        let signal = loading.wait()?.signal();
        ensure!(signal == Some(libc::SIGKILL), "heap {heap}: it ended with signal {signal:?}");
        drop(loading);
        before.ensure_unchanged().map_err(|why| format!("heap {heap}: {why}"))?;
    }
    Ok(Passed::Yes)
}

pub(super) fn too_much_for_the_machine() -> TestResult {
    // A hole uses no memory, so the file can be larger than the machine's memory.
    let path = Path::new("/tmp/vast");
    fs::File::create(path)?.set_len(1 << 40)?;
    let before = Holdings::now()?;
    for heap in heaps() {
        let error = Loader::new().heap(heap.clone()).load(&Plan::from_path(path)?).err();
        let error = error.ok_or_else(|| format!("heap {heap}: it was not refused"))?;
        let Error::NotEnoughMemory { needed_bytes, limit_bytes, limit, .. } = &error else {
            return Err(format!("heap {heap}: {error:?}").into());
        };
        ensure!(*needed_bytes >= 1 << 40, "the error has {needed_bytes} needed bytes");
        ensure!(*limit_bytes < 1 << 40, "the error has a limit of {limit_bytes} bytes");
        let limit = limit.to_string();
        ensure!(limit.contains("MemAvailable"), "the limit is called {limit}");
        before.ensure_unchanged().map_err(|why| format!("heap {heap}: {why}"))?;
    }
    fs::remove_file(path)?;
    Ok(Passed::Yes)
}

pub(super) fn two_loads_do_not_plan_with_the_same_memory() -> TestResult {
    // The disk is slow, so most of the load is still to come when the second one begins.
    let first = Plan::from_path(Path::new("/disk/slow").join(file_name(LARGE_FILE_BYTES)))?;
    let path = Path::new("/tmp/beside");
    let vast = 1 << 40;
    let mut refused = None;
    let observe = |_| {
        refused.get_or_insert_with(|| -> Result<_, Box<dyn std::error::Error>> {
            let overhead_bytes = needed_for_hole(path, vast)?.0 - vast;
            let available_bytes = memory::meminfo_bytes("MemAvailable:").ok_or("MemAvailable")?;
            // Without the other load it would fit.
            needed_for_hole(path, available_bytes - overhead_bytes - LARGE_FILE_BYTES / 2)
        });
    };
    let loader = Loader::new().heap(Heap::Memfd).read_size(2 << 20).depth(2);
    loader.populate_ahead(2 << 20).observe(observe).load(&first)?;
    fs::remove_file(path)?;
    let (_, limit_name) = refused.ok_or("the load was not observed")??;
    ensure!(limit_name.contains("that other loads are to take"), "it names {limit_name}");
    Ok(Passed::Yes)
}

/// Returns the memory that a load of a hole of `len_bytes` needs, and the limit that refuses it.
fn needed_for_hole(
    path: &Path,
    len_bytes: u64,
) -> Result<(u64, String), Box<dyn std::error::Error>> {
    fs::File::create(path)?.set_len(len_bytes)?;
    match Loader::new().heap(Heap::Memfd).load(&Plan::from_path(path)?) {
        Err(Error::NotEnoughMemory { needed_bytes, limit, .. }) => {
            Ok((needed_bytes, limit.to_string()))
        }
        other => Err(format!("{len_bytes} bytes: {:?}", other.map(|loaded| loaded.report)).into()),
    }
}

pub(super) fn too_much_for_the_group() -> TestResult {
    let root = Path::new("/sys/fs/cgroup");
    let group = root.join("narrow");
    fs::write(root.join("cgroup.subtree_control"), "+memory")?;
    fs::create_dir(&group)?;
    fs::write(group.join("memory.max"), (32 << 20).to_string())?;
    fs::write(group.join("cgroup.procs"), "0")?;
    let result = refused_by_the_group(&group);
    fs::write(root.join("cgroup.procs"), "0")?;
    fs::remove_dir(&group)?;
    result
}

fn refused_by_the_group(group: &Path) -> TestResult {
    let path = Path::new("/disk/ext4").join(file_name((64 << 20) + 1));
    let before = Holdings::now()?;
    for heap in heaps() {
        let error = Loader::new().heap(heap.clone()).load(&Plan::from_path(&path)?).err();
        let error = error.ok_or_else(|| format!("heap {heap}: it was not refused"))?;
        let Error::NotEnoughMemory { limit_bytes, limit, .. } = &error else {
            return Err(format!("heap {heap}: {error:?}").into());
        };
        ensure!(*limit_bytes <= 32 << 20, "heap {heap}: the limit is {limit_bytes} bytes");
        let named = group.join("memory.max").display().to_string();
        let limit = limit.to_string();
        ensure!(limit.contains(&named), "heap {heap}: the limit is called {limit}");
        before.ensure_unchanged().map_err(|why| format!("heap {heap}: {why}"))?;
    }
    Ok(Passed::Yes)
}

pub(super) fn too_many_descriptors() -> TestResult {
    let path = Path::new("/disk/ext4").join(file_name(4097));
    let plan = Plan::from_path(&path)?;
    let before = Holdings::now()?;
    let open = fs::read_dir("/proc/self/fd")?.count() as u64;
    // From no spare descriptor, so that every call fails once, to enough of them.
    let mut refusals = 0;
    for spare in 0..16 {
        for heap in heaps() {
            let limit = Rlimit { current: Some(open - 1 + spare), maximum: Some(1024) };
            setrlimit(Resource::Nofile, limit)?;
            let result = Loader::new().heap(heap.clone()).load(&plan);
            let plenty = Rlimit { current: Some(1024), maximum: Some(1024) };
            setrlimit(Resource::Nofile, plenty)?;
            match result {
                Ok(loaded) => drop(loaded),
                Err(error) => {
                    refusals += 1;
                    let case = format!("{spare} to spare, heap {heap}");
                    let said = described(&error);
                    ensure!(said.contains("Too many open files"), "{case}: {said}");
                }
            }
            before.ensure_unchanged().map_err(|why| format!("{spare} to spare: {why}"))?;
        }
    }
    ensure!(refusals > 0, "no limit was ever reached");
    Ok(Passed::Yes)
}
