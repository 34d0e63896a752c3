//! What driver and device agree on: registers, and two rings in the driver's memory. All numbers are
//! little-endian.
//!
//! ```text
//!   driver                                                    device
//!   ──────                                                    ──────
//!   descriptors[tail % n] = …;  DOORBELL = tail + 1  ────►    reads descriptors[head % n]
//!                                                             copies, or sums
//!   completions[head % n].sequence == head + 1 ?     ◄────    writes completions[head % n]
//!                                                             raises MSI-X 0, if asked to
//! ```
//!
//! Both rings have as many entries. The driver has at most that many descriptors under way, counted
//! until it has seen their completions; they complete in order.

/// Vendor, as in the devices that QEMU has for tests.
pub const VENDOR: u16 = 0x1234;
/// Device.
pub const DEVICE: u16 = 0x10d5;

/// Length of the memory behind base address register 0.
pub const BAR_BYTES: u32 = 0x4000;
/// Where in it the table of MSI-X vectors is. There is one vector.
pub const MSIX_TABLE: u32 = 0x2000;
/// Where in it its pending bit is.
pub const MSIX_PBA: u32 = 0x3000;

/// Registers, by their offset behind base address register 0. They are written by whole words of 4
/// bytes; what is written otherwise has no effect.
pub mod register {
    /// [`IDENTITY`](super::IDENTITY). Read only.
    pub const IDENTITY: u64 = 0x00;
    /// Bits of [`control`](super::control).
    pub const CONTROL: u64 = 0x04;
    /// One of [`status`](super::status). Read only.
    pub const STATUS: u64 = 0x08;
    /// Entries of either ring: a power of two, at most [`ENTRIES_MAX`](super::ENTRIES_MAX).
    pub const ENTRIES: u64 = 0x0c;
    /// IOVA of the descriptors, 8 bytes; a multiple of 32.
    pub const DESCRIPTORS: u64 = 0x10;
    /// IOVA of the completions, 8 bytes; a multiple of 32.
    pub const COMPLETIONS: u64 = 0x18;
    /// How many descriptors were submitted since the device was enabled; it wraps.
    pub const DOORBELL: u64 = 0x20;
    /// How many were completed. Read only.
    pub const DONE: u64 = 0x24;
}

/// What [`register::IDENTITY`] reads.
pub const IDENTITY: u32 = u32::from_le_bytes(*b"LSD1");
/// The largest ring.
pub const ENTRIES_MAX: u32 = 4096;

/// Bits of [`register::CONTROL`].
pub mod control {
    /// Setting it has the device begin with the first entries of the rings; clearing it stops it,
    /// when what it has begun is over. It stays clear while the device is not master of the bus, and
    /// is cleared when it is master no longer.
    pub const ENABLE: u32 = 1 << 0;
    /// An interrupt follows each completion. Looked at when the device is enabled.
    pub const INTERRUPT: u32 = 1 << 1;
}

/// What [`register::STATUS`] reads.
pub mod status {
    /// It is not enabled.
    pub const OFF: u32 = 0;
    /// It waits for the doorbell, or works.
    pub const RUNNING: u32 = 1;
    /// What the registers say makes no sense, also the doorbell. Enable it anew.
    pub const BAD_REGISTERS: u32 = 2;
    /// A ring cannot be reached. Enable it anew.
    pub const RING_FAULT: u32 = 3;
}

/// Bytes of a descriptor, and of a completion.
pub const ENTRY_BYTES: u64 = 32;
/// Bytes of an entry of a scatter list: an IOVA, and a length of 8 bytes.
pub const SEGMENT_BYTES: u64 = 16;
/// The longest scatter list.
pub const SEGMENTS_MAX: u32 = 256;
/// How many bytes one descriptor moves at most.
pub const DESCRIPTOR_BYTES_MAX: u64 = 16 << 20;

/// What a descriptor asks for.
pub mod opcode {
    /// Copy what the scatter list lists to the target.
    pub const COPY: u32 = 1;
    /// The checksum of RFC 1071 of it.
    pub const CHECKSUM: u32 = 2;
    /// Its CRC-32C.
    pub const CRC32C: u32 = 3;
}

/// Something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// One of [`opcode`].
    pub opcode: u32,
    /// Entries of the scatter list.
    pub segments: u32,
    /// IOVA of the scatter list.
    pub list: u64,
    /// IOVA to copy to.
    pub target: u64,
    /// Comes back in the completion.
    pub cookie: u64,
}

impl Descriptor {
    /// Its words in memory.
    pub fn words(&self) -> [u64; 4] {
        let first = u64::from(self.opcode) | u64::from(self.segments) << 32;
        [first, self.list, self.target, self.cookie].map(u64::to_le)
    }

    /// What the words say.
    pub fn of(words: [u64; 4]) -> Self {
        let [first, list, target, cookie] = words.map(u64::from_le);
        let (opcode, segments) = (first as u32, (first >> 32) as u32);
        Self { opcode, segments, list, target, cookie }
    }
}

/// How a descriptor ended.
pub mod outcome {
    /// It is done.
    pub const DONE: u32 = 0;
    /// There is no such opcode.
    pub const UNKNOWN_OPCODE: u32 = 1;
    /// Its list or its bytes are more than the device takes, or pass the end of the address space.
    pub const TOO_LONG: u32 = 2;
    /// Nothing is mapped at [`fault`](super::Completion::fault).
    pub const UNMAPPED: u32 = 3;
    /// The device may not do this there.
    pub const NOT_PERMITTED: u32 = 4;
    /// The memory there could not be reached for another reason.
    pub const LOST: u32 = 5;
}

/// How a descriptor ended, as the device tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// That of the descriptor.
    pub cookie: u64,
    /// The address that could not be reached, or 0.
    pub fault: u64,
    /// How many bytes were copied or summed.
    pub done_bytes: u32,
    /// The checksum or CRC, if it is done.
    pub value: u32,
    /// One of [`outcome`].
    pub outcome: u32,
    /// Counts completions from 1 on, and wraps. It is written after all the rest: whoever sees it,
    /// sees the rest and what was copied.
    pub sequence: u32,
}

/// Where in a completion [`Completion::sequence`] is.
pub const SEQUENCE_AT: u64 = 28;

impl Completion {
    /// Its words in memory.
    pub fn words(&self) -> [u64; 4] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let (third, fourth) =
            (pair(self.done_bytes, self.value), pair(self.outcome, self.sequence));
        [self.cookie, self.fault, third, fourth].map(u64::to_le)
    }

    /// What the words say.
    pub fn of(words: [u64; 4]) -> Self {
        let [cookie, fault, third, fourth] = words.map(u64::from_le);
        let high = |word: u64| (word >> 32) as u32;
        let (done_bytes, value) = (third as u32, high(third));
        Self { cookie, fault, done_bytes, value, outcome: fourth as u32, sequence: high(fourth) }
    }
}
