//! The trait that a device implements to be served.

use std::fmt;
use std::io;

use crate::error::{ConnectionError, RequestError};
use crate::queue::{Queue, RunningQueue};
use crate::wire::Request;

/// A virtio device. The server calls it on the thread that serves the front-end.
pub trait Device {
    /// Returns the number of virtqueues.
    fn queues_count(&self) -> u16;

    /// Returns the largest number of entries that a virtqueue may have.
    fn queue_entries_max(&self) -> u16 {
        1024
    }

    /// Returns the virtio features that the device offers. The server adds those of the protocol,
    /// `VHOST_F_LOG_ALL` and `VHOST_USER_F_PROTOCOL_FEATURES`. With [`ACCESS_PLATFORM`] the device also
    /// works behind an IOMMU.
    fn features(&self) -> u64;

    /// Returns the device's configuration space.
    fn config(&self) -> Vec<u8>;

    /// Starts a virtqueue: the front-end has set its addresses and its eventfds, and has enabled it.
    ///
    /// # Errors
    /// For example those of starting a thread. The queue is then broken until the front-end sets it up
    /// again.
    fn start(&self, queue: Queue) -> io::Result<Box<dyn RunningQueue>>;

    /// Reports an event, for logs and counters.
    fn event(&self, event: &Event<'_>) {
        let _ = event;
    }
}

/// The virtio feature bit `VIRTIO_F_ACCESS_PLATFORM`: the device uses addresses that an IOMMU
/// translates.
pub const ACCESS_PLATFORM: u64 = 1 << 33;

/// An event of a front-end's connection.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Event<'e> {
    /// A front-end has connected.
    Connected,
    /// A message has arrived.
    Message(&'e Request),
    /// A message was refused, or ended the connection, for this reason.
    Refused(&'e ConnectionError),
    /// The front-end has set a memory table.
    TableSet,
    /// The front-end has updated a translation.
    IotlbUpdated,
    /// The front-end has invalidated a translation.
    IotlbInvalidated,
    /// The size of the page tables in bytes, after a message.
    TableBytes(u64),
    /// `true` if the device's writes are logged from here on; `false` if they no longer are.
    Logging(bool),
    /// A virtqueue is no longer served, for this reason.
    QueueBroken {
        /// The index of the queue.
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
