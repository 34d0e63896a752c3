//! The controller's registers in BAR 0 (NVM Express Base Specification 2.0, section 3.1.3; their place
//! on PCI Express is that of the NVMe over PCIe Transport Specification 1.0).

use std::fmt;
use std::time::Duration;

/// Controller Capabilities (3.1.3.1).
pub const CAP: usize = 0x00;
/// Version (3.1.3.2).
pub const VS: usize = 0x08;
/// Controller Configuration (3.1.3.5).
pub const CC: usize = 0x14;
/// Controller Status (3.1.3.6).
pub const CSTS: usize = 0x1c;
/// Admin Queue Attributes (3.1.3.8).
pub const AQA: usize = 0x24;
/// Admin Submission Queue Base Address (3.1.3.9).
pub const ASQ: usize = 0x28;
/// Admin Completion Queue Base Address (3.1.3.10).
pub const ACQ: usize = 0x30;
/// Where the doorbells begin (PCIe Transport, 3.1.2).
pub const DOORBELLS: usize = 0x1000;

/// What the register CAP says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// MQES: the most entries that an I/O queue may have.
    pub fn queue_entries_max(self) -> u32 {
        (self.0 & 0xffff) as u32 + 1
    }

    /// TO: how long the controller may take to become ready, or to stop.
    pub fn ready_timeout(self) -> Duration {
        Duration::from_millis(500 * ((self.0 >> 24) & 0xff))
    }

    /// DSTRD: how many bytes lie between two doorbells.
    pub fn doorbell_stride_bytes(self) -> usize {
        4 << ((self.0 >> 32) & 0xf)
    }

    /// CSS: whether it has the NVM command set.
    pub fn has_nvm_commands(self) -> bool {
        self.0 & 1 << 37 != 0
    }

    /// MPSMIN: the binary logarithm of the smallest memory page that it can be set to, in bytes.
    pub fn page_log2_min(self) -> u32 {
        12 + ((self.0 >> 48) & 0xf) as u32
    }

    /// MPSMAX: the same of the largest.
    pub fn page_log2_max(self) -> u32 {
        12 + ((self.0 >> 52) & 0xf) as u32
    }

    /// The doorbell that tells the controller of new entries of the submission queue `id`.
    pub fn tail_doorbell(self, id: u16) -> usize {
        DOORBELLS + 2 * usize::from(id) * self.doorbell_stride_bytes()
    }

    /// The doorbell that tells it up to where the completion queue `id` was read.
    pub fn head_doorbell(self, id: u16) -> usize {
        DOORBELLS + (2 * usize::from(id) + 1) * self.doorbell_stride_bytes()
    }
}

/// What the register VS says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(raw) = self;
        write!(f, "{}.{}", raw >> 16, raw >> 8 & 0xff)?;
        if raw & 0xff == 0 { Ok(()) } else { write!(f, ".{}", raw & 0xff) }
    }
}

/// What is written to the register CC: entries of 64 and 16 bytes, round robin, the NVM command set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// EN.
    pub is_enabled: bool,
    /// SHN: a normal shutdown is asked for.
    pub is_shutting_down: bool,
    /// MPS, as the binary logarithm of a page's bytes.
    pub page_log2: u32,
}

impl Configuration {
    /// The register.
    pub fn raw(self) -> u32 {
        const SUBMISSION_LOG2: u32 = 6;
        const COMPLETION_LOG2: u32 = 4;
        u32::from(self.is_enabled)
            | (self.page_log2 - 12) << 7
            | u32::from(self.is_shutting_down) << 14
            | SUBMISSION_LOG2 << 16
            | COMPLETION_LOG2 << 20
    }
}

/// What the register CSTS says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerStatus(pub u32);

impl ControllerStatus {
    /// RDY.
    pub fn is_ready(self) -> bool {
        self.0 & 1 != 0
    }

    /// CFS: it has met an error that it cannot tell otherwise, and must be reset.
    pub fn is_fatal(self) -> bool {
        self.0 & 1 << 1 != 0
    }

    /// SHST: it was shut down, so that power may go.
    pub fn is_shut_down(self) -> bool {
        self.0 >> 2 & 3 == 2
    }

    /// Nothing answers on the bus.
    pub fn is_gone(self) -> bool {
        self.0 == u32::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What QEMU's controller says (7.2), with DSTRD set to 2.
    const CAPABILITIES: Capabilities = Capabilities(0x0040_0022_0f01_07ff | 1 << 37);

    #[test]
    fn capabilities_are_decoded() {
        assert_eq!(CAPABILITIES.queue_entries_max(), 2048);
        assert_eq!(CAPABILITIES.ready_timeout(), Duration::from_millis(7500));
        assert!(CAPABILITIES.has_nvm_commands());
        assert_eq!((CAPABILITIES.page_log2_min(), CAPABILITIES.page_log2_max()), (12, 16));
    }

    #[test]
    fn doorbells_lie_as_far_apart_as_the_stride_says() {
        assert_eq!(CAPABILITIES.doorbell_stride_bytes(), 16);
        assert_eq!(CAPABILITIES.tail_doorbell(0), 0x1000);
        assert_eq!(CAPABILITIES.head_doorbell(0), 0x1010);
        assert_eq!(CAPABILITIES.tail_doorbell(3), 0x1060);
        let dense = Capabilities(0);
        assert_eq!((dense.tail_doorbell(1), dense.head_doorbell(1)), (0x1008, 0x100c));
    }

    #[test]
    fn a_configuration_is_what_the_specification_has() {
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
    fn a_version_is_written_as_the_specification_calls_it() {
        assert_eq!(Version(0x0001_0400).to_string(), "1.4");
        assert_eq!(Version(0x0001_0201).to_string(), "1.2.1");
    }
}
