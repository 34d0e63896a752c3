//! Clients whose eventfds are listed by an epoll whose lock is held, so that their last close blocks.
//! The server serves the next client nevertheless.

use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use longshore_access::Space;
use longshore_sys::{event_fd, unix_socket};
use longshore_vfio_user::pci::MSIX_IRQ;
use longshore_vfio_user::wire::{DmaMap, IrqData, Request, SetIrqs};
use longshore_vfio_user::{DisconnectReason, MessageHeader, Server, SpaceDma};

use crate::lingering::Served;
use crate::rig;
use held_epoll::HeldEpoll;

#[path = "../../../../memory/sys/tests/closing/held_epoll.rs"]
mod held_epoll;

const PATIENCE: Duration = Duration::from_secs(60);

/// Detaches the eventfds of `count` interrupts, or of all.
fn detach(count: u32, data: IrqData<'static>) -> Request<'static> {
    let action = SetIrqs::TRIGGER;
    Request::DeviceSetIrqs(SetIrqs { action, index: MSIX_IRQ, start: 0, count, data })
}

#[test]
fn replaced_and_remaining_eventfds_do_not_block_the_server() {
    let served = Served::new();
    let events = [(); 5].map(|()| event_fd::create().unwrap());
    let Some(_held) = HeldEpoll::of(&events) else { return };
    let mut client = served.client();
    let mut attach = |line, event: &OwnedFd| {
        client.set_irq_events(MSIX_IRQ, line, &[event.as_fd()]).unwrap();
    };
    (0..).zip(&events).for_each(|(line, event)| attach(line, event));
    // The server now has the only descriptors.
    drop(events);

    attach(0, &event_fd::create().unwrap());
    client.request(&detach(2, IrqData::EventFds), &[]).unwrap();
    // The other eventfds remain attached.
    drop(client);
    served.client();
    served.stop();
}

#[test]
fn detaching_all_eventfds_does_not_block_the_server() {
    let served = Served::new();
    let events = [event_fd::create().unwrap()];
    let Some(_held) = HeldEpoll::of(&events) else { return };
    let mut client = served.client();
    client.set_irq_events(MSIX_IRQ, 0, &[events[0].as_fd()]).unwrap();
    drop(events);
    client.request(&detach(0, IrqData::None), &[]).unwrap();
    drop(client);
    served.stop();
}

#[test]
fn eventfds_of_refused_messages_and_of_memory_do_not_block_the_server() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let events = [(); 3].map(|()| event_fd::create().unwrap());
    let Some(_held) = HeldEpoll::of(&events) else { return };
    let dma = |flags| {
        let flags = DmaMap::READ | flags;
        DmaMap { flags, offset: 0, iova: 0x1000, len_bytes: 0x1000 }
    };
    let version = Request::Version { major: 0, minor: 1, capabilities: b"{}\0" };
    let requests = [
        (version, None),
        (Request::DmaMap(dma(DmaMap::BY_MMAP)), Some(&events[0])),
        (Request::DmaMap(dma(DmaMap::BY_FILE_IO)), Some(&events[1])),
        (Request::DeviceReset, Some(&events[2])),
    ];
    for (id, (request, event)) in (0..).zip(&requests) {
        let payload = request.encode();
        let header = MessageHeader::command(id, request.command(), payload.len());
        let event: Vec<_> = event.iter().map(AsFd::as_fd).collect();
        unix_socket::send(&ours, &[&header.encode()[..], &payload].concat(), &event).unwrap();
    }
    ours.shutdown(Shutdown::Write).unwrap();
    // The queue of the socket now has the only descriptors.
    drop(events);

    let device = rig::device(&rig::Shared::default(), Vec::new());
    let mut server = Server::new(device, SpaceDma::new(Space::new().unwrap())).unwrap();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(server.serve(theirs).unwrap()));
    let summary = told.recv_timeout(PATIENCE).expect("the server waits for an epoll of its client");
    assert_eq!(summary.ended, DisconnectReason::ClosedByClient);
    assert_eq!((summary.messages_count, summary.refused_count), (4, 3));
}
