//! Constants of the format, and limits of this parser.

use crate::format::Format;

/// The name of the format in messages.
pub(super) const FORMAT: Format = Format::Safetensors;
/// The width of the header length at the beginning of the file.
pub(super) const PREFIX_BYTES: usize = 8;

/// The limit on the length of a header, in bytes: that of the format's reference implementation.
pub const HEADER_LEN_MAX_BYTES: u64 = 100_000_000;

/// The limit on the number of tensors in a file. The largest published models have about 10^5 in all
/// their shards, a tenth of this limit.
pub const TENSORS_MAX: usize = 1 << 20;

/// The limit on the dimensions of a tensor: that of the frameworks which write such files.
pub const DIMENSIONS_MAX: usize = 64;

/// The limit on the number of metadata entries. Training tools write a few hundred.
pub const METADATA_ENTRIES_MAX: usize = 1 << 15;

/// Returns an upper bound on the heap memory, in bytes, that parsing a header of `header_len_bytes`
/// takes at any time, for any content.
///
/// For a header of n bytes, the bound is the sum of:
///
/// - n for the text.
/// - at most 1.5 n for the list of tensors: 72 bytes for each description, which has at least 49 bytes.
/// - either at most 2.9 n for the names and dimensions of the tensors (reached if each has 64
///   dimensions of one digit) and 0.4 n to shrink their list, or at most 3 n to unescape a string as
///   long as the header into a buffer that doubles.
/// - 8 MiB for the B-tree of the metadata, with at most [`METADATA_ENTRIES_MAX`] entries of about 130
///   bytes, and for small allocations.
///
/// Tests check this bound with a counting allocator.
pub const fn parse_memory_max_bytes(header_len_bytes: u64) -> u64 {
    header_len_bytes.saturating_mul(6).saturating_add(8 << 20)
}
