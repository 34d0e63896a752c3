//! A front-end that keeps the back-end's calls on its channel waiting.
#![expect(unsafe_code, reason = "receives into a mapped file")]

use std::fs::OpenOptions;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use longshore_vhost_example::wire::number;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{RecvFlags, SendFlags};

use crate::frontend::{ACCESS_PLATFORM, Frontend, IOVA, PROTOCOL_FEATURES, Served, VERSION_1};

#[path = "../../../../crates/access/tests/vfio_user/fuse.rs"]
mod fuse;

const PATIENCE: Duration = Duration::from_secs(20);
/// A request of `linux/fuse.h`.
const READ: u32 = 15;
const PAGE_BYTES: usize = 4096;

#[test]
fn a_front_end_that_receives_into_its_own_file_does_not_keep_the_server_from_the_next() {
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
    // Closing it waits for the daemon.
    let file = ManuallyDrop::new(OpenOptions::new().read(true).write(true).open(path).unwrap());

    let (ours, theirs) = UnixStream::pair().unwrap();
    let duplicate = theirs.try_clone().unwrap();
    rustix::net::send(&ours, &[0; 64], SendFlags::empty()).unwrap();
    let receiver = {
        let file = file.try_clone().unwrap();
        thread::spawn(move || {
            let file = ManuallyDrop::new(file);
            let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            let any = std::ptr::null_mut();
            // SAFETY: the kernel chooses an address where nothing is.
            let page = unsafe { rustix::mm::mmap(any, PAGE_BYTES, prot, flags, &*file, 0) };
            // SAFETY: the page is mapped for writing and is never unmapped, and nothing else uses it.
            // Only the kernel touches it, and fails if the daemon is gone.
            let into = unsafe { std::slice::from_raw_parts_mut(page.unwrap().cast::<u8>(), 1) };
            // It fails when the file system is gone.
            let _ = rustix::net::recv(&duplicate, into, RecvFlags::empty());
        })
    };
    // From here on every call that receives from the socket waits.
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
