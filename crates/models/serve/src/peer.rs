//! The identity of a client.

use std::io;
use std::os::fd::AsFd;

use longshore_sys::packet_socket;

/// The process at the other end of a connection, when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// The process id; 0 if it is in a process namespace that is not visible here.
    pub pid: u32,
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
}

impl Peer {
    pub(crate) fn from_socket(socket: impl AsFd) -> io::Result<Self> {
        let packet_socket::Peer { pid, uid, gid } = packet_socket::peer(socket)?;
        Ok(Self { pid, uid, gid })
    }
}
