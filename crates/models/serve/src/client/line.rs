//! What a client says to a server, and what it hears from it: a server that does not answer, or says
//! what makes no sense, holds nobody up.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use longshore_formats::printable;
use longshore_load::CancelToken;
use longshore_sys::packet_socket;
use longshore_sys::readiness::{self, Watch};

use crate::address::described;
use crate::error::{Error, Result};
use crate::fault::{NoServerCause, ServerFault};
use crate::protocol::{MESSAGE_BYTES_MAX, Reply, Request};

/// How long a server may take to accept.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// How long it may take to answer, or to say how far a load has come.
const ANSWER_TIME: Duration = Duration::from_secs(60);
/// How often a cancellation is looked for.
const CANCEL_EVERY: Duration = Duration::from_millis(50);

/// A connection, and how long anything is waited for on it.
#[derive(Debug)]
pub(super) struct Line {
    socket: OwnedFd,
    cancel: CancelToken,
    answer_time: Duration,
    /// How far the load has come, of which there was news: done and in all.
    heard_bytes: (u64, u64),
}

impl Line {
    /// Connects, and waits where too many others wait to be accepted.
    pub(super) fn connect(socket: &Path, cancel: &CancelToken) -> Result<Self> {
        let begin = Instant::now();
        loop {
            match packet_socket::connect(socket) {
                Ok(connected) => {
                    return Ok(Self {
                        socket: connected,
                        cancel: cancel.clone(),
                        answer_time: ANSWER_TIME,
                        heard_bytes: (0, 0),
                    });
                }
                Err(error)
                    if error.kind() == ErrorKind::WouldBlock && begin.elapsed() < CONNECT_TIME =>
                {
                    if cancel.is_cancelled() {
                        return Err(Error::Cancelled { done_bytes: 0, total_bytes: 0 });
                    }
                    thread::sleep(Duration::from_millis(2));
                }
                Err(error) => return Err(unreachable_by(socket, error)),
            }
        }
    }

    /// A connection that is there already, on which nothing can be cancelled.
    pub(super) fn of(socket: OwnedFd, answer_time: Duration) -> Self {
        Self { socket, cancel: CancelToken::new(), answer_time, heard_bytes: (0, 0) }
    }

    /// Takes the connection out.
    pub(super) fn end(self) -> OwnedFd {
        self.socket
    }

    pub(super) fn send(&mut self, request: &Request, file: Option<BorrowedFd<'_>>) -> Result<()> {
        let begin = Instant::now();
        loop {
            match packet_socket::send(&self.socket, &request.encode(), file) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.wait(begin, Watch { fd: self.socket.as_fd(), read: false, write: true })?;
                }
                Err(error) if is_gone(&error) => {
                    // It may have said why before it went.
                    return match self.receive() {
                        Err(refused @ Error::Refused { .. }) => Err(refused),
                        _ => Err(Error::ServerGone),
                    };
                }
                Err(error) => return Err(Error::kernel("sending to the server")(error)),
            }
        }
    }

    /// The next message, with its descriptor. A refusal is an error, and so is the server's end.
    pub(super) fn receive(&mut self) -> Result<(Reply, Option<OwnedFd>)> {
        let begin = Instant::now();
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let mut was_reset = false;
        loop {
            // Also where there is always something to be heard.
            self.check_cancelled()?;
            let packet = match packet_socket::receive(&self.socket, &mut bytes) {
                Ok(packet) => packet,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.wait(begin, Watch { fd: self.socket.as_fd(), read: true, write: false })?;
                    continue;
                }
                // A server that goes without having read all resets the connection: that is told
                // once, and behind it is what it said before.
                Err(error) if is_gone(&error) && !was_reset => {
                    was_reset = true;
                    continue;
                }
                Err(error) if is_gone(&error) => return Err(Error::ServerGone),
                Err(error) => return Err(Error::kernel("receiving from the server")(error)),
            };
            if packet.len_bytes == 0 {
                return Err(Error::ServerGone);
            }
            if packet.is_too_long || packet.descriptors_lost || packet.descriptors.len() > 1 {
                return Err(ServerFault::MessageTooLong.into());
            }
            let reply =
                Reply::decode(&bytes[..packet.len_bytes]).map_err(ServerFault::Malformed)?;
            return match reply {
                Reply::Refused { reason, message } => {
                    Err(Error::Refused { reason, message: printable(&message).into_owned() })
                }
                Reply::Closing => Err(Error::ServerGone),
                reply => {
                    if let Reply::Progress { done_bytes, total_bytes, .. } = reply {
                        self.heard_bytes = (done_bytes, total_bytes);
                    }
                    Ok((reply, packet.descriptors.into_iter().next()))
                }
            };
        }
    }

    /// Waits a little for the socket; not at all where it was waited for too long.
    fn wait(&self, since: Instant, watch: Watch<'_>) -> Result<()> {
        self.check_cancelled()?;
        if since.elapsed() > self.answer_time {
            return Err(Error::TimedOut { seconds: self.answer_time.as_secs() });
        }
        let deadline = Some(Instant::now() + CANCEL_EVERY);
        readiness::wait(&[watch], deadline).map_err(Error::kernel("waiting"))?;
        Ok(())
    }

    fn check_cancelled(&self) -> Result<()> {
        let (done_bytes, total_bytes) = self.heard_bytes;
        match self.cancel.is_cancelled() {
            true => Err(Error::Cancelled { done_bytes, total_bytes }),
            false => Ok(()),
        }
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn unreachable_by(socket: &Path, source: io::Error) -> Error {
    let socket = socket.to_owned();
    let cause = match source.kind() {
        ErrorKind::PermissionDenied => return Error::SocketDenied { socket, source },
        ErrorKind::NotFound | ErrorKind::NotADirectory => NoServerCause::NoSocket,
        // The kernel says the same of other files.
        ErrorKind::ConnectionRefused => match fs::metadata(&socket) {
            Ok(there) if !there.file_type().is_socket() => {
                NoServerCause::NotASocket { kind: described(there.file_type()) }
            }
            _ => NoServerCause::Killed,
        },
        ErrorKind::WouldBlock => NoServerCause::Busy,
        ErrorKind::InvalidFilename => NoServerCause::PathTooLong,
        _ => NoServerCause::OtherSocket,
    };
    Error::NoServer { socket, cause, source }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::NotConnected
    )
}
