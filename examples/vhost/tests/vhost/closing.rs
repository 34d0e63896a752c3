//! Front-ends whose eventfds are in an epoll instance whose lock is held, so that the last close of one
//! hangs. The server serves the next front-end nevertheless.

use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use longshore::vhost_user::wire::{MessageHeader, number};
use longshore_sys::{event_fd, unix_socket};
use longshore_vhost_example::{BlockDevice, Counts, Disk, Server};

use crate::frontend::{Frontend, GUEST, PROTOCOL, SERIAL, Served, USER, state, table};
use held_epoll::HeldEpoll;

#[path = "../../../../crates/memory/sys/tests/closing/held_epoll.rs"]
mod held_epoll;

const PATIENCE: Duration = Duration::from_secs(60);
/// The requests that pass an eventfd.
const WITH_EVENT: [u32; 3] =
    [number::SET_VRING_KICK, number::SET_VRING_CALL, number::SET_VRING_ERR];

#[test]
fn closing_replaced_or_remaining_eventfds_does_not_block_the_server() {
    let served = Served::new();
    let events = || WITH_EVENT.map(|_| event_fd::create().unwrap());
    let (replaced, left) = (events(), events());
    let Some(_held) = HeldEpoll::of(&replaced) else { return };
    let Some(_also_held) = HeldEpoll::of(&left) else { return };
    let mut frontend = Frontend::ready(&served);
    let mut set = |events: &[OwnedFd]| {
        for (request, event) in WITH_EVENT.into_iter().zip(events) {
            frontend.done(request, &0_u64.to_ne_bytes(), &[event.as_fd()]);
        }
    };
    set(&replaced);
    // The server has the last references.
    drop(replaced);
    set(&left);
    drop(left);
    drop(frontend);
    assert_eq!(served.ended(), "closed by the front-end");
    served.still_serves();
}

#[test]
fn closing_eventfds_of_refused_messages_does_not_block_the_server() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let events = [(); 4].map(|()| event_fd::create().unwrap());
    let Some(_held) = HeldEpoll::of(&events) else { return };
    let requests = [
        (number::SET_PROTOCOL_FEATURES, PROTOCOL.to_ne_bytes().to_vec(), None),
        (number::SET_MEM_TABLE, table(&[[GUEST, 4096, USER, 0]]), Some(&events[0])),
        (number::SET_LOG_FD, Vec::new(), Some(&events[1])),
        (number::SET_VRING_ENABLE, state(0, 1), Some(&events[2])),
        (number::SET_LOG_BASE, [4096_u64, 0].map(u64::to_ne_bytes).concat(), Some(&events[3])),
    ];
    for (request, payload, event) in &requests {
        let header = MessageHeader::new(*request, false, true, payload.len()).encode();
        let event: Vec<_> = event.iter().map(AsFd::as_fd).collect();
        unix_socket::send(&ours, &[&header, &payload[..]].concat(), &event).unwrap();
    }
    ours.shutdown(Shutdown::Write).unwrap();
    // The queued messages have the last references.
    drop(events);

    let disk = tempfile::tempfile().unwrap();
    disk.set_len(512).unwrap();
    let disk = Disk::from_file(disk, false, SERIAL).unwrap();
    let server = Server::new(BlockDevice::new(disk, Counts::default())).unwrap();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(server.serve(&theirs).unwrap().to_string()));
    let ended = told.recv_timeout(PATIENCE).expect("the server waits for an epoll of its client");
    assert!(ended.contains("it is neither a memfd nor a regular file"), "{ended}");
}
