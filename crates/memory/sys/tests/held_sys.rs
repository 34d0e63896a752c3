//! Files on disks while another user holds the lock of a directory of `/sys`. A file system whose daemon does
//! not answer, in the place of `/sys/dev`, delays a look-up in the same way.
#![cfg(not(miri))]
#![allow(unused_crate_dependencies, reason = "other targets of this package use them")]

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use longshore_sys::closing::{self, User};
use longshore_sys::{answering, namespace, unix_socket};

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "../../../devices/vfio-user/tests/server/fuse.rs"]
mod fuse;

const COUNT: usize = 60;
/// Each look-up that hangs takes two seconds. Eight may hang.
const TIME: Duration = Duration::from_secs(8);

/// Locked by each test, because the number of look-ups that hang is limited.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A mount namespace in which look-ups of block devices hang until this is dropped.
struct Held {
    _mounted: fuse::Mounted,
    _device: File,
}

/// Returns as many descriptors of a file on a disk, or `None` if the test is not possible.
fn with_held_sys() -> Option<(Held, Vec<OwnedFd>)> {
    let file = tempfile::tempfile().unwrap();
    let from_begin = Instant::now();
    while !answering::is_answered_by_kernel(&file).unwrap() {
        // Look-ups of the other test may still hang.
        if from_begin.elapsed() > TIME {
            println!("SKIPPED: temporary files are not on a local disk");
            return None;
        }
    }
    if let Err(error) = namespace::enter() {
        println!("SKIPPED: no mount namespace: {error}");
        return None;
    }
    let (mounted, device) = fuse::mount(Path::new("/sys/dev"))?;
    assert!(fs::exists("/sys/block").unwrap(), "only /sys/dev hangs");
    let files = (0..COUNT).map(|_| file.try_clone().unwrap().into()).collect();
    Some((Held { _mounted: mounted, _device: device }, files))
}

#[test]
fn closing_files_on_a_disk_does_not_wait_for_look_ups() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((held, files)) = with_held_sys() else { return };
    let user = User::from_uid(4_000_000_041);
    let begin = Instant::now();
    closing::close_without_waiting(user, files);
    let elapsed = begin.elapsed();
    while closing::has_files(user) {
        assert!(begin.elapsed() < Duration::from_secs(60), "the files are not closed");
        thread::sleep(Duration::from_millis(1));
    }
    drop(held);
    assert!(elapsed < TIME, "{elapsed:?}");
}

#[test]
fn all_files_of_a_message_wait_for_one_look_up() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((held, mut files)) = with_held_sys() else { return };
    let (ours, theirs) = UnixStream::pair().unwrap();
    // The first is passed on; only the last is refused.
    files.push(File::open("/dev/null").unwrap().into());
    let all: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    unix_socket::send(&theirs, b"x", &all).unwrap();
    let user = User::from_uid(4_000_000_042);
    let begin = Instant::now();
    let received = unix_socket::receive(&ours, user, &mut [0], &mut Vec::new(), None);
    let elapsed = begin.elapsed();
    drop(held);
    assert_eq!(received.unwrap_err().kind(), io::ErrorKind::InvalidData);
    assert!(elapsed < TIME, "{elapsed:?}");
}

#[test]
fn later_messages_do_not_wait_while_a_look_up_hangs() {
    const MESSAGES: usize = 7;
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((held, files)) = with_held_sys() else { return };
    let user = User::from_uid(4_000_000_043);
    let begin = Instant::now();
    let received: Vec<_> = (0..MESSAGES)
        .map(|_| {
            // Each is a message of another client.
            let (ours, theirs) = UnixStream::pair().unwrap();
            unix_socket::send(&theirs, b"x", &[files[0].as_fd()]).unwrap();
            unix_socket::receive(&ours, user, &mut [0], &mut Vec::new(), None)
        })
        .collect();
    let elapsed = begin.elapsed();
    drop(held);
    assert!(received.iter().all(Result::is_err), "{received:?}");
    assert!(elapsed < TIME, "{elapsed:?}");
}
