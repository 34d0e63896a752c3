//! The parser of headers. It makes two passes: one finds the end of the header, and one parses it.

use longshore_mem::Granule;

use super::cursor::{Cursor, Step, Stop, refuse};
use super::dtype::Dtype;
use super::header::{Header, Tensor};
use super::limits::{
    ALIGNMENT_DEFAULT, ALIGNMENT_KEY, ALIGNMENT_MIN, DIMENSIONS_MAX, FORMAT, MAGIC,
    METADATA_ENTRIES_MAX, OPENING_BYTES, TENSORS_MAX,
};
use super::metadata::{Entry, Metadata, Value};
use super::value_type::ValueType;
use crate::error::{Error, Result};
use crate::quoted::QuotedName;
use crate::reason::{
    Item, LooksLike, Quantity, Reason, ShapeProblem, Start, TruncatedPart, UnknownDtype,
};

/// The length of the shortest metadata entry: the length of its key, a type and a byte.
const ENTRY_LEN_MIN: u64 = 8 + 4 + 1;
/// The length of the shortest description of a tensor: the length of its name, the number of dimensions,
/// the type and the offset.
const DESCRIPTION_LEN_MIN: u64 = 8 + 4 + 4 + 8;

impl Header {
    /// Parses the header in `bytes`, the beginning of a file of `file_len_bytes`. They must contain the
    /// whole header.
    ///
    /// # Errors
    /// [`Error`] if the file is not valid, or if its header is longer than `bytes`.
    pub fn parse(bytes: &[u8], file_len_bytes: u64) -> Result<Self> {
        let file_len_bytes = file_len_bytes.max(bytes.len() as u64);
        extent(bytes, file_len_bytes)
            .and_then(|extent| header(bytes[..extent.end].to_vec(), &extent, file_len_bytes))
            .map_err(|stop| refused(stop, bytes.len()))
    }

    /// Parses a header like [`Self::parse`], but takes the bytes and reuses them for the metadata, so
    /// that a long header is not in memory twice. If the header is longer, returns the bytes in
    /// [`Parsed::Short`].
    ///
    /// # Errors
    /// [`Error`] if the file is not valid.
    pub fn parse_beginning(mut bytes: Vec<u8>, file_len_bytes: u64) -> Result<Parsed> {
        let len_bytes = bytes.len();
        match extent(&bytes, file_len_bytes) {
            Ok(extent) => {
                bytes.truncate(extent.end);
                let read = header(bytes, &extent, file_len_bytes);
                read.map(Parsed::Complete).map_err(|stop| refused(stop, len_bytes))
            }
            Err(Stop::Short { end }) => Ok(Parsed::Short { bytes, end }),
            Err(stop) => Err(refused(stop, len_bytes)),
        }
    }
}

/// The result of [`Header::parse_beginning`].
#[derive(Debug)]
pub enum Parsed {
    /// The header.
    Complete(Header),
    /// The header is longer than the bytes given.
    Short {
        /// The bytes given.
        bytes: Vec<u8>,
        /// The number of bytes that the header needs at least: more than were given, and at most the
        /// length of the file and [`HEADER_LEN_MAX_BYTES`](super::HEADER_LEN_MAX_BYTES).
        end: usize,
    },
}

fn refused(stop: Stop, given_bytes: usize) -> Error {
    let reason = match stop {
        Stop::Refused(reason) => reason,
        Stop::Short { end } => {
            Box::new(Reason::HeaderIncomplete { given_bytes, needed_bytes: end })
        }
    };
    Error::new(FORMAT, reason)
}

fn cut_short<T>(part: TruncatedPart, needed_bytes: u128, found_bytes: u64) -> Step<T> {
    refuse(Reason::Truncated { part, needed_bytes, found_bytes })
}

/// The counts of a header and the ends of its parts.
#[derive(Debug)]
struct Extent {
    version: u32,
    tensors: u64,
    entries: u64,
    /// The offset of the end of the metadata.
    metadata_end: usize,
    /// The offset of the end of the last description of a tensor.
    end: usize,
}

