//! Front-ends that make the back-end's calls on its channel hang.
#![expect(unsafe_code, reason = "receives into a mapped file")]

use std::fs::{File, OpenOptions};
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use longshore::vhost_user::wire::number;
use longshore_vhost_example::{BlockDevice, Counts, DisconnectReason, Disk, Server};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::Uid;

use crate::frontend::{ACCESS_PLATFORM, Frontend, IOVA, PROTOCOL_FEATURES, Served, VERSION_1};

#[path = "../../../../crates/devices/vfio-user/tests/server/fuse.rs"]
mod fuse;

const PATIENCE: Duration = Duration::from_secs(20);
/// `FUSE_READ` of `linux/fuse.h`.
const READ: u32 = 15;
const PAGE_BYTES: usize = 4096;

/// Receives from `socket` into a page of `file` on another thread. The daemon never answers the read of
/// that page, so the thread hangs in the call until the file system is gone. `sender` is the other end
/// of `socket`.
fn receive_into(
    (file, page): (&File, u64),
    sender: &UnixStream,
    socket: &UnixStream,
) -> JoinHandle<()> {
    let duplicate = socket.try_clone().unwrap();
    rustix::net::send(sender, &[0; 64], SendFlags::empty()).unwrap();
    // Not closed yet, because closing it waits for the daemon.
    let file = ManuallyDrop::new(file.try_clone().unwrap());
    thread::spawn(move || {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let any = std::ptr::null_mut();
        // SAFETY: the kernel chooses an address at which nothing is mapped.
        let mapped = unsafe {
            rustix::mm::mmap(any, PAGE_BYTES, prot, flags, &*file, page * PAGE_BYTES as u64)
        };
        let mapped = mapped.unwrap();
        // SAFETY: advice does not change memory. The kernel reads only this page from the daemon then.
        unsafe { rustix::mm::madvise(mapped, PAGE_BYTES, Advice::Random) }.unwrap();
        // SAFETY: the page is mapped for writing and is never unmapped, and nothing else uses it.
        // Only the kernel touches it, and fails if the daemon is gone.
        let into = unsafe { std::slice::from_raw_parts_mut(mapped.cast::<u8>(), 1) };
        // This fails when the file system is gone.
        let _ = rustix::net::recv(&duplicate, into, RecvFlags::empty());
    })
}

#[test]
fn a_front_end_that_makes_receives_hang_does_not_block_the_next_one() {
    let served = Served::new();
    let folder = tempfile::tempdir().unwrap();
    let Some((mounted, device)) = fuse::mount(folder.path()) else { return };
    let (tell, told) = mpsc::channel();
    let daemon = {
        let device = device.try_clone().unwrap();
        thread::spawn(move || {
            fuse::serve_opens(&device, |other| {
                if other == READ {
                    tell.send(()).unwrap();
                }
            });
        })
    };
    let path = folder.path().join("memory");
    // Not closed yet, because closing it waits for the daemon.
    let file = ManuallyDrop::new(OpenOptions::new().read(true).write(true).open(path).unwrap());

    let (ours, theirs) = UnixStream::pair().unwrap();
    let receiver = receive_into((&file, 0), &ours, &theirs);
    // From here on, every call that receives from the socket hangs.
    told.recv_timeout(PATIENCE).expect("the page is read from the daemon");

    let mut frontend = Frontend::negotiated(&served);
    frontend.done(number::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()]);
    drop(theirs);
    let features = PROTOCOL_FEATURES | VERSION_1 | ACCESS_PLATFORM;
    frontend.done(number::SET_FEATURES, &features.to_ne_bytes(), &[]);
    frontend.set_table();
    frontend.base = IOVA;
    frontend.start_ring(IOVA, 0);
    let begin = Instant::now();
    while served.counts.snapshot().misses == 0 {
        assert!(begin.elapsed() < PATIENCE, "the ring asks for a translation");
        thread::sleep(Duration::from_millis(1));
    }
    drop(frontend);
    assert_eq!(served.ended(), "closed by the front-end");
    served.still_serves();

    drop((mounted, device));
    receiver.join().unwrap();
    daemon.join().unwrap();
    drop(ManuallyDrop::into_inner(file));
}

/// Returns a front-end of this user, and the thread of its server, or `None` if that is not possible.
fn served_to(uid: u32) -> Option<(Frontend, JoinHandle<DisconnectReason>)> {
    let pair = thread::spawn(move || {
        let uid = Some(Uid::from_raw(uid));
        // This changes only this thread, which ends.
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        UnixStream::pair()
    });
    let (ours, theirs) = match pair.join().unwrap() {
        Ok(pair) => pair,
        Err(error) => {
            println!("SKIPPED: a connection of user {uid} cannot be made: {error}");
            return None;
        }
    };
    let disk = tempfile::tempfile().unwrap();
    disk.set_len(512).unwrap();
    let disk = Disk::from_file(disk, false, "a disk").unwrap();
    let server = Server::new(BlockDevice::new(disk, Counts::default())).unwrap();
    let server = thread::spawn(move || server.serve(&theirs).unwrap());
    Some((Frontend::over(ours), server))
}

#[test]
fn hanging_channels_of_one_user_do_not_affect_other_users() {
    const HOSTILE: u32 = 12_003;
    const OTHER: u32 = 12_004;
    /// The maximum number of threads of former channels that may hang for one user.
    const FORMER_MAX: u64 = 16;
    let Some((mut quiet, _server)) = served_to(HOSTILE) else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some((mounted, device)) = fuse::mount(folder.path()) else { return };
    let (tell, told) = mpsc::channel();
    let daemon = {
        let device = device.try_clone().unwrap();
        thread::spawn(move || {
            fuse::serve_opens(&device, |other| {
                if other == READ {
                    tell.send(()).unwrap();
                }
            });
        })
    };
    let path = folder.path().join("memory");
    // Not closed yet, because closing it waits for the daemon.
    let file = ManuallyDrop::new(OpenOptions::new().read(true).write(true).open(path).unwrap());

    let mut receivers = Vec::new();
    for nth in 0..FORMER_MAX {
        let (ours, theirs) = UnixStream::pair().unwrap();
        receivers.push(receive_into((&file, nth), &ours, &theirs));
        told.recv_timeout(PATIENCE).expect("the page is read from the daemon");
        let (mut frontend, server) = served_to(HOSTILE).unwrap();
        frontend.done(number::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()]);
        // The thread of the channel hangs in a call that receives, now or soon.
        drop(frontend);
        assert_eq!(server.join().unwrap().to_string(), "closed by the front-end");
    }
    let channel = || UnixStream::pair().unwrap();
    quiet.refused(number::SET_BACKEND_REQ_FD, &[], &[channel().1.as_fd()]);
    let (mut other, _server) = served_to(OTHER).unwrap();
    other.done(number::SET_BACKEND_REQ_FD, &[], &[channel().1.as_fd()]);

    drop((mounted, device));
    receivers.into_iter().for_each(|receiver| receiver.join().unwrap());
    daemon.join().unwrap();
    drop(ManuallyDrop::into_inner(file));
}
