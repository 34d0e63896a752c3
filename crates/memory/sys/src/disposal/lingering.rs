//! TCP sockets whose last close takes an hour. Tests of other crates include this file, too.

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrAny,
    SocketFlags, SocketType, sockopt,
};

/// The maximum number of descriptors in a message.
const MOST: usize = 253;

/// The number of existing sockets.
static COUNT: Mutex<usize> = Mutex::new(0);
static CHANGED: Condvar = Condvar::new();

/// Calls `start`, which starts a program, while none of these sockets exist. A new process has copies of
/// all descriptors for a moment, and would need an hour to close them.
#[allow(dead_code, reason = "for tests that start programs")]
pub(crate) fn without_sockets<R>(start: impl FnOnce() -> R) -> R {
    let count = COUNT.lock().unwrap_or_else(PoisonError::into_inner);
    let none = CHANGED.wait_while(count, |count| *count > 0);
    let _none = none.unwrap_or_else(PoisonError::into_inner);
    start()
}

fn count(change: impl FnOnce(&mut usize)) {
    change(&mut COUNT.lock().unwrap_or_else(PoisonError::into_inner));
    CHANGED.notify_all();
}

/// A socket whose last close takes an hour. Dropping it closes it on a new thread.
#[derive(Debug)]
pub(crate) struct Socket(Option<OwnedFd>);

impl Socket {
    fn of(socket: OwnedFd) -> Self {
        count(|count| *count += 1);
        Self(Some(socket))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().unwrap().as_fd()
    }
}

impl From<Socket> for OwnedFd {
    fn from(mut socket: Socket) -> Self {
        count(|count| *count -= 1);
        socket.0.take().unwrap()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let socket = self.0.take();
        if socket.is_some() {
            std::thread::spawn(move || drop(socket));
            count(|count| *count -= 1);
        }
    }
}

/// Returns a TCP socket that lingers for an hour, and its peer, which does not read.
pub(crate) fn lingering() -> (Socket, OwnedFd) {
    let new = || {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        // Small buffers, because there are hundreds of sockets.
        sockopt::set_socket_recv_buffer_size(&socket, 1).unwrap();
        sockopt::set_socket_send_buffer_size(&socket, 1).unwrap();
        socket
    };
    let (listener, socket) = (new(), new());
    let any_port = std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0);
    rustix::net::bind(&listener, &any_port).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    let address: SocketAddrAny = rustix::net::getsockname(&listener).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    let peer = rustix::net::accept(&listener).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(true).unwrap();
    while (&stream).write(&[0; 1 << 14]).is_ok() {}
    sockopt::set_socket_linger(&stream, Some(Duration::from_secs(3600))).unwrap();
    (Socket::of(stream.into()), peer)
}

/// Returns as many lingering sockets as one message can carry, and their peers.
pub(crate) fn many() -> (Vec<Socket>, Vec<OwnedFd>) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    (0..MOST).map(|_| lingering()).unzip()
}

/// Sends bytes with descriptors on a Unix socket.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    let bytes = [IoSlice::new(bytes)];
    rustix::net::sendmsg(&socket, &bytes, &mut control, SendFlags::NOSIGNAL).unwrap();
}

/// Returns a socket that has in its queue another socket, which has a lingering socket in its queue; and
/// the peer of the lingering one.
pub(crate) fn nested() -> (Socket, OwnedFd) {
    let (mut socket, peer) = lingering();
    for _ in 0..2 {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        send(&ours, b"x", &[socket.as_fd()]);
        socket = Socket::of(theirs.into());
    }
    (socket, peer)
}
