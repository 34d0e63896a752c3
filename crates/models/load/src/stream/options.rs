//! The options of a stream.

use std::time::Duration;

/// The default of [`StreamOptions::wait`].
const WAIT_DEFAULT: Duration = Duration::from_secs(10);

/// The options of a stream.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    pub(super) memory_bytes: Option<u64>,
    pub(super) order: Order,
    pub(super) wait: Duration,
    pub(super) on_full: OnFull,
}

/// The order in which a stream yields tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By file, and then by offset, so that the tensors of a layer stay together.
    #[default]
    File,
    /// As their reads are complete.
    Completion,
}

/// The reaction to memory that is full of tensors which consumers hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// [`Error::StreamFull`](crate::Error::StreamFull), if none of them is dropped for some time.
    #[default]
    Fail,
    /// More memory, in which the next tensor is read. It is freed when that tensor is dropped.
    Grow,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl StreamOptions {
    /// Makes the default options.
    pub const fn new() -> Self {
        let (order, on_full) = (Order::File, OnFull::Fail);
        Self { memory_bytes: None, order, wait: WAIT_DEFAULT, on_full }
    }

    /// Sets the memory for tensors of 1 MiB and more, in bytes. It must hold the largest selected tensor, in
    /// whole units of 64 KiB and with the blocks of the disk at its ends. Smaller tensors are read into it in
    /// groups of up to 4 MiB. The default is 1 GiB, or, if that is
    /// more, twice the largest selected tensor and the prefault window, so that a tensor can be read while a
    /// consumer has another one.
    pub const fn memory(mut self, bytes: u64) -> Self {
        self.memory_bytes = Some(bytes);
        self
    }

    /// Sets the order of the tensors. With checksums, it is always [`Order::File`].
    pub const fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Sets the time for which a call waits for other threads to drop tensors: 10 seconds, if it is not set.
    pub const fn wait(mut self, time: Duration) -> Self {
        self.wait = time;
        self
    }

    /// Sets the reaction to memory that is full.
    pub const fn on_full(mut self, on_full: OnFull) -> Self {
        self.on_full = on_full;
        self
    }
}
