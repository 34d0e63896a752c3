//! Stream sockets: connecting with a way out, and receiving into memory of a buffer.
#![expect(unsafe_code, reason = "receives into volatile memory")]

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use longshore_mem::VolatileSliceMut;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, sockopt};

/// The time between two calls of the function that may end a connection attempt.
const GLANCE: Duration = Duration::from_millis(100);

/// Connects to an address. While this takes, `goes_on` is called ten times a second.
///
/// # Errors
/// Those of `socket(2)` and `connect(2)`; [`io::ErrorKind::Interrupted`] if `goes_on` returned `false`.
pub fn connect(address: SocketAddr, mut goes_on: impl FnMut() -> bool) -> io::Result<TcpStream> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let time = GLANCE.try_into().map_err(io::Error::other)?;
    while poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&time))? == 0 {
        if !goes_on() {
            return Err(io::ErrorKind::Interrupted.into());
        }
    }
    sockopt::socket_error(&socket)??;
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Receives bytes into `memory` with one system call, which may receive fewer. Returns the number of bytes;
/// 0 if the peer sends no more.
///
/// # Errors
/// Those of `recv(2)`; `WouldBlock` after the timeout of the socket.
pub fn receive(socket: impl AsFd, memory: &mut VolatileSliceMut<'_>) -> io::Result<usize> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the view is valid and writable for its length, and is borrowed for the call.
    let received = unsafe { libc::recv(fd, memory.as_mut_ptr().cast(), memory.len(), 0) };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}

/// Returns `true` if the peer has sent nothing that was not received, and has not closed the connection.
pub fn is_quiet(socket: impl AsFd) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let mut byte = [0u8];
    matches!(rustix::net::recv(socket, &mut byte, flags), Err(Errno::WOULDBLOCK))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_connection_is_made_refused_or_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stream = connect(address, || true).unwrap();
        listener.accept().unwrap().0.write_all(b"hello").unwrap();
        assert!(!is_quiet(&stream));
        let mut bytes = [0; 9];
        let mut place = VolatileSliceMut::from(bytes.as_mut_slice());
        assert_eq!(receive(&stream, &mut place).unwrap(), 5);
        assert_eq!(&bytes[..5], b"hello");
        // The peer has closed its end.
        assert!(!is_quiet(&stream));
        let other = connect(address, || true).unwrap();
        assert!(is_quiet(&other));
        drop(listener);
        let refused = connect(address, || true).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        // The accept queue of a listener that accepts nothing is full after some connections.
        let full = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&full, 0).unwrap();
        let address = full.local_addr().unwrap();
        let mut kept = Vec::new();
        let given_up = loop {
            match connect(address, || false) {
                Ok(stream) => kept.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(given_up.kind(), io::ErrorKind::Interrupted);
    }
}
