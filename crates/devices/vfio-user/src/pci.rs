//! PCI devices: the indices of their regions and interrupts, and their configuration space.

use crate::Errno;
use crate::description::{DeviceDescription, IrqDescription, RegionDescription};

/// The region of base address register 0; the other five follow.
pub const BAR0_REGION: u32 = 0;
/// The region of the expansion ROM.
pub const ROM_REGION: u32 = 6;
/// The region of the configuration space.
pub const CONFIG_REGION: u32 = 7;
/// The region of the VGA ranges.
pub const VGA_REGION: u32 = 8;

/// The one interrupt line (`INTx`).
pub const INTX_IRQ: u32 = 0;
/// MSI interrupts.
pub const MSI_IRQ: u32 = 1;
/// MSI-X interrupts.
pub const MSIX_IRQ: u32 = 2;

const REGIONS: usize = 9;
const IRQS: usize = 5;

/// Length of the configuration space of a conventional device, in bytes.
const CONFIG_LEN_BYTES: usize = 256;

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const BARS: usize = 0x10;
const CAPABILITIES: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;
const INTERRUPT_PIN: usize = 0x3d;
const FIRST_CAPABILITY: usize = 0x40;
const MSIX_LEN_BYTES: usize = 12;

const STATUS_CAPABILITIES: u16 = 1 << 4;
/// I/O and memory decoding, bus mastering, parity, SERR#, and no INTx.
const COMMAND_WRITABLE: u16 = 0x0547;
const BAR_64_BITS: u32 = 0b100;
const BAR_PREFETCHABLE: u32 = 0b1000;
const MSIX_ID: u8 = 0x11;
const MSIX_CONTROL_WRITABLE: u16 = 0xc000;

/// The configuration space of a PCI device, 256 bytes with a header of type 0: built with its methods,
/// then read and written by the client.
///
/// ```
/// use longshore_vfio_user::pci::{Bar, ConfigSpace, MsixTable};
///
/// let config = ConfigSpace::new(0x1b36, 0x0010)
///     .class(0x01_08_02)
///     .bar(0, Bar::memory64(0x4000))
///     .msix(MsixTable { vectors: 4, bar: 0, table_offset: 0x2000, pba_offset: 0x3000 });
/// assert_eq!(config.description().regions[0].len_bytes, 0x4000);
/// ```
#[derive(Clone, Debug)]
pub struct ConfigSpace {
    bytes: [u8; CONFIG_LEN_BYTES],
    /// The bits that a write by the client changes.
    writable: [u8; CONFIG_LEN_BYTES],
    description: DeviceDescription,
    next_capability: usize,
}

/// A base address register (BAR): a window into the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    len_bytes: u64,
    flags: u32,
}

impl Bar {
    /// Returns a register for memory below 4 GiB.
    pub const fn memory32(len_bytes: u32) -> Self {
        Self { len_bytes: len_bytes as u64, flags: 0 }
    }

    /// Returns a 64-bit register, for memory at any address. It takes two registers.
    pub const fn memory64(len_bytes: u64) -> Self {
        Self { len_bytes, flags: BAR_64_BITS }
    }

    /// Marks the memory prefetchable: reads have no side effects, and writes may be merged.
    #[must_use]
    pub const fn prefetchable(self) -> Self {
        Self { flags: self.flags | BAR_PREFETCHABLE, ..self }
    }
}

/// The places of a device's MSI-X table and pending bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixTable {
    /// The number of interrupts, 1 to 2048.
    pub vectors: u16,
    /// The BAR of the memory that has both.
    pub bar: u8,
    /// The offset of the table in that memory, a multiple of 8; each interrupt has 16 bytes.
    pub table_offset: u32,
    /// The offset of the pending bits, a multiple of 8; each 64 interrupts have 8 bytes.
    pub pba_offset: u32,
}

