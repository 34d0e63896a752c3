//! A connection, shared by the thread that serves the client and threads of the device that send
//! commands to it.
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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use longshore_access::client::Stop;
use longshore_mem::Iova;
use longshore_sys::account::Permit;
use longshore_sys::closing::{Disposable, User};
use longshore_sys::event_fd;
use longshore_sys::in_flight::Stream;
use longshore_sys::unix_socket::{self, Interest, Ready};
use longshore_sys::{kept_descriptors, packet_socket};

use crate::Errno;
use crate::interrupts::Interrupts;
use crate::mailbox::{Came, Letter, Mailbox, NothingCame};
use crate::negotiation::Capabilities;
use crate::receiver::{Message, Received, Receiver};
use crate::wire::{Command, DmaAccess, MessageHeader};

/// The default limit for a client to answer all messages of an access, or to receive a message.
pub const REPLY_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// The interval at which a thread that sends a descriptor checks whether the client has received
/// everything before.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The connection from a device to its client, for memory without a descriptor and for interrupts.
///
/// Clones are handles of the same link. All methods may be called from any thread. They fail when the
/// client has disconnected; for the next client, a device gets another link.
#[derive(Clone)]
pub struct Link(Arc<Shared>);

struct Shared {
    /// The last close also closes the messages queued on it, which can have sockets whose close blocks.
    stream: Stream,
    /// Wakes the thread that reads the socket, so that it checks the mailbox again.
    waker: OwnedFd,
    stop: Stop,
    sending: Mutex<()>,
    mailbox: Mailbox<Message, DisconnectReason>,
    /// Locked only by the thread that reads for the mailbox.
    receiver: Mutex<Receiver>,
    server_thread: ThreadId,
    reply_timeout: Duration,
    interrupts: Interrupts,
    /// Counts the socket and the eventfd for the user at the other end.
    _permit: Permit,
}

/// The reason why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// The client closed its end.
    ClosedByClient,
    /// The client closed its end in the middle of a message.
    ClosedInMessage,
    /// The client sent bytes that are not a message.
    Malformed(MessageHeader),
    /// The client did not receive a message within the time allowed.
    SendTimedOut,
    /// The server was [stopped](Stop::stop).
    Stopped,
    /// The socket failed.
    Io(io::ErrorKind),
}

/// The error of an access to the client's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaError {
    /// The number of bytes that were accessed, from the first.
    pub done_bytes: usize,
    /// The reason why the access ended there.
    pub kind: DmaErrorKind,
}

/// The reason why an access to the client's memory failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DmaErrorKind {
    /// The client refused, or its reply was not valid.
    Refused(Errno),
    /// The client did not answer in time.
    TimedOut,
    /// [`Link::cancel`] ended it.
    Cancelled,
    /// The client has disconnected, or has not yet negotiated its capabilities.
    Disconnected,
    /// The client has sent more commands meanwhile than the server can queue.
    TooManyCommands,
}

impl fmt::Display for DmaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.kind {
            DmaErrorKind::Refused(errno) => {
                return write!(f, "{errno}, after {} bytes", self.done_bytes);
            }
            DmaErrorKind::TimedOut => "the client did not answer in time",
            DmaErrorKind::Cancelled => "the access was cancelled",
            DmaErrorKind::Disconnected => "the client is not connected",
            DmaErrorKind::TooManyCommands => "the client sends more commands than can be queued",
        };
        write!(f, "access to the client's memory failed after {} bytes: {why}", self.done_bytes)
    }
}

