//! Serving front-ends on a socket, one after the other.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use longshore_access::Space;
use longshore_access::client::{Listener, Stop};
use longshore_sys::closing::{Disposable, User};
use longshore_sys::descriptors;
use longshore_sys::disposal;
use longshore_sys::event_fd;
use longshore_sys::kept_descriptors;

use crate::backend::{Answer, Backend};
use crate::channel::{self, Message, Receiver};
use crate::device::{Device, Event};
use crate::error::{ConnectionError, MessageError};
use crate::wire::{MessageHeader, Request, number};

/// The reason why a connection ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// The front-end closed it.
    Closed,
    /// The server was stopped.
    Stopped,
    /// The server ended it, for this reason.
    Failed(ConnectionError),
}

impl fmt::Display for DisconnectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed by the front-end"),
            Self::Stopped => f.write_str("stopped"),
            Self::Failed(why) => write!(f, "ended: {why}"),
        }
    }
}

/// A server of a device for front-ends.
#[derive(Debug)]
pub struct Server<D> {
    device: D,
    stop: Stop,
    is_log_left_out: bool,
}

impl<D: Device> Server<D> {
    /// Makes a server of `device`. This raises the soft limit of descriptors of this process
    /// (`RLIMIT_NOFILE`) to the hard limit, because front-ends of one user can have a quarter of them.
    ///
    /// # Errors
    /// Descriptors exhausted; `TimedOut` if another user holds the lock of this process's directory in
    /// `/proc`.
    pub fn new(device: D) -> io::Result<Self> {
        // If this fails, front-ends share the limit as it is.
        let _ = descriptors::raise_limit();
        // Before the first descriptor of a front-end arrives.
        disposal::prepare()?;
        event_fd::prepare();
        Ok(Self { device, stop: Stop::new()?, is_log_left_out: false })
    }

    /// Makes the server accept a dirty log without marking writes in it, which breaks live migration.
    /// This is for tests that show that the log is needed.
    #[must_use]
    pub fn without_dirty_log(self) -> Self {
        Self { is_log_left_out: true, ..self }
    }

    /// Returns a handle that stops the server from another thread.
    pub fn stop_handle(&self) -> Stop {
        self.stop.clone()
    }

    /// Serves one front-end until it disconnects or the server is stopped.
    ///
    /// # Errors
    /// No memory for page tables. Errors of the front-end are in the result instead.
    pub fn serve(&self, socket: &UnixStream) -> io::Result<DisconnectReason> {
        self.device.event(&Event::Connected);
        let space = Space::new().map_err(io::Error::other)?;
        let user = User::of_peer(socket);
        let _socket = kept_descriptors::keep_anyway(user, 1);
        let mut backend = Backend::new(&self.device, space, self.is_log_left_out, user);
        let mut receiver = Receiver::with_sockets(user);
        loop {
            let ended = receiver
                .receive(socket, &self.stop, None)
                .map_err(ConnectionError::from)
                .and_then(|message| self.answer(&mut backend, socket, message));
            match ended {
                Ok(()) => {}
                Err(ConnectionError::Message(MessageError::Closed)) => {
                    return Ok(DisconnectReason::Closed);
                }
                Err(ConnectionError::Message(MessageError::Stopped)) => {
                    return Ok(DisconnectReason::Stopped);
                }
                Err(failure) => {
                    self.device.event(&Event::Refused(&failure));
                    return Ok(DisconnectReason::Failed(failure));
                }
            }
        }
    }

    /// Serves one front-end after the other until the server is stopped, and calls `served` with the
    /// reason why each connection ended. While the process has no descriptors left, front-ends wait. A
    /// waiting front-end that sends descriptors before it is served is disconnected
    /// ([`Listener::serve_each`]).
    ///
    /// Serve users who do not trust each other from a process each: one of them can keep all others
    /// waiting.
    ///
    /// # Errors
    /// Those of `accept(2)`, and of starting a thread.
    pub fn serve_all(
        &self,
        listener: &Listener,
        mut served: impl FnMut(&DisconnectReason),
    ) -> io::Result<()> {
        listener.serve_each(&self.stop, |socket| {
            // Closing the socket also closes the messages queued on it, which can have sockets whose
            // close blocks.
            let socket = Disposable::new(socket);
            let ended = self.serve(&socket);
            let ended = ended.unwrap_or_else(|error| DisconnectReason::Failed(error.into()));
            // It may be closed already.
            let _ = socket.shutdown(Shutdown::Both);
            drop(socket);
            served(&ended);
            Ok(())
        })
    }

    fn answer(
        &self,
        backend: &mut Backend<'_, D>,
        socket: &UnixStream,
        message: Message,
    ) -> Result<(), ConnectionError> {
        let Message { header, payload, descriptors, sockets } = message;
        let request = Request::decode(header.request, &payload)?;
        self.device.event(&Event::Message(&request));
        let wants_done = header.needs_reply && backend.acknowledges();
        let (reply, refused) = match backend.handle(request, descriptors, sockets) {
            Ok(Answer::Payload(payload)) => (Some(payload), None),
            Ok(Answer::Done) => (wants_done.then(|| 0_u64.to_ne_bytes().to_vec()), None),
            // An empty reply tells the front-end that the configuration space cannot be read.
            Err(refusal) if header.request == number::GET_CONFIG => {
                (Some(Vec::new()), Some(refusal))
            }
            Err(refusal) if wants_done && header.request != number::SET_LOG_BASE => {
                (Some(1_u64.to_ne_bytes().to_vec()), Some(refusal))
            }
            // Without a reply, the front-end would go on as if the request had succeeded.
            Err(refusal) => return Err(ConnectionError::Request(refusal)),
        };
        if let Some(refusal) = refused {
            self.device.event(&Event::Refused(&refusal.into()));
        }
        if let Some(payload) = reply {
            let header = MessageHeader::new(header.request, true, false, payload.len());
            channel::send(socket, header, &payload, &self.stop)?;
        }
        Ok(())
    }
}
