//! The device: a virtio disk, with a thread for each ring.

use std::io;
use std::sync::Arc;

use longshore::vhost_user::{ACCESS_PLATFORM, Device, Event, Queue, RunningQueue};

use crate::block::{self, feature};
use crate::disk::Disk;
use crate::ring::ENTRIES_MAX;
use crate::trace::Counts;
use crate::worker::Worker;

/// The number of rings.
pub const RINGS: u16 = 4;

/// A virtio block device.
#[derive(Debug)]
pub struct BlockDevice {
    disk: Arc<Disk>,
    counts: Counts,
}

impl BlockDevice {
    /// Returns a device for `disk` that counts its events in `counts`.
    pub fn new(disk: Disk, counts: Counts) -> Self {
        Self { disk: Arc::new(disk), counts }
    }
}

impl Device for BlockDevice {
    fn queues_count(&self) -> u16 {
        RINGS
    }

    fn queue_entries_max(&self) -> u16 {
        ENTRIES_MAX
    }

    fn features(&self) -> u64 {
        let read_only = if self.disk.is_read_only() { feature::READ_ONLY } else { 0 };
        feature::SEG_MAX
            | feature::BLK_SIZE
            | feature::FLUSH
            | feature::MQ
            | feature::INDIRECT_DESC
            | feature::VERSION_1
            | ACCESS_PLATFORM
            | read_only
    }

    fn config(&self) -> Vec<u8> {
        block::config_space(&self.disk, RINGS).to_vec()
    }

    fn start(&self, queue: Queue) -> io::Result<Box<dyn RunningQueue>> {
        let worker = Worker::start(queue, Arc::clone(&self.disk), self.counts.clone())?;
        Ok(Box::new(worker))
    }

    fn event(&self, event: &Event<'_>) {
        self.counts.event(event);
    }
}
