//! The reasons in errors of a client and in events of a server.

use std::path::PathBuf;

use longshore_formats::printable;

use crate::protocol::Malformed;

/// The reason why there is no server at a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoServerCause {
    /// Nothing is at the path.
    #[error("there is no such socket")]
    NoSocket,
    /// Something else is at the path.
    #[error("it exists and is no socket ({kind})")]
    NotASocket {
        /// The type of the file.
        kind: &'static str,
    },
    /// The server of the socket was killed.
    #[error(
        "the socket is there, but its server is not: it was killed, and the next one replaces it"
    )]
    Killed,
    /// A server listens, but it accepts no clients.
    #[error("there is a server, but it accepts no clients")]
    Busy,
    /// The path is longer than the path of a socket can be.
    #[error("the path is too long for a socket")]
    PathTooLong,
    /// The socket is of another kind.
    #[error("it is not the socket of a server")]
    OtherSocket,
}

/// The reason why a client does not trust a message of a server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServerFault {
    /// A message is too long, or has more than one descriptor.
    #[error("a message that is too long, or has too much with it")]
    MessageTooLong,
    /// A message has fields that are not valid.
    #[error("a malformed message: {0}")]
    Malformed(Malformed),
    /// A message is not a reply to the request.
    #[error("an answer to something else")]
    OutOfTurn,
    /// The list of served files and models is too long.
    #[error("a list of more than {lines_max} lines")]
    ListTooLong {
        /// The longest list that is read.
        lines_max: usize,
    },
    /// The server may not choose which file it is sent.
    #[error(
        "user {uid} runs it, whose server may not choose the files that it is sent; give the path of \
         the file, or name user {uid} by --trust-uid or LONGSHORE_TRUST_UID"
    )]
    MayNotChoose {
        /// The user that runs the server.
        uid: u32,
    },
    /// The server asks for a file that is not part of the model.
    #[error("it asks for {}, which is no part of it", printable(&path.to_string_lossy()))]
    AsksForOtherFile {
        /// The file.
        path: PathBuf,
    },
    /// A model has too many files.
    #[error("a model of {count} files")]
    TooManyFiles {
        /// How many files the server reports.
        count: u32,
    },
    /// A file is not inside the memory.
    #[error("a file that is not inside of the memory")]
    FileOutside,
    /// The descriptor is not that of a memfd.
    #[error("the descriptor is of no memfd")]
    NotAMemfd,
    /// The memory is not sealed.
    #[error(
        "the memory is not sealed: against shrinking {shrink}, growing {grow}, writing {write}"
    )]
    NotSealed {
        /// `true` if the memfd has `F_SEAL_SHRINK`.
        shrink: bool,
        /// `true` if the memfd has `F_SEAL_GROW`.
        grow: bool,
        /// `true` if the memfd has `F_SEAL_WRITE`.
        write: bool,
    },
    /// The descriptor of the memory is not read-only.
    #[error("the descriptor of the memory can write")]
    Writable,
    /// The length of the memory is not the length that the server reports.
    #[error("the memory has {found_bytes} bytes, and {reported_bytes} are said to be there")]
    OtherLength {
        /// The length of the memory.
        found_bytes: u64,
        /// The length that the server reports.
        reported_bytes: u64,
    },
}

/// The reason why a server disconnects a client, worded as a sentence about the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientFault {
    /// The client speaks another version of the protocol.
    #[error("it speaks version {version}")]
    OtherVersion {
        /// The version of the client.
        version: u16,
    },
    /// A message is too long.
    #[error("a message has more than {max_bytes} bytes")]
    MessageTooLong {
        /// The longest message.
        max_bytes: usize,
    },
    /// A message has more descriptors than any request has.
    #[error("a message has too many descriptors")]
    TooManyDescriptors,
    /// A message has a descriptor although its kind has none, or lacks one.
    #[error("a message has not the descriptors it should have")]
    OtherDescriptors,
    /// A message has fields that are not valid.
    #[error("a message is malformed: {0}")]
    Malformed(Malformed),
    /// The client may not send this request now.
    #[error("it asks for {request} out of turn")]
    OutOfTurn {
        /// The name of the request.
        request: &'static str,
    },
    /// The client asks for another model before it has received the memory of the last one.
    #[error("it asks for more before it has read what it was given")]
    AsksBeforeReading,
    /// The client does not receive what is sent to it.
    #[error("it does not read what is sent to it")]
    DoesNotRead,
    /// The client did not send its first message in time.
    #[error("it has not said hello in time")]
    NoHello,
    /// The client did not send the files of a model in time.
    #[error("it has not shown the files of the model in time")]
    NoFiles,
    /// The client has no model and sent nothing for too long.
    #[error("it has been silent for too long and has nothing")]
    Silent,
}
