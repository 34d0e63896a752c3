//! Detecting files that the kernel serves itself, with `statmount(2)` and without it.
#![cfg(all(not(miri), any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(unused_crate_dependencies, reason = "other targets of this package use them")]
#![expect(unsafe_code, reason = "makes a system call that rustix does not have")]

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem::ManuallyDrop;
use std::thread;

use longshore_sys::answering;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

#[path = "../../../devices/vfio-user/tests/server/fuse.rs"]
mod fuse;

const STATMOUNT: i64 = 457;
const CALLS: usize = 50;
/// A lower bound of the length of a line of `/proc/self/mountinfo`.
const LINE_BYTES: usize = 40;

/// Runs `work` on a thread. If `errno` is given, its calls of `statmount` fail with that.
fn refusing<T: Send>(errno: Option<i32>, work: impl FnOnce() -> T + Send) -> T {
    let filter = errno.map(|errno| {
        let (permit, refuse) = (SeccompAction::Allow, SeccompAction::Errno(errno as u32));
        let arch = env::consts::ARCH.try_into().unwrap();
        let filter =
            SeccompFilter::new(BTreeMap::from([(STATMOUNT, vec![])]), permit, refuse, arch);
        BpfProgram::try_from(filter.unwrap()).unwrap()
    });
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            filter.inspect(|filter| seccompiler::apply_filter(filter).unwrap());
            work()
        });
        thread.join().unwrap()
    })
}

/// Returns the number of bytes that this thread has read from files so far.
fn read_bytes() -> usize {
    let io = fs::read_to_string("/proc/thread-self/io").unwrap();
    let read = io.lines().find_map(|line| line.strip_prefix("rchar: "));
    read.unwrap().parse().unwrap()
}

/// Checks a file many times. Returns the answer, and the number of bytes that were read.
fn ask(file: &File) -> (bool, usize) {
    let before = read_bytes();
    let answer = answering::is_answered_by_kernel(file).unwrap();
    for _ in 1..CALLS {
        assert_eq!(answering::is_answered_by_kernel(file).unwrap(), answer);
    }
    (answer, read_bytes() - before)
}

#[test]
fn the_answer_is_the_same_and_the_list_of_mounts_is_read_without_statmount_only() {
    let folder = tempfile::tempdir().unwrap();
    let mounted = fuse::mount(folder.path());
    let daemon = mounted.as_ref().map(|(_, device)| {
        let device = device.try_clone().unwrap();
        thread::spawn(move || fuse::serve_opens(&device, |_| {}))
    });
    let of_fuse = mounted.as_ref().map(|_| {
        let open = OpenOptions::new().read(true).write(true).open(folder.path().join("memory"));
        // Closing it waits for the daemon.
        ManuallyDrop::new(open.unwrap())
    });
    let on_disk = tempfile::tempfile_in("/var/tmp").unwrap();
    let of_tmpfs = tempfile::tempfile_in("/dev/shm").unwrap();
    let of_proc = File::open("/proc/self/mem").unwrap();
    let mut files =
        vec![("disk", &on_disk, true), ("tmpfs", &of_tmpfs, true), ("proc", &of_proc, false)];
    files.extend(of_fuse.as_ref().map(|file| ("FUSE", &**file, false)));

    // SAFETY: the call fails, because the pointers are null.
    let made = unsafe { libc::syscall(STATMOUNT, 0, 0, 0, 0) };
    let error = io::Error::last_os_error();
    let has_statmount = made != 0 && error.raw_os_error() != Some(libc::ENOSYS);
    let asked = files.into_iter().map(|(name, file, expected)| {
        let ways = [None, Some(libc::ENOSYS), Some(libc::EPERM)];
        (name, expected, ways.map(|errno| refusing(errno, || ask(file))))
    });
    let asked: Vec<_> = asked.collect();

    drop(mounted);
    if let (Some(file), Some(daemon)) = (of_fuse, daemon) {
        drop(ManuallyDrop::into_inner(file));
        daemon.join().unwrap();
    }
    for (name, expected, [by_statmount, by_list, by_list_too]) in asked {
        for (answer, _) in [by_statmount, by_list, by_list_too] {
            assert_eq!(answer, expected, "{name}");
        }
        if name == "tmpfs" {
            // It has seals, so its mount does not matter.
            assert!(by_list.1 < CALLS * LINE_BYTES / 2);
            continue;
        }
        assert!(by_list.1 > CALLS * LINE_BYTES, "{name}: {} bytes", by_list.1);
        if has_statmount {
            let bytes = by_statmount.1;
            assert!(bytes < CALLS * LINE_BYTES / 2, "{name}: {bytes} bytes were read");
        } else {
            println!("SKIPPED: the kernel has no statmount: {error}");
        }
    }
}
