//! Payloads of the server's replies, and of its own commands.

use super::{Builder, Fields};
use crate::Errno;

/// The description of the device: the reply to `DeviceGetInfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// A combination of the constants.
    pub flags: u32,
    /// The number of regions.
    pub regions: u32,
    /// The number of kinds of interrupts.
    pub irqs: u32,
}

impl DeviceInfo {
    /// Flag: the device can be reset.
    pub const RESET: u32 = 1;
    /// Flag: it is a PCI device.
    pub const PCI: u32 = 1 << 1;

    /// Returns the payload.
    pub fn encode(&self) -> Vec<u8> {
        Builder::default().u32(16).u32(self.flags).u32(self.regions).u32(self.irqs).end()
    }

    /// Parses a payload.
    ///
    /// # Errors
    /// `EINVAL` if the payload has another length, as for all other types here.
    pub fn parse(payload: &[u8]) -> Result<Self, Errno> {
        let mut fields = Fields::of(payload);
        fields.u32()?;
        let (flags, regions, irqs) = (fields.u32()?, fields.u32()?, fields.u32()?);
        fields.end()?;
        Ok(Self { flags, regions, irqs })
    }
}

/// The length of a region's description without capabilities, in bytes.
pub const REGION_INFO_LEN_BYTES: u32 = 32;

const SPARSE_MMAP: u16 = 1;
const SPARSE_MMAP_VERSION: u16 = 1;

/// A part of a region that the client may map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappableArea {
    /// The offset in the region, in bytes.
    pub offset: u64,
    /// The length in bytes.
    pub len_bytes: u64,
}

/// The description of a region: the reply to `DeviceGetRegionInfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionInfo {
    /// The length of the full reply's payload in bytes. If it is above the request's, areas are left
    /// out.
    pub argsz: u32,
    /// A combination of the constants.
    pub flags: u32,
    /// The index of the region.
    pub index: u32,
    /// The length of the region in bytes.
    pub len_bytes: u64,
    /// The offset at which the region begins in the file that the client may map.
    pub offset: u64,
    /// The parts that may be mapped; if empty, the whole region.
    pub areas: Vec<MappableArea>,
}

impl RegionInfo {
    /// Flag: the client may read it.
    pub const READ: u32 = 1;
    /// Flag: the client may write it.
    pub const WRITE: u32 = 1 << 1;
    /// Flag: the client may map it; the message has a descriptor.
    pub const MMAP: u32 = 1 << 2;
    /// Flag: capabilities follow.
    pub const CAPABILITIES: u32 = 1 << 3;

    /// Returns the payload, without the areas if it would be longer than `argsz_max` bytes.
    pub fn encode(&self, argsz_max: u32) -> Vec<u8> {
        let full = match self.areas.len() as u32 {
            0 => REGION_INFO_LEN_BYTES,
            areas => REGION_INFO_LEN_BYTES + 16 + 16 * areas,
        };
        let has_areas = full > REGION_INFO_LEN_BYTES;
        let fits = full <= argsz_max;
        let flags = if has_areas { self.flags | Self::CAPABILITIES } else { self.flags };
        let capabilities_at = if has_areas && fits { REGION_INFO_LEN_BYTES } else { 0 };
        let info = Builder::default()
            .u32(full)
            .u32(flags)
            .u32(self.index)
            .u32(capabilities_at)
            .u64(self.len_bytes)
            .u64(self.offset);
        if capabilities_at == 0 {
            return info.end();
        }
        let sparse = info
            .u16(SPARSE_MMAP)
            .u16(SPARSE_MMAP_VERSION)
            .u32(0)
            .u32(self.areas.len() as u32)
            .u32(0);
        let add = |info: Builder, area: &MappableArea| info.u64(area.offset).u64(area.len_bytes);
        self.areas.iter().fold(sparse, add).end()
    }

    /// Parses a payload. Unknown capabilities are ignored.
    ///
    /// # Errors
    /// `EINVAL` if the list of capabilities leads out of the payload or backwards.
    pub fn parse(payload: &[u8]) -> Result<Self, Errno> {
        let mut fields = Fields::of(payload);
        let (argsz, flags, index) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let (mut next, len_bytes, offset) = (fields.u32()?, fields.u64()?, fields.u64()?);
        let mut areas = Vec::new();
        let mut seen_to = REGION_INFO_LEN_BYTES;
        while flags & Self::CAPABILITIES != 0 && next != 0 {
            if next < seen_to {
                return Err(Errno::EINVAL);
            }
            let capability = payload.get(next as usize..).ok_or(Errno::EINVAL)?;
            let mut capability = Fields::of(capability);
            let (id, version) = (capability.u16()?, capability.u16()?);
            seen_to = next.saturating_add(8);
            next = capability.u32()?;
            if (id, version) == (SPARSE_MMAP, SPARSE_MMAP_VERSION) {
                let (count, _) = (capability.u32()?, capability.u32()?);
                for _ in 0..count {
                    let (offset, len_bytes) = (capability.u64()?, capability.u64()?);
                    areas.push(MappableArea { offset, len_bytes });
                }
            }
        }
        let flags = flags & !Self::CAPABILITIES;
        Ok(Self { argsz, flags, index, len_bytes, offset, areas })
    }
}

