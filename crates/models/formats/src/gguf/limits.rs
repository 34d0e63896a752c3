//! Numbers of the format, and how much of it is read.

use longshore_mem::Granule;

use crate::format::Format;

/// The name of the format in messages.
pub(super) const FORMAT: Format = Format::Gguf;
/// The bytes that every file begins with.
pub const MAGIC: [u8; 4] = *b"GGUF";
/// The alignment of a file that names none.
pub(super) const ALIGNMENT_DEFAULT: Granule = match Granule::new(32) {
    Ok(granule) => granule,
    Err(_) => panic!("it is a power of two"),
};
/// What every alignment is a multiple of.
pub(crate) const ALIGNMENT_MIN: u32 = 8;
/// Where a file names its alignment.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";

/// The longest header there may be, in bytes: some ten times what the largest vocabularies take.
pub const HEADER_LEN_MAX_BYTES: u64 = 128 << 20;

/// The most tensors that are read, as of the other formats.
pub const TENSORS_MAX: u64 = 1 << 20;

/// The most dimensions a tensor may have.
pub const DIMENSIONS_MAX: u32 = 4;

/// The most entries of metadata that are read; models have some dozens.
pub const METADATA_ENTRIES_MAX: u64 = 1 << 15;

/// The longest key of the metadata, and name of a tensor, in bytes: the specification's limit for
/// keys.
pub const NAME_LEN_MAX_BYTES: u64 = (1 << 16) - 1;

/// The most heap memory, in bytes, that reading a header of `header_len_bytes` takes at any
/// moment, whatever is in it. The length is that of all before the data of the tensors.
///
/// Term by term, for a header of n bytes: 2 n for its bytes, since the buffer doubles until it is
/// long enough, or 3 n while it does, when there is nothing else yet; at most 3.4 n for the list of
/// tensors with their names and dimensions and two orders of them, some 92 bytes for the 27 that
/// the shortest description has where there are many. And 2 MiB for the list of entries, at most
/// [`METADATA_ENTRIES_MAX`] of 40 bytes, and for small things. The tests hold the allocator to it.
pub const fn parse_memory_max_bytes(header_len_bytes: u64) -> u64 {
    header_len_bytes.saturating_mul(6).saturating_add(2 << 20)
}

/// Magic, version and the two counts.
pub(super) const OPENING_BYTES: usize = 24;
