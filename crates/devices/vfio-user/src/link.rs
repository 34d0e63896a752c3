//! A connection, shared by the thread that answers the client and those that ask it.
//!
//! ```text
//!    server's thread        device's threads
//!     next_request ──┐     ┌── read, write ──► send one whole message, under a lock
//!                    ▼     ▼
//!                one of them reads the socket, the others wait for it
//!                    │
//!        requests ◄──┴──► replies, by the id of the message
//! ```
//!
//! `mailbox.rs` decides which thread reads, and which threads wait.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use longshore_access::client::Stop;
use longshore_mem::Iova;
use longshore_sys::account::Permit;
use longshore_sys::closing::{Disposable, User};
use longshore_sys::event_fd;
use longshore_sys::unix_socket::{self, Interest, Ready};
use longshore_sys::{kept_descriptors, packet_socket};

use crate::Refusal;
use crate::interrupts::Interrupts;
use crate::mailbox::{Came, Letter, Mailbox, NothingCame};
use crate::negotiation::Limits;
use crate::receiver::{Message, Received, Receiver};
use crate::wire::{Command, DmaAccess, Header};

/// A client takes this long to answer all messages of an access, or to take a message, at most.
pub const REPLY_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// The way from a device to its client: its memory that has no descriptor, and its interrupts.
///
/// Clones are the same link. All methods may be called from any thread. When the client is gone
/// they fail, and a device gets another link with the next client.
#[derive(Clone)]
pub struct Link(Arc<Shared>);

struct Shared {
    /// Its last close also closes what is queued on it, which can be sockets that linger.
    stream: Disposable<UnixStream>,
    /// Ends the wait of whoever reads the socket, so that it looks again.
    waker: OwnedFd,
    stop: Stop,
    sending: Mutex<()>,
    mailbox: Mailbox<Message, Ended>,
    /// Locked only by who reads for the mailbox.
    receiver: Mutex<Receiver>,
    server_thread: ThreadId,
    reply_timeout: Duration,
    interrupts: Interrupts,
    /// Counts the socket and the eventfd for the user at the other end.
    _permit: Permit,
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// The client closed its end.
    ClosedByClient,
    /// The client closed its end in the middle of a message.
    ClosedInMessage,
    /// What came was no message.
    Garbled(Header),
    /// The client did not take what was sent within the time allowed.
    NotTaken,
    /// It was [stopped](Stop::stop).
    Stopped,
    /// The socket failed.
    Failed(io::ErrorKind),
}

/// Why memory of the client was not read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessFailed {
    /// How many bytes were, from the first.
    pub done_bytes: usize,
    /// Why no more.
    pub why: AccessFailure,
}

/// What can come between a device and its client's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccessFailure {
    /// The client refused, or its answer made no sense.
    Refused(Refusal),
    /// The client did not answer in time.
    TimedOut,
    /// [`Link::cancel`] ended it.
    Cancelled,
    /// The client is gone, or has not yet settled what it takes.
    Disconnected,
    /// The client asked for so much in the meantime that nothing more can be kept.
    Flooded,
}

impl fmt::Display for AccessFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.why {
            AccessFailure::Refused(refusal) => {
                return write!(f, "{refusal}, after {} bytes", self.done_bytes);
            }
            AccessFailure::TimedOut => "it did not answer in time",
            AccessFailure::Cancelled => "the access was cancelled",
            AccessFailure::Disconnected => "it is not connected",
            AccessFailure::Flooded => "it sends more commands than can be kept",
        };
        write!(f, "the client's memory, after {} bytes: {why}", self.done_bytes)
    }
}

impl std::error::Error for AccessFailed {}

impl Link {
    pub(crate) fn new(
        stream: Disposable<UnixStream>,
        receiver: Receiver,
        message_bytes_max: usize,
        reply_timeout: Duration,
        stop: Stop,
        interrupts: Interrupts,
    ) -> io::Result<Self> {
        packet_socket::pass_rights_alone(&stream)?;
        let permit = kept_descriptors::keep_anyway(stream.user(), 2);
        Ok(Self(Arc::new(Shared {
            stream,
            waker: event_fd::create()?,
            stop,
            sending: Mutex::new(()),
            mailbox: Mailbox::new(2 * message_bytes_max),
            receiver: Mutex::new(receiver),
            server_thread: thread::current().id(),
            reply_timeout,
            interrupts,
            _permit: permit,
        })))
    }

    /// The device's interrupts.
    pub fn interrupts(&self) -> &Interrupts {
        &self.0.interrupts
    }

