//! The regions and interrupts of a device.

use crate::wire::{IrqInfo, RegionInfo};

/// The regions and interrupts of a device.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DeviceDescription {
    /// The regions, by index. A region of length 0 does not exist.
    pub regions: Vec<RegionDescription>,
    /// The kinds of interrupts, by index. A kind of count 0 does not exist.
    pub irqs: Vec<IrqDescription>,
    /// `true` if it is a PCI device, whose indices are those of [`pci`](crate::pci).
    pub is_pci: bool,
    /// `true` if the client can reset it.
    pub has_reset: bool,
}

impl DeviceDescription {
    /// Describes a device that is not a PCI device and cannot be reset.
    pub const fn new(regions: Vec<RegionDescription>, irqs: Vec<IrqDescription>) -> Self {
        Self { regions, irqs, is_pci: false, has_reset: false }
    }
}

/// A region of a device.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RegionDescription {
    /// The length in bytes.
    pub len_bytes: u64,
    /// `true` if the client may read it.
    pub readable: bool,
    /// `true` if the client may write it.
    pub writable: bool,
}

impl RegionDescription {
    /// Describes a region that the client may read and write: by messages, and through a mapping if
    /// [`Device::mappable`](crate::Device::mappable) returns memory.
    pub const fn new(len_bytes: u64) -> Self {
        Self { len_bytes, readable: true, writable: true }
    }

    /// Makes the region read-only for the client.
    #[must_use]
    pub fn read_only(self) -> Self {
        Self { writable: false, ..self }
    }

    /// Makes the region write-only for the client.
    #[must_use]
    pub fn write_only(self) -> Self {
        Self { readable: false, ..self }
    }

    /// Describes the region without the memory that may be mapped in its place.
    pub(crate) fn info(&self, index: u32) -> RegionInfo {
        let mut flags = 0;
        for (is_set, flag) in
            [(self.readable, RegionInfo::READ), (self.writable, RegionInfo::WRITE)]
        {
            flags |= if is_set { flag } else { 0 };
        }
        let (len_bytes, areas) = (self.len_bytes, Vec::new());
        RegionInfo { argsz: 0, flags, index, len_bytes, offset: 0, areas }
    }
}

/// A kind of interrupts of a device.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct IrqDescription {
    /// The number of interrupts.
    pub count: u32,
    /// `true` if the client may mask them.
    pub maskable: bool,
    /// `true` if raising an interrupt masks it until the client unmasks it, as for a level-triggered
    /// line.
    pub automasked: bool,
}

impl IrqDescription {
    /// Describes `count` interrupts that the client cannot mask.
    pub const fn new(count: u32) -> Self {
        Self { count, maskable: false, automasked: false }
    }

    pub(crate) fn info(&self, index: u32) -> IrqInfo {
        let mut flags = if self.count > 0 { IrqInfo::EVENTFD } else { 0 };
        if self.maskable || self.automasked {
            flags |= IrqInfo::MASKABLE;
        }
        if self.automasked {
            flags |= IrqInfo::AUTOMASKED;
        }
        IrqInfo { flags, index, count: self.count }
    }
}