impl std::error::Error for DmaError {}

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
            stream: Stream::new(stream),
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

    /// Returns the device's interrupts.
    pub fn interrupts(&self) -> &Interrupts {
        &self.0.interrupts
    }

    /// Reads the client's memory at `iova`, by as many messages as needed.
    ///
    /// # Errors
    /// See [`DmaErrorKind`]. The bytes before the failure were read.
    pub fn read(&self, iova: Iova, into: &mut [u8]) -> Result<(), DmaError> {
        self.access(iova, into.len(), |at, len_bytes, deadline| {
            let part = &mut into[at..at + len_bytes];
            let asked =
                DmaAccess { iova: iova.raw() + at as u64, count: len_bytes as u64, data: &[] };
            let reply = self.request(Command::DmaRead, &asked, deadline)?;
            let got = DmaAccess::parse(&reply.payload).map_err(DmaErrorKind::Refused)?;
            let is_right = got.data.len() as u64 == got.count && got.count <= asked.count;
            if !is_right || got.data.is_empty() {
                return Err(DmaErrorKind::Refused(Errno::EINVAL));
            }
            part[..got.data.len()].copy_from_slice(got.data);
            Ok(got.data.len())
        })
    }

    /// Writes the client's memory at `iova`, by as many messages as needed.
    ///
    /// # Errors
    /// See [`DmaErrorKind`]. The bytes before the failure were written. If the failed message timed out
    /// or was cancelled, its bytes may or may not have been written.
    pub fn write(&self, iova: Iova, from: &[u8]) -> Result<(), DmaError> {
        self.access(iova, from.len(), |at, len_bytes, deadline| {
            let data = &from[at..at + len_bytes];
            let asked = DmaAccess { iova: iova.raw() + at as u64, count: len_bytes as u64, data };
            let reply = self.request(Command::DmaWrite, &asked, deadline)?;
            // QEMU's reply has no payload.
            if reply.payload.is_empty() {
                return Ok(len_bytes);
            }
            let got = DmaAccess::parse(&reply.payload).map_err(DmaErrorKind::Refused)?;
            match usize::try_from(got.count) {
                Ok(done) if done > 0 && done <= len_bytes => Ok(done),
                _ => Err(DmaErrorKind::Refused(Errno::EINVAL)),
            }
        })
    }

    /// Cancels every read and write that waits for a reply about any part of `range`: each fails with
    /// [`DmaErrorKind::Cancelled`]. Returns their number.
    pub fn cancel(&self, range: &Range<u64>) -> usize {
        let cancelled = self.0.mailbox.inbox().cancel(range);
        if cancelled > 0 {
            self.wake();
        }
        cancelled
    }

    /// Returns the user at the other end, for whom resources of this process are counted.
    pub(crate) fn user(&self) -> User {
        self.0.stream.user()
    }

    /// Returns `true` until the end of the connection has been noticed.
    pub fn is_connected(&self) -> bool {
        self.0.mailbox.inbox().ended.is_none()
    }

    /// Calls `part` until all bytes are done. All messages of an access have one deadline: a client that
    /// answers each with one byte cannot extend it.
    fn access(
        &self,
        iova: Iova,
        len_bytes: usize,
        mut part: impl FnMut(usize, usize, Instant) -> Result<usize, DmaErrorKind>,
    ) -> Result<(), DmaError> {
        let deadline = Instant::now() + self.0.reply_timeout;
        let mut done_bytes = 0;
        let failed = |done_bytes, kind| Err(DmaError { done_bytes, kind });
        if iova.checked_add(len_bytes as u64).is_none() {
            return failed(0, DmaErrorKind::Refused(Errno::EFAULT));
        }
        let transfer_bytes_max = self.0.mailbox.inbox().transfer_bytes_max as usize;
        if transfer_bytes_max == 0 {
            return failed(0, DmaErrorKind::Disconnected);
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

    /// Sends a command and waits for its reply. Sends nothing after the deadline.
    fn request(
        &self,
        command: Command,
        asked: &DmaAccess<'_>,
        deadline: Instant,
    ) -> Result<Message, DmaErrorKind> {
        if Instant::now() >= deadline {
            return Err(DmaErrorKind::TimedOut);
        }
        let payload = asked.encode();
        let range = asked.iova..asked.iova.saturating_add(asked.count);
        let id = {
            let mut inbox = self.0.mailbox.inbox();
            if inbox.ended.is_some() {
                return Err(DmaErrorKind::Disconnected);
            }
            inbox.enter(range).ok_or(DmaErrorKind::TooManyCommands)?
        };
        let header = MessageHeader::command(id, command, payload.len()).encode();
        if self.send(&[&header[..], &payload].concat()).is_err() {
            self.0.mailbox.inbox().forget(id);
            return Err(DmaErrorKind::Disconnected);
        }
        let makes_room = thread::current().id() == self.0.server_thread;
        let read = || self.came(Some(deadline));
        match self.0.mailbox.answer(id, Some(deadline), makes_room, read) {
            Ok(Some(reply)) => match reply.header.error() {
                None if reply.header.command == command.number() && !reply.is_too_long => Ok(reply),
                None => Err(DmaErrorKind::Refused(Errno::EINVAL)),
                Some(0) => Err(DmaErrorKind::Refused(Errno::EIO)),
                Some(errno) => Err(DmaErrorKind::Refused(Errno::from_raw(errno))),
            },
            Ok(None) => Err(DmaErrorKind::Cancelled),
            Err(NothingCame::TimedOut) => Err(DmaErrorKind::TimedOut),
            Err(NothingCame::Ended) => Err(DmaErrorKind::Disconnected),
            Err(NothingCame::Flooded) => Err(DmaErrorKind::TooManyCommands),
        }
    }

    /// Returns the next command of the client, in the order of arrival. Called on the server's thread.
    pub(crate) fn next_request(&self) -> Result<Message, DisconnectReason> {
        let mailbox = &self.0.mailbox;
        let came = mailbox.request(|| self.came(None));
        came.map_err(|_| mailbox.inbox().ended.clone().unwrap_or(DisconnectReason::Stopped))
    }

    /// Reads the socket.
    fn came(&self, deadline: Option<Instant>) -> Came<Message, DisconnectReason> {
        Came::End(match self.receive(deadline) {
            Ok(Received::Message(message)) => return Came::Message(message),
            Ok(Received::Interrupted) => return Came::Nothing,
            Ok(Received::Closed { in_message: false }) => DisconnectReason::ClosedByClient,
            Ok(Received::Closed { in_message: true }) => DisconnectReason::ClosedInMessage,
            Ok(Received::Garbled(header)) => DisconnectReason::Malformed(header),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => DisconnectReason::Stopped,
            Err(error) => DisconnectReason::Io(error.kind()),
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

    /// Sends a whole message. If that fails, the connection ends.
    pub(crate) fn send(&self, bytes: &[u8]) -> Result<(), DisconnectReason> {
        self.or_end(self.send_locked(bytes))
    }

    /// Sends a whole message with a descriptor, after the client has received everything that was sent
    /// before. Returns `false` without sending anything if too many descriptors are in flight. If
    /// sending fails, the connection ends.
    pub(crate) fn send_with(
        &self,
        bytes: &[u8],
        file: BorrowedFd<'_>,
    ) -> Result<bool, DisconnectReason> {
        self.or_end(self.try_send_with(bytes, file))
    }

    fn or_end<T>(&self, sent: Result<T, DisconnectReason>) -> Result<T, DisconnectReason> {
        if let Err(ended) = &sent {
            self.end(ended.clone());
        }
        sent
    }

    /// Waits until no other thread sends.
    fn lock_sending(&self) -> Result<MutexGuard<'_, ()>, DisconnectReason> {
        let one_at_a_time = self.0.sending.lock().unwrap_or_else(PoisonError::into_inner);
        match &self.0.mailbox.inbox().ended {
            Some(ended) => Err(ended.clone()),
            None => Ok(one_at_a_time),
        }
    }

    fn send_locked(&self, bytes: &[u8]) -> Result<(), DisconnectReason> {
        let _one_at_a_time = self.lock_sending()?;
        self.send_all(bytes)
    }

    fn try_send_with(&self, bytes: &[u8], file: BorrowedFd<'_>) -> Result<bool, DisconnectReason> {
        let shared = &*self.0;
        let deadline = Instant::now() + shared.reply_timeout;
        loop {
            let one_at_a_time = self.lock_sending()?;
            match shared.stream.send(bytes, &[file]) {
                Ok(sent) => return self.send_all(&bytes[sent..]).map(|()| true),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => return Ok(false),
                Err(error) if packet_socket::has_too_many_in_flight(&error) => return Ok(false),
                Err(error) => return Err(send_failure(&error)),
            }
            drop(one_at_a_time);
            let now = Instant::now();
            if now >= deadline {
                return Err(DisconnectReason::SendTimedOut);
            }
            // The kernel reports nothing when the client has received everything.
            let look = Some(now + LOOK_EVERY);
            match unix_socket::wait(shared.stop.as_fd(), Interest::Receive, &[], look) {
                Ok(Ready::TimedOut) => {}
                Ok(_) => return Err(DisconnectReason::Stopped),
                Err(error) => return Err(DisconnectReason::Io(error.kind())),
            }
        }
    }

    fn send_all(&self, mut bytes: &[u8]) -> Result<(), DisconnectReason> {
        let shared = &*self.0;
        let deadline = Instant::now() + shared.reply_timeout;
        while !bytes.is_empty() {
            match unix_socket::send(&**shared.stream, bytes, &[]) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let socket = shared.stream.as_fd();
                    let stop = [shared.stop.as_fd()];
                    match unix_socket::wait(socket, Interest::Send, &stop, Some(deadline)) {
                        Ok(Ready::Socket) => {}
                        Ok(Ready::Event(_)) => return Err(DisconnectReason::Stopped),
                        Ok(Ready::TimedOut) => return Err(DisconnectReason::SendTimedOut),
                        Err(error) => return Err(DisconnectReason::Io(error.kind())),
                    }
                }
                Err(error) => return Err(send_failure(&error)),
            }
        }
        Ok(())
    }

    /// Sets the largest transfer from the client's capabilities. Before that, no commands are sent to
    /// it.
    pub(crate) fn negotiate(&self, client: &Capabilities, ours: &Capabilities) {
        let transfer_bytes_max = client.transfer_bytes_max.min(ours.transfer_bytes_max);
        self.0.mailbox.inbox().transfer_bytes_max = transfer_bytes_max;
    }

    /// Ends the connection, unless it has ended, and releases all threads that wait for the client.
    pub(crate) fn end(&self, why: DisconnectReason) {
        let mut inbox = self.0.mailbox.inbox();
        inbox.ended.get_or_insert(why);
        inbox.forget_requests();
        drop(inbox);
        // It may be closed already.
        let _ = self.0.stream.shutdown(Shutdown::Both);
        self.wake();
    }

    /// Returns the number of replies that matched no command.
    pub(crate) fn stray_replies_count(&self) -> u64 {
        self.0.mailbox.inbox().stray_replies_count
    }

    fn wake(&self) {
        // Signalling an eventfd fails only if it is full, and then it wakes the thread, too.
        let _ = event_fd::signal(&self.0.waker);
        self.0.mailbox.notify();
    }

    fn events(&self) -> [BorrowedFd<'_>; 2] {
        [self.0.waker.as_fd(), self.0.stop.as_fd()]
    }
}

fn send_failure(error: &io::Error) -> DisconnectReason {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
            DisconnectReason::ClosedByClient
        }
        kind => DisconnectReason::Io(kind),
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
        self.files.fds.len()
    }
}
