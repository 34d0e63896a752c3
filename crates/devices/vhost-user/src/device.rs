//! The trait that a device implements to be served.

use std::fmt;
use std::io;

use crate::error::{ConnectionError, RequestError};
use crate::queue::{Queue, RunningQueue};
use crate::wire::Request;

/// A virtio device. The server calls it from the thread that serves the front-end.
pub trait Device {
    /// Returns how many virtqueues the device has.
    fn queues_count(&self) -> u16;

    /// Returns the most entries that a virtqueue may have.
    fn queue_entries_max(&self) -> u16 {
        1024
    }

    /// Returns the virtio features that the device offers. The server adds those of the protocol:
    /// `VHOST_F_LOG_ALL` and `VHOST_USER_F_PROTOCOL_FEATURES`. With [`ACCESS_PLATFORM`] the device also
    /// works behind an IOMMU.
    fn features(&self) -> u64;

    /// Returns the device's configuration space.
    fn config(&self) -> Vec<u8>;

    /// Starts a virtqueue: the front-end has given its addresses and its eventfds and has enabled it.
    ///
    /// # Errors
    /// Those of starting a thread, for example. The queue is broken then, until the front-end sets it up
    /// anew.
    fn start(&self, queue: Queue) -> io::Result<Box<dyn RunningQueue>>;

    /// Reports an event, for logs and counters.
    fn event(&self, event: &Event<'_>) {
        let _ = event;
    }
}

/// The virtio feature bit `VIRTIO_F_ACCESS_PLATFORM`: addresses are those that an IOMMU translates.
pub const ACCESS_PLATFORM: u64 = 1 << 33;

/// An event of a front-end's connection.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Event<'e> {
    /// A front-end has connected.
    Connected,
    /// A message has come.
    Message(&'e Request),
    /// A message was refused, or ended the connection, for this reason.
    Refused(&'e ConnectionError),
    /// The front-end has set a memory table.
    TableSet,
    /// The front-end has given a translation.
    IotlbUpdated,
    /// The front-end has taken a translation back.
    IotlbInvalidated,
    /// The page tables take this many bytes after a message.
    TableBytes(u64),
    /// The front-end has writes logged from here on, or no longer.
    Logging(bool),
    /// A virtqueue is not served any more, for this reason.
    QueueBroken {
        /// Its index.
        index: usize,
        /// The reason.
        reason: &'e RequestError,
    },
}

impl fmt::Debug for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected => f.write_str("Connected"),
            Self::Message(request) => f.debug_tuple("Message").field(request).finish(),
            Self::Refused(reason) => write!(f, "Refused({reason})"),
            Self::TableSet => f.write_str("TableSet"),
            Self::IotlbUpdated => f.write_str("IotlbUpdated"),
            Self::IotlbInvalidated => f.write_str("IotlbInvalidated"),
            Self::TableBytes(bytes) => f.debug_tuple("TableBytes").field(bytes).finish(),
            Self::Logging(is_on) => f.debug_tuple("Logging").field(is_on).finish(),
            Self::QueueBroken { index, reason } => write!(f, "QueueBroken({index}: {reason})"),
        }
    }
}
