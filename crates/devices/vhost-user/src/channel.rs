//! Messages and their descriptors over a Unix socket, in both directions.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use longshore_access::client::Stop;
use longshore_sys::closing::{self, Disposable, User};
use longshore_sys::unix_socket::{self, Interest, Ready};

use crate::error::MessageError;
use crate::wire::{HEADER_LEN_BYTES, MessageHeader};

/// The time for a peer to receive a message.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for a peer to send the rest of a message. Meanwhile the descriptors that arrived with its
/// beginning are open, and the peer's own end can be one of them: without a limit it would keep itself
/// open.
const REST_TIMEOUT: Duration = Duration::from_secs(5);

/// A whole message.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) header: MessageHeader,
    pub(crate) payload: Vec<u8>,
    pub(crate) descriptors: Vec<Disposable<OwnedFd>>,
    /// Descriptors that are Unix sockets.
    pub(crate) sockets: Vec<Disposable<UnixStream>>,
}

/// Reads messages from a socket, never a byte of the next message together with one. If a wait ends
/// early, the received part of a message is kept.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// The user for whom received descriptors are counted.
    user: User,
    bytes: Vec<u8>,
    descriptors: Vec<Disposable<OwnedFd>>,
    sockets: Vec<Disposable<UnixStream>>,
    takes_sockets: bool,
    is_shared: bool,
}

/// The most descriptors that a message has: one for each region of a memory table.
const DESCRIPTORS_MAX: usize = 8;

impl Receiver {
    pub(crate) fn new(user: User) -> Self {
        let (bytes, descriptors, sockets) = Default::default();
        Self { user, bytes, descriptors, sockets, takes_sockets: false, is_shared: false }
    }

    /// Makes a receiver that also accepts Unix sockets among the descriptors.
    pub(crate) fn with_sockets(user: User) -> Self {
        Self { takes_sockets: true, ..Self::new(user) }
    }

    /// Makes a receiver for a socket of which the peer has a duplicate. The peer can set options of the
    /// socket, too, and can hide queued descriptors from a peek. So nothing is received while
    /// descriptors of this user cannot be closed.
    pub(crate) fn of_shared(user: User) -> Self {
        Self { is_shared: true, ..Self::new(user) }
    }

    pub(crate) fn receive(
        &mut self,
        socket: &UnixStream,
        stop: &Stop,
        deadline: Option<Instant>,
    ) -> Result<Message, MessageError> {
        let mut rest_deadline = None;
        loop {
            let header = match self.bytes.first_chunk::<HEADER_LEN_BYTES>() {
                Some(header) => Some(MessageHeader::decode(*header)?),
                None => None,
            };
            let payload_bytes = header.map_or(0, |header| header.len_bytes as usize);
            let wanted = HEADER_LEN_BYTES + payload_bytes;
            if let Some(header) = header.filter(|_| self.bytes.len() == wanted) {
                let payload = self.bytes[HEADER_LEN_BYTES..].to_owned();
                self.bytes.clear();
                let descriptors = std::mem::take(&mut self.descriptors);
                let sockets = std::mem::take(&mut self.sockets);
                return Ok(Message { header, payload, descriptors, sockets });
            }
            let deadline = match self.bytes.is_empty() {
                true => deadline,
                false => Some(*rest_deadline.get_or_insert_with(|| Instant::now() + REST_TIMEOUT)),
            };
            self.take(socket, wanted - self.bytes.len(), stop, deadline)?;
        }
    }

    /// Receives at least one byte and at most `len_bytes`.
    fn take(
        &mut self,
        socket: &UnixStream,
        len_bytes: usize,
        stop: &Stop,
        deadline: Option<Instant>,
    ) -> Result<(), MessageError> {
        if self.is_shared && !closing::may_receive(self.user) {
            wait(socket, Interest::Receive, stop, deadline)?;
            if !closing::catch_up(self.user) {
                return Err(closing::too_many_closing().into());
            }
        }
        let have_bytes = self.bytes.len();
        self.bytes.resize(have_bytes + len_bytes, 0);
        let into = &mut self.bytes[have_bytes..];
        let sockets = self.takes_sockets.then_some(&mut self.sockets);
        let descriptors = &mut self.descriptors;
        let received = unix_socket::receive(socket, self.user, into, descriptors, sockets);
        let taken = received.as_ref().map_or(0, |received| received.len_bytes);
        self.bytes.truncate(have_bytes + taken);
        match received {
            // Each byte of a message may bring more descriptors.
            Ok(received)
                if received.descriptors_lost
                    || self.descriptors.len() + self.sockets.len() > DESCRIPTORS_MAX =>
            {
                Err(MessageError::DescriptorsLost)
            }
            Ok(_) if taken > 0 => Ok(()),
            Ok(_) if have_bytes == 0 => Err(MessageError::Closed),
            Ok(_) => Err(MessageError::ClosedInMessage),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait(socket, Interest::Receive, stop, deadline)
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                Err(MessageError::Closed)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Sends a whole message.
pub(crate) fn send(
    socket: &UnixStream,
    header: MessageHeader,
    payload: &[u8],
    stop: &Stop,
) -> Result<(), MessageError> {
    let mut bytes = header.encode().to_vec();
    bytes.extend_from_slice(payload);
    let deadline = Some(Instant::now() + SEND_TIMEOUT);
    let mut sent = 0;
    while sent < bytes.len() {
        match unix_socket::send(socket, &bytes[sent..], &[]) {
            Ok(more) => sent += more,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait(socket, Interest::Send, stop, deadline)?;
            }
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                return Err(MessageError::Closed);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn wait(
    socket: &UnixStream,
    interest: Interest,
    stop: &Stop,
    deadline: Option<Instant>,
) -> Result<(), MessageError> {
    match unix_socket::wait(socket.as_fd(), interest, &[stop.as_fd()], deadline)? {
        Ready::Socket => Ok(()),
        Ready::Event(_) => Err(MessageError::Stopped),
        Ready::TimedOut => Err(MessageError::TimedOut),
    }
}