/// Finds the end of the header, without allocating memory for it.
fn extent(bytes: &[u8], file_len_bytes: u64) -> Step<Extent> {
    let mut cursor = Cursor::new(bytes, file_len_bytes);
    if file_len_bytes < OPENING_BYTES as u64 {
        let short = bytes.len() < MAGIC.len() || bytes.starts_with(&MAGIC);
        if short {
            return cut_short(TruncatedPart::Start, OPENING_BYTES as u128, file_len_bytes);
        }
    }
    let magic = cursor.array::<4>()?;
    if magic != MAGIC {
        let looks_like = looks_like(bytes);
        return refuse(Reason::BadStart { start: Start::Magic(magic), looks_like });
    }
    let version = cursor.u32()?;
    check_version(version)?;
    let (tensors, entries) = (cursor.u64()?, cursor.u64()?);
    let fits = |quantity, count: u64, max: u64, each_min: u64| {
        if count > max {
            return refuse(Reason::TooLarge { item: None, quantity, found: Some(count), max });
        }
        if count * each_min > cursor.left_max() {
            let needed_bytes = cursor.at() as u128 + u128::from(count * each_min);
            let part = TruncatedPart::Elements { quantity, count };
            return cut_short(part, needed_bytes, file_len_bytes);
        }
        Ok(())
    };
    fits(Quantity::Tensors, tensors, TENSORS_MAX, DESCRIPTION_LEN_MIN)?;
    fits(Quantity::MetadataEntries, entries, METADATA_ENTRIES_MAX, ENTRY_LEN_MIN)?;
    for number in 1..=entries {
        let key = cursor.name().map_err(|stop| within(stop, Named::Entry, number, b""))?;
        let value_type = cursor.value_type();
        value_type
            .and_then(|kind| cursor.skip_value(kind))
            .map_err(|stop| within(stop, Named::Entry, number, key))?;
    }
    let metadata_end = cursor.at();
    for number in 1..=tensors {
        let name = cursor.name().map_err(|stop| within(stop, Named::Tensor, number, b""))?;
        dimensions(&mut cursor)
            .and_then(|_| cursor.take(4 + 8))
            .map_err(|stop| within(stop, Named::Tensor, number, name))?;
    }
    Ok(Extent { version, tensors, entries, metadata_end, end: cursor.at() })
}

fn check_version(version: u32) -> Step<()> {
    match version {
        2 | 3 => Ok(()),
        _ if version.swap_bytes() < 1 << 16 && version > 1 => {
            refuse(Reason::BigEndian { version: version.swap_bytes() })
        }
        _ => refuse(Reason::UnsupportedVersion { version }),
    }
}

/// A part of the header that has a name.
#[derive(Clone, Copy)]
enum Named {
    Entry,
    Tensor,
}

impl Named {
    /// Returns the part by its name, or by its number if the name is empty or unknown.
    fn item(self, number: u64, name: &[u8]) -> Item {
        let name = (!name.is_empty()).then(|| QuotedName::new(&String::from_utf8_lossy(name)));
        match (self, name) {
            (Self::Entry, None) => Item::MetadataNumber(number),
            (Self::Entry, Some(name)) => Item::MetadataEntry(name),
            (Self::Tensor, None) => Item::TensorNumber(number),
            (Self::Tensor, Some(name)) => Item::Tensor(name),
        }
    }
}

/// Adds the part of the header to a refusal.
fn within(mut stop: Stop, part: Named, number: u64, name: &[u8]) -> Stop {
    if let Stop::Refused(reason) = &mut stop {
        match &mut **reason {
            Reason::Truncated { part: TruncatedPart::Value { item, .. }, .. }
            | Reason::TooLarge { item, .. }
            | Reason::BadValue { item, .. } => *item = Some(part.item(number, name)),
            _ => {}
        }
    }
    stop
}

/// Reads the dimensions of a tensor: the encoded numbers, innermost first.
fn dimensions<'a>(cursor: &mut Cursor<'a>) -> Step<&'a [u8]> {
    let count = cursor.u32()?;
    if count > DIMENSIONS_MAX {
        return refuse(Reason::TooLarge {
            item: None,
            quantity: Quantity::Dimensions,
            found: Some(count.into()),
            max: DIMENSIONS_MAX.into(),
        });
    }
    cursor.take(u64::from(count) * 8)
}

