//! A client with a file system that it serves itself, and that never answers.

#![cfg(not(loom))]
#![expect(unsafe_code, reason = "writes to memory whose pages do not come")]

use std::fs::OpenOptions;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use longshore_access::Space;
use longshore_access::vfio_user::client::{Client, NoMemory};
use longshore_access::vfio_user::{Ended, Server, SpaceDma};
use rustix::event::epoll;
use rustix::mm::{MapFlags, ProtFlags};

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "vfio_user/rig.rs"]
mod rig;

#[path = "vfio_user/fuse.rs"]
mod fuse;

const PATIENCE: Duration = Duration::from_secs(60);
/// Of `linux/fuse.h`: what a page fault asks for.
const READ: u32 = 15;

#[test]
fn a_file_that_the_client_itself_serves_holds_nothing_up() {
    let folder = tempfile::tempdir().unwrap();
    let Some((mounted, device)) = fuse::mount(folder.path()) else { return };
    let daemon = {
        let device = device.try_clone().unwrap();
        thread::spawn(move || fuse::serve_opens(&device, |_| {}))
    };
    let path = folder.path().join("memory");
    let opened = OpenOptions::new().read(true).write(true).open(path).unwrap();
    // Closing it waits for the daemon.
    let opened = ManuallyDrop::new(opened);

    for use_by_mmap in [true, false] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let device = rig::device(&rig::Shared::default(), Vec::new());
        let mut server = Server::new(device, SpaceDma::new(Space::new().unwrap())).unwrap();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || tell.send(server.serve(theirs).unwrap().ended));
        let mut client = Client::over(ours, NoMemory).unwrap();
        client.dma_map(0x1000, 0x1000, Some((opened.as_fd(), 0)), use_by_mmap).unwrap_err();
        let ended = told.recv_timeout(PATIENCE).expect("the server waits for the client's file");
        assert_eq!(ended, Ended::Failed(std::io::ErrorKind::InvalidData));
    }

    drop((mounted, device));
    drop(ManuallyDrop::into_inner(opened));
    daemon.join().unwrap();
}

/// Whoever waits for an epoll holds a lock of it while the events are written to memory: for ever, if
/// that is a page which does not come.
#[test]
fn an_epoll_whose_lock_the_client_holds_holds_nothing_up() {
    let folder = tempfile::tempdir().unwrap();
    let Some((mounted, device)) = fuse::mount(folder.path()) else { return };
    let (ask, asked) = mpsc::channel();
    let daemon = {
        let device = device.try_clone().unwrap();
        thread::spawn(move || fuse::serve_opens(&device, |request| ask.send(request).unwrap()))
    };
    let path = folder.path().join("memory");
    let opened = ManuallyDrop::new(OpenOptions::new().read(true).write(true).open(path).unwrap());
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let page = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, prot, flags, &*opened, 0) };
    let page = page.unwrap().expose_provenance();
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let event = longshore_sys::event_fd::create().unwrap();
    longshore_sys::event_fd::signal(&event).unwrap();
    epoll::add(&epoll, &event, epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
    let holder = {
        let epoll: OwnedFd = epoll.try_clone().unwrap();
        thread::spawn(move || {
            let page = std::ptr::with_exposed_provenance_mut::<MaybeUninit<epoll::Event>>(page);
            // SAFETY: it lies in the mapping, which stays until this thread has ended, and which nothing
            // else uses.
            let events = unsafe { std::slice::from_raw_parts_mut(page, 1) };
            // The page does not come.
            epoll::wait(&epoll, events, None).map(|_| ()).unwrap_err()
        })
    };
    assert!(asked.iter().any(|request| request == READ), "the events are written to the page");

    let (ours, theirs) = UnixStream::pair().unwrap();
    let served = rig::device(&rig::Shared::default(), Vec::new());
    let mut server = Server::new(served, SpaceDma::new(Space::new().unwrap())).unwrap();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(server.serve(theirs).unwrap().ended));
    let mut client = Client::over(ours, NoMemory).unwrap();
    client.dma_map(0x1000, 0x1000, Some((epoll.as_fd(), 0)), true).unwrap_err();
    let ended = told.recv_timeout(PATIENCE).expect("the server waits for the client's epoll");
    assert_eq!(ended, Ended::Failed(std::io::ErrorKind::InvalidData));

    drop((mounted, device));
    holder.join().unwrap();
    // SAFETY: nothing uses the mapping any more.
    unsafe { rustix::mm::munmap(std::ptr::with_exposed_provenance_mut(page), 4096) }.unwrap();
    drop(ManuallyDrop::into_inner(opened));
    daemon.join().unwrap();
}
