//! The errors of clients and servers.

use std::io;
use std::path::{Path, PathBuf};

use longshore_formats::printable;
use longshore_load as load;
use longshore_mem::ByteSize;

use crate::fault::{NoServerCause, ServerFault};
use crate::reason::Reason;

/// The most paths that a message lists.
const LISTED_MAX: usize = 8;

/// The result of serving or attaching.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a client or a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No server listens at this socket.
    #[error(
        "no server listens at {}: {cause}; start one with 'longshore serve', or name its socket with \
         --socket or $LONGSHORE_SOCKET", socket.display()
    )]
    NoServer {
        /// The socket.
        socket: PathBuf,
        /// The reason.
        cause: NoServerCause,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// No server was named, and there is no socket at the default paths.
    #[error(
        "no server was named and there is no socket at {}; $XDG_RUNTIME_DIR is not set, so this user \
         has no default socket; name one with --socket or $LONGSHORE_SOCKET", system.display()
    )]
    NoDefaultServer {
        /// The system's socket.
        system: PathBuf,
    },
    /// No socket was named, and this user has no default one.
    #[error(
        "no socket was named, and $XDG_RUNTIME_DIR is not set, so this user has no default socket; \
         name one with --socket or $LONGSHORE_SOCKET"
    )]
    NoDefaultSocket,
    /// The directory of the socket does not exist.
    #[error(
        "there is no directory {} for the socket; create it, or name another --socket",
        directory.display()
    )]
    NoSocketDirectory {
        /// The directory.
        directory: PathBuf,
    },
    /// The server's socket may not be used by this user.
    #[error(
        "this user may not use the socket {}; the user that runs the server can permit it \
         with --socket-mode, or with SocketGroup= and SocketMode= of its socket unit", socket.display()
    )]
    SocketDenied {
        /// The socket.
        socket: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The user that runs the server is not trusted. Nothing was sent.
    #[error(
        "user {uid} runs the server at {}, and this client does not trust that user; nothing was \
         sent; to let that server have the files that you attach, give --trust-uid {uid} or set \
         LONGSHORE_TRUST_UID={uid}", socket.display()
    )]
    UntrustedServer {
        /// The socket.
        socket: PathBuf,
        /// The user that runs the server.
        uid: u32,
    },
    /// A variable names a user that is not a number.
    #[error(
        "'{word}' in {variable} is not a user id (expected numbers separated by commas, such as \
         991,1000)"
    )]
    NotAUserId {
        /// The word that is not a number.
        word: String,
        /// The variable.
        variable: &'static str,
    },
    /// This process cannot open a file that it wants to attach, so it cannot show that it may read the
    /// file.
    #[error("cannot open {}, which is needed to show that it may be attached", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The server refused.
    #[error("the server refuses: {message}")]
    Refused {
        /// The reason, for programs.
        reason: Reason,
        /// The reason, and advice.
        message: String,
    },
    /// The server ended before it answered.
    #[error(
        "the server is gone: it was ended or killed before it answered; start it and try again"
    )]
    ServerGone,
    /// The server did not answer in time.
    #[error("the server has said nothing for {seconds} s; is it stopped, or its disk?")]
    TimedOut {
        /// The time that the client waited, in seconds.
        seconds: u64,
    },
    /// The server sent something that is not valid. The client has used nothing of it.
    #[error("what the server sent cannot be trusted: {fault}")]
    Untrustworthy {
        /// The error in it.
        fault: ServerFault,
    },
    /// No path, number or name of a served file or a model in memory.
    #[error(
        "nothing called '{}' is served: it is no file here, nor one beneath {}, nor the name or number \
         of any of the {held} models that are held",
        printable(name),
        listed(roots)
    )]
    NotFound {
        /// The name that was given.
        name: String,
        /// The directories and files that are served.
        roots: Vec<PathBuf>,
        /// The number of models in memory.
        held: usize,
    },
    /// Several served files have paths with this end.
    #[error(
        "'{}' is the end of several served paths: {}; give the whole path, or a number of \
         'longshore ls'",
        printable(name),
        listed(paths)
    )]
    Ambiguous {
        /// The name that was asked for.
        name: String,
        /// The paths.
        paths: Vec<PathBuf>,
    },
    /// A name is the end of a served path, and a file of the model, or a link to one, belongs to another
    /// user, who decides the content.
    #[error(
        "'{}' is the end of the path of a model of which a file or a link belongs to user {uid}; if you \
         trust that user, give the whole path, {}",
        printable(name),
        printable(&path.to_string_lossy())
    )]
    OtherUser {
        /// The name that was asked for.
        name: String,
        /// The path of the model.
        path: PathBuf,
        /// The owner of the file or link.
        uid: u32,
    },
    /// The caller cancelled.
    #[error("cancelled after {} of {}", ByteSize(*done_bytes), ByteSize(*total_bytes))]
    Cancelled {
        /// The number of bytes that the server had loaded.
        done_bytes: u64,
        /// The number of bytes of the model; 0 if the load had not begun.
        total_bytes: u64,
    },
    /// Another server listens there already.
    #[error(
        "a server listens at {} already; attach to it, or give this one another --socket",
        socket.display()
    )]
    AlreadyServed {
        /// The socket.
        socket: PathBuf,
    },
    /// Another file has the path of the socket.
    #[error(
        "{} exists and is no socket ({kind}); it is left as it is: remove it, or name another \
         --socket", socket.display()
    )]
    NotASocket {
        /// The path.
        socket: PathBuf,
        /// The type of the file.
        kind: &'static str,
    },
    /// A directory or file cannot be served.
    #[error("{} cannot be served", path.display())]
    CannotServe {
        /// The path.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// Neither a directory nor a file was given.
    #[error("nothing is named to be served: give a --root or a file")]
    NothingToServe,
    /// The path of a socket is too long.
    #[error(
        "{} is no path for a socket: it is longer than {max_bytes} bytes", socket.display()
    )]
    SocketPathTooLong {
        /// The path.
        socket: PathBuf,
        /// The longest path.
        max_bytes: usize,
    },
    /// The process may have too few descriptors to serve.
    #[error(
        "this process may have {limit} descriptors, and a server needs {needed} or more; raise the \
         hard limit of open files ('ulimit -Hn', LimitNOFILE= in its unit)"
    )]
    TooFewDescriptors {
        /// The limit (`RLIMIT_NOFILE`).
        limit: u64,
        /// The lowest limit that is enough.
        needed: u64,
    },
    /// A file could not be loaded.
    #[error(transparent)]
    Load(#[from] load::Error),
    /// A call to the kernel failed.
    #[error("{operation}{} failed", shown(path.as_deref()))]
    Kernel {
        /// The operation.
        operation: &'static str,
        /// The file, if there is one.
        path: Option<PathBuf>,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn cannot_serve(path: &Path, source: impl Into<io::Error>) -> Self {
        Self::CannotServe { path: path.to_owned(), source: source.into() }
    }

    pub(crate) fn kernel(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Kernel { operation, path: None, source }
    }

    pub(crate) fn kernel_at(
        operation: &'static str,
        path: &Path,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = Some(path.to_owned());
        move |source| Self::Kernel { operation, path, source }
    }
}

impl From<ServerFault> for Error {
    fn from(fault: ServerFault) -> Self {
        Self::Untrustworthy { fault }
    }
}

/// Returns the text of an error and of its causes, each once.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let said = next.to_string();
        if !message.ends_with(&said) {
            message = format!("{message}: {said}");
        }
        cause = next.source();
    }
    message
}

fn shown(path: Option<&Path>) -> String {
    path.map_or_else(String::new, |path| format!(" {}", path.display()))
}

/// Returns the first paths, separated by commas.
fn listed(paths: &[PathBuf]) -> String {
    let shown = paths.iter().take(LISTED_MAX);
    let shown = shown.map(|path| printable(&path.to_string_lossy()).into_owned());
    let more = paths.len().checked_sub(LISTED_MAX).filter(|more| *more > 0);
    let shown: Vec<String> = shown.chain(more.map(|more| format!("{more} more"))).collect();
    shown.join(", ")
}
