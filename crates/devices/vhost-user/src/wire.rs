//! Messages as bytes. All numbers are in the machine's byte order.
//!
//! ```text
//!   0        4        8        12
//!   ├────────┼────────┼────────┼──────────────────
//!   │request │ flags  │ length │ payload …           and descriptors with its first byte
//! ```
//!
//! Source: QEMU's `docs/interop/vhost-user.rst`.

use longshore_mem::{FileOffset, GuestPhys, Iova};

use crate::memory::{REGIONS_MAX, UserAddr};

/// The length of a header in bytes.
pub const HEADER_LEN_BYTES: usize = 12;
/// The longest payload that is accepted. The longest that the protocol has is 268 bytes.
pub const PAYLOAD_LEN_BYTES_MAX: usize = 512;
/// The largest length of a device's configuration space in the protocol, in bytes.
pub const CONFIG_LEN_BYTES: usize = 256;

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 0b11;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
/// Flag in the payload of a request that sets a ring's descriptor: there is no descriptor.
const NO_DESCRIPTOR: u64 = 1 << 8;

/// Feature bits that belong to the protocol, among those of the device.
pub mod feature {
    /// Writes can be logged.
    pub const LOG_ALL: u64 = 1 << 26;
    /// The back-end has protocol features.
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
}

/// Protocol features.
pub mod protocol {
    /// More than one ring.
    pub const MQ: u64 = 1 << 0;
    /// The log is in memory of a descriptor.
    pub const LOG_SHMFD: u64 = 1 << 1;
    /// Any message can be acknowledged.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// A channel for the back-end's own requests.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// The back-end has the configuration space.
    pub const CONFIG: u64 = 1 << 9;
}

/// Requests by their number.
pub mod number {
    #![expect(missing_docs, reason = "the protocol's own names")]
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_LOG_FD: u32 = 7;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const IOTLB_MSG: u32 = 22;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    /// The back-end's request for a translation.
    pub const BACKEND_IOTLB_MSG: u32 = 1;
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHeader {
    /// The number of the request.
    pub request: u32,
    /// `true` if it is a reply.
    pub is_reply: bool,
    /// `true` if the sender wants an acknowledgement.
    pub needs_reply: bool,
    /// The length of the payload in bytes.
    pub len_bytes: u32,
}

/// The reason why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Another version, or flags that are not defined.
    #[error("request {request} has flags {flags:#x}, which are not those of version 1")]
    Flags {
        /// The number of the request.
        request: u32,
        /// The flags.
        flags: u32,
    },
    /// A payload that is longer than [`PAYLOAD_LEN_BYTES_MAX`].
    #[error("request {request} claims a payload of {len_bytes} bytes")]
    TooLong {
        /// The number of the request.
        request: u32,
        /// The length in the header.
        len_bytes: u32,
    },
    /// A payload whose length does not match its request.
    #[error("the payload of request {request} has {len_bytes} bytes, which is not its length")]
    Length {
        /// The number of the request.
        request: u32,
        /// The payload's length.
        len_bytes: usize,
    },
    /// A request that is not supported.
    #[error("request {request} is unknown, or was not negotiated")]
    Unknown {
        /// The number of the request.
        request: u32,
    },
    /// A value in the payload that is not valid.
    #[error("request {request}: {what} is {value}")]
    Value {
        /// The number of the request.
        request: u32,
        /// The name of the value.
        what: &'static str,
        /// The value.
        value: u64,
    },
}

impl MessageHeader {
    /// Makes the header of a request or a reply.
    pub fn new(request: u32, is_reply: bool, needs_reply: bool, len_bytes: usize) -> Self {
        Self { request, is_reply, needs_reply, len_bytes: len_bytes as u32 }
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: [u8; HEADER_LEN_BYTES]) -> Result<Self, DecodeError> {
        let mut fields = Fields(&bytes);
        let (request, flags, len_bytes) = (fields.u32(), fields.u32(), fields.u32());
        if flags & VERSION_MASK != VERSION || flags & !(VERSION_MASK | REPLY | NEED_REPLY) != 0 {
            return Err(DecodeError::Flags { request, flags });
        }
        if len_bytes as usize > PAYLOAD_LEN_BYTES_MAX {
            return Err(DecodeError::TooLong { request, len_bytes });
        }
        let (is_reply, needs_reply) = (flags & REPLY != 0, flags & NEED_REPLY != 0);
        Ok(Self { request, is_reply, needs_reply, len_bytes })
    }

    /// Returns the bytes of the header.
    pub fn encode(self) -> [u8; HEADER_LEN_BYTES] {
        let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
        let flags = VERSION | flag(self.is_reply, REPLY) | flag(self.needs_reply, NEED_REPLY);
        let mut bytes = [0; HEADER_LEN_BYTES];
        let words = [self.request, flags, self.len_bytes].map(u32::to_ne_bytes);
        bytes.copy_from_slice(words.as_flattened());
        bytes
    }
}

