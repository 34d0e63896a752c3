//! The interface of driver and device: registers, and two rings in the driver's memory. All numbers are
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
//! Both rings have the same number of entries. At most that many descriptors may be in flight, which
//! means that the driver has not seen their completions yet. Descriptors complete in order.

/// The PCI vendor ID, which is that of QEMU's test devices.
pub const VENDOR: u16 = 0x1234;
/// The PCI device ID.
pub const DEVICE: u16 = 0x10d5;

/// The length of BAR 0 in bytes.
pub const BAR_BYTES: u32 = 0x4000;
/// The offset of the MSI-X table in BAR 0. It has one vector.
pub const MSIX_TABLE: u32 = 0x2000;
/// The offset of the MSI-X pending bits in BAR 0.
pub const MSIX_PBA: u32 = 0x3000;

/// The offsets of the registers in BAR 0. Writes must be whole words of 4 bytes; other writes have no
/// effect.
pub mod register {
    /// [`IDENTITY`](super::IDENTITY). Read only.
    pub const IDENTITY: u64 = 0x00;
    /// Bits of [`control`](super::control).
    pub const CONTROL: u64 = 0x04;
    /// A value of [`status`](super::status). Read only.
    pub const STATUS: u64 = 0x08;
    /// The number of entries of each ring: a power of two, at most [`ENTRIES_MAX`](super::ENTRIES_MAX).
    pub const ENTRIES: u64 = 0x0c;
    /// The IOVA of the descriptors, 8 bytes; a multiple of 32.
    pub const DESCRIPTORS: u64 = 0x10;
    /// The IOVA of the completions, 8 bytes; a multiple of 32.
    pub const COMPLETIONS: u64 = 0x18;
    /// The number of descriptors that were submitted since the device was enabled; it wraps.
    pub const DOORBELL: u64 = 0x20;
    /// The number of descriptors that were completed since then; it wraps. Read only.
    pub const DONE: u64 = 0x24;
}

/// The value of [`register::IDENTITY`].
pub const IDENTITY: u32 = u32::from_le_bytes(*b"LSD1");
/// The maximum number of entries of a ring.
pub const ENTRIES_MAX: u32 = 4096;

/// Bits of [`register::CONTROL`].
pub mod control {
    /// Enables the device. When it is set, the device starts at the first entries of the rings. When it
    /// is cleared, the device stops; no descriptor is in progress then. It is cleared when bus mastering
    /// is disabled, and cannot be set before bus mastering is enabled.
    pub const ENABLE: u32 = 1 << 0;
    /// Requests an interrupt after each completion. It is read when the device is enabled.
    pub const INTERRUPT: u32 = 1 << 1;
}

/// The values of [`register::STATUS`].
pub mod status {
    /// The device is not enabled.
    pub const OFF: u32 = 0;
    /// The device waits for the doorbell, or executes descriptors.
    pub const RUNNING: u32 = 1;
    /// A register has an invalid value; it can be the doorbell. The driver must enable the device again.
    pub const BAD_REGISTERS: u32 = 2;
    /// A ring could not be accessed. The driver must enable the device again.
    pub const RING_FAULT: u32 = 3;
}

/// The length of a descriptor, and of a completion.
pub const ENTRY_BYTES: u64 = 32;
/// The length of an entry of a scatter list: an IOVA, and a length of 8 bytes.
pub const SEGMENT_BYTES: u64 = 16;
/// The maximum number of entries of a scatter list.
pub const SEGMENTS_MAX: u32 = 256;
/// The maximum number of bytes that one descriptor copies or sums.
pub const DESCRIPTOR_BYTES_MAX: u64 = 16 << 20;

/// The operations of descriptors.
pub mod opcode {
    /// Copies the bytes of the scatter list to the target.
    pub const COPY: u32 = 1;
    /// Computes the checksum (RFC 1071) of the bytes of the scatter list.
    pub const CHECKSUM: u32 = 2;
    /// Computes the CRC-32C of the bytes of the scatter list.
    pub const CRC32C: u32 = 3;
}

/// An operation that the driver requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// A value of [`opcode`].
    pub opcode: u32,
    /// The number of entries of the scatter list.
    pub segments: u32,
    /// The IOVA of the scatter list.
    pub list: u64,
    /// The IOVA to copy to.
    pub target: u64,
    /// A number that the device returns in the completion.
    pub cookie: u64,
}

impl Descriptor {
    /// Returns the descriptor's words in memory.
    pub fn words(&self) -> [u64; 4] {
        let first = u64::from(self.opcode) | u64::from(self.segments) << 32;
        [first, self.list, self.target, self.cookie].map(u64::to_le)
    }

    /// Decodes the words of a descriptor.
    pub fn of(words: [u64; 4]) -> Self {
        let [first, list, target, cookie] = words.map(u64::from_le);
        let (opcode, segments) = (first as u32, (first >> 32) as u32);
        Self { opcode, segments, list, target, cookie }
    }
}

/// The outcomes of a descriptor.
pub mod outcome {
    /// It was executed.
    pub const DONE: u32 = 0;
    /// The opcode is unknown.
    pub const UNKNOWN_OPCODE: u32 = 1;
    /// The list or its bytes exceed the device's limits, or pass the end of the address space.
    pub const TOO_LONG: u32 = 2;
    /// Nothing is mapped at [`fault`](super::Completion::fault).
    pub const UNMAPPED: u32 = 3;
    /// The device may not read or write at [`fault`](super::Completion::fault).
    pub const NOT_PERMITTED: u32 = 4;
    /// The memory at [`fault`](super::Completion::fault) could not be accessed for another reason.
    pub const LOST: u32 = 5;
}

/// The device's report of the end of a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// The cookie of the descriptor.
    pub cookie: u64,
    /// The IOVA that could not be accessed, or 0.
    pub fault: u64,
    /// The number of bytes that were copied or summed.
    pub done_bytes: u32,
    /// The checksum or CRC if the descriptor was executed.
    pub value: u32,
    /// A value of [`outcome`].
    pub outcome: u32,
    /// The number of the completion, from 1 on; it wraps. It is written last: a driver that sees it also
    /// sees the other fields and the copied bytes.
    pub sequence: u32,
}

/// The offset of [`Completion::sequence`] in a completion.
pub const SEQUENCE_AT: u64 = 28;

impl Completion {
    /// Returns the completion's words in memory.
    pub fn words(&self) -> [u64; 4] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let (third, fourth) =
            (pair(self.done_bytes, self.value), pair(self.outcome, self.sequence));
        [self.cookie, self.fault, third, fourth].map(u64::to_le)
    }

    /// Decodes the words of a completion.
    pub fn of(words: [u64; 4]) -> Self {
        let [cookie, fault, third, fourth] = words.map(u64::from_le);
        let high = |word: u64| (word >> 32) as u32;
        let (done_bytes, value) = (third as u32, high(third));
        Self { cookie, fault, done_bytes, value, outcome: fourth as u32, sequence: high(fourth) }
    }
}
