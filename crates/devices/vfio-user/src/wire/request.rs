//! Payloads of the client's commands.

use super::header::Command;
use super::{Builder, Fields};
use crate::Errno;

/// A parsed command of the client. The server parses it, and the client encodes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request<'a> {
    /// [`Command::Version`].
    Version {
        /// Major version.
        major: u16,
        /// Minor version.
        minor: u16,
        /// JSON that ends with a zero byte, or nothing.
        capabilities: &'a [u8],
    },
    /// [`Command::DmaMap`].
    DmaMap(DmaMap),
    /// [`Command::DmaUnmap`].
    DmaUnmap(DmaUnmap),
    /// [`Command::DeviceGetInfo`].
    DeviceGetInfo {
        /// The longest payload that the reply may have.
        argsz: u32,
    },
    /// [`Command::DeviceGetRegionInfo`].
    DeviceGetRegionInfo {
        /// The longest payload that the reply may have.
        argsz: u32,
        /// The index of the region.
        index: u32,
    },
    /// [`Command::DeviceGetRegionIoFds`].
    DeviceGetRegionIoFds {
        /// The longest payload that the reply may have.
        argsz: u32,
        /// The index of the region.
        index: u32,
    },
    /// [`Command::DeviceGetIrqInfo`].
    DeviceGetIrqInfo {
        /// The longest payload that the reply may have.
        argsz: u32,
        /// The index of the kind of interrupts.
        index: u32,
    },
    /// [`Command::DeviceSetIrqs`].
    DeviceSetIrqs(SetIrqs<'a>),
    /// [`Command::RegionRead`].
    RegionRead {
        /// The offset in the region, in bytes.
        offset: u64,
        /// The index of the region.
        region: u32,
        /// The number of bytes.
        count: u32,
    },
    /// [`Command::RegionWrite`].
    RegionWrite {
        /// The offset in the region, in bytes.
        offset: u64,
        /// The index of the region.
        region: u32,
        /// The bytes.
        data: &'a [u8],
    },
    /// [`Command::DeviceReset`].
    DeviceReset,
    /// [`Command::RegionWriteMulti`].
    RegionWriteMulti(SmallWrites<'a>),
    /// [`Command::DeviceFeature`].
    DeviceFeature(Feature<'a>),
    /// [`Command::MigrationDataRead`].
    MigrationDataRead {
        /// The longest payload that the reply may have.
        argsz: u32,
        /// The number of bytes to read.
        size: u32,
    },
    /// [`Command::MigrationDataWrite`].
    MigrationDataWrite {
        /// The bytes.
        data: &'a [u8],
    },
}

/// The payload of [`Command::DmaMap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaMap {
    /// A combination of the constants.
    pub flags: u32,
    /// The offset in bytes at which the memory begins in the file.
    pub offset: u64,
    /// The address at which the device accesses it.
    pub iova: u64,
    /// The length in bytes.
    pub len_bytes: u64,
}

impl DmaMap {
    /// Flag: the device may read.
    pub const READ: u32 = 1;
    /// Flag: the device may write.
    pub const WRITE: u32 = 1 << 1;
    /// Flag: the server accesses the memory by mapping the descriptor's file.
    pub const BY_MMAP: u32 = 1 << 2;
    /// Flag: the server accesses the memory by reading and writing the descriptor's file.
    pub const BY_FILE_IO: u32 = 1 << 3;
    /// The reply has no payload; `argsz` is the request's own length.
    const ARGSZ: u32 = 32;
}

/// The payload of [`Command::DmaUnmap`] and of its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaUnmap {
    /// The longest payload that the reply may have.
    pub argsz: u32,
    /// Zero or the constant.
    pub flags: u32,
    /// The address at which it was mapped.
    pub iova: u64,
    /// The length in bytes.
    pub len_bytes: u64,
}

impl DmaUnmap {
    /// Flag: unmap all memory; address and length must be zero.
    pub const ALL: u32 = 1 << 1;
    /// The length of the payload in bytes.
    pub const LEN_BYTES: u32 = 24;

    /// Returns the payload.
    pub fn encode(&self) -> Vec<u8> {
        Builder::default().u32(self.argsz).u32(self.flags).u64(self.iova).u64(self.len_bytes).end()
    }
}

