//! Copies of missing memory: real faults, in this process.
#![cfg(not(miri))]
#![expect(unsafe_code, reason = "maps memory and removes pages during copies")]

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::Command;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use longshore_mem::copy::{CopyFault, STREAM_MIN_BYTES, copy, fill};
use longshore_mem::fault::{FaultCause, FaultGuard};
use longshore_mem::isa::IsaToken;
use longshore_mem::{VolatileSlice, VolatileSliceMut, dispatch_isa};

const PAGE: usize = 4096;

/// A memfd, mapped as a whole.
struct Mapped {
    file: File,
    start: NonNull<u8>,
    len_bytes: usize,
}

impl Mapped {
    fn of(len_bytes: usize) -> Self {
        // SAFETY: creates a descriptor; the name is a C string.
        let fd = unsafe { libc::memfd_create(c"longshore-test".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the descriptor is new and has no other owner.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(len_bytes as u64).unwrap();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        let mapped = Self { file, start: NonNull::new(start.cast()).unwrap(), len_bytes };
        for at in 0..len_bytes {
            // SAFETY: within the mapping, which no other code has yet.
            unsafe { mapped.at(at).write(byte_at(at)) };
        }
        mapped
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.start.as_ptr().wrapping_add(offset)
    }

    fn bytes(&self, offset: usize, len_bytes: usize) -> Vec<u8> {
        let read = |at| {
            // SAFETY: within the mapping, where the tests left readable memory.
            unsafe { self.at(at).read_volatile() }
        };
        (offset..offset + len_bytes).map(read).collect()
    }

    fn truncate(&self, len_bytes: usize) {
        self.file.set_len(len_bytes as u64).unwrap();
    }

    fn forbid(&self, from: usize, protection: i32) {
        // SAFETY: the range is inside this mapping.
        let done =
            unsafe { libc::mprotect(self.at(from).cast(), self.len_bytes - from, protection) };
        assert_eq!(done, 0);
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len_bytes) };
    }
}

fn byte_at(offset: usize) -> u8 {
    (offset.wrapping_mul(31) ^ (offset >> 9)) as u8
}

fn copy_with(
    token: IsaToken,
    from: *const u8,
    to: *mut u8,
    len_bytes: usize,
) -> Result<(), CopyFault> {
    // SAFETY: the tests pass their own memory, and mappings of theirs that fault.
    dispatch_isa!(token, isa => unsafe { copy(isa, from, to, len_bytes) })
}

#[test]
fn a_truncated_source_stops_the_copy_at_the_exact_byte() {
    let _guard = FaultGuard::install().unwrap();
    let mapped = Mapped::of(16 * PAGE);
    mapped.truncate(8 * PAGE);
    for token in IsaToken::all() {
        for before in [0, 1, 3, 63, 64, 65, 200, 255, 256, 1000, 4096, 5000, 8 * PAGE] {
            for len_bytes in [before + 1, before + 7, before + 300, before + 2 * PAGE] {
                let mut target = vec![0xee; len_bytes + 64];
                let from = mapped.at(8 * PAGE - before);
                let fault = copy_with(token, from, target.as_mut_ptr(), len_bytes).unwrap_err();
                let case = format!("{} of {len_bytes}, {}", before, token.isa());
                assert_eq!(fault.done_bytes, before, "{case}");
                assert_eq!(fault.fault.cause, FaultCause::NotBacked, "{case}");
                assert_eq!(fault.fault.address.raw(), mapped.at(8 * PAGE).addr() as u64, "{case}");
                for (at, byte) in target.iter().enumerate() {
                    let expected = if at < before { byte_at(8 * PAGE - before + at) } else { 0xee };
                    assert_eq!(*byte, expected, "{case}, byte {at}");
                }
            }
        }
    }
}

#[test]
fn a_read_only_target_stops_copies_and_fills_at_the_exact_byte() {
    let _guard = FaultGuard::install().unwrap();
    let mapped = Mapped::of(4 * PAGE);
    mapped.forbid(2 * PAGE, libc::PROT_READ);
    let source = vec![0x77; 3 * PAGE];
    for token in IsaToken::all() {
        for before in [0, 1, 15, 64, 100, 255, 256, 777, 4095, 2 * PAGE] {
            let to = mapped.at(2 * PAGE - before);
            let len_bytes = before + PAGE;
            let fault = copy_with(token, source.as_ptr(), to, len_bytes).unwrap_err();
            assert_eq!((fault.done_bytes, fault.fault.cause), (before, FaultCause::NotMapped));
            assert!(mapped.bytes(2 * PAGE - before, before).iter().all(|byte| *byte == 0x77));
            // SAFETY: as for the copy.
            let filled = dispatch_isa!(token, isa => unsafe { fill(isa, to, 0x11, len_bytes) });
            let fault = filled.unwrap_err();
            assert_eq!((fault.done_bytes, fault.fault.cause), (before, FaultCause::NotMapped));
            assert!(mapped.bytes(2 * PAGE - before, before).iter().all(|byte| *byte == 0x11));
        }
    }
    assert_eq!(mapped.bytes(2 * PAGE, 1), [byte_at(2 * PAGE)], "no byte beyond is written");
}

