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

/// The most descriptors that one message can carry.
const MOST: usize = 253;

/// How many sockets there are.
static COUNT: Mutex<usize> = Mutex::new(0);
static CHANGED: Condvar = Condvar::new();

/// Calls `start`, which starts a program, while there is none of these sockets. A new process has copies of
/// all descriptors for a moment, and closing them would take it an hour.
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

/// A socket whose last close takes an hour. If that is this one, it waits on a thread of its own.
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
        // So that little memory is needed for hundreds of them.
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

/// Returns a socket with a lingering socket in its queue, in the queue of another socket, and the
/// peer of the lingering one.
pub(crate) fn nested() -> (Socket, OwnedFd) {
    let (mut socket, peer) = lingering();
    for _ in 0..2 {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        send(&ours, b"x", &[socket.as_fd()]);
        socket = Socket::of(theirs.into());
    }
    (socket, peer)
}