/// An action on some interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetIrqs<'a> {
    /// One of the constants.
    pub action: u32,
    /// The index of the kind of interrupts.
    pub index: u32,
    /// The first interrupt of the kind.
    pub start: u32,
    /// The number of interrupts.
    pub count: u32,
    /// The data of the action.
    pub data: IrqData<'a>,
}

impl SetIrqs<'_> {
    /// Masks them.
    pub const MASK: u32 = 1 << 3;
    /// Unmasks them.
    pub const UNMASK: u32 = 1 << 4;
    /// Raises them, or attaches eventfds to them.
    pub const TRIGGER: u32 = 1 << 5;
}

/// The data of an action on interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqData<'a> {
    /// The action applies to all of them.
    None,
    /// The action applies to those whose byte is not zero.
    Bools(&'a [u8]),
    /// The message has an eventfd for each of them, or none at all to detach their eventfds.
    EventFds,
}

impl IrqData<'_> {
    const NONE: u32 = 1;
    const BOOLS: u32 = 1 << 1;
    const EVENT_FDS: u32 = 1 << 2;
    const MASK: u32 = 0x7;
}

/// A write of at most eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallWrite {
    /// The offset in the region, in bytes.
    pub offset: u64,
    /// The index of the region.
    pub region: u32,
    /// The number of bytes; an unchecked claim, which may be above eight.
    pub count: u32,
    /// The bytes, from the first.
    pub data: [u8; 8],
}

/// Writes of at most eight bytes, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallWrites<'a>(&'a [u8]);

impl SmallWrites<'_> {
    const EACH_LEN_BYTES: usize = 24;

    /// Returns the number of writes.
    pub fn count(&self) -> u64 {
        (self.0.len() / Self::EACH_LEN_BYTES) as u64
    }

    /// Returns an iterator over the writes.
    pub fn iter(&self) -> impl Iterator<Item = SmallWrite> {
        self.0.chunks_exact(Self::EACH_LEN_BYTES).filter_map(|one| {
            let mut fields = Fields::of(one);
            let (offset, region) = (fields.u64().ok()?, fields.u32().ok()?);
            let (count, data) = (fields.u32().ok()?, fields.bytes().ok()?);
            Some(SmallWrite { offset, region, count, data })
        })
    }

    /// Returns the payload of these writes; `Request::parse` turns it into a
    /// [`Request::RegionWriteMulti`].
    pub fn encode(writes: &[SmallWrite]) -> Vec<u8> {
        writes.iter().fold(Builder::default().u64(writes.len() as u64), one_write).end()
    }
}

fn one_write(payload: Builder, write: &SmallWrite) -> Builder {
    payload.u64(write.offset).u32(write.region).u32(write.count).bytes(&write.data)
}

/// The payload of [`Command::DeviceFeature`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature<'a> {
    /// The longest payload that the reply may have.
    pub argsz: u32,
    /// The feature's number in the lower half, and the action in the upper half.
    pub flags: u32,
    /// The data of the feature.
    pub data: &'a [u8],
}

impl Feature<'_> {
    /// Action: returns the feature's data.
    pub const GET: u32 = 1 << 16;
    /// Action: sets the feature.
    pub const SET: u32 = 1 << 17;
    /// Action: checks that the device has the feature, with the other actions that are set.
    pub const PROBE: u32 = 1 << 18;
    /// All actions.
    pub const ACTIONS: u32 = Self::GET | Self::SET | Self::PROBE;
    /// The number of bytes before the data.
    pub const PREFIX_LEN_BYTES: u32 = 8;

    /// Returns the feature's number.
    pub fn number(&self) -> u32 {
        self.flags & 0xffff
    }

    /// Returns the payload, of a request and of a reply.
    pub fn encode(&self) -> Vec<u8> {
        Builder::default().u32(self.argsz).u32(self.flags).bytes(self.data).end()
    }
}

/// The numbers of features.
pub mod feature {
    /// The kinds of migration that the device supports.
    pub const MIGRATION: u32 = 1;
    /// The migration state of the device.
    pub const MIGRATION_STATE: u32 = 2;
    /// Begins to log the pages that the device writes.
    pub const DMA_LOGGING_START: u32 = 6;
    /// Stops the log.
    pub const DMA_LOGGING_STOP: u32 = 7;
    /// Returns the pages that were written since the last report.
    pub const DMA_LOGGING_REPORT: u32 = 8;
}

