//! A user whose directory stops answering. The server still notices changes of other users' files.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use longshore_serve::{Event, Options, ServerProblem};

use rustix::mount::UnmountFlags;

use crate::fuse::{Mounted, mount_hung};
use crate::others::{ALICE, MALLORY, as_user, attach, private, shared};
use crate::rig::Rig;

const CONTENT: &[u8] = b"of mallory";

/// Numbers of `linux/fuse.h`.
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;
const ENOSYS: u32 = 38;

/// Returns the bytes of a reply, from the numbers at their offsets.
fn answer(len_bytes: usize, numbers: &[(usize, u32)]) -> Vec<u8> {
    let mut bytes = vec![0; len_bytes];
    for (at, number) in numbers {
        bytes[*at..at + 4].copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// Serves a directory in which each name is the same file. The kernel caches nothing, and while `hangs` is
/// true, no look-up is answered.
fn serve(mut device: &File, hangs: &AtomicBool) {
    let mut request = vec![0; 1 << 17];
    while let Ok(40..) = device.read(&mut request) {
        let number =
            |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().unwrap()) as usize;
        let (opcode, node) = (number(4) as u32, number(16));
        let file = |at: usize| {
            [(at, 2), (at + 8, CONTENT.len() as u32), (at + 60, 0o100_644), (at + 64, 1)]
        };
        let body = match opcode {
            LOOKUP if hangs.load(Ordering::SeqCst) => continue,
            LOOKUP => Ok(answer(128, &[&[(0, 2)], &file(40)[..]].concat())),
            GETATTR if node == 1 => Ok(answer(104, &[(16, 1), (76, 0o040_755), (80, 2)])),
            GETATTR => Ok(answer(104, &file(16))),
            OPEN => Ok(answer(16, &[])),
            READ => Ok(CONTENT.iter().skip(number(48)).take(number(56)).copied().collect()),
            // These have no answer.
            FORGET | BATCH_FORGET | INTERRUPT => continue,
            _ => Err(ENOSYS),
        };
        let error = body.as_ref().err().copied().unwrap_or(0);
        let body = body.unwrap_or_default();
        let len_bytes = 16 + body.len() as u32;
        let mut reply = answer(16, &[(0, len_bytes), (4, error.wrapping_neg())]);
        reply[8..16].copy_from_slice(&request[8..16]);
        reply.extend(body);
        // The request may have been interrupted.
        let _ = device.write_all(&reply);
    }
}

/// The daemon of a file system. Dropping it ends the daemon and all calls that wait for it, because a
/// process with a thread that waits for its own daemon never exits.
struct Daemon {
    folder: PathBuf,
    thread: Option<JoinHandle<()>>,
    _mounted: Mounted,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.folder, UnmountFlags::FORCE | UnmountFlags::DETACH);
        if let Some(thread) = self.thread.take() {
            // Its panic message is in the output.
            let _ = thread.join();
        }
    }
}

#[test]
fn changes_of_other_users_files_are_noticed_if_a_directory_hangs() {
    if !rustix::process::geteuid().is_root() {
        return println!("SKIPPED: only root can act as other users");
    }
    let mount_point = tempfile::tempdir_in("/var/tmp").unwrap();
    let folder = mount_point.path().canonicalize().unwrap();
    let Some((mounted, device)) = mount_hung(&folder) else { return };
    let hangs = Arc::new(AtomicBool::new(false));
    let thread = {
        let hangs = Arc::clone(&hangs);
        Some(thread::spawn(move || serve(&device, &hangs)))
    };
    let daemon = Daemon { folder: folder.clone(), thread, _mounted: mounted };
    let options = Options::new().root(folder.clone());
    let Some(mut rig) = shared(options, |_| {}) else { return };
    // The server checks her models first.
    let _mallory = as_user(MALLORY, || {
        ["x", "y", "z"].map(|name| {
            let path = folder.join(name);
            let (client, bytes) = attach(&rig, &path, File::open(&path).unwrap());
            assert_eq!(bytes.unwrap(), CONTENT);
            client
        })
    });
    let alice = rig.path("alice").canonicalize().unwrap();
    let names = ["written", "deleted", "fresh"];
    let _alice = as_user(ALICE, || {
        names.map(|name| {
            let path = alice.join(name);
            let (client, bytes) = attach(&rig, &path, private(&path, name.as_bytes()));
            assert_eq!(bytes.unwrap(), name.as_bytes());
            client
        })
    });
    hangs.store(true, Ordering::SeqCst);
    fs::write(alice.join("written"), b"anew").unwrap();
    fs::remove_file(alice.join("deleted")).unwrap();
    let held = rig.list().held;
    let is_stale = |name: &str| {
        held.iter().find(|held| held.path == alice.join(name)).map(|held| held.is_stale)
    };
    assert_eq!(names.map(is_stale), [Some(true), Some(true), Some(false)], "{held:?}");
    rig.stop();
    drop(daemon);
}

#[test]
fn clients_are_served_if_the_directory_of_a_file_of_the_start_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let named = dir.path().canonicalize().unwrap().join("named");
    let Some((mounted, device)) = mount_hung(named.parent().unwrap()) else { return };
    let mut rig = Rig::new(Options::new().file(&named));
    let path = rig.file("served", CONTENT);
    assert_eq!(rig.attach_path(&path).unwrap().as_slice(), CONTENT);
    let slow: Vec<PathBuf> = rig.events().into_iter().filter_map(slow_file).collect();
    assert_eq!(slow, [named]);
    rig.stop();
    drop((mounted, device));
}

fn slow_file(event: Event) -> Option<PathBuf> {
    match event {
        Event::Trouble { problem: ServerProblem::StartFileHangs { path, .. } } => Some(path),
        _ => None,
    }
}
