//! What a server tells of itself.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use longshore_formats::printable;

use crate::peer::Peer;

/// Something that happened. Shown as one line without control characters.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Clients can connect, and what was named at the start is loaded.
    Ready {
        /// The socket; `None` where a service manager made it.
        socket: Option<PathBuf>,
    },
    /// A load began.
    Loading {
        /// The model's number.
        id: u64,
        /// The file it was asked for by.
        path: PathBuf,
        /// How long it is.
        len_bytes: u64,
    },
    /// A load is complete.
    Loaded {
        /// The model's number.
        id: u64,
        /// The file it was asked for by.
        path: PathBuf,
        /// How long it is.
        len_bytes: u64,
        /// How long it took.
        elapsed: Duration,
        /// In which pages it came out.
        pages: String,
    },
    /// A load failed, or nobody wanted it any longer.
    LoadFailed {
        /// The model's number.
        id: u64,
        /// The file it was asked for by.
        path: PathBuf,
        /// Why.
        message: String,
    },
    /// A client was given a model.
    Attached {
        /// The model's number.
        id: u64,
        /// The client.
        peer: Peer,
        /// How many attachments it has now.
        attachments: u32,
    },
    /// A client gave it back, or is gone.
    Released {
        /// The model's number.
        id: u64,
        /// The client.
        peer: Peer,
        /// How many attachments it has now.
        attachments: u32,
    },
    /// The server gave a model's memory up a second ago, but clients keep it by a descriptor. Its bytes
    /// count until it is freed.
    KeptByClients {
        /// The model's number.
        id: u64,
        /// The file it was asked for by.
        path: PathBuf,
        /// How long it is.
        len_bytes: u64,
    },
    /// A model's memory is free: neither the server nor a client has it.
    Freed {
        /// The model's number.
        id: u64,
        /// The file it was asked for by.
        path: PathBuf,
        /// How long it was.
        len_bytes: u64,
    },
    /// A client was told no.
    Refused {
        /// The client.
        peer: Peer,
        /// Why.
        message: String,
    },
    /// A client was disconnected.
    Disconnected {
        /// The client.
        peer: Peer,
        /// Why.
        why: String,
    },
    /// The server itself lacks something.
    Trouble {
        /// What.
        message: String,
    },
    /// No client is accepted any longer.
    Stopping,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = match self {
            Self::Ready { socket: Some(socket) } => format!("serving at {}", socket.display()),
            Self::Ready { socket: None } => "serving at the service manager's socket".to_owned(),
            Self::Loading { id, path, len_bytes } => {
                format!("{id}: loading {} ({len_bytes} bytes)", path.display())
            }
            Self::Loaded { id, path, len_bytes, elapsed, pages } => format!(
                "{id}: loaded {} ({len_bytes} bytes) in {:.3} s, {pages} pages",
                path.display(),
                elapsed.as_secs_f64()
            ),
            Self::LoadFailed { id, path, message } => {
                format!("{id}: {} is not loaded: {message}", path.display())
            }
            Self::Attached { id, peer, attachments } => {
                format!("{id}: attached by {}, {attachments} attachments", Shown(*peer))
            }
            Self::Released { id, peer, attachments } => {
                format!("{id}: released by {}, {attachments} attachments", Shown(*peer))
            }
            Self::KeptByClients { id, path, len_bytes } => {
                format!("{id}: clients keep {} ({len_bytes} bytes)", path.display())
            }
            Self::Freed { id, path, len_bytes } => {
                format!("{id}: freed {} ({len_bytes} bytes)", path.display())
            }
            Self::Refused { peer, message } => format!("refused {}: {message}", Shown(*peer)),
            Self::Disconnected { peer, why } => {
                format!("disconnected {}: {why}", Shown(*peer))
            }
            Self::Trouble { message } => message.clone(),
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