/// The description of a kind of interrupts: the reply to `DeviceGetIrqInfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IrqInfo {
    /// A combination of the constants.
    pub flags: u32,
    /// The index of the kind.
    pub index: u32,
    /// The number of interrupts of the kind.
    pub count: u32,
}

impl IrqInfo {
    /// Flag: they can be signalled by eventfds.
    pub const EVENTFD: u32 = 1;
    /// Flag: they can be masked.
    pub const MASKABLE: u32 = 1 << 1;
    /// Flag: an interrupt that was raised is masked until the client unmasks it.
    pub const AUTOMASKED: u32 = 1 << 2;
    /// Flag: they are set up all at once.
    pub const NORESIZE: u32 = 1 << 3;

    /// Returns the payload.
    pub fn encode(&self) -> Vec<u8> {
        Builder::default().u32(16).u32(self.flags).u32(self.index).u32(self.count).end()
    }

    /// Parses a payload.
    ///
    /// # Errors
    /// As for [`DeviceInfo::parse`].
    pub fn parse(payload: &[u8]) -> Result<Self, Errno> {
        let mut fields = Fields::of(payload);
        fields.u32()?;
        let (flags, index, count) = (fields.u32()?, fields.u32()?, fields.u32()?);
        fields.end()?;
        Ok(Self { flags, index, count })
    }
}

/// The reply to `RegionRead`, with data, and to `RegionWrite`, without data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionAccess<'a> {
    /// The offset in the region, in bytes.
    pub offset: u64,
    /// The index of the region.
    pub region: u32,
    /// The number of bytes that were read or written.
    pub count: u32,
    /// The bytes that were read.
    pub data: &'a [u8],
}

impl<'a> RegionAccess<'a> {
    /// Returns the payload.
    pub fn encode(&self) -> Vec<u8> {
        let payload = Builder::default().u64(self.offset).u32(self.region).u32(self.count);
        payload.bytes(self.data).end()
    }

    /// Parses a payload.
    ///
    /// # Errors
    /// As for [`DeviceInfo::parse`].
    pub fn parse(payload: &'a [u8]) -> Result<Self, Errno> {
        let mut fields = Fields::of(payload);
        let (offset, region, count) = (fields.u64()?, fields.u32()?, fields.u32()?);
        Ok(Self { offset, region, count, data: fields.rest() })
    }
}

/// The reply to `RegionWriteMulti`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionWriteMulti {
    /// The number of writes that were done.
    pub done: u64,
}

impl RegionWriteMulti {
    /// Returns the payload.
    pub fn encode(self) -> Vec<u8> {
        self.done.to_ne_bytes().to_vec()
    }

    /// Parses a payload.
    ///
    /// # Errors
    /// As for [`DeviceInfo::parse`].
    pub fn parse(payload: &[u8]) -> Result<Self, Errno> {
        let mut fields = Fields::of(payload);
        let done = fields.u64()?;
        fields.end()?;
        Ok(Self { done })
    }
}

/// The payload of `DmaRead` and `DmaWrite`, which the server sends, and of the replies.
///
/// ```text
///   DmaRead    address, count        ──►   address, count, data
///   DmaWrite   address, count, data  ──►   address, count; or nothing at all, from QEMU
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaAccess<'a> {
    /// The address in the client's memory.
    pub iova: u64,
    /// The number of bytes.
    pub count: u64,
    /// The bytes, if the message has any.
    pub data: &'a [u8],
}

impl<'a> DmaAccess<'a> {
    /// The number of bytes before the data.
    pub const PREFIX_LEN_BYTES: usize = 16;

    /// Returns the payload.
    pub fn encode(&self) -> Vec<u8> {
        Builder::default().u64(self.iova).u64(self.count).bytes(self.data).end()
    }

    /// Parses a payload.
    ///
    /// # Errors
    /// As for [`DeviceInfo::parse`].
    pub fn parse(payload: &'a [u8]) -> Result<Self, Errno> {
        let mut fields = Fields::of(payload);
        let (iova, count) = (fields.u64()?, fields.u64()?);
        Ok(Self { iova, count, data: fields.rest() })
    }
}

/// The reply to `MigrationDataRead`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationData<'a> {
    /// The device's state, or a part of it; shorter than requested at the end of the state.
    pub data: &'a [u8],
}

impl<'a> MigrationData<'a> {
    /// Returns the payload.
    pub fn encode(&self) -> Vec<u8> {
        let len_bytes = self.data.len() as u32;
        Builder::default().u32(len_bytes.saturating_add(8)).u32(len_bytes).bytes(self.data).end()
    }

    /// Parses a payload.
    ///
    /// # Errors
    /// As for [`DeviceInfo::parse`].
    pub fn parse(payload: &'a [u8]) -> Result<Self, Errno> {
        let mut fields = Fields::of(payload);
        let (_, size) = (fields.u32()?, fields.u32()?);
        Ok(Self { data: fields.rest_of(size.into())? })
    }
}
