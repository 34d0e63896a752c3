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
//! Whoever waits for something reads the socket if nobody does, files what comes, and wakes the
//! others. So a reply comes through while the server's thread is busy with a command, and a command
//! is not lost while that thread itself waits for a reply.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::Shutdown;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use longshore_mem::Iova;
use longshore_sys::event_fd;
use longshore_sys::unix_socket::{self, Interest, Ready};

use super::Refusal;
use super::interrupts::Interrupts;
use super::negotiation::Limits;
use super::receiver::{Message, Received, Receiver};
use super::stop::Stop;
use super::wire::{Command, DmaAccess, Header};

/// A client takes this long to answer or to take what is sent, at most.
pub const REPLY_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// Commands of the client that wait while a reply is waited for.
const QUEUED_REQUESTS_MAX: usize = 64;
/// What this end asked and has not been answered, also what nobody waits for any more.
const PENDING_MAX: usize = 1024;

/// The way from a device to its client: its memory that has no descriptor, and its interrupts.
///
/// Clones are the same link. All methods may be called from any thread. When the client is gone
/// they fail, and a device gets another link with the next client.
#[derive(Clone)]
pub struct Link(Arc<Shared>);

struct Shared {
    stream: UnixStream,
    /// Ends the wait of whoever reads the socket, so that it looks again.
    waker: OwnedFd,
    stop: Stop,
    sending: Mutex<()>,
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    /// Locked only by who has set `inbox.is_read`.
    receiver: Mutex<Receiver>,
    server_thread: ThreadId,
    reply_timeout: Duration,
    interrupts: Interrupts,
}

#[derive(Default)]
struct Inbox {
    is_read: bool,
    requests: VecDeque<Message>,
    requests_held_bytes: usize,
    pending: HashMap<u16, Pending>,
    next_id: u16,
    /// How much the client takes in one message; nothing before it said so.
    transfer_bytes_max: u32,
    requests_bytes_max: usize,
    stray_replies_count: u64,
    ended: Option<Ended>,
}

