//! A client that gives its server a file whose file system it serves itself, and then never answers.

#![cfg(not(loom))]

use std::fs::OpenOptions;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use longshore_access::Space;
use longshore_access::vfio_user::client::{Client, NoMemory};
use longshore_access::vfio_user::{Ended, Server, SpaceDma};

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "vfio_user/rig.rs"]
mod rig;

#[path = "vfio_user/fuse.rs"]
mod fuse;

const PATIENCE: Duration = Duration::from_secs(60);

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