/// Parses a header whose extent is known.
fn header(mut bytes: Vec<u8>, extent: &Extent, file_len_bytes: u64) -> Step<Header> {
    let mut cursor = Cursor::new(&bytes, bytes.len() as u64);
    cursor.take(OPENING_BYTES as u64)?;
    let entries = entries(&mut cursor, extent.entries)?;
    let mut claims = Vec::with_capacity(extent.tensors as usize);
    for number in 1..=extent.tensors {
        claims.push(description(&mut cursor, number)?);
    }
    bytes.truncate(extent.metadata_end);
    bytes.drain(..OPENING_BYTES);
    bytes.shrink_to_fit();
    let metadata = Metadata { bytes, entries };
    let alignment = alignment(&metadata)?;
    let mut data_offset = alignment
        .checked_round_up(extent.end as u64)
        .map_or_else(|| cut_short(TruncatedPart::Header, 1 << 64, file_len_bytes), Ok)?;
    if claims.is_empty() {
        // A file without tensors may end without the padding before the data.
        data_offset = data_offset.min(file_len_bytes);
    }
    let (tensors, described) = place(claims, alignment, data_offset, file_len_bytes)?;
    Ok(Header { version: extent.version, metadata, tensors, alignment, data_offset, described })
}

fn entries(cursor: &mut Cursor<'_>, count: u64) -> Step<Vec<Entry>> {
    let mut entries = Vec::with_capacity(count as usize);
    for number in 1..=count {
        let key = name(cursor, Named::Entry, number)?;
        let kind = cursor.value_type()?;
        let start = cursor.at();
        cursor.skip_value(kind)?;
        // The cast is lossless: offsets are below the limit of a header.
        let place = |at: usize| (at - OPENING_BYTES) as u32;
        entries.push(Entry { key, kind, value: place(start)..place(cursor.at()) });
    }
    if let Some(key) = twice(&entries, |entry| &entry.key) {
        let item = Item::MetadataEntry(QuotedName::new(key));
        return refuse(Reason::Duplicate { item });
    }
    Ok(entries)
}

/// Reads a key or the name of a tensor.
fn name(cursor: &mut Cursor<'_>, part: Named, number: u64) -> Step<String> {
    let bytes = cursor.name()?;
    match std::str::from_utf8(bytes) {
        Ok(name) => Ok(name.to_owned()),
        Err(error) => refuse(Reason::NotUtf8 {
            item: Some(part.item(number, b"")),
            offset: error.valid_up_to() as u64,
        }),
    }
}

/// Returns a name that occurs more than once, if there is one.
fn twice<T>(all: &[T], name: impl Fn(&T) -> &String) -> Option<&String> {
    let mut order: Vec<u32> = (0..all.len() as u32).collect();
    let name = |index: u32| name(&all[index as usize]);
    order.sort_unstable_by(|a, b| name(*a).cmp(name(*b)));
    order.windows(2).find(|pair| name(pair[0]) == name(pair[1])).map(|pair| name(pair[0]))
}

fn alignment(metadata: &Metadata) -> Step<Granule> {
    let bytes = match metadata.get(ALIGNMENT_KEY) {
        None => return Ok(ALIGNMENT_DEFAULT),
        Some(Value::U32(bytes)) => bytes,
        Some(other) => {
            let value_type = other.value_type();
            return refuse(Reason::BadAlignment { value_type, alignment_bytes: None });
        }
    };
    match Granule::new(bytes.into()) {
        Ok(granule) if bytes >= ALIGNMENT_MIN => Ok(granule),
        _ => refuse(Reason::BadAlignment {
            value_type: ValueType::U32,
            alignment_bytes: Some(bytes),
        }),
    }
}

/// Reads the description of a tensor. The range in it is relative to the beginning of the data.
fn description(cursor: &mut Cursor<'_>, number: u64) -> Step<Tensor> {
    let name = name(cursor, Named::Tensor, number)?;
    let dimensions = dimensions(cursor)?;
    let (number, offset) = (cursor.u32()?, cursor.u64()?);
    let (words, _) = dimensions.as_chunks::<8>();
    let shape: Vec<u64> = words.iter().rev().map(|word| u64::from_le_bytes(*word)).collect();
    let Some(dtype) = Dtype::from_number(number) else {
        let (tensor, dtype) = (QuotedName::new(&name), UnknownDtype::Number(number));
        return refuse(Reason::UnknownDtype { tensor, dtype });
    };
    let bad_shape = |problem| {
        refuse(Reason::Shape {
            tensor: QuotedName::new(&name),
            shape: shape.as_slice().into(),
            dtype: crate::dtype::Dtype::Ggml(dtype),
            problem,
        })
    };
    let row = shape.last().copied().unwrap_or(1);
    if !row.is_multiple_of(dtype.block_elements()) {
        return bad_shape(ShapeProblem::PartialBlock { row, block: dtype.block_elements() });
    }
    let len_bytes = len_bytes(&shape, dtype).and_then(|len| offset.checked_add(len));
    let Some(end) = len_bytes else {
        return bad_shape(ShapeProblem::Overflow { offset });
    };
    Ok(Tensor { data: offset..end, name, dtype, shape })
}