    /// Reads the client's memory at `iova` by messages, as many as it takes.
    ///
    /// # Errors
    /// See [`AccessFailure`]. The bytes before the failure were read.
    pub fn read(&self, iova: Iova, into: &mut [u8]) -> Result<(), AccessFailed> {
        self.access(iova, into.len(), |at, len_bytes, deadline| {
            let part = &mut into[at..at + len_bytes];
            let asked =
                DmaAccess { iova: iova.raw() + at as u64, count: len_bytes as u64, data: &[] };
            let reply = self.ask(Command::DmaRead, &asked, deadline)?;
            let got = DmaAccess::parse(&reply.payload).map_err(AccessFailure::Refused)?;
            let is_right = got.data.len() as u64 == got.count && got.count <= asked.count;
            if !is_right || got.data.is_empty() {
                return Err(AccessFailure::Refused(Refusal::INVALID));
            }
            part[..got.data.len()].copy_from_slice(got.data);
            Ok(got.data.len())
        })
    }

    /// Writes the client's memory at `iova` by messages, as many as it takes.
    ///
    /// # Errors
    /// See [`AccessFailure`]. The bytes before the failure were written; whether those of the
    /// message that failed were is not known where it timed out or was cancelled.
    pub fn write(&self, iova: Iova, from: &[u8]) -> Result<(), AccessFailed> {
        self.access(iova, from.len(), |at, len_bytes, deadline| {
            let data = &from[at..at + len_bytes];
            let asked = DmaAccess { iova: iova.raw() + at as u64, count: len_bytes as u64, data };
            let reply = self.ask(Command::DmaWrite, &asked, deadline)?;
            // QEMU says only that it was done.
            if reply.payload.is_empty() {
                return Ok(len_bytes);
            }
            let got = DmaAccess::parse(&reply.payload).map_err(AccessFailure::Refused)?;
            match usize::try_from(got.count) {
                Ok(done) if done > 0 && done <= len_bytes => Ok(done),
                _ => Err(AccessFailure::Refused(Refusal::INVALID)),
            }
        })
    }

    /// Ends every read and write of the client's memory that waits for an answer about any of
    /// `range`. Each fails with [`AccessFailure::Cancelled`]; how many there were.
    pub fn cancel(&self, range: &Range<u64>) -> usize {
        let cancelled = self.0.mailbox.inbox().cancel(range);
        if cancelled > 0 {
            self.wake();
        }
        cancelled
    }

    /// The user at the other end, for whom resources of this process are counted.
    pub(crate) fn user(&self) -> User {
        self.0.stream.user()
    }

    /// Whether the client is still there, as far as is known.
    pub fn is_connected(&self) -> bool {
        self.0.mailbox.inbox().ended.is_none()
    }

    /// Calls `part` until all bytes are done. All messages of an access have one deadline: a client
    /// that answers each with one byte cannot stretch it.
    fn access(
        &self,
        iova: Iova,
        len_bytes: usize,
        mut part: impl FnMut(usize, usize, Instant) -> Result<usize, AccessFailure>,
    ) -> Result<(), AccessFailed> {
        let deadline = Instant::now() + self.0.reply_timeout;
        let mut done_bytes = 0;
        let failed = |done_bytes, why| Err(AccessFailed { done_bytes, why });
        if iova.checked_add(len_bytes as u64).is_none() {
            return failed(0, AccessFailure::Refused(Refusal::FAULT));
        }
        let transfer_bytes_max = self.0.mailbox.inbox().transfer_bytes_max as usize;
        if transfer_bytes_max == 0 {
            return failed(0, AccessFailure::Disconnected);
        }
        while done_bytes < len_bytes {
            let next = transfer_bytes_max.min(len_bytes - done_bytes);
            match part(done_bytes, next, deadline) {
                Ok(done) => done_bytes += done,
                Err(why) => return failed(done_bytes, why),
            }
        }
        Ok(())
    }

    /// Sends a command and waits for its answer. After the deadline nothing is sent.
    fn ask(
        &self,
        command: Command,
        asked: &DmaAccess<'_>,
        deadline: Instant,
    ) -> Result<Message, AccessFailure> {
        if Instant::now() >= deadline {
            return Err(AccessFailure::TimedOut);
        }
        let payload = asked.encode();
        let range = asked.iova..asked.iova.saturating_add(asked.count);
        let id = {
            let mut inbox = self.0.mailbox.inbox();
            if inbox.ended.is_some() {
                return Err(AccessFailure::Disconnected);
            }
            inbox.enter(range).ok_or(AccessFailure::Flooded)?
        };
        let header = Header::command(id, command, payload.len()).encode();
        if self.send(&[&header[..], &payload].concat(), &[]).is_err() {
            self.0.mailbox.inbox().forget(id);
            return Err(AccessFailure::Disconnected);
        }
        let makes_room = thread::current().id() == self.0.server_thread;
        let read = || self.came(Some(deadline));
        match self.0.mailbox.answer(id, Some(deadline), makes_room, read) {
            Ok(Some(reply)) => match reply.header.error() {
                None if reply.header.command == command.number() && !reply.is_too_long => Ok(reply),
                None => Err(AccessFailure::Refused(Refusal::INVALID)),
                Some(0) => Err(AccessFailure::Refused(Refusal::IO)),
                Some(errno) => Err(AccessFailure::Refused(Refusal::from_errno(errno))),
            },
            Ok(None) => Err(AccessFailure::Cancelled),
            Err(NothingCame::TimedOut) => Err(AccessFailure::TimedOut),
            Err(NothingCame::Ended) => Err(AccessFailure::Disconnected),
            Err(NothingCame::Flooded) => Err(AccessFailure::Flooded),
        }
    }

