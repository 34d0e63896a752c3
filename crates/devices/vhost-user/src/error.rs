//! The errors of a connection.

use std::io;

use crate::memory::MemoryError;
use crate::wire::DecodeError;

/// The error that ended a connection, or that a request returned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// No further message can be received or sent.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// A request failed.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The server cannot serve another front-end.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<DecodeError> for ConnectionError {
    fn from(error: DecodeError) -> Self {
        Self::Message(error.into())
    }
}

/// The reason why a message was not received or sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The front-end closed the connection.
    #[error("the other end closed the connection")]
    Closed,
    /// The front-end closed the connection in the middle of a message.
    #[error("the other end closed the connection in the middle of a message")]
    ClosedInMessage,
    /// The server was stopped.
    #[error("the server was stopped")]
    Stopped,
    /// The message is malformed.
    #[error(transparent)]
    Malformed(#[from] DecodeError),
    /// Some descriptors of the message were not received.
    #[error("descriptors were lost on the way: too many in one message, or none left here")]
    DescriptorsLost,
    /// The front-end did not send the rest of a message, or did not receive one, in time.
    #[error("the other end did not answer, or did not take what it was sent")]
    TimedOut,
    /// The socket failed.
    #[error("the socket failed: {0}")]
    Io(#[from] io::Error),
}

/// The reason why a request failed. It has changed nothing, except as [`MemoryError`] documents.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The memory table, the IOTLB or the log cannot be changed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The number of descriptors does not fit the request.
    #[error("the message has {descriptors} descriptors (expected {wanted})")]
    Descriptors {
        /// The number of descriptors of the message.
        descriptors: usize,
        /// The number of descriptors that the request takes.
        wanted: usize,
    },
    /// A socket that is not for the back-end channel, or a back-end channel that is not a socket.
    #[error(
        "a descriptor of the wrong kind: the back-end channel is a socket, and no other may be"
    )]
    DescriptorKind,
    /// The device has no such virtqueue.
    #[error("no ring {index}: the device has {count}")]
    NoRing {
        /// The index of the request.
        index: u32,
        /// The number of virtqueues of the device.
        count: usize,
    },
    /// A number of entries is not a power of two, or is above the limit of the device.
    #[error("a ring of {num} entries (expected a power of two up to {max})")]
    RingSize {
        /// The number of the request.
        num: u32,
        /// The most entries.
        max: u16,
    },
    /// An index into a virtqueue has more than 16 bits.
    #[error("an index of {num}, which has more than 16 bits")]
    RingIndex {
        /// The index of the request.
        num: u32,
    },
    /// The addresses of a virtqueue are not aligned, or exceed their address space.
    #[error("the addresses of ring {index} are not aligned, or exceed their address space")]
    RingPlacement {
        /// The index of the virtqueue.
        index: u32,
    },
    /// A feature was not offered.
    #[error("not all of the features {features:#x} were offered")]
    Features {
        /// The features of the request.
        features: u64,
    },
    /// The back-end channel is not a socket of a socket pair.
    #[error("the socket of the back-end channel has an address (expected one of a socket pair)")]
    NamedChannel,
    /// A descriptor is not an eventfd.
    #[error("a descriptor is not an eventfd")]
    NoEventFd,
    /// A virtqueue without a kick descriptor, which would have to be polled.
    #[error("a ring without a kick descriptor would have to be polled, which is not supported")]
    NoKick,
    /// The configuration space cannot be written.
    #[error("the configuration space cannot be written")]
    ReadOnlyConfig,
    /// Too many descriptors are kept for the user, or for all users.
    #[error(transparent)]
    DescriptorLimit(io::Error),
    /// A system call failed, or the device did not start a virtqueue.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The error of the system or of the device.
        source: io::Error,
    },
}
