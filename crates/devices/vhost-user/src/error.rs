//! The errors of a connection.

use std::io;

use crate::memory::MemoryError;
use crate::wire::DecodeError;

/// The error that ended a connection, or with which a request failed.
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
    #[error("it was stopped")]
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
    #[error("the socket: {0}")]
    Io(#[from] io::Error),
}

/// The reason why a request failed. Nothing has changed then, except as [`MemoryError`] documents.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The memory table, the IOTLB or the log cannot be changed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The number of descriptors does not fit the request.
    #[error("{descriptors} descriptors came, and {wanted} were wanted")]
    Descriptors {
        /// How many came.
        descriptors: usize,
        /// How many the request takes.
        wanted: usize,
    },
    /// A descriptor is a socket where none is expected, or is not where one is.
    #[error("a descriptor of the wrong kind: a socket is for the back-end channel, which is one")]
    DescriptorKind,
    /// The device has no such virtqueue.
    #[error("ring {index} is none of {count}")]
    NoRing {
        /// The index of the request.
        index: u32,
        /// How many virtqueues the device has.
        count: usize,
    },
    /// A number of entries is not a power of two, or is above the limit of the device.
    #[error("a ring of {num} entries; a power of two up to {max} is wanted")]
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
    /// The addresses of a virtqueue are not aligned, or pass the end of their space.
    #[error("ring {index} is at addresses that are not aligned, or pass their space's end")]
    RingPlacement {
        /// The virtqueue.
        index: u32,
    },
    /// A feature was not offered.
    #[error("the features {features:#x} were not all offered")]
    Features {
        /// The features of the request.
        features: u64,
    },
    /// The socket of the back-end channel is not one of a socket pair.
    #[error(
        "the socket of the back-end channel has an address, and one of a socket pair is wanted"
    )]
    NamedChannel,
    /// A descriptor is not an eventfd.
    #[error("a descriptor that is no eventfd")]
    NoEventFd,
    /// A virtqueue would have to be polled.
    #[error("a ring without a kick descriptor would have to be polled, which is not done here")]
    NoKick,
    /// The configuration space cannot be written.
    #[error("nothing in the configuration space can be written")]
    ReadOnlyConfig,
    /// Too many descriptors are kept for the user, or for all users.
    #[error(transparent)]
    DescriptorLimit(io::Error),
    /// A system call failed, or the device did not start a virtqueue.
    #[error("{what}: {source}")]
    Io {
        /// What was to be done.
        what: &'static str,
        /// The error of the system or of the device.
        source: io::Error,
    },
}
