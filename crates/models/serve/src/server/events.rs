//! The events that a server reports.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use longshore_formats::printable;
use longshore_heap::PageReport;

use crate::error::{Error, with_causes};
use crate::fault::ClientFault;
use crate::peer::Peer;
use crate::reason::Reason;

/// An event of a server. Displayed as one line without control characters.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Models on servers are served. Every process that can connect may attach them with the credentials of
    /// this process. Reported once, at the start.
    RemoteRoots {
        /// The names below which they are, without secrets.
        roots: Vec<PathBuf>,
    },
    /// Clients can connect, and the files of the start are loaded, unless finding or loading them takes
    /// too long ([`ServerProblem::StartFileHangs`], [`ServerProblem::StartLoadSlow`]).
    Ready {
        /// The socket; `None` if a service manager made it.
        socket: Option<PathBuf>,
    },
    /// A load began.
    Loading {
        /// The model's number.
        id: u64,
        /// The user that it is loaded for. The owner stands for a subordinate id.
        uid: u32,
        /// The path by which it was requested.
        path: PathBuf,
        /// The length in bytes.
        len_bytes: u64,
    },
    /// A load is complete.
    Loaded {
        /// The model's number.
        id: u64,
        /// The user that it is loaded for. The owner stands for a subordinate id.
        uid: u32,
        /// The path by which it was requested.
        path: PathBuf,
        /// The length in bytes.
        len_bytes: u64,
        /// The duration of the load.
        elapsed: Duration,
        /// The page sizes of its memory.
        pages: PageReport,
    },
    /// A load failed or was cancelled.
    LoadFailed {
        /// The model's number.
        id: u64,
        /// The user that it is loaded for. The owner stands for a subordinate id.
        uid: u32,
        /// The path by which it was requested.
        path: PathBuf,
        /// The reason.
        why: LoadFailure,
    },
    /// A client was given a model.
    Attached {
        /// The model's number.
        id: u64,
        /// The client.
        peer: Peer,
        /// The number of attachments that the model has now.
        attachments: u32,
    },
    /// A client released a model, or disconnected.
    Released {
        /// The model's number.
        id: u64,
        /// The client.
        peer: Peer,
        /// The number of attachments that the model has now.
        attachments: u32,
    },
    /// The server gave up a model's memory a second ago, but clients keep it by a descriptor. Its bytes
    /// count until it is freed.
    KeptByClients {
        /// The model's number.
        id: u64,
        /// The user by whose path it is known. The owner stands for a subordinate id.
        uid: u32,
        /// The path by which it was requested.
        path: PathBuf,
        /// The length in bytes.
        len_bytes: u64,
    },
    /// A model's memory is free: neither the server nor a client has it.
    Freed {
        /// The model's number.
        id: u64,
        /// The user by whose path it was known. The owner stands for a subordinate id.
        uid: u32,
        /// The path by which it was requested.
        path: PathBuf,
        /// The length in bytes.
        len_bytes: u64,
    },
    /// A request of a client was refused.
    Refused {
        /// The client.
        peer: Peer,
        /// The reason, for programs. The client is sent the same.
        reason: Reason,
        /// The reason as text, for people: the file, the limit and the option that raises it. [`Reason`]
        /// has only the kind of the reason. The text can name files that the client must not learn of.
        message: String,
    },
    /// The server disconnected a client.
    Disconnected {
        /// The client.
        peer: Peer,
        /// The reason.
        why: ClientFault,
    },
    /// The server itself has a problem.
    Trouble {
        /// The problem.
        problem: ServerProblem,
    },
    /// The server stops, and accepts no more clients.
    Stopping,
}

/// The reason why a model is not loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadFailure {
    /// No client waits for the model any longer.
    #[error("no client waits for it any longer")]
    Unwanted,
    /// The load failed. The clients that wait for it are sent the same.
    #[error("{message}")]
    Failed {
        /// The reason, for programs.
        reason: Reason,
        /// The text of the error of the load and of its causes: the file, the range and the error of the
        /// kernel. [`Reason`] has only the kind of the error.
        message: String,
    },
}