/// A region of the memory table, without its descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionClaim {
    /// The guest-physical address.
    pub guest_phys: GuestPhys,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// The address in the front-end's process.
    pub user: UserAddr,
    /// The offset at which it begins in its file.
    pub offset: FileOffset,
}

/// The addresses of a virtqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddresses {
    /// `true` if writes to the used ring are logged.
    pub is_logged: bool,
    /// The descriptor table: an IOVA, or the front-end's address if nothing is translated.
    pub descriptors: u64,
    /// The used ring, likewise.
    pub used: u64,
    /// The available ring, likewise.
    pub available: u64,
    /// The guest-physical address by which writes to the used ring are logged.
    pub log_at: GuestPhys,
}

/// A message about the IOTLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IotlbMessage {
    /// A translation.
    Update {
        /// The first address.
        iova: Iova,
        /// The number of bytes.
        len_bytes: u64,
        /// The address in the front-end's process that it translates to.
        user: UserAddr,
        /// `true` if it may be read.
        is_readable: bool,
        /// `true` if it may be written.
        is_writable: bool,
    },
    /// Drops translations.
    Invalidate {
        /// The first address.
        iova: Iova,
        /// The number of bytes.
        len_bytes: u64,
    },
}

/// A request of the front-end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the protocol's own names and fields")]
pub enum Request {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemTable(Vec<RegionClaim>),
    SetLogBase { len_bytes: u64, offset: FileOffset },
    SetLogFd,
    SetVringNum { index: u32, num: u32 },
    SetVringAddr { index: u32, addresses: RingAddresses },
    SetVringBase { index: u32, num: u32 },
    GetVringBase { index: u32 },
    SetVringKick { index: u32, has_descriptor: bool },
    SetVringCall { index: u32, has_descriptor: bool },
    SetVringErr { index: u32, has_descriptor: bool },
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    SetVringEnable { index: u32, is_enabled: bool },
    SetBackendReqFd,
    Iotlb(IotlbMessage),
    GetConfig { offset: u32, len_bytes: u32, flags: u32 },
    SetConfig { offset: u32, bytes: Vec<u8> },
}

const ACCESS_READ: u8 = 1;
const ACCESS_WRITE: u8 = 2;
const IOTLB_MISS: u8 = 1;
const IOTLB_UPDATE: u8 = 2;
const IOTLB_INVALIDATE: u8 = 3;
/// The length without and with the padding of a C structure.
const IOTLB_LEN_BYTES: [usize; 2] = [26, 32];

impl Request {
    /// Decodes the payload of the request with this number.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(request: u32, payload: &[u8]) -> Result<Self, DecodeError> {
        let mut fields = Fields(payload);
        let of_len = |len_bytes: usize| {
            let wrong = DecodeError::Length { request, len_bytes: payload.len() };
            if payload.len() == len_bytes { Ok(()) } else { Err(wrong) }
        };
        let state = |fields: &mut Fields<'_>| {
            of_len(8)?;
            Ok((fields.u32(), fields.u32()))
        };
        let number = |fields: &mut Fields<'_>| {
            of_len(8)?;
            Ok(fields.u64())
        };
        let descriptor = |fields: &mut Fields<'_>| {
            let word = number(fields)?;
            Ok(((word & 0xff) as u32, word & NO_DESCRIPTOR == 0))
        };
        Ok(match request {
            number::GET_FEATURES => of_len(0).map(|()| Self::GetFeatures)?,
            number::SET_FEATURES => Self::SetFeatures(number(&mut fields)?),
            number::SET_OWNER => of_len(0).map(|()| Self::SetOwner)?,
            number::RESET_OWNER => of_len(0).map(|()| Self::ResetOwner)?,
            number::SET_MEM_TABLE => Self::SetMemTable(table(payload)?),
            number::SET_LOG_BASE => {
                of_len(16)?;
                let len_bytes = fields.u64();
                Self::SetLogBase { len_bytes, offset: FileOffset::new(fields.u64()) }
            }
            number::SET_LOG_FD => of_len(payload.len().min(8)).map(|()| Self::SetLogFd)?,
            number::SET_VRING_NUM => {
                let (index, num) = state(&mut fields)?;
                Self::SetVringNum { index, num }
            }
            number::SET_VRING_ADDR => {
                of_len(40)?;
                let (index, flags) = (fields.u32(), fields.u32());
                let (descriptors, used, available) = (fields.u64(), fields.u64(), fields.u64());
                let (is_logged, log_at) = (flags & 1 != 0, GuestPhys::new(fields.u64()));
                let addresses = RingAddresses { is_logged, descriptors, used, available, log_at };
                Self::SetVringAddr { index, addresses }
            }
            number::SET_VRING_BASE => {
                let (index, num) = state(&mut fields)?;
                Self::SetVringBase { index, num }
            }
            number::GET_VRING_BASE => Self::GetVringBase { index: state(&mut fields)?.0 },
            number::SET_VRING_KICK => {
                let (index, has_descriptor) = descriptor(&mut fields)?;
                Self::SetVringKick { index, has_descriptor }
            }
            number::SET_VRING_CALL => {
                let (index, has_descriptor) = descriptor(&mut fields)?;
                Self::SetVringCall { index, has_descriptor }
            }
            number::SET_VRING_ERR => {
                let (index, has_descriptor) = descriptor(&mut fields)?;
                Self::SetVringErr { index, has_descriptor }
            }
            number::GET_PROTOCOL_FEATURES => of_len(0).map(|()| Self::GetProtocolFeatures)?,
            number::SET_PROTOCOL_FEATURES => Self::SetProtocolFeatures(number(&mut fields)?),
            number::GET_QUEUE_NUM => of_len(0).map(|()| Self::GetQueueNum)?,
            number::SET_VRING_ENABLE => match state(&mut fields)? {
                (index, on @ (0 | 1)) => Self::SetVringEnable { index, is_enabled: on == 1 },
                (_, on) => {
                    return Err(DecodeError::Value { request, what: "enabling", value: on.into() });
                }
            },
            number::SET_BACKEND_REQ_FD => {
                of_len(payload.len().min(8)).map(|()| Self::SetBackendReqFd)?
            }
            number::IOTLB_MSG => Self::Iotlb(iotlb(payload)?),
            number::GET_CONFIG | number::SET_CONFIG => config(request, payload)?,
            _ => return Err(DecodeError::Unknown { request }),
        })
    }
}

