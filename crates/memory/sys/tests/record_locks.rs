//! Files on which another process has set many record locks. The only test of its program, because it
//! counts the bytes that the process reads.
#![cfg(not(miri))]
#![allow(unused_crate_dependencies, reason = "other targets of this package use them")]
#![expect(unsafe_code, reason = "sets locks of open file descriptions, which rustix cannot")]

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use longshore_sys::closing::{self, User};
use longshore_sys::memfd::{self, Backing};
use longshore_sys::{answering, event_fd, unix_socket};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// The number of locks. In `/proc/self/fdinfo` the kernel lists each with about 60 bytes.
const LOCKS: usize = 20_000;

/// Sets [`LOCKS`] locks: locks all bytes, and then unlocks single bytes, which splits the lock.
fn lock(file: &OwnedFd) {
    set_lock(file, libc::F_WRLCK, 0, 0);
    // From the end, so that the kernel finds the lock to split at once.
    (1..LOCKS).rev().for_each(|at| set_lock(file, libc::F_UNLCK, 2 * at as i64, 1));
}

fn set_lock(file: &OwnedFd, kind: i32, start: i64, len_bytes: i64) {
    let (l_type, l_whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    let lock = libc::flock { l_type, l_whence, l_start: start, l_len: len_bytes, l_pid: 0 };
    // SAFETY: the descriptor is open, and the kernel only reads the structure.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// Returns a file whose name in `/proc/self/fd` is that of a DMA-buf, in a file system that is not
/// mounted anywhere. Returns `None` if that is not possible.
fn named_like_a_dma_buf() -> Option<OwnedFd> {
    let made = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).and_then(|tmpfs| {
        rustix::mount::fsconfig_create(&tmpfs)?;
        let flags = (FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty());
        let root = rustix::mount::fsmount(&tmpfs, flags.0, flags.1)?;
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::openat(root, "dmabuf:x", flags, Mode::RUSR | Mode::WUSR)
    });
    made.inspect_err(|error| println!("SKIPPED: tmpfs cannot be mounted: {error}")).ok()
}

/// Returns the number of bytes that this process has read from files so far.
fn read_bytes() -> usize {
    let io = fs::read_to_string("/proc/self/io").unwrap();
    let read = io.lines().find_map(|line| line.strip_prefix("rchar: "));
    read.unwrap().parse().unwrap()
}

/// Receives a file, does all checks that servers do, and closes it.
fn use_as_a_server(file: &OwnedFd, user: User) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    unix_socket::send(&theirs, b"x", &[file.as_fd()]).unwrap();
    let mut received = Vec::new();
    let is_passed_on = unix_socket::receive(&ours, user, &mut [0; 8], &mut received, None).is_ok();
    // Eventfds are passed on even with locks, because another thread closes them in any case.
    assert_eq!(is_passed_on, event_fd::is_one(file).unwrap());
    assert_eq!(is_passed_on, answering::may_be_passed_on(file));
    drop(received);
    answering::is_disposable(file);
    answering::is_answered_by_kernel(file).unwrap();
    closing::close_without_waiting(user, vec![file.try_clone().unwrap()]);
}

#[test]
fn a_file_with_many_record_locks_is_received_checked_and_closed_without_reading_them() {
    let user = User::from_uid(4_000_000_041);
    let memory = memfd::create("record-locks", Backing::Shmem).unwrap();
    let on_disk = tempfile::tempfile().unwrap().into();
    let files = [Some(event_fd::create().unwrap()), Some(memory), Some(on_disk)];
    for file in files.into_iter().chain([named_like_a_dma_buf()]).flatten() {
        lock(&file);
        let name = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        let before = read_bytes();
        use_as_a_server(&file, user);
        let used = read_bytes() - before;
        let info = fs::read(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).unwrap();
        assert!(info.len() > 50 * LOCKS, "the kernel lists the locks: {} bytes", info.len());
        assert!(used < info.len() / 2, "{name:?}: {used} bytes were read");
    }
}
