//! The client that is served while others wait.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use longshore_sys::account::Permit;
use longshore_sys::closing::{self, Disposable, User};
use longshore_sys::process_memory::{self, Process};
use longshore_sys::{kept_descriptors, packet_socket};

/// The time after which a thread that closes or receives descriptors is considered hung.
pub(super) const HANGS_AFTER: Duration = Duration::from_secs(5);
/// The number of descriptors that a [`Served`] keeps open.
const DESCRIPTORS: u64 = 2;

/// The connection that is served, and the process that made it.
///
/// A client can leave its own end of the connection in the queue of another socket of this process. If a
/// thread that should close that socket hangs, the connection does not end when the client exits.
#[derive(Debug)]
pub(super) struct Served {
    stream: Disposable<UnixStream>,
    client: Client,
    /// The first check at which threads were closing or receiving descriptors, if all later checks saw
    /// the same.
    busy_since: Option<Instant>,
    _descriptors: Permit,
}

#[derive(Debug)]
enum Client {
    Process(Process),
    HasExited,
    /// The client is in a PID namespace that this process does not see, or descriptors are exhausted.
    Unknown,
}

impl Served {
    /// Duplicates a connection that is going to be served.
    ///
    /// # Errors
    /// `EMFILE`.
    pub(super) fn new(stream: &UnixStream) -> io::Result<Self> {
        let client = match packet_socket::peer(stream).and_then(|peer| Process::open(peer.pid)) {
            Ok(process) => Client::Process(process),
            Err(error) if process_memory::is_gone(&error) => Client::HasExited,
            Err(_) => Client::Unknown,
        };
        let user = User::of_peer(stream);
        Ok(Self {
            stream: Disposable::of_user(stream.try_clone()?, user),
            client,
            busy_since: None,
            _descriptors: kept_descriptors::keep_anyway(user, DESCRIPTORS),
        })
    }

    /// Ends the connection if the process that made it has exited, and threads that close or receive
    /// descriptors of its user have hung for [`HANGS_AFTER`]. Without such threads the connection
    /// remains, because the process may have passed it on. Threads of other users do not matter, so that
    /// no other user can end the connection.
    pub(super) fn end_if_abandoned(&mut self, now: Instant) {
        if !closing::is_busy(self.stream.user()) {
            self.busy_since = None;
            return;
        }
        let since = *self.busy_since.get_or_insert(now);
        if now.duration_since(since) >= HANGS_AFTER && self.client.has_exited() {
            // The connection may have ended by itself.
            let _ = self.stream.shutdown(Shutdown::Both);
        }
    }
}

impl Client {
    fn has_exited(&self) -> bool {
        match self {
            Self::Process(process) => process.check_alive().is_err(),
            Self::HasExited => true,
            Self::Unknown => false,
        }
    }
}
