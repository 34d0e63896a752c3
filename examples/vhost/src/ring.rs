//! A split virtqueue, as the device uses it. Its content is not trusted.
//!
//! ```text
//!   descriptors   num × { address u64, length u32, flags u16, next u16 }
//!   available     flags u16, index u16, num × head u16
//!   used          flags u16, index u16, num × { head u32, bytes written u32 }
//! ```
//!
//! Source: VIRTIO 1.2, 2.7. Numbers are little-endian.

use std::sync::atomic::{Ordering, fence};

use longshore::access::dirty::BeyondLog;
use longshore::vhost_user::{AccessError, Queue, QueueLayout, QueueMemory};

/// The maximum number of entries of a ring.
pub(crate) const ENTRIES_MAX: u16 = 1024;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const DESCRIPTOR_BYTES: u64 = 16;
/// The flag in the available ring that suppresses interrupts.
const NO_INTERRUPT: u16 = 1;

/// The reason that a ring is not served any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RingError {
    #[error("{0}")]
    Fault(longshore::access::Fault),
    #[error("the ring was stopped")]
    Stopped,
    #[error("{ahead} entries are available in a ring of {entries}")]
    TooManyAvailable { ahead: u16, entries: u16 },
    #[error("descriptor {index} does not exist in a table of {entries}")]
    NoDescriptor { index: u16, entries: u64 },
    #[error("a chain of descriptors is too long, or does not end")]
    Loop,
    #[error("descriptor {index} has flags {flags:#x}, which are not valid there")]
    Flags { index: u16, flags: u16 },
    #[error("an indirect table cannot have {len_bytes} bytes")]
    IndirectTable { len_bytes: u32 },
    #[error(transparent)]
    Log(#[from] BeyondLog),
    #[error("writes cannot be logged any more: the log's memory is missing")]
    LogLost,
}

impl From<AccessError> for RingError {
    fn from(halt: AccessError) -> Self {
        match halt {
            AccessError::Fault(fault) => Self::Fault(fault),
            AccessError::Stopped => Self::Stopped,
        }
    }
}

/// The memory that a descriptor refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) at: u64,
    pub(crate) len_bytes: u32,
}

/// The memory of a chain of descriptors.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    /// The index of the first descriptor, which identifies the chain.
    pub(crate) head: u16,
    pub(crate) readable: Vec<Segment>,
    pub(crate) writable: Vec<Segment>,
}

/// A ring that is being served. Requests are executed one after the other, so the number of taken
/// entries is the number of completed ones.
#[derive(Debug)]
pub(crate) struct Ring<'q> {
    queue: &'q Queue,
    /// The number of completed entries, modulo 2^16.
    pub(crate) next: u16,
}

impl<'q> Ring<'q> {
    pub(crate) fn new(queue: &'q Queue) -> Self {
        Self { queue, next: queue.next }
    }

    /// Returns true if a request is available, which [`chain`](Self::chain) then reads.
    pub(crate) fn is_available(&self, memory: &QueueMemory<'_>) -> Result<bool, RingError> {
        let index = u16::from_le(memory.load(self.queue.layout.available + 2, Ordering::Acquire)?);
        let (ahead, entries) = (index.wrapping_sub(self.next), self.queue.layout.entries);
        if ahead > entries {
            return Err(RingError::TooManyAvailable { ahead, entries });
        }
        Ok(ahead > 0)
    }

    /// Reads the next chain into `chain`.
    pub(crate) fn chain(
        &self,
        memory: &QueueMemory<'_>,
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        let slot = u64::from(self.next % self.queue.layout.entries);
        chain.head = u16::from_le(memory.read_obj(self.queue.layout.available + 4 + 2 * slot)?);
        chain.readable.clear();
        chain.writable.clear();
        let mut table = (self.queue.layout.descriptors, u64::from(self.queue.layout.entries));
        let (mut index, mut left, mut is_indirect) = (chain.head, ENTRIES_MAX, false);
        loop {
            let (start, entries) = table;
            if u64::from(index) >= entries {
                return Err(RingError::NoDescriptor { index, entries });
            }
            // The ring's table was checked, and an access to an indirect table beyond the end of the
            // address space faults.
            let at = start.wrapping_add(DESCRIPTOR_BYTES * u64::from(index));
            let [address, word] = memory.read_obj::<[u64; 2]>(at)?.map(u64::from_le);
            let (len_bytes, flags, next) = (word as u32, (word >> 32) as u16, (word >> 48) as u16);
            if flags & INDIRECT != 0 {
                let entries = u64::from(len_bytes) / DESCRIPTOR_BYTES;
                if is_indirect || flags & NEXT != 0 {
                    return Err(RingError::Flags { index, flags });
                }
                let is_whole = u64::from(len_bytes).is_multiple_of(DESCRIPTOR_BYTES);
                if !is_whole || entries == 0 || entries > u64::from(ENTRIES_MAX) {
                    return Err(RingError::IndirectTable { len_bytes });
                }
                (table, index, is_indirect) = ((address, entries), 0, true);
                continue;
            }
            left = left.checked_sub(1).ok_or(RingError::Loop)?;
            let segment = Segment { at: address, len_bytes };
            if flags & WRITE != 0 {
                chain.writable.push(segment);
            } else if chain.writable.is_empty() {
                chain.readable.push(segment);
            } else {
                // Readable descriptors come before writable ones.
                return Err(RingError::Flags { index, flags });
            }
            if flags & NEXT == 0 {
                return Ok(());
            }
            index = next;
        }
    }

    /// Completes the current chain, to which `written_bytes` were written. Returns true if the driver
    /// wants an interrupt.
    pub(crate) fn complete(
        &mut self,
        memory: &QueueMemory<'_>,
        head: u16,
        written_bytes: u32,
    ) -> Result<bool, RingError> {
        let QueueLayout { entries, used, available, .. } = self.queue.layout;
        let offset = 4 + 8 * u64::from(self.next % entries);
        let element = u64::from(head) | u64::from(written_bytes) << 32;
        // Two words, because the ring is aligned to four bytes.
        let words = [element as u32, (element >> 32) as u32].map(u32::to_le);
        memory.write_obj(used + offset, words)?;
        self.queue.log_used(offset, 8)?;
        let next = self.next.wrapping_add(1);
        memory.store(used + 2, next.to_le(), Ordering::Release)?;
        self.queue.log_used(2, 2)?;
        self.next = next;
        // The index must be visible before the driver's flag is read.
        fence(Ordering::SeqCst);
        let flags = u16::from_le(memory.load(available, Ordering::Relaxed)?);
        Ok(flags & NO_INTERRUPT == 0)
    }
}
