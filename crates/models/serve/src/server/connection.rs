//! One client: its socket, its state, and the messages to send to it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_sys::file::Identity;
use longshore_sys::packet_socket::{self, Packet};
use longshore_sys::readiness::Watch;

use super::closers::Closers;
use super::users::User;
use crate::fault::ClientFault;
use crate::peer::Peer;
use crate::protocol::{MESSAGE_BYTES_MAX, Reply, Request};
use crate::served::{Found, Layout, Shown};

/// The time for a client to send its first message.
pub(super) const HELLO_TIME: Duration = Duration::from_secs(5);
/// The time for which a client may be silent without a model, or owe a file.
pub(super) const SILENT_TIME: Duration = Duration::from_secs(60);
/// The time for which a client may leave messages unread.
pub(super) const UNREAD_TIME: Duration = Duration::from_secs(10);

/// A client.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: OwnedFd,
    pub(super) peer: Peer,
    /// The user to whom it is charged.
    pub(super) user: User,
    pub(super) phase: Phase,
    /// The files that it requested last, by the paths that it used. They keep no inodes in use.
    pub(super) asked_for: Option<Arc<Found>>,
    outgoing: VecDeque<Outgoing>,
    /// The bytes of all of these.
    outgoing_bytes: usize,
    /// `true` if memory was sent, and the client has not been seen to receive everything since.
    sent_memory: bool,
    /// The time at which the client has been silent, or has left messages unread, for too long.
    deadline: Option<Instant>,
    closers: Arc<Closers>,
}

/// The state of a client.
#[derive(Debug)]
pub(super) enum Phase {
    /// It has not sent its first message.
    Greeting,
    /// It has no model and no request.
    Idle,
    /// The files that it requested are looked up, and compared with those that it has shown.
    Opening { asked: Asked, shown: Vec<ShownFile> },
    /// It must show the other files; the next one is the last of `to_show`. None of them has been looked
    /// up.
    Proving { asked: Asked, shown: Vec<ShownFile>, to_show: Vec<PathBuf> },
    /// It waits until memory for its model is freed.
    AwaitingRoom(Box<Found>),
    /// It waits for a model.
    Waiting(u64),
    /// It waits for a list. `attached` is the model that it has meanwhile.
    Listing { attached: Option<u64> },
    /// It has a model.
    Attached(u64),
}

/// A request to attach.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) path: PathBuf,
    pub(super) layout: Layout,
    /// The number of the model, if the client gave it.
    pub(super) wanted_id: Option<u64>,
}

/// A file that a client has shown. While its descriptor is open, no other file gets the number of its
/// inode.
#[derive(Debug)]
pub(super) struct ShownFile {
    pub(super) shown: Shown,
    pub(super) file: Arc<OwnedFd>,
}

impl ShownFile {
    /// Takes the descriptor that a client has sent for the file at `path`.
    pub(super) fn new(path: PathBuf, identity: Identity, file: OwnedFd) -> Self {
        let file = Arc::new(file);
        Self { shown: Shown { path, identity, file: Arc::downgrade(&file) }, file }
    }
}

#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    memory: Option<Memory>,
}

/// A descriptor of memory to send to a client.
#[derive(Debug)]
struct Memory {
    file: Option<OwnedFd>,
    user: User,
    closers: Arc<Closers>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.closers.close_memory(self.user, file);
        }
    }
}

/// The result of receiving from a client.
#[derive(Debug)]
pub(super) enum Came {
    Nothing,
    /// A message has a descriptor, and the process has no room for it.
    NoRoom,
    /// It closed its end.
    End,
    Request(Request, Vec<OwnedFd>),
    /// The message is not valid.
    Nonsense(ClientFault, Vec<OwnedFd>),
}

impl Connection {
    pub(super) fn new(
        socket: OwnedFd,
        peer: Peer,
        user: User,
        closers: Arc<Closers>,
        now: Instant,
    ) -> Self {
        let deadline = Some(now + HELLO_TIME);
        let (phase, outgoing) = (Phase::Greeting, VecDeque::new());
        Self {
            socket,
            peer,
            user,
            phase,
            asked_for: None,
            outgoing,
            outgoing_bytes: 0,
            sent_memory: false,
            deadline,
            closers,
        }
    }

