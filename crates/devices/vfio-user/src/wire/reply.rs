//! What the server answers, and what it asks itself.

use super::{Builder, Fields};
use crate::Errno;

/// What the device is: the answer to `DeviceGetInfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// See the constants.
    pub flags: u32,
    /// How many regions it has.
    pub regions: u32,
    /// How many kinds of interrupts it has.
    pub irqs: u32,
}

impl DeviceInfo {
    /// It can be reset.
    pub const RESET: u32 = 1;
    /// It is a PCI device.
    pub const PCI: u32 = 1 << 1;

    /// As it is on the socket.
    pub fn encode(&self) -> Vec<u8> {
        Builder::default().u32(16).u32(self.flags).u32(self.regions).u32(self.irqs).end()
    }

    /// From the socket.
    ///
    /// # Errors
    /// `EINVAL` where it is not as long as it must be; so for all the others here.
    pub fn parse(payload: &[u8]) -> Result<Self, Errno> {
        let mut fields = Fields::of(payload);
        fields.u32()?;
        let (flags, regions, irqs) = (fields.u32()?, fields.u32()?, fields.u32()?);
        fields.end()?;
        Ok(Self { flags, regions, irqs })
    }
}

/// Length of a region's description without capabilities, in bytes.
pub const REGION_INFO_LEN_BYTES: u32 = 32;

const SPARSE_MMAP: u16 = 1;
const SPARSE_MMAP_VERSION: u16 = 1;

/// A part of a region that the client may map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappableArea {
    /// Where in the region, in bytes.
    pub offset: u64,
    /// How long.
    pub len_bytes: u64,
}

/// What a region is: the answer to `DeviceGetRegionInfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionInfo {
    /// Length of the full answer's payload; above what was asked for where areas are left out.
    pub argsz: u32,
    /// See the constants.
    pub flags: u32,
    /// Which region.
    pub index: u32,
    /// How long it is.
    pub len_bytes: u64,
    /// Where it begins in the file that the client may map.
    pub offset: u64,
    /// The parts of it that may be mapped, where that is not all of it.
    pub areas: Vec<MappableArea>,
}

impl RegionInfo {
    /// The client may read it.
    pub const READ: u32 = 1;
    /// The client may write it.
    pub const WRITE: u32 = 1 << 1;
    /// The client may map it: the message brings a descriptor.
    pub const MMAP: u32 = 1 << 2;
    /// Capabilities follow.
    pub const CAPABILITIES: u32 = 1 << 3;

    /// As it is on the socket, at most `argsz_max` bytes where the areas do not fit in.
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

    /// From the socket. Capabilities that are not known are passed over.
    ///
    /// # Errors
    /// `EINVAL` for a list of capabilities that leads out of the payload or back.
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

/// What a kind of interrupt is: the answer to `DeviceGetIrqInfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IrqInfo {
    /// See the constants.
    pub flags: u32,
    /// Which kind.
    pub index: u32,
    /// How many interrupts of the kind there are.
    pub count: u32,
}

impl IrqInfo {
    /// They can be told by eventfds.
    pub const EVENTFD: u32 = 1;
    /// They can be masked.
    pub const MASKABLE: u32 = 1 << 1;
    /// One that was raised is masked until the client unmasks it.
    pub const AUTOMASKED: u32 = 1 << 2;
    /// They are set up all at once.
    pub const NORESIZE: u32 = 1 << 3;

    /// As it is on the socket.
    pub fn encode(&self) -> Vec<u8> {
        Builder::default().u32(16).u32(self.flags).u32(self.index).u32(self.count).end()
    }

    /// From the socket.
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

/// The answer to `RegionRead`, with data, and to `RegionWrite`, without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionAccess<'a> {
    /// Where in the region, in bytes.
    pub offset: u64,
    /// Which region.
    pub region: u32,
    /// How many bytes were read or written.
    pub count: u32,
    /// What was read.
    pub data: &'a [u8],
}

impl<'a> RegionAccess<'a> {
    /// As it is on the socket.
    pub fn encode(&self) -> Vec<u8> {
        let payload = Builder::default().u64(self.offset).u32(self.region).u32(self.count);
        payload.bytes(self.data).end()
    }

    /// From the socket.
    ///
    /// # Errors
    /// As for [`DeviceInfo::parse`].
    pub fn parse(payload: &'a [u8]) -> Result<Self, Errno> {
        let mut fields = Fields::of(payload);
        let (offset, region, count) = (fields.u64()?, fields.u32()?, fields.u32()?);
        Ok(Self { offset, region, count, data: fields.rest() })
    }
}

/// The answer to `RegionWriteMulti`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionWriteMulti {
    /// How many of the writes were done.
    pub done: u64,
}

impl RegionWriteMulti {
    /// As it is on the socket.
    pub fn encode(self) -> Vec<u8> {
        self.done.to_ne_bytes().to_vec()
    }

    /// From the socket.
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

/// What `DmaRead` and `DmaWrite` ask and are answered with. The server asks here.
///
/// ```text
///   DmaRead    address, count        ──►   address, count, data
///   DmaWrite   address, count, data  ──►   address, count; or nothing at all, from QEMU
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaAccess<'a> {
    /// Where in the client's memory.
    pub iova: u64,
    /// How many bytes.
    pub count: u64,
    /// The bytes, where there are any.
    pub data: &'a [u8],
}

impl<'a> DmaAccess<'a> {
    /// Bytes before the data.
    pub const PREFIX_LEN_BYTES: usize = 16;

    /// As it is on the socket.
    pub fn encode(&self) -> Vec<u8> {
        Builder::default().u64(self.iova).u64(self.count).bytes(self.data).end()
    }

    /// From the socket.
    ///
    /// # Errors
    /// As for [`DeviceInfo::parse`].
    pub fn parse(payload: &'a [u8]) -> Result<Self, Errno> {
        let mut fields = Fields::of(payload);
        let (iova, count) = (fields.u64()?, fields.u64()?);
        Ok(Self { iova, count, data: fields.rest() })
    }
}

/// The answer to `MigrationDataRead`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationData<'a> {
    /// The device's state, or a part of it; shorter than asked for at its end.
    pub data: &'a [u8],
}

impl<'a> MigrationData<'a> {
    /// As it is on the socket.
    pub fn encode(&self) -> Vec<u8> {
        let len_bytes = self.data.len() as u32;
        Builder::default().u32(len_bytes.saturating_add(8)).u32(len_bytes).bytes(self.data).end()
    }

    /// From the socket.
    ///
    /// # Errors
    /// As for [`DeviceInfo::parse`].
    pub fn parse(payload: &'a [u8]) -> Result<Self, Errno> {
        let mut fields = Fields::of(payload);
        let (_, size) = (fields.u32()?, fields.u32()?);
        Ok(Self { data: fields.rest_of(size.into())? })
    }
}