/// Something asked of the client.
enum Pending {
    Asked {
        range: Range<u64>,
    },
    Answered(Message),
    /// Who asked is told that it may not wait any longer.
    Cancelled {
        is_answered: bool,
    },
    /// Nobody waits any more; the id is free when the reply comes.
    Abandoned,
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
    pub(super) fn new(
        stream: UnixStream,
        receiver: Receiver,
        message_bytes_max: usize,
        reply_timeout: Duration,
        stop: Stop,
        interrupts: Interrupts,
    ) -> io::Result<Self> {
        let inbox = Inbox { requests_bytes_max: 2 * message_bytes_max, ..Inbox::default() };
        Ok(Self(Arc::new(Shared {
            stream,
            waker: event_fd::create()?,
            stop,
            sending: Mutex::new(()),
            inbox: Mutex::new(inbox),
            arrived: Condvar::new(),
            receiver: Mutex::new(receiver),
            server_thread: thread::current().id(),
            reply_timeout,
            interrupts,
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
        self.access(iova, into.len(), |at, len_bytes| {
            let part = &mut into[at..at + len_bytes];
            let asked =
                DmaAccess { iova: iova.raw() + at as u64, count: len_bytes as u64, data: &[] };
            let reply = self.ask(Command::DmaRead, &asked)?;
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
        self.access(iova, from.len(), |at, len_bytes| {
            let data = &from[at..at + len_bytes];
            let asked = DmaAccess { iova: iova.raw() + at as u64, count: len_bytes as u64, data };
            let reply = self.ask(Command::DmaWrite, &asked)?;
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
        let mut inbox = self.inbox();
        let mut cancelled = 0;
        for pending in inbox.pending.values_mut() {
            if let Pending::Asked { range: asked } = pending
                && asked.start < range.end
                && range.start < asked.end
            {
                *pending = Pending::Cancelled { is_answered: false };
                cancelled += 1;
            }
        }
        drop(inbox);
        if cancelled > 0 {
            self.wake();
        }
        cancelled
    }

    /// Whether the client is still there, as far as is known.
    pub fn is_connected(&self) -> bool {
        self.inbox().ended.is_none()
    }

    fn access(
        &self,
        iova: Iova,
        len_bytes: usize,
        mut part: impl FnMut(usize, usize) -> Result<usize, AccessFailure>,
    ) -> Result<(), AccessFailed> {
        let mut done_bytes = 0;
        let failed = |done_bytes, why| Err(AccessFailed { done_bytes, why });
        if iova.checked_add(len_bytes as u64).is_none() {
            return failed(0, AccessFailure::Refused(Refusal::FAULT));
        }
        let transfer_bytes_max = self.inbox().transfer_bytes_max as usize;
        if transfer_bytes_max == 0 {
            return failed(0, AccessFailure::Disconnected);
        }
        while done_bytes < len_bytes {
            let next = transfer_bytes_max.min(len_bytes - done_bytes);
            match part(done_bytes, next) {
                Ok(done) => done_bytes += done,
                Err(why) => return failed(done_bytes, why),
            }
        }
        Ok(())
    }

    /// Sends a command and waits for its answer.
    fn ask(&self, command: Command, asked: &DmaAccess<'_>) -> Result<Message, AccessFailure> {
        let payload = asked.encode();
        let deadline = Instant::now() + self.0.reply_timeout;
        let range = asked.iova..asked.iova.saturating_add(asked.count);
        let id = {
            let mut inbox = self.inbox();
            if inbox.ended.is_some() {
                return Err(AccessFailure::Disconnected);
            }
            inbox.enter(Pending::Asked { range }).ok_or(AccessFailure::Flooded)?
        };
        let header = Header::command(id, command, payload.len()).encode();
        if self.send(&[&header[..], &payload].concat(), &[]).is_err() {
            self.inbox().pending.remove(&id);
            return Err(AccessFailure::Disconnected);
        }
        let waited = self.pump(Some(deadline), |inbox| match inbox.pending.get(&id) {
            Some(Pending::Asked { .. }) => None,
            Some(Pending::Cancelled { .. }) => Some(inbox.abandon(id)),
            _ => Some(inbox.pending.remove(&id)),
        });
        match waited {
            Ok(Some(Pending::Answered(reply))) => match reply.header.error() {
                None if reply.header.command == command.number() && !reply.is_too_long => Ok(reply),
                None => Err(AccessFailure::Refused(Refusal::INVALID)),
                Some(0) => Err(AccessFailure::Refused(Refusal::IO)),
                Some(errno) => Err(AccessFailure::Refused(Refusal::from_errno(errno))),
            },
            Ok(_) => Err(AccessFailure::Cancelled),
            Err(why) => {
                self.inbox().abandon(id);
                Err(match why {
                    NothingCame::TimedOut => AccessFailure::TimedOut,
                    NothingCame::Ended => AccessFailure::Disconnected,
                    NothingCame::Flooded => AccessFailure::Flooded,
                })
            }
        }
    }

    /// The next command of the client, in the order in which they came.
    pub(super) fn next_request(&self) -> Result<Message, Ended> {
        let came = self.pump(None, |inbox| {
            let request = inbox.requests.pop_front()?;
            inbox.requests_held_bytes -= request.held_bytes();
            Some(request)
        });
        if let Ok(request) = came {
            // There is room for another one now.
            self.0.arrived.notify_all();
            return Ok(request);
        }
        Err(self.inbox().ended.clone().unwrap_or(Ended::Stopped))
    }

    /// Waits until `check` finds what it looks for, and reads the socket as long as nobody does.
    fn pump<T>(
        &self,
        deadline: Option<Instant>,
        mut check: impl FnMut(&mut Inbox) -> Option<T>,
    ) -> Result<T, NothingCame> {
        let shared = &*self.0;
        let mut inbox = self.inbox();
        loop {
            if let Some(found) = check(&mut inbox) {
                return Ok(found);
            }
            if inbox.ended.is_some() {
                return Err(NothingCame::Ended);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(NothingCame::TimedOut);
            }
            if inbox.is_full() && thread::current().id() == shared.server_thread {
                // Only this thread could make room.
                return Err(NothingCame::Flooded);
            }
            if inbox.is_read || inbox.is_full() {
                let arrived = &shared.arrived;
                inbox = match left {
                    None => arrived.wait(inbox).unwrap_or_else(PoisonError::into_inner),
                    Some(left) => {
                        let waited = arrived.wait_timeout(inbox, left);
                        waited.unwrap_or_else(PoisonError::into_inner).0
                    }
                };
                continue;
            }
            inbox.is_read = true;
            drop(inbox);
            let received = self.receive(deadline);
            inbox = self.inbox();
            inbox.is_read = false;
            inbox.file(received);
            shared.arrived.notify_all();
        }
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
    pub(super) fn send(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Result<(), Ended> {
        let _one_at_a_time = self.0.sending.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ended) = &self.inbox().ended {
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
            match unix_socket::send(&shared.stream, bytes, files) {
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
    pub(super) fn settle(&self, client: &Limits, ours: &Limits) {
        let transfer_bytes_max = client.transfer_bytes_max.min(ours.transfer_bytes_max);
        self.inbox().transfer_bytes_max = transfer_bytes_max;
    }

    /// Ends the connection, unless it has ended: nobody waits for the client any longer.
    pub(super) fn end(&self, why: Ended) {
        self.inbox().ended.get_or_insert(why);
        // It may be closed already.
        let _ = self.0.stream.shutdown(Shutdown::Both);
        self.wake();
    }

    /// Answers of the client to nothing that it was asked.
    pub(super) fn stray_replies_count(&self) -> u64 {
        self.inbox().stray_replies_count
    }

    fn wake(&self) {
        // It cannot be full in a way that matters, and there is no other way for it to fail.
        let _ = event_fd::signal(&self.0.waker);
        self.0.arrived.notify_all();
    }

    fn events(&self) -> [BorrowedFd<'_>; 2] {
        [self.0.waker.as_fd(), self.0.stop.as_fd()]
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // Nothing here panics between two changes that belong together.
        self.0.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("ended", &self.inbox().ended).finish_non_exhaustive()
    }
}

enum NothingCame {
    TimedOut,
    Ended,
    Flooded,
}

impl Inbox {
    fn is_full(&self) -> bool {
        self.requests.len() >= QUEUED_REQUESTS_MAX
            || self.requests_held_bytes >= self.requests_bytes_max
    }

    /// Enters what is asked, under an id that no other has.
    fn enter(&mut self, pending: Pending) -> Option<u16> {
        if self.pending.len() >= PENDING_MAX {
            return None;
        }
        while self.pending.contains_key(&self.next_id) {
            self.next_id = self.next_id.wrapping_add(1);
        }
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        self.pending.insert(id, pending);
        Some(id)
    }

    /// Nobody waits for `id` any longer; what is known of it. It is not used again before the
    /// client has answered.
    fn abandon(&mut self, id: u16) -> Option<Pending> {
        let pending = self.pending.remove(&id);
        if let Some(Pending::Asked { .. } | Pending::Cancelled { is_answered: false }) = pending {
            self.pending.insert(id, Pending::Abandoned);
        }
        pending
    }

    fn file(&mut self, received: io::Result<Received>) {
        let ended = match received {
            Ok(Received::Message(message)) if message.is_reply() => {
                let id = message.header.id;
                match self.pending.get_mut(&id) {
                    Some(pending @ Pending::Asked { .. }) => *pending = Pending::Answered(message),
                    // Who was cancelled takes the entry away itself.
                    Some(Pending::Cancelled { is_answered }) => *is_answered = true,
                    Some(Pending::Abandoned) => drop(self.pending.remove(&id)),
                    Some(Pending::Answered(_)) | None => self.stray_replies_count += 1,
                }
                return;
            }
            Ok(Received::Message(message)) => {
                self.requests_held_bytes += message.held_bytes();
                self.requests.push_back(message);
                return;
            }
            Ok(Received::Interrupted) => return,
            Ok(Received::Closed { in_message: false }) => Ended::ClosedByClient,
            Ok(Received::Closed { in_message: true }) => Ended::ClosedInMessage,
            Ok(Received::Garbled(header)) => Ended::Garbled(header),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ended::Stopped,
            Err(error) => Ended::Failed(error.kind()),
        };
        self.ended.get_or_insert(ended);
    }
}
