//! Clients that attach more eventfds than all clients of one user may. The limit is that of the process,
//! so there is one test.

#![cfg(not(loom))]

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};

use longshore_access::Space;
use longshore_sys::{descriptors, event_fd};
use longshore_vfio_user::client::{Client, ClientError, NoDmaMemory};
use longshore_vfio_user::wire::{IrqData, Request, SetIrqs};
use longshore_vfio_user::{
    ConnectionSummary, Device, DeviceDescription, Errno, IrqDescription, Server, SpaceDma,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A device with as many interrupts as MSI-X has.
struct ManyInterrupts;

const LINES: u32 = 2048;

impl Device for ManyInterrupts {
    fn description(&self) -> DeviceDescription {
        let irqs = vec![IrqDescription::new(LINES)];
        DeviceDescription::new(Vec::new(), irqs)
    }

    fn region_read(&mut self, _: u32, _: u64, _: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    fn region_write(&mut self, _: u32, _: u64, _: &[u8]) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    fn reset(&mut self) {}
}

fn served() -> (Client<NoDmaMemory>, JoinHandle<ConnectionSummary>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut server = Server::new(ManyInterrupts, SpaceDma::new(Space::new().unwrap())).unwrap();
    let server = thread::spawn(move || server.serve(theirs).unwrap());
    (Client::from_stream(ours, NoDmaMemory).unwrap(), server)
}

/// Attaches `event` to lines from `first` on, one by one, until one is refused. Returns the number of
/// the others.
fn attach_all(client: &mut Client<NoDmaMemory>, first: u32, event: impl AsFd) -> u32 {
    for line in first..LINES {
        match client.set_irq_events(0, line, &[event.as_fd()]) {
            Ok(()) => {}
            Err(ClientError::Refused(Errno::ENOSPC)) => return line - first,
            Err(error) => panic!("{error}"),
        }
    }
    LINES - first
}

fn detach_all(client: &mut Client<NoDmaMemory>) {
    let (action, data) = (SetIrqs::TRIGGER, IrqData::None);
    let detach = SetIrqs { action, index: 0, start: 0, count: 0, data };
    client.request(&Request::DeviceSetIrqs(detach), &[]).unwrap();
}

#[test]
fn eventfds_of_all_clients_of_a_user_are_limited() {
    let maximum = getrlimit(Resource::Nofile).maximum.map_or(1024, |maximum| maximum.min(1024));
    if maximum < 512 {
        println!("SKIPPED: this process may have only {maximum} descriptors");
        return;
    }
    let current = maximum / 2;
    setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: Some(maximum) }).unwrap();
    let ((mut first, server), (mut second, _other)) = (served(), served());
    assert_eq!(descriptors::limit(), maximum, "a server raises the limit");
    // Each connection has two.
    let room = ((maximum - descriptors::ROOM_FOR_MESSAGE) / 4 - 4) as u32;

    let event = event_fd::create().unwrap();
    assert_eq!(attach_all(&mut first, 0, &event), room);
    assert_eq!(attach_all(&mut second, 0, &event), 0);
    // Descriptors are still received, also to replace those that are attached.
    first.set_irq_events(0, 0, &[event.as_fd(), event.as_fd()]).unwrap();
    assert_eq!(attach_all(&mut first, room, &event), 0);

    detach_all(&mut first);
    assert_eq!(attach_all(&mut second, 0, &event), room);
    detach_all(&mut second);
    assert_eq!(attach_all(&mut first, 0, &event), room);
    drop(first);
    server.join().unwrap();
    // With the connection's own descriptors.
    assert_eq!(attach_all(&mut second, 0, &event), room + 2);
}