impl ConfigSpace {
    /// Makes the configuration space of a device with neither memory nor interrupts.
    pub fn new(vendor: u16, device: u16) -> Self {
        let mut description = DeviceDescription {
            regions: vec![RegionDescription::default(); REGIONS],
            irqs: vec![IrqDescription::default(); IRQS],
            is_pci: true,
            has_reset: true,
        };
        let config = RegionDescription::new(CONFIG_LEN_BYTES as u64);
        description.regions[CONFIG_REGION as usize] = config;
        let mut space = Self {
            bytes: [0; CONFIG_LEN_BYTES],
            writable: [0; CONFIG_LEN_BYTES],
            description,
            next_capability: FIRST_CAPABILITY,
        };
        space.put(0x00, &vendor.to_le_bytes());
        space.put(0x02, &device.to_le_bytes());
        space.allow(COMMAND, &COMMAND_WRITABLE.to_le_bytes());
        // Cache line size and interrupt line: stored without effect.
        space.allow(0x0c, &[0xff]);
        space.allow(INTERRUPT_LINE, &[0xff]);
        space
    }

    /// Sets class, subclass and programming interface, from the highest byte of 24 bits.
    #[must_use]
    pub fn class(mut self, class: u32) -> Self {
        let [interface, subclass, base, _] = class.to_le_bytes();
        self.put(0x09, &[interface, subclass, base]);
        self
    }

    /// Sets the revision.
    #[must_use]
    pub fn revision(mut self, revision: u8) -> Self {
        self.put(0x08, &[revision]);
        self
    }

    /// Sets the subsystem's vendor and device.
    #[must_use]
    pub fn subsystem(mut self, vendor: u16, device: u16) -> Self {
        self.put(0x2c, &vendor.to_le_bytes());
        self.put(0x2e, &device.to_le_bytes());
        self
    }

    /// Gives the device memory behind register `index`, read and written by messages.
    ///
    /// # Panics
    /// If the register does not exist or is taken, or if the length is not a power of two of at least 16
    /// bytes: these are the device's own constants.
    #[must_use]
    pub fn bar(mut self, index: u8, bar: Bar) -> Self {
        let Bar { len_bytes, flags } = bar;
        let registers = if flags & BAR_64_BITS != 0 { 2 } else { 1 };
        let at = BARS + usize::from(index) * 4;
        assert!(usize::from(index) + registers <= 6, "BAR {index} does not exist");
        assert!(len_bytes.is_power_of_two() && len_bytes >= 16, "BAR {index} of {len_bytes} bytes");
        let taken = &self.writable[at..at + registers * 4];
        assert!(taken.iter().all(|byte| *byte == 0), "BAR {index} is taken");
        self.put(at, &flags.to_le_bytes());
        let address = !(len_bytes - 1);
        self.allow(at, &address.to_le_bytes()[..registers * 4]);
        self.description.regions[usize::from(index)] = RegionDescription::new(len_bytes);
        self
    }

    /// Replaces the description of a region that the client gets, for example to make it read-only.
    ///
    /// # Panics
    /// If its length is not that of the region.
    #[must_use]
    pub fn region(mut self, index: u32, region: RegionDescription) -> Self {
        let old = &mut self.description.regions[index as usize];
        assert_eq!(old.len_bytes, region.len_bytes, "region {index} must keep its length");
        *old = region;
        self
    }

    /// Gives the device an interrupt line, `INTA#`.
    #[must_use]
    pub fn intx(mut self) -> Self {
        self.put(INTERRUPT_PIN, &[1]);
        let irqs = IrqDescription { count: 1, maskable: true, automasked: true };
        self.description.irqs[INTX_IRQ as usize] = irqs;
        self
    }

