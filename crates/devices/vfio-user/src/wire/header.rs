//! The header of every message.

use std::fmt;

/// The length of a header in bytes.
pub const HEADER_LEN_BYTES: usize = 16;

const KIND_MASK: u32 = 0xf;
const KIND_REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

/// The command that a message requests or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
#[non_exhaustive]
pub enum Command {
    /// Negotiates the version and the capabilities. The first message.
    Version = 1,
    /// Maps memory of the client at an IOVA.
    DmaMap = 2,
    /// Unmaps memory of the client.
    DmaUnmap = 3,
    /// Returns the description of the device.
    DeviceGetInfo = 4,
    /// Returns the description of a region.
    DeviceGetRegionInfo = 5,
    /// Returns descriptors through which a region can be accessed.
    DeviceGetRegionIoFds = 6,
    /// Returns the description of a kind of interrupts.
    DeviceGetIrqInfo = 7,
    /// Sets up, masks, unmasks or raises interrupts.
    DeviceSetIrqs = 8,
    /// Reads from a region.
    RegionRead = 9,
    /// Writes to a region.
    RegionWrite = 10,
    /// The server reads the client's memory.
    DmaRead = 11,
    /// The server writes the client's memory.
    DmaWrite = 12,
    /// Resets the device.
    DeviceReset = 13,
    /// Several small writes to regions.
    RegionWriteMulti = 15,
    /// Reads or sets an optional feature of the device.
    DeviceFeature = 16,
    /// Reads the device's state, for a migration.
    MigrationDataRead = 17,
    /// Writes a state that was read from another device.
    MigrationDataWrite = 18,
}

impl Command {
    /// All commands.
    pub const ALL: [Self; 17] = [
        Self::Version,
        Self::DmaMap,
        Self::DmaUnmap,
        Self::DeviceGetInfo,
        Self::DeviceGetRegionInfo,
        Self::DeviceGetRegionIoFds,
        Self::DeviceGetIrqInfo,
        Self::DeviceSetIrqs,
        Self::RegionRead,
        Self::RegionWrite,
        Self::DmaRead,
        Self::DmaWrite,
        Self::DeviceReset,
        Self::RegionWriteMulti,
        Self::DeviceFeature,
        Self::MigrationDataRead,
        Self::MigrationDataWrite,
    ];

    /// Returns the command with this number, or `None` if there is none.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|command| command.number() == number)
    }

    /// Returns the number of the command on the socket.
    pub const fn number(self) -> u16 {
        self as u16
    }
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// A command.
    Command,
    /// A reply to a command.
    Reply,
}

/// The first 16 bytes of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MessageHeader {
    /// The id, chosen by the sender of the command; its reply has the same.
    pub id: u16,
    /// The number of the command, which may be unknown.
    pub command: u16,
    /// The length of the whole message in bytes, with the header.
    pub len_bytes: u32,
    flags: u32,
    errno: u32,
}

impl MessageHeader {
    /// Returns the header of a command that expects a reply, with a payload of `payload_len_bytes`.
    pub fn command(id: u16, command: Command, payload_len_bytes: usize) -> Self {
        Self::new(id, command.number(), payload_len_bytes, 0)
    }

    /// Returns the header of a command that expects no reply.
    pub fn command_without_reply(id: u16, command: Command, payload_len_bytes: usize) -> Self {
        Self::new(id, command.number(), payload_len_bytes, NO_REPLY)
    }

    /// Returns the header of the reply to `self`.
    pub fn reply(&self, payload_len_bytes: usize) -> Self {
        Self::new(self.id, self.command, payload_len_bytes, KIND_REPLY)
    }

    /// Returns the header of an error reply to `self`, which has no payload.
    pub fn error_reply(&self, errno: u32) -> Self {
        Self { errno, ..Self::new(self.id, self.command, 0, KIND_REPLY | ERROR) }
    }

    fn new(id: u16, command: u16, payload_len_bytes: usize, flags: u32) -> Self {
        // Both ends bound payloads far below this; a longer one is refused because of its length.
        let len_bytes = u32::try_from(payload_len_bytes.saturating_add(HEADER_LEN_BYTES));
        Self { id, command, len_bytes: len_bytes.unwrap_or(u32::MAX), flags, errno: 0 }
    }