    /// The next command of the client, in the order in which they came. Called by the server's
    /// thread.
    pub(crate) fn next_request(&self) -> Result<Message, Ended> {
        let mailbox = &self.0.mailbox;
        let came = mailbox.request(|| self.came(None));
        came.map_err(|_| mailbox.inbox().ended.clone().unwrap_or(Ended::Stopped))
    }

    /// Reads the socket.
    fn came(&self, deadline: Option<Instant>) -> Came<Message, Ended> {
        Came::End(match self.receive(deadline) {
            Ok(Received::Message(message)) => return Came::Message(message),
            Ok(Received::Interrupted) => return Came::Nothing,
            Ok(Received::Closed { in_message: false }) => Ended::ClosedByClient,
            Ok(Received::Closed { in_message: true }) => Ended::ClosedInMessage,
            Ok(Received::Garbled(header)) => Ended::Garbled(header),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ended::Stopped,
            Err(error) => Ended::Failed(error.kind()),
        })
    }

    fn receive(&self, deadline: Option<Instant>) -> io::Result<Received> {
        let shared = &*self.0;
        let mut receiver = shared.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.stop.is_stopped() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let received = receiver.receive(&shared.stream, &self.events(), deadline);
        if let Ok(Received::Interrupted) = received {
            event_fd::drain(&shared.waker)?;
            if shared.stop.is_stopped() {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
        received
    }

    /// Sends a whole message. A message that cannot be sent whole ends the connection.
    pub(crate) fn send(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Result<(), Ended> {
        let _one_at_a_time = self.0.sending.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ended) = &self.0.mailbox.inbox().ended {
            return Err(ended.clone());
        }
        let sent = self.send_all(bytes, files);
        if let Err(ended) = &sent {
            self.end(ended.clone());
        }
        sent
    }

    fn send_all(&self, mut bytes: &[u8], mut files: &[BorrowedFd<'_>]) -> Result<(), Ended> {
        let shared = &*self.0;
        let deadline = Instant::now() + shared.reply_timeout;
        while !bytes.is_empty() {
            match unix_socket::send(&*shared.stream, bytes, files) {
                Ok(sent) => {
                    bytes = &bytes[sent..];
                    files = &[];
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let socket = shared.stream.as_fd();
                    let stop = [shared.stop.as_fd()];
                    match unix_socket::wait(socket, Interest::Send, &stop, Some(deadline)) {
                        Ok(Ready::Socket) => {}
                        Ok(Ready::Event(_)) => return Err(Ended::Stopped),
                        Ok(Ready::TimedOut) => return Err(Ended::NotTaken),
                        Err(error) => return Err(Ended::Failed(error.kind())),
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                        return Err(Ended::ClosedByClient);
                    }
                    kind => return Err(Ended::Failed(kind)),
                },
            }
        }
        Ok(())
    }

    /// Says how much the client takes; before, nothing is sent to it that it was not asked.
    pub(crate) fn settle(&self, client: &Limits, ours: &Limits) {
        let transfer_bytes_max = client.transfer_bytes_max.min(ours.transfer_bytes_max);
        self.0.mailbox.inbox().transfer_bytes_max = transfer_bytes_max;
    }

    /// Ends the connection, unless it has ended: nobody waits for the client any longer.
    pub(crate) fn end(&self, why: Ended) {
        let mut inbox = self.0.mailbox.inbox();
        inbox.ended.get_or_insert(why);
        inbox.forget_requests();
        drop(inbox);
        // It may be closed already.
        let _ = self.0.stream.shutdown(Shutdown::Both);
        self.wake();
    }

    /// Answers of the client to nothing that it was asked.
    pub(crate) fn stray_replies_count(&self) -> u64 {
        self.0.mailbox.inbox().stray_replies_count
    }

    fn wake(&self) {
        // It cannot be full in a way that matters, and there is no other way for it to fail.
        let _ = event_fd::signal(&self.0.waker);
        self.0.mailbox.notify();
    }

    fn events(&self) -> [BorrowedFd<'_>; 2] {
        [self.0.waker.as_fd(), self.0.stop.as_fd()]
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("ended", &self.0.mailbox.inbox().ended).finish_non_exhaustive()
    }
}

impl Letter for Message {
    fn reply_to(&self) -> Option<u16> {
        self.is_reply().then_some(self.header.id)
    }

    fn held_bytes(&self) -> usize {
        Self::held_bytes(self)
    }

    fn held_descriptors(&self) -> usize {
        self.files.arrived.len()
    }
}
