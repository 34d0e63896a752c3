//! The client that is served, while others wait.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use longshore_sys::account::Permit;
use longshore_sys::closing::{self, Disposable, User};
use longshore_sys::process_memory::{self, Process};
use longshore_sys::{kept_descriptors, packet_socket};

/// For how long descriptors must have been closed or received without an end.
pub(super) const HANGS_AFTER: Duration = Duration::from_secs(5);
/// How many descriptors a [`Served`] has.
const DESCRIPTORS: u64 = 2;

/// The connection that is served, and the process that made it.
///
/// A client can leave its own end of the connection in the queue of another socket of this process. If a
/// thread that should close that socket hangs, the connection does not end when the client exits.
#[derive(Debug)]
pub(super) struct Served {
    stream: Disposable<UnixStream>,
    client: Client,
    /// Since when threads close or receive descriptors, as far as was seen.
    busy_since: Option<Instant>,
    _descriptors: Permit,
}

#[derive(Debug)]
enum Client {
    Process(Process),
    HasExited,
    /// It is in a process namespace that this process does not see, or descriptors are exhausted.
    Unknown,
}

impl Served {
    /// Takes a copy of a connection that is going to be served.
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

    /// Ends the connection if the process that made it has exited and threads have hung for a while that close
    /// or receive descriptors of its user. Without such threads the connection remains: the process may
    /// have passed it on. Threads of other users do not matter, so that none can have it ended.
    pub(super) fn end_if_abandoned(&mut self, now: Instant) {
        if !closing::is_busy(self.stream.user()) {
            self.busy_since = None;
            return;
        }
        let since = *self.busy_since.get_or_insert(now);
        if now.duration_since(since) >= HANGS_AFTER && self.client.has_exited() {
            // It may have ended by itself.
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