    /// Returns the kind of the message, or `None` if its number is unknown. The boundaries of the
    /// messages that follow are unknown then, too.
    pub fn kind(&self) -> Option<MessageKind> {
        match self.flags & KIND_MASK {
            0 => Some(MessageKind::Command),
            KIND_REPLY => Some(MessageKind::Reply),
            _ => None,
        }
    }

    /// Returns `true` if the sender of this command expects a reply.
    pub fn wants_reply(&self) -> bool {
        self.flags & NO_REPLY == 0
    }

    /// Returns the error number of an error reply, which may be zero, or `None` if the command
    /// succeeded.
    pub fn error(&self) -> Option<u32> {
        (self.flags & ERROR != 0).then_some(self.errno)
    }

    /// Returns the number of bytes after the header, or `None` if the length is less than the header's.
    pub fn payload_len_bytes(&self) -> Option<u32> {
        self.len_bytes.checked_sub(HEADER_LEN_BYTES as u32)
    }

    /// Returns the bytes of the header on the socket.
    pub fn encode(&self) -> [u8; HEADER_LEN_BYTES] {
        let mut bytes = [0; HEADER_LEN_BYTES];
        bytes[0..2].copy_from_slice(&self.id.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.command.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.len_bytes.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.errno.to_ne_bytes());
        bytes
    }

    /// Returns the header from its bytes on the socket.
    pub fn decode(bytes: [u8; HEADER_LEN_BYTES]) -> Self {
        let [i0, i1, c0, c1, l0, l1, l2, l3, f0, f1, f2, f3, e0, e1, e2, e3] = bytes;
        Self {
            id: u16::from_ne_bytes([i0, i1]),
            command: u16::from_ne_bytes([c0, c1]),
            len_bytes: u32::from_ne_bytes([l0, l1, l2, l3]),
            flags: u32::from_ne_bytes([f0, f1, f2, f3]),
            errno: u32::from_ne_bytes([e0, e1, e2, e3]),
        }
    }
}

impl fmt::Debug for MessageHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, command, len_bytes, flags, errno } = self;
        write!(f, "MessageHeader(id {id}, ")?;
        match Command::from_number(*command) {
            Some(command) => write!(f, "{command:?}")?,
            None => write!(f, "command {command}")?,
        }
        write!(f, ", {len_bytes} bytes, flags {flags:#x}, errno {errno})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_header_survives_encoding_and_decoding() {
        for command in Command::ALL {
            assert_eq!(Command::from_number(command.number()), Some(command));
            let asks = MessageHeader::command(0xabcd, command, 100);
            let posts = MessageHeader::command_without_reply(7, command, 0);
            for header in [asks, posts, asks.reply(3), asks.error_reply(22)] {
                assert_eq!(MessageHeader::decode(header.encode()), header);
            }
            assert_eq!((asks.kind(), asks.wants_reply()), (Some(MessageKind::Command), true));
            assert!(!posts.wants_reply() && posts.payload_len_bytes() == Some(0));
            let reply = asks.reply(3);
            assert_eq!((reply.kind(), reply.error()), (Some(MessageKind::Reply), None));
            assert_eq!((reply.id, reply.len_bytes), (0xabcd, 19));
            let error = asks.error_reply(22);
            assert_eq!((error.error(), error.len_bytes), (Some(22), 16));
        }
        for unknown in [0, 14, 19, u16::MAX] {
            assert_eq!(Command::from_number(unknown), None);
        }
    }

    #[test]
    fn unknown_kinds_and_short_lengths_are_recognised() {
        let mut bytes = MessageHeader::command(1, Command::Version, 0).encode();
        bytes[8] = 2;
        assert_eq!(MessageHeader::decode(bytes).kind(), None);
        bytes[4..8].copy_from_slice(&15_u32.to_ne_bytes());
        assert_eq!(MessageHeader::decode(bytes).payload_len_bytes(), None);
    }
}