impl<'a> Request<'a> {
    /// Parses the payload of a command.
    ///
    /// # Errors
    /// `EINVAL` for a payload whose length is not that of its command or does not match its own fields;
    /// `ENOSYS` for a command that no client sends.
    pub fn parse(command: u16, payload: &'a [u8]) -> Result<Self, Errno> {
        let Some(command) = Command::from_number(command) else { return Err(Errno::ENOSYS) };
        let mut fields = Fields::of(payload);
        let request = match command {
            Command::Version => {
                let (major, minor) = (fields.u16()?, fields.u16()?);
                return Ok(Self::Version { major, minor, capabilities: fields.rest() });
            }
            Command::DmaMap => {
                // Later versions of the client's structure are only longer.
                let (_, flags) = (at_least(fields.u32()?, DmaMap::ARGSZ)?, fields.u32()?);
                let (offset, iova) = (fields.u64()?, fields.u64()?);
                Self::DmaMap(DmaMap { flags, offset, iova, len_bytes: fields.u64()? })
            }
            Command::DmaUnmap => Self::DmaUnmap(DmaUnmap {
                argsz: at_least(fields.u32()?, DmaUnmap::LEN_BYTES)?,
                flags: fields.u32()?,
                iova: fields.u64()?,
                len_bytes: fields.u64()?,
            }),
            Command::DeviceGetInfo => {
                let argsz = at_least(fields.u32()?, 16)?;
                fields.bytes::<12>()?;
                Self::DeviceGetInfo { argsz }
            }
            Command::DeviceGetRegionInfo => {
                let (argsz, _) = (at_least(fields.u32()?, 32)?, fields.u32()?);
                let index = fields.u32()?;
                fields.bytes::<20>()?;
                Self::DeviceGetRegionInfo { argsz, index }
            }
            Command::DeviceGetRegionIoFds => {
                let (argsz, _) = (at_least(fields.u32()?, 16)?, fields.u32()?);
                let index = fields.u32()?;
                fields.u32()?;
                Self::DeviceGetRegionIoFds { argsz, index }
            }
            Command::DeviceGetIrqInfo => {
                let (argsz, _) = (at_least(fields.u32()?, 16)?, fields.u32()?);
                let index = fields.u32()?;
                fields.u32()?;
                Self::DeviceGetIrqInfo { argsz, index }
            }
            Command::DeviceSetIrqs => return set_irqs(fields).map(Self::DeviceSetIrqs),
            Command::RegionRead => Self::RegionRead {
                offset: fields.u64()?,
                region: fields.u32()?,
                count: fields.u32()?,
            },
            Command::RegionWrite => {
                let (offset, region, count) = (fields.u64()?, fields.u32()?, fields.u32()?);
                let data = fields.rest_of(count.into())?;
                return Ok(Self::RegionWrite { offset, region, data });
            }
            Command::DeviceReset => Self::DeviceReset,
            Command::RegionWriteMulti => {
                let count = fields.u64()?;
                let len_bytes = count.checked_mul(SmallWrites::EACH_LEN_BYTES as u64);
                let writes = fields.rest_of(len_bytes.ok_or(Errno::EINVAL)?)?;
                return Ok(Self::RegionWriteMulti(SmallWrites(writes)));
            }
            Command::DeviceFeature => {
                let argsz = at_least(fields.u32()?, Feature::PREFIX_LEN_BYTES)?;
                let flags = fields.u32()?;
                return Ok(Self::DeviceFeature(Feature { argsz, flags, data: fields.rest() }));
            }
            Command::MigrationDataRead => {
                Self::MigrationDataRead { argsz: at_least(fields.u32()?, 8)?, size: fields.u32()? }
            }
            Command::MigrationDataWrite => {
                let (_, size) = (fields.u32()?, fields.u32()?);
                return Ok(Self::MigrationDataWrite { data: fields.rest_of(size.into())? });
            }
            Command::DmaRead | Command::DmaWrite => return Err(Errno::ENOSYS),
        };
        fields.end()?;
        Ok(request)
    }

