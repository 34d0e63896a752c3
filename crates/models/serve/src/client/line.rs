//! A client's connection, with limits on its waits: a server that does not answer, or sends invalid
//! messages, cannot block the client.

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

/// The time for a server to accept.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// The time for a server to answer, or to report progress of a load.
const ANSWER_TIME: Duration = Duration::from_secs(60);
/// The interval at which a cancellation is noticed.
const CANCEL_EVERY: Duration = Duration::from_millis(50);

/// A connection, and the longest wait on it.
#[derive(Debug)]
pub(super) struct Line {
    socket: OwnedFd,
    cancel: CancelToken,
    answer_time: Duration,
    /// The last progress that was reported: loaded bytes, and all bytes.
    heard_bytes: (u64, u64),
}

impl Line {
    /// Connects; waits if the queue of connections is full.
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

    /// Returns a line for an existing connection, on which nothing can be cancelled.
    pub(super) fn of(socket: OwnedFd, answer_time: Duration) -> Self {
        Self { socket, cancel: CancelToken::new(), answer_time, heard_bytes: (0, 0) }
    }

    /// Returns the connection.
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
                    // The server may have sent the reason before it closed.
                    return match self.receive() {
                        Err(refused @ Error::Refused { .. }) => Err(refused),
                        _ => Err(Error::ServerGone),
                    };
                }
                Err(error) => return Err(Error::kernel("sending to the server")(error)),
            }
        }
    }

    /// Returns the next message, with its descriptor. A refusal is an error, and so is the end of the
    /// server.
    pub(super) fn receive(&mut self) -> Result<(Reply, Option<OwnedFd>)> {
        let begin = Instant::now();
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let mut was_reset = false;
        loop {
            // Also checked if messages arrive without a pause.
            self.check_cancelled()?;
            let packet = match packet_socket::receive(&self.socket, &mut bytes) {
                Ok(packet) => packet,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.wait(begin, Watch { fd: self.socket.as_fd(), read: true, write: false })?;
                    continue;
                }
                // A server that closes with requests unread resets the connection. The kernel reports
                // that once; earlier messages of the server can be received after it.
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

    /// Waits a short time for the socket; fails if the client has waited too long.
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
        // The kernel returns the same error for other files.
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
