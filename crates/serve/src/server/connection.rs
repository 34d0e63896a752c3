//! One client: its socket, how far it has come, and what is still to be sent to it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_heap::SharedBuffer;
use longshore_sys::file;
use longshore_sys::file::Version;
use longshore_sys::packet_socket::{self, Packet, Peer};
use longshore_sys::readiness::Watch;

use crate::protocol::{MESSAGE_BYTES_MAX, Reply, Request};
use crate::served::Found;

/// How long a client may take to say hello.
pub(super) const HELLO_TIME: Duration = Duration::from_secs(5);
/// How long it may have nothing, want nothing and say nothing; or owe an answer.
pub(super) const SILENT_TIME: Duration = Duration::from_secs(60);
/// How long it may leave what is sent to it unread.
pub(super) const UNREAD_TIME: Duration = Duration::from_secs(10);

/// A client.
#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    pub(super) peer: Peer,
    pub(super) phase: Phase,
    outgoing: VecDeque<Outgoing>,
    /// When it has been silent, or has left something unread, for too long.
    deadline: Option<Instant>,
}

/// How far a client has come.
#[derive(Debug)]
pub(super) enum Phase {
    /// It has not said hello.
    Greeting,
    /// It has nothing and wants nothing.
    Idle,
    /// What it wants is being looked for. It showed one file.
    Opening { shown: OwnedFd, path: PathBuf, wanted_id: Option<u64> },
    /// It is to show the other files, the next of which is the last of `to_show`.
    Proving { found: Found, to_show: Vec<(PathBuf, Version)> },
    /// It waits for a model.
    Waiting(u64),
    /// It wants a list. `attached` is what it has meanwhile.
    Listing { attached: Option<u64> },
    /// It has a model.
    Attached(u64),
}

#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    memory: Option<Arc<SharedBuffer>>,
}

/// What came from a client.
#[derive(Debug)]
pub(super) enum Came {
    Nothing,
    /// It closed its end.
    End,
    Request(Request, Vec<OwnedFd>),
    /// It is none of the protocol.
    Nonsense(String, Vec<OwnedFd>),
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, peer: Peer, now: Instant) -> Self {
        let deadline = Some(now + HELLO_TIME);
        Self { socket, peer, phase: Phase::Greeting, outgoing: VecDeque::new(), deadline }
    }

    /// A client that has not taken its answer is not asked what it wants next. What nobody waits for
    /// is not read.
    pub(super) fn watch(&self) -> Watch<'_> {
        let has_unsent = !self.outgoing.is_empty();
        let listing = matches!(self.phase, Phase::Listing { .. });
        Watch { fd: self.socket.as_fd(), read: !has_unsent && !listing, write: has_unsent }
    }

    /// The model that it has.
    pub(super) fn attached(&self) -> Option<u64> {
        match self.phase {
            Phase::Attached(id) | Phase::Listing { attached: Some(id) } => Some(id),
            _ => None,
        }
    }

    /// Whether it has a model, or has asked for one and was not yet told no.
    pub(super) fn has_or_awaits_model(&self) -> bool {
        match self.phase {
            Phase::Greeting | Phase::Idle | Phase::Listing { attached: None } => false,
            Phase::Opening { .. } | Phase::Proving { .. } | Phase::Waiting(_) => true,
            Phase::Attached(_) | Phase::Listing { attached: Some(_) } => true,
        }
    }

    pub(super) fn enter(&mut self, phase: Phase, now: Instant) {
        self.phase = phase;
        self.set_deadline(now);
    }

    fn set_deadline(&mut self, now: Instant) {
        let time = match self.phase {
            _ if !self.outgoing.is_empty() => Some(UNREAD_TIME),
            Phase::Greeting => return,
            Phase::Idle | Phase::Proving { .. } => Some(SILENT_TIME),
            // The server is the one that is waited for, or there is nothing to be said.
            Phase::Opening { .. } | Phase::Waiting(_) => None,
            Phase::Listing { .. } | Phase::Attached(_) => None,
        };
        self.deadline = time.map(|time| now + time);
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Why the client is disconnected, where its deadline is over.
    pub(super) fn too_late(&self) -> &'static str {
        match self.phase {
            _ if !self.outgoing.is_empty() => "it does not read what is sent to it",
            Phase::Greeting => "it has not said hello in time",
            Phase::Proving { .. } => "it has not shown the files of the model in time",
            _ => "it has been silent for too long and has nothing",
        }
    }

    /// Ends it, and takes the descriptors of what was not received: to close them may take long.
    pub(super) fn end(&self) -> Vec<OwnedFd> {
        packet_socket::end(&self.socket)
    }

    /// Takes one message.
    pub(super) fn receive(&self) -> Came {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        match packet_socket::receive(&self.socket, &mut bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Came::Nothing,
            Err(_) => Came::End,
            Ok(Packet { len_bytes: 0, descriptors, .. }) if descriptors.is_empty() => Came::End,
            Ok(packet) => {
                let descriptors = packet.descriptors;
                let nonsense = |why: &str, descriptors| Came::Nonsense(why.to_owned(), descriptors);
                if packet.is_too_long {
                    let why = format!("a message has more than {MESSAGE_BYTES_MAX} bytes");
                    return nonsense(&why, descriptors);
                }
                if packet.descriptors_lost {
                    return nonsense("it sent more descriptors than can be taken", descriptors);
                }
                match Request::decode(&bytes[..packet.len_bytes]) {
                    Err(malformed) => {
                        nonsense(&format!("a message is malformed: {malformed}"), descriptors)
                    }
                    Ok(request) if descriptors.len() != usize::from(request.has_descriptor()) => {
                        nonsense("a message has not the descriptors it should have", descriptors)
                    }
                    Ok(request) => Came::Request(request, descriptors),
                }
            }
        }
    }

    /// Sends `reply`, at once or when there is room.
    ///
    /// # Errors
    /// Those of the socket: the client is gone.
    pub(super) fn send(&mut self, reply: &Reply, now: Instant) -> io::Result<()> {
        self.send_with(reply, None, now)
    }

    /// As [`Self::send`], with memory.
    pub(super) fn send_with(
        &mut self,
        reply: &Reply,
        memory: Option<Arc<SharedBuffer>>,
        now: Instant,
    ) -> io::Result<()> {
        self.outgoing.push_back(Outgoing { bytes: reply.encode(), memory });
        if self.outgoing.len() > 1 {
            return Ok(());
        }
        let flushed = self.flush(now);
        if !self.outgoing.is_empty() {
            self.set_deadline(now);
        }
        flushed
    }

    /// Sends a reply that nobody misses.
    pub(super) fn send_if_idle(&mut self, reply: &Reply, now: Instant) -> io::Result<()> {
        if self.outgoing.is_empty() { self.send(reply, now) } else { Ok(()) }
    }

    /// Sends what there is room for.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub(super) fn flush(&mut self, now: Instant) -> io::Result<()> {
        while let Some(next) = self.outgoing.front() {
            let memory = next.memory.as_ref().and_then(|memory| memory.memfd());
            // Opened once more, so that clients have a file position of their own: with one between
            // them, what one reads moves the others. Where that cannot be had they share one.
            let own = memory.and_then(|memory| file::reopen_read_only(memory).ok());
            let memory = own.as_ref().map(AsFd::as_fd).or(memory);
            match packet_socket::send(&self.socket, &next.bytes, memory) {
                Ok(()) => {
                    self.outgoing.pop_front();
                    self.set_deadline(now);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
