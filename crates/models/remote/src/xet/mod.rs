//! Files of the Hugging Face Hub in Xet storage, read in their chunks.
//!
//! Large files of the Hub are stored as chunks of at most 128 KiB, many of them together in a *xorb*. The storage
//! to which the Hub redirects joins them again, but it can refuse to do so for a range. Then the chunks are
//! requested themselves, by the protocol that <https://huggingface.co/docs/xet> describes:
//!
//! ```text
//!   Hub: GET /api/models/ORG/NAME/xet-read-token/COMMIT ─► server, token, time of expiry   ("Authentication")
//!   CAS: GET /v2/reconstructions/HASH, Range ────────────► terms, signed URLs              ("CAS API", 1 and 10)
//!   storage: GET URL, Range ─────────────────────────────► chunks, each to its place       ("Xorb Format")
//! ```
//!
//! The hash in `X-Xet-Hash` is that of the content, so it is also the version of the file. Hashes of chunks and
//! xorbs are not computed: the SHA-256 checksum of the Hub is compared where the caller asks for it.

mod access;
mod body;
mod chunk;
mod file;
mod lz4;
mod plan;

pub(crate) use access::XetAccess;
pub use chunk::{CHUNK_HEADER_BYTES, CHUNK_MAX_BYTES, ChunkDecoder, ChunkHeader, Compression};
pub(crate) use file::XetFile;
pub use plan::{Fetch, Plan, Term};

/// The name of a file in Xet storage, as the Hub sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct XetId {
    /// The hash of the content, in 64 hexadecimal digits.
    pub hash: String,
    /// The length of the file in bytes, if the Hub sends it.
    pub len_bytes: Option<u64>,
    /// The SHA-256 checksum of the file, as the Hub sends it, with quotes.
    pub linked_etag: Option<String>,
}

impl XetId {
    /// Returns the name with this hash. `None` if the hash is not valid.
    pub fn new(hash: &str) -> Option<Self> {
        is_hash(hash).then(|| Self { hash: hash.to_owned(), len_bytes: None, linked_etag: None })
    }
}

/// Returns `true` for 64 lowercase hexadecimal digits.
fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'))
}

/// The error for data of Xet storage that deviates from the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidXet(pub(crate) &'static str);
