//! Checksums of bytes.

use longshore_iov::crc32c::Crc32c;
use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::Xxh3;

use crate::digest_kind::DigestKind;

/// The state of a checksum.
pub(crate) enum Hasher {
    Crc32c(Crc32c),
    Xxh3(Box<Xxh3>),
    Sha256(Sha256),
}

impl Hasher {
    pub(crate) fn new(kind: DigestKind) -> Self {
        match kind {
            DigestKind::Crc32c => Self::Crc32c(Crc32c::new()),
            DigestKind::Xxh3 => Self::Xxh3(Box::new(Xxh3::new())),
            DigestKind::Sha256 => Self::Sha256(Sha256::new()),
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Crc32c(digest) => digest.update(bytes),
            Self::Xxh3(hasher) => hasher.update(bytes),
            Self::Sha256(hasher) => hasher.update(bytes),
        }
    }

    /// Returns the checksum as hexadecimal digits.
    pub(crate) fn finish(self) -> String {
        match self {
            Self::Crc32c(digest) => format!("{:08x}", digest.finish()),
            Self::Xxh3(hasher) => format!("{:016x}", hasher.digest()),
            Self::Sha256(hasher) => {
                hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
            }
        }
    }
}
