//! Front-ends that make the server close sockets whose last close takes an hour (`SO_LINGER`). It serves
//! the next front-end nevertheless.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use longshore::vhost_user::wire::number;

use crate::frontend::{Frontend, Served};
use sockets::{lingering, many, nested, send};

#[path = "../../../../crates/memory/sys/src/disposal/lingering.rs"]
mod sockets;

/// A header with invalid flags.
const NONSENSE: [u8; 12] = [0xff; 12];

#[test]
fn a_lingering_socket_is_refused_and_the_next_front_end_is_served() {
    let served = Served::new();
    for request in [number::SET_VRING_KICK, number::SET_BACKEND_REQ_FD] {
        let (socket, _peer) = lingering();
        let mut frontend = Frontend::negotiated(&served);
        let payload: &[u8] = if request == number::SET_VRING_KICK { &[0; 8] } else { &[] };
        frontend.send(request, payload, &[socket.as_fd()], true);
        drop(socket);
        served.ends_with("a descriptor was sent that is neither memory nor an eventfd");
    }
}

#[test]
fn a_unix_socket_with_a_lingering_socket_in_its_queue_does_not_block_the_server() {
    let served = Served::new();
    // As the back-end channel, for which a Unix socket is valid, and in a message for which it is not.
    let (socket, _peer) = nested();
    let mut frontend = Frontend::negotiated(&served);
    frontend.done(number::SET_BACKEND_REQ_FD, &[], &[socket.as_fd()]);
    drop(socket);
    let (socket, _peer) = nested();
    frontend.done(number::SET_BACKEND_REQ_FD, &[], &[socket.as_fd()]);
    drop(socket);
    let (socket, _peer) = nested();
    frontend.refused(number::SET_VRING_KICK, &[0; 8], &[socket.as_fd()]);
    drop((socket, frontend));
    assert_eq!(served.ended(), "closed by the front-end");
    served.still_serves();
}

/// A front-end's own end is in the queue of a waiting connection, which the server reads only after the
/// first connection has ended. But that end keeps the first connection open.
#[test]
fn a_front_end_whose_own_end_is_queued_elsewhere_does_not_block_the_server() {
    let served = Served::new();
    let (own, waiting) = (served.connect(), served.connect());
    send(&waiting, &NONSENSE, &[own.as_fd()]);
    drop((own, waiting));
    assert_eq!(served.ended(), "closed by the front-end");
    served.still_serves();
}

#[test]
fn a_message_with_as_many_sockets_as_fit_does_not_block_the_server() {
    let served = Served::new();
    let (sockets, _peers) = many();
    let all: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    let socket = served.connect();
    send(&socket, &NONSENSE, &all);
    drop(all);
    drop((sockets, socket));
    served.ends_with("a descriptor was sent that is neither memory nor an eventfd");
}

/// Connects while another front-end is served, and leaves sockets in the queue of the connection.
fn queue(served: &Served) -> (Frontend, UnixStream, [OwnedFd; 2]) {
    let first = Frontend::negotiated(served);
    let socket = served.connect();
    send(&socket, &NONSENSE, &[]);
    let (direct, within) = (lingering(), nested());
    send(&socket, b"not received", &[direct.0.as_fd()]);
    send(&socket, b"not received", &[within.0.as_fd()]);
    (first, socket, [direct.1, within.1])
}

#[test]
fn sockets_in_the_queue_of_a_connection_that_ends_do_not_block_the_server() {
    let served = Served::new();
    let (first, _socket, _peers) = queue(&served);
    drop(first);
    assert_eq!(served.ended(), "closed by the front-end");
    drop(Frontend::ready(&served));
    // The waiting connection was closed before, or served until its invalid message was read.
    let ended = served.ended();
    if ended.contains("flags") {
        assert_eq!(served.ended(), "closed by the front-end");
    } else {
        assert_eq!(ended, "closed by the front-end");
    }
}

#[test]
fn sockets_in_the_queue_of_a_connection_that_is_not_accepted_do_not_block_the_server() {
    let served = Served::new();
    let (_first, _socket, _peers) = queue(&served);
    // This waits for the end of the server.
    drop(served);
}
