//! Who a client is.

use std::io;
use std::os::fd::AsFd;

use longshore_sys::packet_socket;

/// The process at the other end of a connection, as it was when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// The process; 0 if it is in a process namespace that this one does not see.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

impl Peer {
    pub(crate) fn from_socket(socket: impl AsFd) -> io::Result<Self> {
        let packet_socket::Peer { pid, uid, gid } = packet_socket::peer(socket)?;
        Ok(Self { pid, uid, gid })
    }
}
