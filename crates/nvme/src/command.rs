//! Commands and completions, as they lie in the queues (NVM Express Base Specification 2.0, sections
//! 3.3.3.1 and 3.3.3.2; NVM Command Set Specification 1.0, section 3.2).

use std::fmt;

use crate::status::Status;

/// Bytes of an entry of a submission queue.
pub const SUBMISSION_BYTES: usize = 64;
/// Bytes of an entry of a completion queue.
pub const COMPLETION_BYTES: usize = 16;

/// Where the data of a command is: the field DPTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPointer {
    /// No data.
    None,
    /// PRP entries 1 and 2; what the second one is follows from the length.
    Prp(u64, u64),
    /// An SGL descriptor: its address, and its other half.
    Sgl(u64, u64),
}

/// A command that is not numbered yet.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// What is to be done.
    pub opcode: u8,
    /// NSID: the namespace, or 0.
    pub namespace: u32,
    /// DPTR.
    pub data: DataPointer,
    /// CDW10 to CDW12; all others are 0 in the commands of this driver.
    pub words: [u32; 3],
}

impl Command {
    /// The entry of a submission queue.
    #[inline]
    pub fn entry(&self, id: u16) -> [u8; SUBMISSION_BYTES] {
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

/// The second half of an entry of a completion queue: all but what the command returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion(pub u64);

impl Completion {
    /// P: whether the entry is of this round or of the one before.
    #[inline]
    pub fn phase(self) -> bool {
        self.0 & 1 << 48 != 0
    }

    /// CID: which command ended.
    #[inline]
    pub fn command_id(self) -> u16 {
        (self.0 >> 32) as u16
    }

    /// SQID: of which queue it was.
    pub fn queue_id(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// How it ended.
    #[inline]
    pub fn status(self) -> Status {
        Status((self.0 >> 49) as u16)
    }
}

/// Which way data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// From the disk.
    Read,
    /// To the disk.
    Write,
}

impl Verb {
    /// The opcode of the NVM command set.
    pub fn opcode(self) -> u8 {
        match self {
            Self::Write => 0x01,
            Self::Read => 0x02,
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "Read",
            Self::Write => "Write",
        })
    }
}

/// A command in words, for whoever reads an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A command of the NVM command set, with blocks.
    Blocks {
        /// Read or write.
        verb: Verb,
        /// How many.
        blocks: u32,
        /// The first.
        lba: u64,
        /// Where.
        namespace: u32,
    },
    /// Flush.
    Flush {
        /// What is flushed.
        namespace: u32,
    },
    /// A command of the admin command set.
    Admin {
        /// Its name.
        name: &'static str,
        /// CDW10, which says most of it.
        word: u32,
    },
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocks { verb, blocks, lba, namespace } => {
                write!(f, "{verb} of {blocks} blocks from LBA {lba:#x} of namespace {namespace}")
            }
            Self::Flush { namespace } => write!(f, "Flush of namespace {namespace}"),
            Self::Admin { name, word } => write!(f, "{name} (CDW10 {word:#x})"),
        }
    }
}

/// A command that the controller refused, or failed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {status}")]
pub struct CommandError {
    /// What was asked for.
    pub what: What,
    /// What it said.
    pub status: Status,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_what_the_specification_has() {
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
        let completion = Completion(raw);
        assert!(completion.phase());
        assert_eq!((completion.command_id(), completion.queue_id()), (0x1234, 3));
        let status = completion.status();
        assert_eq!((status.code_type(), status.code(), status.is_final()), (0, 0x80, true));
        assert!(!Completion(0).phase() && Completion(1 << 48).status().is_success());
    }

    #[test]
    fn an_error_says_command_and_status() {
        let what = What::Blocks { verb: Verb::Read, blocks: 8, lba: 0x10_0000, namespace: 1 };
        let text = CommandError { what, status: Status(0x4080) }.to_string();
        assert_eq!(
            text,
            "Read of 8 blocks from LBA 0x100000 of namespace 1: LBA Out of Range \
             (status code type 0x0, code 0x80, do not retry)"
        );
    }
}
