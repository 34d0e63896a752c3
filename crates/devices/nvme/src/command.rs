//! The layout of commands and completions in the queues (NVM Express Base Specification 2.0, sections
//! 3.3.3.1 and 3.3.3.2; NVM Command Set Specification 1.0, section 3.2).

use std::fmt;

use crate::status::Status;

/// The length of a submission queue entry, in bytes.
pub(crate) const SUBMISSION_BYTES: usize = 64;
/// The length of a completion queue entry, in bytes.
pub(crate) const COMPLETION_BYTES: usize = 16;

/// The field DPTR: the place of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataPointer {
    /// No data.
    None,
    /// PRP entries 1 and 2. The length decides whether the second one is a page or a list.
    Prp(u64, u64),
    /// An SGL descriptor: its address and its other half.
    Sgl(u64, u64),
}

/// A command that has no identifier yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    pub(crate) opcode: u8,
    /// NSID: the namespace, or 0.
    pub(crate) namespace: u32,
    pub(crate) data: DataPointer,
    /// CDW10 to CDW12. The others are 0 in the commands of this driver.
    pub(crate) words: [u32; 3],
}

impl Command {
    /// Returns the entry for the submission queue.
    #[inline]
    pub(crate) fn entry(&self, id: u16) -> [u8; SUBMISSION_BYTES] {
        const BY_SGL: u32 = 1 << 14;
        let (flags, pointer) = match self.data {
            DataPointer::None => (0, [0; 2]),
            DataPointer::Prp(first, second) => (0, [first, second]),
            DataPointer::Sgl(first, second) => (BY_SGL, [first, second]),
        };
        let head = u32::from(self.opcode) | flags | u32::from(id) << 16;
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let [ten, eleven, twelve] = self.words;
        let words = [
            pair(head, self.namespace),
            0,
            0,
            pointer[0],
            pointer[1],
            pair(ten, eleven),
            pair(twelve, 0),
            0,
        ];
        let mut bytes = [0; SUBMISSION_BYTES];
        for (into, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *into = word.to_le_bytes();
        }
        bytes
    }
}

/// The second half of a completion queue entry: all but the value that the command returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompletionEntry(pub(crate) u64);

impl CompletionEntry {
    /// Returns the phase tag (P), which distinguishes a new entry from one of the previous round.
    #[inline]
    pub(crate) fn phase(self) -> bool {
        self.0 & 1 << 48 != 0
    }

    /// Returns the command identifier (CID).
    #[inline]
    pub(crate) fn command_id(self) -> u16 {
        (self.0 >> 32) as u16
    }

    /// Returns the submission queue identifier (SQID).
    #[cfg(test)]
    fn queue_id(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Returns the status field.
    #[inline]
    pub(crate) fn status(self) -> Status {
        Status((self.0 >> 49) as u16)
    }
}

/// The opcode of a command that transfers blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Opcode {
    /// Read: from the disk to memory.
    Read,
    /// Write: from memory to the disk.
    Write,
}

impl Opcode {
    /// Returns the opcode of the NVM command set.
    pub(crate) fn raw(self) -> u8 {
        match self {
            Self::Write => 0x01,
            Self::Read => 0x02,
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "Read",
            Self::Write => "Write",
        })
    }
}

/// A description of a command, for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommandInfo {
    /// A command that transfers blocks.
    Blocks {
        /// The opcode.
        opcode: Opcode,
        /// The number of blocks.
        blocks: u32,
        /// The first block.
        lba: u64,
        /// The namespace.
        namespace: u32,
    },
    /// Flush: writes the volatile write cache to the medium.
    Flush {
        /// The namespace.
        namespace: u32,
    },
    /// A command of the admin command set.
    Admin {
        /// The name of the command.
        name: &'static str,
        /// CDW10.
        word: u32,
    },
}

impl fmt::Display for CommandInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocks { opcode, blocks, lba, namespace } => {
                write!(f, "{opcode} of {blocks} blocks from LBA {lba:#x} of namespace {namespace}")
            }
            Self::Flush { namespace } => write!(f, "Flush of namespace {namespace}"),
            Self::Admin { name, word } => write!(f, "{name} (CDW10 {word:#x})"),
        }
    }
}

/// An error of a command that the controller ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{command}: {status}")]
#[non_exhaustive]
pub struct CommandError {
    /// The command.
    pub command: CommandInfo,
    /// The status of the completion.
    pub status: Status,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_the_layout_of_the_specification() {
        let command = Command {
            opcode: 0x02,
            namespace: 1,
            data: DataPointer::Prp(0x1122_3344_5566_7788, 0x99),
            words: [0x0a0b_0c0d, 0x0e, 7],
        };
        let entry = command.entry(0xbeef);
        assert_eq!(entry[..8], [0x02, 0x00, 0xef, 0xbe, 1, 0, 0, 0]);
        assert_eq!(entry[8..24], [0; 16]);
        assert_eq!(entry[24..32], 0x1122_3344_5566_7788_u64.to_le_bytes());
        assert_eq!(entry[32..40], 0x99_u64.to_le_bytes());
        assert_eq!(entry[40..52], [0x0d, 0x0c, 0x0b, 0x0a, 0x0e, 0, 0, 0, 7, 0, 0, 0]);
        assert_eq!(entry[52..], [0; 12]);
        let entry = Command { data: DataPointer::Sgl(1, 2), ..command }.entry(3);
        assert_eq!((entry[1], entry[24], entry[32]), (0x40, 1, 2));
        assert_eq!(Command { data: DataPointer::None, ..command }.entry(3)[24..40], [0; 16]);
    }

    #[test]
    fn a_completion_is_decoded() {
        // SQHD 5, SQID 3, CID 0x1234, phase 1, LBA out of range, do not retry.
        let raw = 5 | 3 << 16 | 0x1234 << 32 | (1 | 0x80 << 1 | 1 << 15) << 48;
        let completion = CompletionEntry(raw);
        assert!(completion.phase());
        assert_eq!((completion.command_id(), completion.queue_id()), (0x1234, 3));
        let status = completion.status();
        assert_eq!((status.code_type(), status.code(), status.is_final()), (0, 0x80, true));
        assert!(!CompletionEntry(0).phase() && CompletionEntry(1 << 48).status().is_success());
    }

    #[test]
    fn an_error_names_command_and_status() {
        let command =
            CommandInfo::Blocks { opcode: Opcode::Read, blocks: 8, lba: 0x10_0000, namespace: 1 };
        let text = CommandError { command, status: Status(0x4080) }.to_string();
        assert_eq!(
            text,
            "Read of 8 blocks from LBA 0x100000 of namespace 1: LBA Out of Range \
             (status code type 0x0, code 0x80, do not retry)"
        );
    }
}