    /// Gives the device MSI-X interrupts.
    ///
    /// # Panics
    /// If the table or the pending bits do not lie in that memory: these are the device's own constants.
    #[must_use]
    pub fn msix(mut self, table: MsixTable) -> Self {
        let MsixTable { vectors, bar, table_offset, pba_offset } = table;
        let room = self.description.regions.get(usize::from(bar).min(5)).map_or(0, |r| r.len_bytes);
        let table_end = u64::from(table_offset) + 16 * u64::from(vectors);
        let pba_end = u64::from(pba_offset) + 8 * u64::from(vectors).div_ceil(64);
        let is_aligned = (table_offset | pba_offset) & 7 == 0;
        assert!(bar < 6 && (1..=2048).contains(&vectors) && is_aligned, "{table:?}");
        assert!(table_end.max(pba_end) <= room, "{table:?} in {room} bytes");
        let control = vectors - 1;
        let mut body = [0; MSIX_LEN_BYTES - 2];
        body[0..2].copy_from_slice(&control.to_le_bytes());
        body[2..6].copy_from_slice(&(table_offset | u32::from(bar)).to_le_bytes());
        body[6..10].copy_from_slice(&(pba_offset | u32::from(bar)).to_le_bytes());
        let at = self.add_capability(MSIX_ID, &body);
        self.allow(at + 2, &MSIX_CONTROL_WRITABLE.to_le_bytes());
        self.description.irqs[MSIX_IRQ as usize] =
            IrqDescription { count: vectors.into(), maskable: false, automasked: false };
        self
    }

    /// Adds a capability that the client cannot change. `body` follows the two bytes of id and link.
    ///
    /// # Panics
    /// If there is no room for it.
    #[must_use]
    pub fn capability(mut self, id: u8, body: &[u8]) -> Self {
        self.add_capability(id, body);
        self
    }

    /// Returns the description of the device that the client gets.
    pub fn description(&self) -> DeviceDescription {
        self.description.clone()
    }

