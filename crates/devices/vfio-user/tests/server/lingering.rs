//! Clients that make the server close sockets whose last close takes an hour. The server serves the next
//! client nevertheless.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use longshore_vfio_user::client::{Client, NoDmaMemory};
use longshore_vfio_user::{Listener, Server, Stop};

use crate::rig;
use sockets::{lingering, many, nested, send};

#[path = "../../../../memory/sys/src/disposal/lingering.rs"]
mod sockets;

/// The time after which a test fails. The sockets linger for longer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes that are not the header of a message.
const NONSENSE: [u8; 16] = [0xff; 16];

pub(crate) struct Served {
    path: PathBuf,
    stop: Stop,
    has_ended: Receiver<()>,
    _dir: tempfile::TempDir,
}

impl Served {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let noted = rig::Shared::default();
        let mut server = Server::new(rig::device(&noted, Vec::new()), rig::dma(&noted)).unwrap();
        let (listener, stop) = (Listener::bind(&path).unwrap(), server.stop_handle());
        let (ended, has_ended) = mpsc::channel();
        thread::spawn(move || {
            server.serve_all(&listener, |_| {}).unwrap();
            drop((server, listener));
            ended.send(()).unwrap();
        });
        Self { path, stop, has_ended, _dir: dir }
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.path).unwrap()
    }

    pub(crate) fn client(&self) -> Client<NoDmaMemory> {
        let mut client =
            Client::from_stream(self.connect(), NoDmaMemory).expect("the server serves");
        client.device_info().unwrap();
        client
    }

    pub(crate) fn stop(self) {
        self.stop.stop();
        self.has_ended.recv_timeout(PATIENCE).expect("the server ends");
    }
}

#[test]
fn a_socket_that_lingers_is_refused_and_the_next_client_is_served() {
    let served = Served::new();
    for (socket, _peer) in [lingering(), nested()] {
        let mut client = served.client();
        let map = client.dma_map(0x1000, 0x1000, Some((socket.as_fd(), 0)), true);
        map.unwrap_err();
        drop((client, socket));
        served.client();
    }
    served.stop();
}

#[test]
fn a_message_with_as_many_sockets_as_fit_does_not_block_the_server() {
    let served = Served::new();
    let (sockets, _peers) = many();
    let all: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    let stream = served.connect();
    send(&stream, &NONSENSE, &all);
    drop(all);
    drop((sockets, stream));
    served.client();
    served.stop();
}

/// The kernel closes descriptors that arrive with an out-of-band byte on the thread that receives the
/// next byte, unless such bytes are received in line.
#[test]
fn a_socket_that_arrives_out_of_band_does_not_block_the_server() {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    let served = Served::new();
    let stream = served.connect();
    let (socket, _peer) = lingering();
    let socket = OwnedFd::from(socket);
    let rights = [socket.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&rights)));
    let bytes = [std::io::IoSlice::new(b"x")];
    if rustix::net::sendmsg(&stream, &bytes, &mut control, SendFlags::OOB).is_err() {
        return println!("SKIPPED: the kernel has no bytes out of band on Unix sockets");
    }
    // The queue of the connection now has the only descriptor.
    drop(socket);
    drop(stream);
    served.client();
    served.stop();
}

/// As for a connection of a listener that a service manager made with this option.
#[test]
fn credentials_take_no_room_from_descriptors() {
    let noted = rig::Shared::default();
    let mut server = Server::new(rig::device(&noted, Vec::new()), rig::dma(&noted)).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    rustix::net::sockopt::set_socket_passcred(&ours, true).unwrap();
    let (sockets, _peers) = many();
    let sockets: Vec<_> = sockets.into_iter().map(OwnedFd::from).collect();
    send(&theirs, &NONSENSE, &sockets.iter().map(AsFd::as_fd).collect::<Vec<_>>());
    // The queue of the connection now has the only descriptors.
    drop(sockets);
    drop(theirs);
    let (ended, has_ended) = mpsc::channel();
    thread::spawn(move || ended.send(server.serve(ours).map(drop)));
    has_ended.recv_timeout(PATIENCE).expect("the server ends").unwrap();
}

/// Connects while another client is served, and leaves sockets in the queue of the connection.
fn queue(served: &Served) -> (Client<NoDmaMemory>, UnixStream, [OwnedFd; 2]) {
    let first = served.client();
    let stream = served.connect();
    send(&stream, &NONSENSE, &[]);
    let (direct, within) = (lingering(), nested());
    send(&stream, b"not received", &[direct.0.as_fd()]);
    send(&stream, b"not received", &[within.0.as_fd()]);
    (first, stream, [direct.1, within.1])
}

#[test]
fn sockets_in_the_queue_of_a_connection_that_ends_do_not_block_the_server() {
    let served = Served::new();
    let (first, _stream, _peers) = queue(&served);
    drop(first);
    served.client();
    served.stop();
}

#[test]
fn sockets_in_the_queue_of_a_connection_that_is_not_accepted_do_not_block_the_server() {
    let served = Served::new();
    let (_first, _stream, _peers) = queue(&served);
    served.stop();
}

/// The client's end is in a queue that is read only after the connection has ended, and it keeps that
/// connection open.
#[test]
fn a_client_that_sends_its_own_end_over_a_waiting_connection_does_not_block_the_server() {
    let served = Served::new();
    let own = served.connect();
    let client = Client::from_stream(own.try_clone().unwrap(), NoDmaMemory).unwrap();
    let waiting = served.connect();
    send(&waiting, b"not received", &[own.as_fd()]);
    drop((client, own, waiting));
    let (done, is_done) = mpsc::channel();
    let stream = served.connect();
    thread::spawn(move || done.send(Client::from_stream(stream, NoDmaMemory).map(drop)));
    is_done.recv_timeout(PATIENCE).expect("the server serves the next client").unwrap();
    served.stop();
}

#[test]
fn a_client_can_be_dropped_whatever_its_server_has_sent() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (socket, _peer) = lingering();
    send(&theirs, &NONSENSE, &[socket.as_fd()]);
    drop(socket);
    let client = Client::without_negotiation(ours, NoDmaMemory);
    let (ended, has_ended) = mpsc::channel();
    thread::spawn(move || {
        drop(client);
        ended.send(()).unwrap();
    });
    has_ended.recv_timeout(PATIENCE).expect("the client waits for a socket of its server");
}