/// Returns the length of the data; `None` if the product of the dimensions overflows, even if a later
/// dimension is zero.
pub(super) fn len_bytes(shape: &[u64], dtype: Dtype) -> Option<u64> {
    let elements = shape.iter().try_fold(1u64, |product, size| product.checked_mul(*size))?;
    (elements / dtype.block_elements()).checked_mul(dtype.block_bytes())
}

/// Checks the tensors against each other and the file, and sorts them by the offset of their data.
/// Returns them and their order in the file, which is empty if it is the same.
fn place(
    mut tensors: Vec<Tensor>,
    alignment: Granule,
    data_offset: u64,
    file_len_bytes: u64,
) -> Step<(Vec<Tensor>, Vec<u32>)> {
    if let Some(name) = twice(&tensors, |tensor| &tensor.name) {
        return refuse(Reason::Duplicate { item: Item::Tensor(QuotedName::new(name)) });
    }
    for Tensor { name, data, .. } in &mut tensors {
        if !alignment.is_aligned(data.start) {
            let (tensor, offset) = (QuotedName::new(name), data.start);
            return refuse(Reason::Unaligned { tensor, offset, alignment });
        }
        match data_offset.checked_add(data.end) {
            Some(end) if end <= file_len_bytes => *data = data_offset + data.start..end,
            _ => {
                let end = u128::from(data_offset) + u128::from(data.end);
                let part = TruncatedPart::Tensor(QuotedName::new(name));
                return cut_short(part, end, file_len_bytes);
            }
        }
    }
    let key = |tensor: &Tensor| (tensor.data.start, tensor.data.end);
    // Tensors without data can have the same offset: sort those by name.
    let compare = |a: &Tensor, b: &Tensor| key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name));
    let mut described = Vec::new();
    if !tensors.is_sorted_by(|a, b| compare(a, b).is_le()) {
        let mut order: Vec<u32> = (0..tensors.len() as u32).collect();
        let tensor = |index: &u32| &tensors[*index as usize];
        order.sort_unstable_by(|a, b| compare(tensor(a), tensor(b)));
        described = vec![0; order.len()];
        for (place, index) in (0..).zip(&order) {
            described[*index as usize] = place;
        }
        tensors.sort_unstable_by(compare);
    }
    for pair in tensors.windows(2) {
        let [a, b] = pair else { continue };
        if b.data.start < a.data.end {
            return refuse(Reason::Overlap {
                first: QuotedName::new(&a.name),
                first_data: a.data.clone(),
                second: QuotedName::new(&b.name),
                second_data: b.data.clone(),
            });
        }
    }
    Ok((tensors, described))
}

/// Guesses the kind of a file that is not a GGUF file.
fn looks_like(first: &[u8]) -> Option<LooksLike> {
    let known: [(&[u8], LooksLike); 7] = [
        (b"version https://git-lfs", LooksLike::GitLfsPointer),
        (b"<", LooksLike::WebPage),
        (b"tjgg", LooksLike::OldGgml),
        (b"lmgg", LooksLike::OldGgml),
        (b"fmgg", LooksLike::OldGgml),
        (b"FUGG", LooksLike::SwappedGguf),
        (b"PK\x03\x04", LooksLike::ZipArchive),
    ];
    // A safetensors file begins with the length of its header, which has no fixed bytes.
    if first.get(4..9) == Some(b"\0\0\0\0{") {
        return Some(LooksLike::Safetensors);
    }
    known.iter().find(|(magic, _)| first.starts_with(magic)).map(|(_, kind)| *kind)
}
