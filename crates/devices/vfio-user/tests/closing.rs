//! A client with as many eventfds as MSI-X has interrupts, whose last closes all block. The test counts
//! threads of the process, so there is one test.

#![cfg(not(loom))]

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use held_epoll::HeldEpoll;
use longshore_access::Space;
use longshore_sys::{descriptors, event_fd};
use longshore_vfio_user::client::{Client, NoDmaMemory};
use longshore_vfio_user::{
    Device, DeviceDescription, DisconnectReason, Errno, IrqDescription, Server, SpaceDma,
};

#[path = "../../../memory/sys/tests/closing/held_epoll.rs"]
mod held_epoll;

const PATIENCE: Duration = Duration::from_secs(60);
const LINES: usize = 2048;

struct ManyInterrupts;

impl Device for ManyInterrupts {
    fn description(&self) -> DeviceDescription {
        DeviceDescription::new(Vec::new(), vec![IrqDescription::new(LINES as u32)])
    }

    fn region_read(&mut self, _: u32, _: u64, _: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    fn region_write(&mut self, _: u32, _: u64, _: &[u8]) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    fn reset(&mut self) {}
}

fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

/// Attaches an eventfd to each interrupt from the first on.
fn attach(client: &mut Client<NoDmaMemory>, events: &[OwnedFd]) {
    const EACH: usize = 16;
    for (at, events) in (0..).step_by(EACH).zip(events.chunks(EACH)) {
        let events: Vec<_> = events.iter().map(AsFd::as_fd).collect();
        client.set_irq_events(0, at, &events).unwrap();
    }
}

#[test]
fn a_client_with_many_eventfds_leaves_few_threads_and_the_next_is_served() {
    // A user can have a quarter of the descriptors.
    if descriptors::raise_limit().unwrap() < 5 * LINES as u64 {
        return println!("SKIPPED: this process may have too few descriptors");
    }
    let events: Vec<_> = (0..LINES).map(|_| event_fd::create().unwrap()).collect();
    let Some(held) = HeldEpoll::of(&events) else { return };
    let mut server = Server::new(ManyInterrupts, SpaceDma::new(Space::new().unwrap())).unwrap();
    let (connect, connections) = mpsc::channel();
    let (tell, told) = mpsc::channel();
    let serving = thread::spawn(move || {
        for connection in connections {
            tell.send(server.serve(connection).unwrap().ended).unwrap();
        }
    });
    let client = || {
        let (ours, theirs) = UnixStream::pair().unwrap();
        connect.send(theirs).unwrap();
        Client::from_stream(ours, NoDmaMemory).unwrap()
    };

    let mut first = client();
    attach(&mut first, &events);
    // The server now has the only descriptors.
    drop(events);
    let before = threads();
    drop(first);
    let ended = told.recv_timeout(PATIENCE).expect("the server waits for an epoll of its client");
    assert_eq!(ended, DisconnectReason::ClosedByClient);

    // The descriptors of the second client are received while those of the first are not closed.
    let mut second = client();
    attach(&mut second, &[event_fd::create().unwrap()]);
    let begin = Instant::now();
    while descriptors::open_count().unwrap() > LINES as u64 {
        assert!(begin.elapsed() < PATIENCE, "descriptors of the first client are left");
        thread::sleep(Duration::from_millis(1));
    }
    // Each thread gets 253 descriptors, which makes nine threads; the kernel and the test runner may add
    // a few.
    let started = threads().saturating_sub(before);
    assert!((1..=64).contains(&started), "{started} threads for 2,048 descriptors");
    drop((second, connect, held));
    serving.join().unwrap();
}
