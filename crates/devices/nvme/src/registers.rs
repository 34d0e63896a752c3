//! The registers of a controller in BAR 0 (NVM Express Base Specification 2.0, section 3.1.3; NVMe over
//! PCIe Transport Specification 1.0): their offsets and their fields.

use std::fmt;
use std::time::Duration;

/// The offset of Controller Capabilities (3.1.3.1).
pub const CAP: usize = 0x00;
/// The offset of Version (3.1.3.2).
pub const VS: usize = 0x08;
/// The offset of Controller Configuration (3.1.3.5).
pub const CC: usize = 0x14;
/// The offset of Controller Status (3.1.3.6).
pub const CSTS: usize = 0x1c;
/// The offset of Admin Queue Attributes (3.1.3.8).
pub const AQA: usize = 0x24;
/// The offset of Admin Submission Queue Base Address (3.1.3.9).
pub const ASQ: usize = 0x28;
/// The offset of Admin Completion Queue Base Address (3.1.3.10).
pub const ACQ: usize = 0x30;
/// The offset of the first doorbell (PCIe Transport, 3.1.2).
pub const DOORBELLS: usize = 0x1000;

/// The value of the register CAP, Controller Capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// Returns the largest number of entries of an I/O queue (MQES).
    pub fn queue_entries_max(self) -> u32 {
        (self.0 & 0xffff) as u32 + 1
    }

    /// Returns the longest time that the controller takes to become ready or to stop (TO).
    pub fn ready_timeout(self) -> Duration {
        Duration::from_millis(500 * ((self.0 >> 24) & 0xff))
    }

    /// Returns the distance between two doorbells, in bytes (DSTRD).
    pub fn doorbell_stride_bytes(self) -> usize {
        4 << ((self.0 >> 32) & 0xf)
    }

    /// Returns `true` if the controller has the NVM command set (CSS).
    pub fn has_nvm_commands(self) -> bool {
        self.0 & 1 << 37 != 0
    }

    /// Returns the binary logarithm of the smallest memory page, in bytes (MPSMIN).
    pub fn page_log2_min(self) -> u32 {
        12 + ((self.0 >> 48) & 0xf) as u32
    }

    /// Returns the binary logarithm of the largest memory page, in bytes (MPSMAX).
    pub fn page_log2_max(self) -> u32 {
        12 + ((self.0 >> 52) & 0xf) as u32
    }

    /// Returns the offset of the tail doorbell of submission queue `id`.
    pub fn tail_doorbell(self, id: u16) -> usize {
        DOORBELLS + 2 * usize::from(id) * self.doorbell_stride_bytes()
    }

    /// Returns the offset of the head doorbell of completion queue `id`.
    pub fn head_doorbell(self, id: u16) -> usize {
        DOORBELLS + (2 * usize::from(id) + 1) * self.doorbell_stride_bytes()
    }
}

/// The value of the register VS, Version. It is displayed as `1.4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(raw) = self;
        write!(f, "{}.{}", raw >> 16, raw >> 8 & 0xff)?;
        if raw & 0xff == 0 { Ok(()) } else { write!(f, ".{}", raw & 0xff) }
    }
}

/// The value that the driver writes to the register CC: entries of 64 and 16 bytes, round robin
/// arbitration, the NVM command set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Configuration {
    /// EN.
    pub(crate) is_enabled: bool,
    /// SHN: a normal shutdown is requested.
    pub(crate) is_shutting_down: bool,
    /// MPS, as the binary logarithm of the page size in bytes.
    pub(crate) page_log2: u32,
}

impl Configuration {
    pub(crate) fn raw(self) -> u32 {
        const SUBMISSION_LOG2: u32 = 6;
        const COMPLETION_LOG2: u32 = 4;
        u32::from(self.is_enabled)
            | (self.page_log2 - 12) << 7
            | u32::from(self.is_shutting_down) << 14
            | SUBMISSION_LOG2 << 16
            | COMPLETION_LOG2 << 20
    }
}

/// The value of the register CSTS, Controller Status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerStatus(pub u32);

impl ControllerStatus {
    /// Returns `true` if the controller is ready (RDY).
    pub fn is_ready(self) -> bool {
        self.0 & 1 != 0
    }

    /// Returns `true` if the controller has met a fatal error and must be reset (CFS).
    pub fn is_fatal(self) -> bool {
        self.0 & 1 << 1 != 0
    }

    /// Returns `true` if a shutdown is complete (SHST), so that power may be removed.
    pub fn is_shut_down(self) -> bool {
        self.0 >> 2 & 3 == 2
    }

    /// Returns `true` if the device does not respond on the bus: all bits are ones.
    pub fn is_gone(self) -> bool {
        self.0 == u32::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of QEMU 7.2's controller, with DSTRD set to 2.
    const CAPABILITIES: Capabilities = Capabilities(0x0040_0022_0f01_07ff | 1 << 37);

    #[test]
    fn capabilities_are_decoded() {
        assert_eq!(CAPABILITIES.queue_entries_max(), 2048);
        assert_eq!(CAPABILITIES.ready_timeout(), Duration::from_millis(7500));
        assert!(CAPABILITIES.has_nvm_commands());
        assert_eq!((CAPABILITIES.page_log2_min(), CAPABILITIES.page_log2_max()), (12, 16));
    }

    #[test]
    fn doorbells_are_one_stride_apart() {
        assert_eq!(CAPABILITIES.doorbell_stride_bytes(), 16);
        assert_eq!(CAPABILITIES.tail_doorbell(0), 0x1000);
        assert_eq!(CAPABILITIES.head_doorbell(0), 0x1010);
        assert_eq!(CAPABILITIES.tail_doorbell(3), 0x1060);
        let dense = Capabilities(0);
        assert_eq!((dense.tail_doorbell(1), dense.head_doorbell(1)), (0x1008, 0x100c));
    }

    #[test]
    fn a_configuration_has_the_layout_of_the_specification() {
        let configuration =
            Configuration { is_enabled: true, is_shutting_down: false, page_log2: 12 };
        assert_eq!(configuration.raw(), 0x0046_0001);
        let ending = Configuration { is_shutting_down: true, page_log2: 16, ..configuration };
        assert_eq!(ending.raw(), 0x0046_4201);
    }

    #[test]
    fn a_status_is_decoded() {
        assert!(ControllerStatus(1).is_ready() && !ControllerStatus(1).is_fatal());
        assert!(ControllerStatus(2).is_fatal());
        assert!(
            ControllerStatus(0b1001).is_shut_down() && !ControllerStatus(0b0101).is_shut_down()
        );
        assert!(ControllerStatus(u32::MAX).is_gone());
    }

    #[test]
    fn a_version_is_displayed_as_the_specification_names_it() {
        assert_eq!(Version(0x0001_0400).to_string(), "1.4");
        assert_eq!(Version(0x0001_0201).to_string(), "1.2.1");
    }
}