#[test]
fn copies_with_non_temporal_stores_stop_at_the_exact_byte() {
    let _guard = FaultGuard::install().unwrap();
    let len_bytes = STREAM_MIN_BYTES + 4 * PAGE;
    let (source, target) = (Mapped::of(len_bytes), Mapped::of(len_bytes));
    for token in IsaToken::all() {
        for (before, skew) in [(STREAM_MIN_BYTES / PAGE, 3), (1, 77), (0, 0)] {
            for shortened in [&source, &target] {
                // SAFETY: the test's own mapping, all of which is backed.
                dispatch_isa!(token, isa => unsafe { fill(isa, target.at(0), 0xee, len_bytes) })
                    .unwrap();
                shortened.truncate(before * PAGE);
                let (from, to) = (source.at(skew), target.at(skew));
                let fault = copy_with(token, from, to, len_bytes - skew).unwrap_err();
                let done = (before * PAGE).saturating_sub(skew);
                let case = format!("{before} pages, {skew} skew, {}", token.isa());
                assert_eq!(fault.done_bytes, done, "{case}");
                assert_eq!(fault.fault.cause, FaultCause::NotBacked, "{case}");
                // Pages that were cut off are zero after the file grows again, in the source as
                // well.
                shortened.truncate(len_bytes);
                assert!(source.bytes(skew, done) == target.bytes(skew, done), "{case}");
                let beyond = if ptr::eq(shortened, &raw const target) { 0 } else { 0xee };
                assert_eq!(target.bytes(skew + done, 1), [beyond], "{case}");
            }
        }
    }
}

#[test]
fn an_invalid_address_is_a_fault() {
    let _guard = FaultGuard::install().unwrap();
    let mut target = [0; 100];
    for token in IsaToken::all() {
        for wild in [1usize << 63, usize::MAX - 200, 8] {
            let from = ptr::without_provenance(wild);
            let fault = copy_with(token, from, target.as_mut_ptr(), 100).unwrap_err();
            assert_eq!(fault.done_bytes, 0, "{wild:#x}");
        }
    }
}

#[test]
fn threads_survive_faults_at_the_same_time() {
    let _guard = FaultGuard::install().unwrap();
    let stop = AtomicBool::new(false);
    let faults = AtomicUsize::new(0);
    let mapped = Mapped::of(64 * PAGE);
    let base = mapped.start.addr();
    thread::scope(|scope| {
        for token in IsaToken::all().chain(IsaToken::all()) {
            let (stop, faults) = (&stop, &faults);
            scope.spawn(move || {
                let mut target = vec![0; 64 * PAGE];
                while !stop.load(Ordering::Relaxed) {
                    let from = ptr::with_exposed_provenance(base.get());
                    match copy_with(token, from, target.as_mut_ptr(), 64 * PAGE) {
                        Ok(()) => {}
                        Err(fault) => {
                            // Not always at a page boundary: a page may vanish while it is copied.
                            let stopped_at = (base.get() + fault.done_bytes) as u64;
                            assert_eq!(fault.fault.address.raw(), stopped_at);
                            faults.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        for round in 0..2000 {
            mapped.truncate((round % 64) * PAGE);
            mapped.truncate(64 * PAGE);
        }
        mapped.truncate(17 * PAGE);
        while faults.load(Ordering::Relaxed) < 8 {
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// The child processes of the tests below, chosen by the environment. It does nothing in an
/// ordinary run.
#[test]
fn child() {
    let Ok(what) = std::env::var("LONGSHORE_FAULT_TEST") else { return };
    if what == "raise under the guard" {
        // The standard library's handler returns from a signal that was sent; the default action
        // does not.
        // SAFETY: the default action.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    }
    let guard = FaultGuard::install();
    let mapped = Mapped::of(2 * PAGE);
    mapped.truncate(PAGE);
    let mut target = vec![0; 2 * PAGE];
    match what.as_str() {
        "copy after the guard" => {
            drop(guard);
            let _ = copy_with(IsaToken::active(), mapped.at(0), target.as_mut_ptr(), 2 * PAGE);
        }
        "touch under the guard" => {
            // SAFETY: the process is meant to die here.
            unsafe { mapped.at(PAGE).read_volatile() };
        }
        "read a view under the guard" => {
            // SAFETY: half of the memory is missing, and the process is meant to die of that.
            let view = unsafe { VolatileSlice::from_raw_parts(mapped.start, 2 * PAGE) };
            let _ = view.read(0, &mut target);
        }
        "write a view under the guard" => {
            // SAFETY: as above.
            let mut view = unsafe { VolatileSliceMut::from_raw_parts(mapped.start, 2 * PAGE) };
            let _ = view.write(0, &target);
        }
        "overflow the stack under the guard" => {
            #[expect(unconditional_recursion, reason = "the stack must overflow")]
            fn deeper(depth: u64) -> u64 {
                let space = std::hint::black_box([depth; 512]);
                deeper(depth + 1) + space[7]
            }
            std::hint::black_box(deeper(0));
        }
        "raise under the guard" => {
            // SAFETY: the process is meant to die here.
            unsafe { libc::raise(libc::SIGSEGV) };
        }
        other => panic!("no such child: {other}"),
    }
    unreachable!("the process should have died");
}

fn child_dies_of(what: &str) -> (Option<i32>, String) {
    use std::os::unix::process::ExitStatusExt;
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture", "--test-threads=1"])
        .env("LONGSHORE_FAULT_TEST", what)
        .output()
        .unwrap();
    (output.status.signal(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn faults_outside_of_copies_kill_the_process_as_without_a_guard() {
    assert_eq!(child_dies_of("copy after the guard").0, Some(libc::SIGBUS));
    assert_eq!(child_dies_of("touch under the guard").0, Some(libc::SIGBUS));
    assert_eq!(child_dies_of("read a view under the guard").0, Some(libc::SIGBUS));
    assert_eq!(child_dies_of("write a view under the guard").0, Some(libc::SIGBUS));
    assert_eq!(child_dies_of("raise under the guard").0, Some(libc::SIGSEGV));
    let (signal, words) = child_dies_of("overflow the stack under the guard");
    assert_eq!(signal, Some(libc::SIGABRT), "{words}");
    assert!(words.contains("has overflowed its stack"), "Rust's own handler ran: {words}");
}
