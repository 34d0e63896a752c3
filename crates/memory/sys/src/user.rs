//! The users for whom resources are counted.

use std::fmt;
use std::os::fd::AsFd;

use crate::packet_socket;

/// A user for whom descriptors, threads and memory are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct User(u32);

impl User {
    /// Returns the user at the other end of a connection (`SO_PEERCRED`): the effective user when that
    /// process connected, listened or made the socket pair. For a socket without a peer, returns the
    /// user of this process.
    ///
    /// For a socket that an untrusted process sent, use the user of that process instead, because it
    /// chose the other end.
    pub fn of_peer(socket: impl AsFd) -> Self {
        let uid = packet_socket::peer(socket).map_or(u32::MAX, |peer| peer.uid);
        // The kernel reports this ID if there is no peer. No user can have it.
        if uid == u32::MAX { Self::own() } else { Self(uid) }
    }

    /// Returns the user with this ID in the user namespace of this process.
    pub const fn from_uid(uid: u32) -> Self {
        Self(uid)
    }

    /// Returns the ID of this user.
    pub const fn uid(self) -> u32 {
        self.0
    }

    /// Returns the effective user of this process.
    pub fn own() -> Self {
        Self(crate::effective_uid())
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {}", self.0)
    }
}