    /// Returns the events to wait for. No requests are read from a client that has not received its last
    /// reply.
    pub(super) fn watch(&self) -> Watch<'_> {
        let has_unsent = !self.outgoing.is_empty();
        let listing = matches!(self.phase, Phase::Listing { .. });
        Watch { fd: self.socket.as_fd(), read: !has_unsent && !listing, write: has_unsent }
    }

    /// Returns the model that it has.
    pub(super) fn attached(&self) -> Option<u64> {
        match self.phase {
            Phase::Attached(id) | Phase::Listing { attached: Some(id) } => Some(id),
            _ => None,
        }
    }

    /// Returns the model that it has or waits for.
    pub(super) fn model(&self) -> Option<u64> {
        match self.phase {
            Phase::Waiting(id) => Some(id),
            _ => self.attached(),
        }
    }

    /// Returns `true` if it has a model, or has requested one and was not refused.
    pub(super) fn has_or_awaits_model(&self) -> bool {
        match self.phase {
            Phase::Greeting | Phase::Idle | Phase::Listing { attached: None } => false,
            Phase::Opening { .. } | Phase::Proving { .. } => true,
            Phase::AwaitingRoom(_) | Phase::Waiting(_) => true,
            Phase::Attached(_) | Phase::Listing { attached: Some(_) } => true,
        }
    }

    /// Returns the number of descriptors that the server keeps for it: files that it has shown or must
    /// show, and memory that it has not read.
    pub(super) fn kept_descriptors(&self) -> usize {
        let shown = match &self.phase {
            Phase::Opening { shown, .. } => shown.len(),
            Phase::AwaitingRoom(found) => found.open_files(),
            _ => self.files_to_prove().unwrap_or(0),
        };
        shown + self.outgoing.iter().filter(|outgoing| outgoing.memory.is_some()).count()
    }

    /// Returns the number of files to look up after it has shown all files.
    pub(super) fn files_to_prove(&self) -> Option<usize> {
        match &self.phase {
            Phase::Proving { shown, to_show, .. } => Some(shown.len() + to_show.len()),
            _ => None,
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
            // The client waits for the server, or neither has anything to send.
            Phase::Opening { .. } | Phase::AwaitingRoom(_) | Phase::Waiting(_) => None,
            Phase::Listing { .. } | Phase::Attached(_) => None,
        };
        self.deadline = time.map(|time| now + time);
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the reason for disconnecting a client after its deadline.
    pub(super) fn too_late(&self) -> ClientFault {
        match self.phase {
            _ if !self.outgoing.is_empty() => ClientFault::DoesNotRead,
            Phase::Greeting => ClientFault::NoHello,
            Phase::Proving { .. } => ClientFault::NoFiles,
            _ => ClientFault::Silent,
        }
    }

    /// Receives one message.
    pub(super) fn receive(&self) -> Came {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let receive = || packet_socket::receive(&self.socket, &mut bytes);
        match self.closers.budget.spend(self.user, receive) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Came::Nothing,
            Err(_) => Came::End,
            Ok(Packet { len_bytes: 0, descriptors, .. }) if descriptors.is_empty() => Came::End,
            Ok(packet) => {
                let descriptors = packet.descriptors;
                if packet.is_too_long {
                    let fault = ClientFault::MessageTooLong { max_bytes: MESSAGE_BYTES_MAX };
                    return Came::Nonsense(fault, descriptors);
                }
                match packet.descriptors_lost {
                    true if descriptors.is_empty() => return Came::NoRoom,
                    true => return Came::Nonsense(ClientFault::TooManyDescriptors, descriptors),
                    false => {}
                }
                match Request::decode(&bytes[..packet.len_bytes]) {
                    Err(malformed) => {
                        Came::Nonsense(ClientFault::Malformed(malformed), descriptors)
                    }
                    Ok(request) if descriptors.len() != usize::from(request.has_descriptor()) => {
                        Came::Nonsense(ClientFault::OtherDescriptors, descriptors)
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

    /// Sends `reply` as [`Self::send`] does, with a descriptor of memory.
    pub(super) fn send_with(
        &mut self,
        reply: &Reply,
        memory: Option<OwnedFd>,
        now: Instant,
    ) -> io::Result<()> {
        let bytes = reply.encode();
        self.outgoing_bytes += bytes.len();
        let (user, closers) = (self.user, Arc::clone(&self.closers));
        let memory = memory.map(|file| Memory { file: Some(file), user, closers });
        self.outgoing.push_back(Outgoing { bytes, memory });
        if self.outgoing.len() > 1 {
            return Ok(());
        }
        let flushed = self.flush(now);
        if !self.outgoing.is_empty() {
            self.set_deadline(now);
        }
        flushed
    }

    /// Returns whether a descriptor of memory can still be in flight to the client: it was sent, and the
    /// client has not received everything since.
    pub(super) fn has_unread_memory(&mut self) -> bool {
        self.sent_memory = self.sent_memory && packet_socket::has_unreceived(&self.socket);
        self.sent_memory
    }

    /// Drops all unsent messages, if they are memory and the messages that belong to it.
    pub(super) fn drop_unsent(&mut self) {
        self.outgoing.clear();
        self.outgoing_bytes = 0;
    }

    /// Returns the bytes that the client has not received yet.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.outgoing_bytes
    }

    /// Sends a reply that may be left out.
    pub(super) fn send_if_idle(&mut self, reply: &Reply, now: Instant) -> io::Result<()> {
        if self.outgoing.is_empty() { self.send(reply, now) } else { Ok(()) }
    }

    /// Sends as much as there is room for, unless its user has used up its time.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub(super) fn flush(&mut self, now: Instant) -> io::Result<()> {
        while let Some(next) = self.outgoing.front() {
            if self.closers.budget.is_used_up(self.user, now) {
                return Ok(());
            }
            let memory =
                next.memory.as_ref().and_then(|memory| memory.file.as_ref()).map(AsFd::as_fd);
            let send = || packet_socket::send(&self.socket, &next.bytes, memory);
            match self.closers.budget.spend(self.user, send) {
                Ok(()) => {
                    self.sent_memory |= next.memory.is_some();
                    self.outgoing_bytes -= next.bytes.len();
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