fn table(payload: &[u8]) -> Result<Vec<RegionClaim>, DecodeError> {
    let request = number::SET_MEM_TABLE;
    let wrong = DecodeError::Length { request, len_bytes: payload.len() };
    if payload.len() < 8 {
        return Err(wrong);
    }
    let mut fields = Fields(payload);
    let (regions, _padding) = (fields.u32(), fields.u32());
    if regions as usize > REGIONS_MAX {
        return Err(DecodeError::Value { request, what: "regions", value: regions.into() });
    }
    // Some front-ends send the whole array, also its unused entries.
    let (needed, whole) = (8 + 32 * regions as usize, 8 + 32 * REGIONS_MAX);
    if payload.len() != needed && payload.len() != whole {
        return Err(wrong);
    }
    let region = |_| RegionClaim {
        guest_phys: GuestPhys::new(fields.u64()),
        len_bytes: fields.u64(),
        user: UserAddr::new(fields.u64()),
        offset: FileOffset::new(fields.u64()),
    };
    Ok((0..regions).map(region).collect())
}

fn iotlb(payload: &[u8]) -> Result<IotlbMessage, DecodeError> {
    let request = number::IOTLB_MSG;
    if !IOTLB_LEN_BYTES.contains(&payload.len()) {
        return Err(DecodeError::Length { request, len_bytes: payload.len() });
    }
    let mut fields = Fields(payload);
    let (iova, len_bytes) = (Iova::new(fields.u64()), fields.u64());
    let user = UserAddr::new(fields.u64());
    let (access, kind) = (fields.u8(), fields.u8());
    match kind {
        IOTLB_UPDATE => {
            let is_readable = access & ACCESS_READ != 0;
            let is_writable = access & ACCESS_WRITE != 0;
            Ok(IotlbMessage::Update { iova, len_bytes, user, is_readable, is_writable })
        }
        IOTLB_INVALIDATE => Ok(IotlbMessage::Invalidate { iova, len_bytes }),
        _ => Err(DecodeError::Value { request, what: "the kind", value: kind.into() }),
    }
}

/// Returns the payload of the back-end's request for a translation.
pub fn iotlb_miss(iova: Iova, is_write: bool) -> [u8; 32] {
    let mut payload = [0; 32];
    payload[..8].copy_from_slice(&iova.raw().to_ne_bytes());
    payload[24] = if is_write { ACCESS_WRITE } else { ACCESS_READ };
    payload[25] = IOTLB_MISS;
    payload
}

fn config(request: u32, payload: &[u8]) -> Result<Request, DecodeError> {
    let wrong = DecodeError::Length { request, len_bytes: payload.len() };
    if payload.len() < 12 {
        return Err(wrong);
    }
    let mut fields = Fields(payload);
    let (offset, len_bytes, flags) = (fields.u32(), fields.u32(), fields.u32());
    let bytes = fields.0;
    if bytes.len() != len_bytes as usize {
        return Err(wrong);
    }
    let end = offset.checked_add(len_bytes);
    if end.is_none_or(|end| end as usize > CONFIG_LEN_BYTES) {
        return Err(DecodeError::Value { request, what: "the offset", value: offset.into() });
    }
    Ok(if request == number::GET_CONFIG {
        Request::GetConfig { offset, len_bytes, flags }
    } else {
        Request::SetConfig { offset, bytes: bytes.to_owned() }
    })
}

/// Reads numbers from bytes whose length was checked; returns zero past their end.
struct Fields<'b>(&'b [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let Some((taken, rest)) = self.0.split_first_chunk() else { return [0; N] };
        self.0 = rest;
        *taken
    }

    fn u8(&mut self) -> u8 {
        u8::from_ne_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }
}