    /// Reads the space, for the client or the device itself.
    ///
    /// # Errors
    /// `EINVAL` past its end.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        let at = usize::try_from(offset).map_err(|_| Errno::EINVAL)?;
        let from = at.checked_add(into.len()).and_then(|end| self.bytes.get(at..end));
        into.copy_from_slice(from.ok_or(Errno::EINVAL)?);
        Ok(())
    }

    /// Writes the bits that a client may change, and ignores the others.
    ///
    /// # Errors
    /// `EINVAL` past its end; nothing is written then.
    pub fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), Errno> {
        let at = usize::try_from(offset).map_err(|_| Errno::EINVAL)?;
        let end = at.checked_add(from.len()).ok_or(Errno::EINVAL)?;
        let bytes = self.bytes.get_mut(at..end).ok_or(Errno::EINVAL)?;
        for ((byte, new), writable) in bytes.iter_mut().zip(from).zip(&self.writable[at..end]) {
            *byte = (*byte & !writable) | (new & writable);
        }
        Ok(())
    }

    /// Sets every bit that a client may change to zero.
    pub fn reset(&mut self) {
        for (byte, writable) in self.bytes.iter_mut().zip(&self.writable) {
            *byte &= !writable;
        }
    }

    /// Returns `true` if the client lets the device access memory and raise message-signalled
    /// interrupts.
    pub fn is_bus_master(&self) -> bool {
        self.bytes[COMMAND] & 1 << 2 != 0
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn allow(&mut self, at: usize, bits: &[u8]) {
        self.writable[at..at + bits.len()].copy_from_slice(bits);
        if (BARS..CAPABILITIES).contains(&at) {
            // The lowest four bits of a BAR are its type.
            self.writable[at] &= 0xf0;
        }
    }

    fn add_capability(&mut self, id: u8, body: &[u8]) -> usize {
        let at = self.next_capability;
        let end = (at + 2 + body.len()).next_multiple_of(4);
        assert!(end <= CONFIG_LEN_BYTES, "there is no room for capability {id:#x}");
        let next = self.bytes[CAPABILITIES];
        self.put(at, &[id, next]);
        self.put(at + 2, body);
        self.put(CAPABILITIES, &[at as u8]);
        let status = u16::from_le_bytes([self.bytes[STATUS], self.bytes[STATUS + 1]]);
        self.put(STATUS, &(status | STATUS_CAPABILITIES).to_le_bytes());
        self.next_capability = end;
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> ConfigSpace {
        ConfigSpace::new(0x1234, 0x5678)
            .class(0x01_08_02)
            .revision(3)
            .subsystem(0x9abc, 0xdef0)
            .bar(0, Bar::memory64(0x1_0000_0000).prefetchable())
            .bar(2, Bar::memory32(0x2000))
            .intx()
            .msix(MsixTable { vectors: 65, bar: 2, table_offset: 0, pba_offset: 0x1000 })
            .capability(0x09, &[6, 1, 2, 3])
    }

    fn read_u32(space: &ConfigSpace, at: u64) -> u32 {
        let mut bytes = [0; 4];
        space.read(at, &mut bytes).unwrap();
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn the_header_describes_the_device() {
        let space = space();
        assert_eq!(read_u32(&space, 0), 0x5678_1234);
        assert_eq!(read_u32(&space, 8), 0x0108_0203);
        assert_eq!(read_u32(&space, 0x2c), 0xdef0_9abc);
        assert_eq!(read_u32(&space, 0x3c), 0x0100);
        let DeviceDescription { regions, irqs, is_pci, has_reset } = space.description();
        assert!(is_pci && has_reset);
        let lengths: Vec<u64> = regions.iter().map(|region| region.len_bytes).collect();
        assert_eq!(lengths, [0x1_0000_0000, 0, 0x2000, 0, 0, 0, 0, 256, 0]);
        let counts: Vec<u32> = irqs.iter().map(|irqs| irqs.count).collect();
        assert_eq!(counts, [1, 0, 65, 0, 0]);
    }

    #[test]
    fn capabilities_are_a_list() {
        let space = space();
        assert_eq!(read_u32(&space, 4) >> 16, 0x10);
        let vendor = u64::from(read_u32(&space, 0x34));
        assert_eq!(read_u32(&space, vendor) & 0xff, 0x09);
        let msix = u64::from(read_u32(&space, vendor) >> 8 & 0xff);
        assert_eq!(read_u32(&space, msix), 64 << 16 | 0x11);
        assert_eq!((read_u32(&space, msix + 4), read_u32(&space, msix + 8)), (2, 0x1002));
    }

    #[test]
    fn lengths_of_memory_are_read_after_all_ones_are_written() {
        let mut space = space();
        for at in (0x10..0x28).step_by(4) {
            space.write(at, &[0xff; 4]).unwrap();
        }
        let read: Vec<u32> = (0x10..0x28).step_by(4).map(|at| read_u32(&space, at)).collect();
        assert_eq!(read, [0xc, 0xffff_ffff, 0xffff_e000, 0, 0, 0]);
        space.reset();
        assert_eq!(read_u32(&space, 0x14), 0);
        assert_eq!(read_u32(&space, 0x10), 0xc);
    }

    #[test]
    fn a_write_changes_writable_bits_only() {
        let before = space();
        let mut after = before.clone();
        after.write(0, &[0xff; 256]).unwrap();
        assert!(after.is_bus_master() && !before.is_bus_master());
        for at in 0..256 {
            let changed = before.bytes[at] ^ after.bytes[at];
            assert_eq!(changed & !before.writable[at], 0, "byte {at:#x}");
        }
        assert_eq!(read_u32(&after, 4), 0x0010_0547);
        assert_eq!(after.write(255, &[0; 2]), Err(Errno::EINVAL));
        assert_eq!(after.read(u64::MAX, &mut [0]), Err(Errno::EINVAL));
        assert_eq!(after.read(256, &mut []), Ok(()));
    }

    #[test]
    #[should_panic(expected = "is taken")]
    fn the_upper_half_of_a_register_is_taken() {
        let _ = ConfigSpace::new(1, 2).bar(0, Bar::memory64(4096)).bar(1, Bar::memory32(4096));
    }
}
