//! Constants of the format, and limits of this parser.

use longshore_mem::Granule;

use crate::format::Format;

/// The name of the format in messages.
pub(super) const FORMAT: Format = Format::Gguf;
/// The magic number at the beginning of every file.
pub const MAGIC: [u8; 4] = *b"GGUF";
/// The alignment of a file that does not declare one.
pub(super) const ALIGNMENT_DEFAULT: Granule = match Granule::new(32) {
    Ok(granule) => granule,
    Err(_) => panic!("it is a power of two"),
};
/// The lowest alignment of the format, in bytes.
pub(crate) const ALIGNMENT_MIN: u32 = 8;
/// The metadata key of the alignment.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";

/// The limit on the length of a header, in bytes: about ten times the largest vocabularies.
pub const HEADER_LEN_MAX_BYTES: u64 = 128 << 20;

/// The limit on the number of tensors, the same as in the other formats.
pub const TENSORS_MAX: u64 = 1 << 20;

/// The limit on the dimensions of a tensor.
pub const DIMENSIONS_MAX: u32 = 4;

/// The limit on the number of metadata entries. Models have a few dozen.
pub const METADATA_ENTRIES_MAX: u64 = 1 << 15;

/// The limit on the length of a metadata key or tensor name, in bytes: the specification's limit for
/// keys.
pub const NAME_LEN_MAX_BYTES: u64 = (1 << 16) - 1;

/// Returns an upper bound on the heap memory, in bytes, that parsing a header of `header_len_bytes`
/// takes at any time, for any content. The header is everything before the data of the tensors.
///
/// For a header of n bytes, the bound is the sum of:
///
/// - 2 n for its bytes, because the buffer doubles until it is long enough. While it grows it takes
///   3 n, but then nothing else is allocated yet.
/// - at most 3.4 n for the list of tensors with their names and dimensions, and for two orders of
///   them: about 92 bytes for each description, of which the shortest has 27 bytes if there are many.
/// - 2 MiB for at most [`METADATA_ENTRIES_MAX`] entries of 40 bytes, and for small allocations.
///
/// Tests check this bound with a counting allocator.
pub const fn parse_memory_max_bytes(header_len_bytes: u64) -> u64 {
    header_len_bytes.saturating_mul(6).saturating_add(2 << 20)
}

/// The length of the magic number, the version and the two counts.
pub(super) const OPENING_BYTES: usize = 24;
