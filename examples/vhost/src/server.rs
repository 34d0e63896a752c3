//! The socket: one front-end after the other.

use std::fmt;
use std::fs;
use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_access::Space;
use longshore_sys::closing::{Disposable, User};
use longshore_sys::descriptors;
use longshore_sys::disposal;
use longshore_sys::kept_descriptors;
use longshore_sys::unix_socket::{self, Interest, Ready};

use crate::backend::{Answer, Backend, Refusal};
use crate::channel::{self, Message, NoMessage, Receiver};
use crate::disk::Disk;
use crate::stop::Stop;
use crate::trace::Counts;
use crate::wire::{Header, Malformed, Request, number};

/// How a connection ended.
#[derive(Debug)]
pub enum Ended {
    /// The front-end closed it.
    Closed,
    /// The server was stopped.
    Stopped,
    /// What came cannot be gone on from; and why.
    Failed(String),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed by the front-end"),
            Self::Stopped => f.write_str("stopped"),
            Self::Failed(why) => write!(f, "ended: {why}"),
        }
    }
}

/// Serves a disk.
#[derive(Debug)]
pub struct Server {
    disk: Arc<Disk>,
    counts: Counts,
    stop: Stop,
    is_log_left_out: bool,
}

impl Server {
    /// A server of `disk`, which counts what it does. It raises the soft limit of descriptors of this
    /// process to the hard one, because front-ends of one user can have a quarter of them.
    ///
    /// # Errors
    /// Descriptors exhausted.
    pub fn new(disk: Disk, counts: Counts) -> io::Result<Self> {
        // Where this is refused, front-ends can have a part of the limit that there is.
        let _ = descriptors::raise_limit();
        // Before there is a descriptor of a front-end.
        disposal::prepare();
        Ok(Self { disk: Arc::new(disk), counts, stop: Stop::new()?, is_log_left_out: false })
    }

    /// The same, that takes a dirty log and marks nothing in it: a machine that is migrated breaks.
    /// For the test that shows it.
    #[must_use]
    pub fn leaving_out_the_log(self) -> Self {
        Self { is_log_left_out: true, ..self }
    }

    /// Ends the server.
    pub fn stop_handle(&self) -> Stop {
        self.stop.clone()
    }

    /// Serves one front-end until it is gone.
    ///
    /// # Errors
    /// No page tables to be had, or no socket that works; what the front-end does is none.
    pub fn serve(&self, socket: &UnixStream) -> io::Result<Ended> {
        self.counts.client();
        let space = Space::new().map_err(io::Error::other)?;
        let (disk, counts) = (Arc::clone(&self.disk), self.counts.clone());
        let user = User::of_peer(socket);
        let _socket = kept_descriptors::keep_anyway(user, 1);
        let mut backend = Backend::new(space, disk, counts, self.is_log_left_out, user);
        let mut receiver = Receiver::with_sockets(user);
        loop {
            let ended = receiver
                .receive(socket, &self.stop, None)
                .map_err(Failure::from)
                .and_then(|message| self.answer(&mut backend, socket, message));
            match ended {
                Ok(()) => {}
                Err(Failure::NoMessage(NoMessage::Closed)) => return Ok(Ended::Closed),
                Err(Failure::NoMessage(NoMessage::Stopped)) => return Ok(Ended::Stopped),
                Err(failure) => {
                    self.counts.refused(&failure);
                    return Ok(Ended::Failed(failure.to_string()));
                }
            }
        }
    }

    /// Serves one front-end after the other until the server is stopped, and calls `served` with how each
    /// ended. While the process has no descriptors left, front-ends wait.
    ///
    /// # Errors
    /// Those of `accept(2)`.
    pub fn serve_all(&self, listener: &Listener, mut served: impl FnMut(&Ended)) -> io::Result<()> {
        while let Some(socket) = listener.accept(&self.stop)? {
            // Closing it also closes what is queued on it, which can be sockets that linger.
            let socket = Disposable::new(socket);
            let ended = self.serve(&socket);
            let ended = ended.unwrap_or_else(|error| Ended::Failed(error.to_string()));
            // It may be closed already.
            let _ = socket.shutdown(Shutdown::Both);
            drop(socket);
            served(&ended);
        }
        Ok(())
    }

    fn answer(
        &self,
        backend: &mut Backend,
        socket: &UnixStream,
        message: Message,
    ) -> Result<(), Failure> {
        let Message { header, payload, descriptors, sockets } = message;
        let request = Request::decode(header.request, &payload).map_err(NoMessage::from)?;
        self.counts.message(&request);
        let wants_done = header.needs_reply && backend.acknowledges();
        let (reply, refused) = match backend.handle(request, descriptors, sockets) {
            Ok(Answer::Payload(payload)) => (Some(payload), None),
            Ok(Answer::Done) => (wants_done.then(|| 0_u64.to_ne_bytes().to_vec()), None),
            // No configuration space is as long as nothing.
            Err(refusal) if header.request == number::GET_CONFIG => {
                (Some(Vec::new()), Some(refusal))
            }
            Err(refusal) if wants_done && header.request != number::SET_LOG_BASE => {
                (Some(1_u64.to_ne_bytes().to_vec()), Some(refusal))
            }
            // It would go on as if it were done.
            Err(refusal) => return Err(Failure::Refused(refusal)),
        };
        if let Some(refusal) = refused {
            self.counts.refused(&refusal);
        }
        if let Some(payload) = reply {
            let header = Header::new(header.request, true, false, payload.len());
            channel::send(socket, header, &payload, &self.stop)?;
        }
        Ok(())
    }
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    NoMessage(#[from] NoMessage),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl From<Malformed> for Failure {
    fn from(malformed: Malformed) -> Self {
        Self::NoMessage(malformed.into())
    }
}

/// A Unix socket that front-ends connect to. Its name is removed when it is dropped.
#[derive(Debug)]
pub struct Listener {
    /// Its close also closes the connections that were not accepted, with what is queued on them.
    listener: Disposable<UnixListener>,
    path: PathBuf,
}

impl Listener {
    /// Makes a socket at `path`. A socket that is there and that nobody listens on is replaced.
    ///
    /// # Errors
    /// Those of `bind(2)`: `AddrInUse` where someone listens, or something else is there.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let bound = UnixListener::bind(path).or_else(|error| {
            let is_socket = fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
            let is_deaf = || {
                let tried = UnixStream::connect(path);
                tried.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
            };
            if error.kind() != io::ErrorKind::AddrInUse || !is_socket || !is_deaf() {
                return Err(error);
            }
            fs::remove_file(path)?;
            UnixListener::bind(path)
        })?;
        bound.set_nonblocking(true)?;
        Ok(Self { listener: Disposable::new(bound), path: path.to_owned() })
    }

    /// The next front-end; `None` when `stop` is used. While the process has no descriptors left,
    /// front-ends wait.
    fn accept(&self, stop: &Stop) -> io::Result<Option<UnixStream>> {
        loop {
            if stop.is_stopped() {
                return Ok(None);
            }
            match self.listener.accept() {
                Ok((socket, _)) => return Ok(Some(socket)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // It was gone before it was here.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) if unix_socket::is_for_now(&error) => {
                    let later = Some(Instant::now() + Duration::from_millis(100));
                    unix_socket::wait(stop.as_fd(), Interest::Receive, &[], later)?;
                    continue;
                }
                Err(error) => return Err(error),
            }
            let listener = self.listener.as_fd();
            if let Ready::Event(_) =
                unix_socket::wait(listener, Interest::Receive, &[stop.as_fd()], None)?
            {
                return Ok(None);
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
