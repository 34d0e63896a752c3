//! Numbers of the format, and how much of it is read.

use crate::format::Format;

/// The name of the format in messages.
pub(super) const FORMAT: Format = Format::Safetensors;
/// The width of the header's length at the beginning of the file.
pub(super) const PREFIX_BYTES: usize = 8;

/// The longest header there may be, in bytes: the limit of the format's reference implementation.
pub const HEADER_LEN_MAX_BYTES: u64 = 100_000_000;

/// The most tensors that are read. The largest published models have some 10^5 over all their
/// shards; this leaves ten times that for one file.
pub const TENSORS_MAX: usize = 1 << 20;

/// The most dimensions a tensor may have: what the frameworks that write such files allow.
pub const DIMENSIONS_MAX: usize = 64;

/// The most entries of metadata that are read; training tools write some hundred.
pub const METADATA_ENTRIES_MAX: usize = 1 << 15;

/// The most heap memory, in bytes, that reading a header of `header_len_bytes` takes at any
/// moment, whatever is in it.
///
/// Term by term, for a header of n bytes: n for its text; at most 1.5 n for the list of tensors,
/// 72 bytes for every 49 that the shortest description has; at most 2.9 n for what tensors own,
/// which is when each has 64 dimensions of one digit, and then 0.4 n to cut their list to size, or
/// else 3 n to undo the escapes of a string as long as the header in a buffer that doubles. And
/// 8 MiB for the tree of metadata, which has at most [`METADATA_ENTRIES_MAX`] entries of some 130
/// bytes, and for small things. The tests hold the allocator to it.
pub const fn parse_memory_max_bytes(header_len_bytes: u64) -> u64 {
    header_len_bytes.saturating_mul(6).saturating_add(8 << 20)
}
