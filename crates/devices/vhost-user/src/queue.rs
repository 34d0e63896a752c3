//! A virtqueue, as it is passed to the device that serves it.

use std::os::fd::AsFd;
use std::sync::Arc;

use longshore_access::Space;
use longshore_access::client::Stop;
use longshore_access::dirty::{BeyondLog, ExternalLog};
use longshore_mem::GuestPhys;
use longshore_sys::event_fd::{self, SharedEvent};
use longshore_sys::unix_socket::{self, Interest, Ready};

use crate::misses::MissChannel;
use crate::queue_memory::QueueMemory;

/// The length of a descriptor of a split virtqueue in bytes.
const DESCRIPTOR_BYTES: u64 = 16;

/// The addresses of a split virtqueue, as the device finds them.
///
/// Source: VIRTIO 1.2, 2.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueLayout {
    /// The number of entries, a power of two.
    pub entries: u16,
    /// The address of the descriptor table, a multiple of 16.
    pub descriptors: u64,
    /// The address of the available ring, a multiple of 2.
    pub available: u64,
    /// The address of the used ring, a multiple of 4.
    pub used: u64,
}

impl QueueLayout {
    /// Returns the lengths of descriptor table, available ring and used ring in bytes.
    pub fn lens(entries: u16) -> [u64; 3] {
        let entries = u64::from(entries);
        [DESCRIPTOR_BYTES * entries, 4 + 2 * entries, 4 + 8 * entries]
    }

    /// Returns `true` if its parts are aligned and within the address space.
    pub(crate) fn is_valid(&self, entries_max: u16) -> bool {
        let parts = [(self.descriptors, 16), (self.available, 2), (self.used, 4)];
        let is_placed = |((at, alignment), len): ((u64, u64), u64)| {
            at.is_multiple_of(alignment) && at.checked_add(len).is_some()
        };
        self.entries.is_power_of_two()
            && self.entries <= entries_max
            && parts.into_iter().zip(Self::lens(self.entries)).all(is_placed)
    }
}

/// A virtqueue to be served.
///
/// The front-end can stop and start it any number of times. The data that its driver writes into it is
/// untrusted.
#[derive(Debug)]
#[non_exhaustive]
pub struct Queue {
    /// The index of the queue.
    pub index: usize,
    /// The addresses of the queue.
    pub layout: QueueLayout,
    /// The next entry to process: the number of processed entries, modulo 2^16.
    pub next: u16,
    /// The space with the guest's memory.
    pub space: Space,
    pub(crate) misses: Option<Arc<MissChannel>>,
    pub(crate) used_log: Option<UsedLog>,
    pub(crate) kick: SharedEvent,
    pub(crate) call: Option<SharedEvent>,
    pub(crate) error: Option<SharedEvent>,
    pub(crate) stop: Stop,
}

/// The addresses at which writes to the used ring are logged.
#[derive(Clone, Debug)]
pub(crate) struct UsedLog {
    pub(crate) log: Arc<ExternalLog>,
    pub(crate) at: GuestPhys,
}

impl Queue {
    /// Returns access to the guest's memory for the calling thread. It asks the front-end for missing
    /// translations, and calls `on_miss` with the address, and with `true` for a write, before each.
    pub fn memory<'q>(
        &'q self,
        on_miss: impl Fn(longshore_mem::Iova, bool) + 'q,
    ) -> QueueMemory<'q> {
        QueueMemory::new(self.space.session(), self.misses.as_deref(), &self.stop, on_miss)
    }

    /// Waits for the driver to make buffers available. Returns `false` when the queue is to stop.
    ///
    /// Call [`Session::park`](longshore_access::Session::park) before, so that unmapping need not wait
    /// for this thread.
    pub fn wait(&self) -> bool {
        let stop = [self.stop.as_fd()];
        match unix_socket::wait(self.kick.as_fd(), Interest::Receive, &stop, None) {
            Ok(Ready::Socket) => {
                let _ = event_fd::drain(&self.kick);
                true
            }
            Ok(_) | Err(_) => false,
        }
    }

    /// Returns `true` if the queue is to stop.
    pub fn is_stopped(&self) -> bool {
        self.stop.is_stopped()
    }

    /// Returns a handle that stops the queue from another thread.
    pub fn stop_handle(&self) -> Stop {
        self.stop.clone()
    }

    /// Interrupts the driver, if the front-end has set an eventfd for that.
    pub fn call(&self) {
        signal(self.call.as_ref());
    }

    /// Reports to the front-end that the queue is broken.
    pub fn report_error(&self) {
        signal(self.error.as_ref());
    }

    /// Marks a write to the used ring in the front-end's dirty log; `offset` is in bytes from the ring's
    /// beginning. Call it after each write.
    ///
    /// # Errors
    /// [`BeyondLog`] if the log is too short.
    pub fn log_used(&self, offset: u64, len_bytes: u64) -> Result<(), BeyondLog> {
        if let Some(UsedLog { log, at }) = &self.used_log {
            log.mark(GuestPhys::new(at.raw().saturating_add(offset)), len_bytes)?;
        }
        Ok(())
    }
}

pub(crate) fn signal(event: Option<&SharedEvent>) {
    if let Some(event) = event {
        // The other side may have disconnected.
        let _ = event.signal();
    }
}

/// A virtqueue that a device serves.
pub trait RunningQueue: Send {
    /// Stops serving the queue. Requests that were begun are completed, or are started again later. When
    /// this returns, the device accesses no memory of the guest for this queue any more.
    fn stop(self: Box<Self>) -> QueueState;
}

/// The state of a queue that has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueState {
    /// The next entry to process: the number of processed entries, modulo 2^16.
    pub next: u16,
    /// `true` if the queue cannot be served until the front-end sets it up again.
    pub is_broken: bool,
}
