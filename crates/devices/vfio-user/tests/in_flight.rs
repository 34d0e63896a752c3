//! Clients that do not receive the descriptors of regions. The server limits those that are in flight,
//! for each user of the process. One test, because all clients are of one user.

#![cfg(not(loom))]

use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use longshore_sys::unix_socket;
use longshore_vfio_user::client::{Client, NoDmaMemory};
use longshore_vfio_user::wire::{Command, HEADER_LEN_BYTES, Request};
use longshore_vfio_user::{
    ConnectionSummary, DisconnectReason, Errno, MappableFile, MessageHeader, RegionDescription,
    Server,
};

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "server/rig.rs"]
mod rig;

/// The limit of each wait.
const PATIENCE: Duration = Duration::from_secs(60);
/// The number of connections of one user that may have a descriptor in flight.
const PER_USER_MAX: usize = 16;

/// Serves one client of a device with a region that clients can map.
fn serve(reply_timeout: Duration) -> (UnixStream, Receiver<ConnectionSummary>) {
    let noted = rig::Shared::default();
    noted.lock().unwrap().mappable.push(MappableFile::new(0x4000).unwrap());
    let device = rig::device(&noted, vec![RegionDescription::new(0x4000)]);
    let server = Server::new(device, rig::dma(&noted)).unwrap();
    let mut server = server.reply_timeout(reply_timeout);
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(PATIENCE)).unwrap();
    let (tell, served) = mpsc::channel();
    thread::spawn(move || tell.send(server.serve(theirs).unwrap()));
    drop(Client::from_stream(ours.try_clone().unwrap(), NoDmaMemory).unwrap());
    (ours, served)
}

fn ask_for_region(stream: &mut UnixStream) {
    let request = Request::DeviceGetRegionInfo { argsz: 32, index: rig::EXTRA_REGION }.encode();
    let header = MessageHeader::command(7, Command::DeviceGetRegionInfo, request.len()).encode();
    stream.write_all(&[&header[..], &request].concat()).unwrap();
}

/// Returns the number of descriptors in the queue of a socket, or `None` before Linux 5.15.
fn queued(stream: &UnixStream) -> Option<usize> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", stream.as_raw_fd())).unwrap();
    let count = info.lines().find_map(|line| line.strip_prefix("scm_fds:"));
    count.map(|count| count.trim().parse().unwrap())
}

/// Asks for a region, and ends the connection without receiving the reply: by bytes that are no
/// message, and then the client's own end, which stays in the server's queue.
fn leave_unread() -> UnixStream {
    let (mut client, server) = serve(PATIENCE);
    ask_for_region(&mut client);
    client.write_all(&[0; HEADER_LEN_BYTES]).unwrap();
    // The server may have ended the connection.
    let _ = unix_socket::send(&client, b"x", &[client.as_fd()]);
    let ended = server.recv_timeout(PATIENCE).unwrap().ended;
    assert!(matches!(ended, DisconnectReason::Malformed(_) | DisconnectReason::Io(_)), "{ended:?}");
    client
}

/// Returns `true` if a new client gets a descriptor, and `false` if it is refused with `ENOSPC`.
fn gets_descriptor() -> bool {
    let (mut client, server) = serve(PATIENCE);
    ask_for_region(&mut client);
    let mut header = [0; HEADER_LEN_BYTES];
    client.read_exact(&mut header).unwrap();
    let error = MessageHeader::decode(header).error();
    assert!(error.is_none() || error == Some(Errno::ENOSPC.raw()), "{error:?}");
    drop(client);
    server.recv_timeout(PATIENCE).unwrap();
    error.is_none()
}

fn wait_until(mut is_done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_done() {
        assert!(begin.elapsed() < PATIENCE, "it does not happen");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn clients_that_do_not_read_have_few_descriptors_in_flight() {
    // A client that asks for many regions before it reads has one, and is disconnected.
    let (mut client, server) = serve(Duration::from_millis(200));
    if queued(&client).is_none() {
        return println!("SKIPPED: the kernel does not report the descriptors in a socket's queue");
    }
    (0..20).for_each(|_| ask_for_region(&mut client));
    assert_eq!(server.recv_timeout(PATIENCE).unwrap().ended, DisconnectReason::SendTimedOut);
    assert_eq!(queued(&client), Some(1));
    drop(client);

    // A client that reads later gets all.
    let (mut client, server) = serve(PATIENCE);
    (0..20).for_each(|_| ask_for_region(&mut client));
    (0..20).for_each(|_| client.read_exact(&mut [0; HEADER_LEN_BYTES + 32]).unwrap());
    drop(client);
    assert_eq!(server.recv_timeout(PATIENCE).unwrap().refused_count, 0);

    // Connections that have ended count while their clients keep their ends.
    let clients: Vec<UnixStream> = (0..PER_USER_MAX + 4).map(|_| leave_unread()).collect();
    let in_flight: usize = clients.iter().filter_map(queued).sum();
    assert_eq!(in_flight, PER_USER_MAX);
    assert!(!gets_descriptor());
    drop(clients);
    wait_until(gets_descriptor);

    // A connection whose client's end is in its own queue does not last.
    for _ in 0..2 * PER_USER_MAX {
        drop(leave_unread());
    }
    wait_until(gets_descriptor);
}