/// A problem of the server itself.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerProblem {
    /// Too many connections wait to be closed.
    #[error(
        "too many connections wait to be closed, and until some of them are, no client is accepted"
    )]
    TooManyToClose,
    /// The process has no descriptors left.
    #[error("descriptors are exhausted (ulimit -n)")]
    NoDescriptors,
    /// A file that was named at the start is not found yet. Clients are served meanwhile, and the file is
    /// loaded when it is found.
    #[error(
        "{} was not found in {} s, because its file system does not answer: clients are served without \
         it until then", path.display(), waited.as_secs()
    )]
    StartFileHangs {
        /// The file.
        path: PathBuf,
        /// The time that clients waited for it.
        waited: Duration,
    },
    /// A file of the start is not loaded when the server is ready, because its load is slow or waits for
    /// others. It is loaded later.
    #[error(
        "{} is not loaded yet, because its load is slow or waits for others: clients are served without \
         it until then", path.display()
    )]
    StartLoadSlow {
        /// The file.
        path: PathBuf,
    },
    /// A file that was named at the start cannot be loaded. Clients are served already, so the server
    /// goes on without it.
    #[error("{} is not loaded: {}", path.display(), with_causes(error.as_ref()))]
    StartFileFailed {
        /// The file.
        path: PathBuf,
        /// The error that ends a server which serves no clients yet.
        error: Arc<Error>,
    },
    /// The kernel cannot report when clients release the memory of a model.
    #[error(
        "{} stays in memory, because the kernel does not report when clients release it (the limits \
         are in /proc/sys/fs/inotify): {error}", path.display()
    )]
    CannotWatch {
        /// The file that the model was asked for by.
        path: PathBuf,
        /// The error of the kernel.
        error: Arc<io::Error>,
    },
}

impl Event {
    /// Returns the id of the user that caused it, or `None` if the server did it by itself.
    pub fn uid(&self) -> Option<u32> {
        match self {
            Self::Loading { uid, .. }
            | Self::Loaded { uid, .. }
            | Self::LoadFailed { uid, .. }
            | Self::KeptByClients { uid, .. }
            | Self::Freed { uid, .. } => Some(*uid),
            Self::Attached { peer, .. }
            | Self::Released { peer, .. }
            | Self::Refused { peer, .. }
            | Self::Disconnected { peer, .. } => Some(peer.uid),
            Self::RemoteRoots { .. } | Self::Ready { .. } => None,
            Self::Trouble { .. } | Self::Stopping => None,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = match self {
            Self::RemoteRoots { roots } => {
                let roots: Vec<_> = roots.iter().map(|root| root.display().to_string()).collect();
                format!(
                    "every process that can connect to the socket may attach models from {}, with the \
                     credentials of this server: the permissions of the socket are the only protection",
                    roots.join(", ")
                )
            }
            Self::Ready { socket: Some(socket) } => format!("serving at {}", socket.display()),
            Self::Ready { socket: None } => "serving at the service manager's socket".to_owned(),
            Self::Loading { id, path, len_bytes, .. } => {
                format!("{id}: loading {} ({len_bytes} bytes)", path.display())
            }
            Self::Loaded { id, path, len_bytes, elapsed, pages, .. } => format!(
                "{id}: loaded {} ({len_bytes} bytes) in {:.3} s, {pages} pages",
                path.display(),
                elapsed.as_secs_f64()
            ),
            Self::LoadFailed { id, path, why, .. } => {
                format!("{id}: {} is not loaded: {why}", path.display())
            }
            Self::Attached { id, peer, attachments } => {
                format!("{id}: attached by {}, {attachments} attachments", Shown(*peer))
            }
            Self::Released { id, peer, attachments } => {
                format!("{id}: released by {}, {attachments} attachments", Shown(*peer))
            }
            Self::KeptByClients { id, path, len_bytes, .. } => {
                format!("{id}: clients keep {} ({len_bytes} bytes)", path.display())
            }
            Self::Freed { id, path, len_bytes, .. } => {
                format!("{id}: freed {} ({len_bytes} bytes)", path.display())
            }
            Self::Refused { peer, message, .. } => format!("refused {}: {message}", Shown(*peer)),
            Self::Disconnected { peer, why } => {
                format!("disconnected {}: {why}", Shown(*peer))
            }
            Self::Trouble { problem } => problem.to_string(),
            Self::Stopping => "stopping".to_owned(),
        };
        f.write_str(&printable(&line))
    }
}

struct Shown(Peer);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of user {}", self.0.pid, self.0.uid)
    }
}