    /// Returns the command of this payload.
    pub fn command(&self) -> Command {
        match self {
            Self::Version { .. } => Command::Version,
            Self::DmaMap(_) => Command::DmaMap,
            Self::DmaUnmap(_) => Command::DmaUnmap,
            Self::DeviceGetInfo { .. } => Command::DeviceGetInfo,
            Self::DeviceGetRegionInfo { .. } => Command::DeviceGetRegionInfo,
            Self::DeviceGetRegionIoFds { .. } => Command::DeviceGetRegionIoFds,
            Self::DeviceGetIrqInfo { .. } => Command::DeviceGetIrqInfo,
            Self::DeviceSetIrqs(_) => Command::DeviceSetIrqs,
            Self::RegionRead { .. } => Command::RegionRead,
            Self::RegionWrite { .. } => Command::RegionWrite,
            Self::DeviceReset => Command::DeviceReset,
            Self::RegionWriteMulti(_) => Command::RegionWriteMulti,
            Self::DeviceFeature(_) => Command::DeviceFeature,
            Self::MigrationDataRead { .. } => Command::MigrationDataRead,
            Self::MigrationDataWrite { .. } => Command::MigrationDataWrite,
        }
    }

    /// Returns the payload.
    pub fn encode(&self) -> Vec<u8> {
        let payload = Builder::default();
        match *self {
            Self::Version { major, minor, capabilities } => {
                payload.u16(major).u16(minor).bytes(capabilities)
            }
            Self::DmaMap(DmaMap { flags, offset, iova, len_bytes }) => {
                payload.u32(DmaMap::ARGSZ).u32(flags).u64(offset).u64(iova).u64(len_bytes)
            }
            Self::DmaUnmap(unmap) => return unmap.encode(),
            Self::DeviceGetInfo { argsz } => payload.u32(argsz).bytes(&[0; 12]),
            Self::DeviceGetRegionInfo { argsz, index } => {
                payload.u32(argsz).u32(0).u32(index).bytes(&[0; 20])
            }
            Self::DeviceGetRegionIoFds { argsz, index }
            | Self::DeviceGetIrqInfo { argsz, index } => {
                payload.u32(argsz).u32(0).u32(index).u32(0)
            }
            Self::DeviceSetIrqs(SetIrqs { action, index, start, count, data }) => {
                let (kind, bools): (_, &[u8]) = match data {
                    IrqData::None => (IrqData::NONE, &[]),
                    IrqData::Bools(bools) => (IrqData::BOOLS, bools),
                    IrqData::EventFds => (IrqData::EVENT_FDS, &[]),
                };
                let argsz = SET_IRQS_PREFIX_LEN_BYTES.saturating_add(bools.len() as u32);
                payload.u32(argsz).u32(kind | action).u32(index).u32(start).u32(count).bytes(bools)
            }
            Self::RegionRead { offset, region, count } => {
                payload.u64(offset).u32(region).u32(count)
            }
            Self::RegionWrite { offset, region, data } => {
                payload.u64(offset).u32(region).u32(data.len() as u32).bytes(data)
            }
            Self::DeviceReset => payload,
            Self::RegionWriteMulti(writes) => payload.u64(writes.count()).bytes(writes.0),
            Self::DeviceFeature(feature) => return feature.encode(),
            Self::MigrationDataRead { argsz, size } => payload.u32(argsz).u32(size),
            Self::MigrationDataWrite { data } => payload.u32(8).u32(data.len() as u32).bytes(data),
        }
        .end()
    }
}

const SET_IRQS_PREFIX_LEN_BYTES: u32 = 20;

fn set_irqs(mut fields: Fields<'_>) -> Result<SetIrqs<'_>, Errno> {
    at_least(fields.u32()?, SET_IRQS_PREFIX_LEN_BYTES)?;
    let flags = fields.u32()?;
    let (index, start, count) = (fields.u32()?, fields.u32()?, fields.u32()?);
    let data = match flags & IrqData::MASK {
        IrqData::NONE => fields.end().map(|()| IrqData::None),
        IrqData::BOOLS => fields.rest_of(count.into()).map(IrqData::Bools),
        IrqData::EVENT_FDS => fields.end().map(|()| IrqData::EventFds),
        _ => Err(Errno::EINVAL),
    }?;
    let action = flags & !IrqData::MASK;
    match action {
        SetIrqs::MASK | SetIrqs::UNMASK | SetIrqs::TRIGGER => {}
        _ => return Err(Errno::EINVAL),
    }
    Ok(SetIrqs { action, index, start, count, data })
}

fn at_least(argsz: u32, least: u32) -> Result<u32, Errno> {
    if argsz >= least { Ok(argsz) } else { Err(Errno::EINVAL) }
}
