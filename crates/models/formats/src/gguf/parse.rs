//! The head of a file, gone through twice: to see how far it goes, and to take it apart.

use longshore_mem::Granule;

use super::cursor::{Cursor, Step, Stop, refuse};
use super::dtype::{self, Dtype};
use super::header::{Header, Tensor};
use super::limits::{
    ALIGNMENT_DEFAULT, ALIGNMENT_KEY, ALIGNMENT_MIN, DIMENSIONS_MAX, FORMAT, MAGIC,
    METADATA_ENTRIES_MAX, OPENING_BYTES, TENSORS_MAX,
};
use super::metadata::{Entry, Metadata, Value};
use crate::error::{Error, Result};
use crate::json::quoted;

/// The shortest entry of metadata: the length of its key, a type and a byte.
const ENTRY_LEN_MIN: u64 = 8 + 4 + 1;
/// The shortest description of a tensor: the length of its name, no dimension, type and offset.
const DESCRIPTION_LEN_MIN: u64 = 8 + 4 + 4 + 8;

impl Header {
    /// Reads a header out of `bytes`, the beginning of a file of `file_len_bytes` that has the
    /// header in it.
    ///
    /// # Errors
    /// [`Error`] with what is wrong with the file, also if it has more of a header than `bytes`.
    pub fn parse(bytes: &[u8], file_len_bytes: u64) -> Result<Self> {
        let file_len_bytes = file_len_bytes.max(bytes.len() as u64);
        extent(bytes, file_len_bytes)
            .and_then(|extent| header(bytes[..extent.end].to_vec(), &extent, file_len_bytes))
            .map_err(|stop| refused(stop, bytes.len()))
    }

    /// As [`Self::parse`], of bytes that this takes and reuses for the metadata, so that a long header
    /// is not held twice. Returns [`Parsed::Short`] with them if the header goes on behind them.
    ///
    /// # Errors
    /// [`Error`] with what is wrong with the file.
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

/// What [`Header::parse_beginning`] found.
#[derive(Debug)]
pub enum Parsed {
    /// The header.
    Complete(Header),
    /// A header that goes on behind the bytes that were given.
    Short {
        /// Those bytes.
        bytes: Vec<u8>,
        /// How many bytes of the file the header needs at least: more than were given, and at most
        /// [`HEADER_LEN_MAX_BYTES`](super::HEADER_LEN_MAX_BYTES) and the length of the file.
        end: usize,
    },
}

fn refused(stop: Stop, there: usize) -> Error {
    let reason = match stop {
        Stop::Refused(reason) => reason,
        Stop::Short { end } => {
            format!("only {there} of at least {end} bytes before its data are there")
        }
    };
    Error::new(FORMAT, reason)
}

/// How far the parts of a header go.
#[derive(Debug)]
struct Extent {
    version: u32,
    tensors: u64,
    entries: u64,
    /// Where the metadata ends.
    metadata_end: usize,
    /// Where the last description of a tensor ends.
    end: usize,
}

/// Finds out how far the header goes, without keeping anything of it.
fn extent(bytes: &[u8], file_len_bytes: u64) -> Step<Extent> {
    let mut cursor = Cursor::new(bytes, file_len_bytes);
    if file_len_bytes < OPENING_BYTES as u64 {
        let short = bytes.len() < MAGIC.len() || bytes.starts_with(&MAGIC);
        if short {
            return refuse(format!(
                "it has {file_len_bytes} bytes, and the shortest there is has {OPENING_BYTES}"
            ));
        }
    }
    let magic = cursor.array::<4>()?;
    if magic != MAGIC {
        let instead = instead(bytes).map_or(String::new(), |what| format!("; {what}"));
        return refuse(format!("it begins with {} and not with GGUF{instead}", shown(magic)));
    }
    let version = cursor.u32()?;
    check_version(version)?;
    let (tensors, entries) = (cursor.u64()?, cursor.u64()?);
    let fits = |what, count: u64, max: u64, each_min: u64, left: u64| {
        if count > max {
            return refuse(format!("it says that it has {count} {what}; {max} are read at most"));
        }
        if count * each_min > left {
            return refuse(format!(
                "it says that it has {count} {what}, for which it is too short; was it cut short?"
            ));
        }
        Ok(())
    };
    fits("tensors", tensors, TENSORS_MAX, DESCRIPTION_LEN_MIN, cursor.left_max())?;
    fits("entries of metadata", entries, METADATA_ENTRIES_MAX, ENTRY_LEN_MIN, cursor.left_max())?;
    for number in 1..=entries {
        let key = cursor.name().map_err(|stop| within(stop, "metadata", number, b""))?;
        let value_type = cursor.value_type();
        value_type
            .and_then(|kind| cursor.skip_value(kind))
            .map_err(|stop| within(stop, "metadata", number, key))?;
    }
    let metadata_end = cursor.at();
    for number in 1..=tensors {
        let name = cursor.name().map_err(|stop| within(stop, "tensor", number, b""))?;
        dimensions(&mut cursor)
            .and_then(|_| cursor.take(4 + 8))
            .map_err(|stop| within(stop, "tensor", number, name))?;
    }
    Ok(Extent { version, tensors, entries, metadata_end, end: cursor.at() })
}

fn check_version(version: u32) -> Step<()> {
    match version {
        2 | 3 => Ok(()),
        1 => refuse(
            "it is of version 1, which is no longer in use and not read; convert the model again \
             with a current llama.cpp",
        ),
        _ if version.swap_bytes() < 1 << 16 && version != 0 => refuse(format!(
            "it is big-endian (version {}), and only little-endian files are read; convert it \
             with gguf-convert-endian of the Python package gguf",
            version.swap_bytes()
        )),
        _ => refuse(format!("it is of version {version}; 2 and 3 are read")),
    }
}

/// Says which part of the header a refusal is about.
fn within(stop: Stop, what: &str, number: u64, name: &[u8]) -> Stop {
    match stop {
        Stop::Refused(reason) if name.is_empty() => {
            Stop::Refused(format!("{what} number {number}: {reason}"))
        }
        Stop::Refused(reason) => {
            let name = quoted(&String::from_utf8_lossy(name));
            Stop::Refused(format!("{what} {name}: {reason}"))
        }
        stop => stop,
    }
}

/// Innermost first, as they are in the file.
fn dimensions<'a>(cursor: &mut Cursor<'a>) -> Step<&'a [u8]> {
    let count = cursor.u32()?;
    if count > DIMENSIONS_MAX {
        return refuse(format!("it has {count} dimensions, more than {DIMENSIONS_MAX}"));
    }
    cursor.take(u64::from(count) * 8)
}

/// Takes apart all of a header.
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
        .map_or_else(|| refuse("its data would begin past 2^64"), Ok)?;
    if claims.is_empty() {
        // Without data there need be no padding before it.
        data_offset = data_offset.min(file_len_bytes);
    }
    let (tensors, described) = place(claims, alignment, data_offset, file_len_bytes)?;
    Ok(Header { version: extent.version, metadata, tensors, alignment, data_offset, described })
}

fn entries(cursor: &mut Cursor<'_>, count: u64) -> Step<Vec<Entry>> {
    let mut entries = Vec::with_capacity(count as usize);
    for number in 1..=count {
        let key = name(cursor, "metadata", number)?;
        let kind = cursor.value_type()?;
        let start = cursor.at();
        cursor.skip_value(kind)?;
        // Fits: below the limit of a header.
        let place = |at: usize| (at - OPENING_BYTES) as u32;
        entries.push(Entry { key, kind, value: place(start)..place(cursor.at()) });
    }
    if let Some(key) = twice(&entries, |entry| &entry.key) {
        return refuse(format!("its metadata has the key {} twice", quoted(key)));
    }
    Ok(entries)
}

/// A key or the name of a tensor.
fn name(cursor: &mut Cursor<'_>, what: &str, number: u64) -> Step<String> {
    let bytes = cursor.name()?;
    match std::str::from_utf8(bytes) {
        Ok(name) => Ok(name.to_owned()),
        Err(_) => refuse(format!("{what} number {number}: its name is not UTF-8")),
    }
}

/// A name that more than one has.
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
            let kind = other.value_type();
            return refuse(format!("its {ALIGNMENT_KEY} is of type {kind}, not uint32"));
        }
    };
    match Granule::new(bytes.into()) {
        Ok(granule) if bytes >= ALIGNMENT_MIN => Ok(granule),
        _ => refuse(format!(
            "its {ALIGNMENT_KEY} is {bytes}, no power of two of at least {ALIGNMENT_MIN}"
        )),
    }
}

/// One description of a tensor; its data are relative to where the data begin.
fn description(cursor: &mut Cursor<'_>, number: u64) -> Step<Tensor> {
    let name = name(cursor, "tensor", number)?;
    let dimensions = dimensions(cursor)?;
    let (number, offset) = (cursor.u32()?, cursor.u64()?);
    let (words, _) = dimensions.as_chunks::<8>();
    let shape: Vec<u64> = words.iter().rev().map(|word| u64::from_le_bytes(*word)).collect();
    let Some(dtype) = Dtype::from_number(number) else {
        let name = quoted(&name);
        return match dtype::removed(number) {
            Some(removed) => refuse(format!(
                "tensor {name} has the type {removed} ({number}), which ggml no longer has; \
                 convert the model again with a current llama.cpp"
            )),
            None => refuse(format!(
                "tensor {name} has the type {number}, which is not known; the last known is \
                 {} ({})",
                Dtype::ALL[Dtype::ALL.len() - 1],
                Dtype::ALL[Dtype::ALL.len() - 1].number()
            )),
        };
    };
    let claim = || format!("tensor {} of shape {shape:?} and dtype {dtype}", quoted(&name));
    let row = shape.last().copied().unwrap_or(1);
    if !row.is_multiple_of(dtype.block_elements()) {
        return refuse(format!(
            "{} has rows of {row} elements, which are no whole blocks of {}",
            claim(),
            dtype.block_elements()
        ));
    }
    let len_bytes = len_bytes(&shape, dtype).and_then(|len| offset.checked_add(len));
    let Some(end) = len_bytes else {
        return refuse(format!("{} at offset {offset} ends past 2^64", claim()));
    };
    Ok(Tensor { data: offset..end, name, dtype, shape })
}

/// The length of the data. Even before a zero the product of the dimensions must not overflow.
pub(super) fn len_bytes(shape: &[u64], dtype: Dtype) -> Option<u64> {
    let elements = shape.iter().try_fold(1u64, |product, size| product.checked_mul(*size))?;
    (elements / dtype.block_elements()).checked_mul(dtype.block_bytes())
}

/// Holds the tensors against each other and the file, and sorts them by where their data are.
/// Returns them and the order they came in, if it was another.
fn place(
    mut tensors: Vec<Tensor>,
    alignment: Granule,
    data_offset: u64,
    file_len_bytes: u64,
) -> Step<(Vec<Tensor>, Vec<u32>)> {
    if let Some(name) = twice(&tensors, |tensor| &tensor.name) {
        return refuse(format!("it has the tensor {} twice", quoted(name)));
    }
    for Tensor { name, data, .. } in &mut tensors {
        if !alignment.is_aligned(data.start) {
            return refuse(format!(
                "tensor {} is at offset {}, which is no multiple of its alignment {alignment}",
                quoted(name),
                data.start
            ));
        }
        match data_offset.checked_add(data.end) {
            Some(end) if end <= file_len_bytes => *data = data_offset + data.start..end,
            end => {
                let end = end.map_or("past 2^64".to_owned(), |end| format!("at byte {end}"));
                return refuse(format!(
                    "it was cut short: tensor {} ends {end}, but it has {file_len_bytes} bytes; \
                     fetch or copy it again",
                    quoted(name)
                ));
            }
        }
    }
    let key = |tensor: &Tensor| (tensor.data.start, tensor.data.end);
    // The names give tensors without data an order.
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
            return refuse(format!(
                "tensor {} (bytes {} to {} of the file) overlaps tensor {} (bytes {} to {})",
                quoted(&b.name),
                b.data.start,
                b.data.end,
                quoted(&a.name),
                a.data.start,
                a.data.end
            ));
        }
    }
    Ok((tensors, described))
}

/// The first bytes of a file, for a message.
fn shown(magic: [u8; 4]) -> String {
    if magic.iter().all(u8::is_ascii_graphic) {
        return format!("'{}'", String::from_utf8_lossy(&magic));
    }
    let [a, b, c, d] = magic;
    format!("the bytes {a:02x} {b:02x} {c:02x} {d:02x}")
}

/// What a file that is no GGUF file looks like.
fn instead(first: &[u8]) -> Option<&'static str> {
    let known: [(&[u8], &str); 7] = [
        (
            b"version https://git-lfs",
            "it is a Git LFS pointer and not the file: fetch that with 'git lfs pull'",
        ),
        (b"<", "it looks like a web page: the download went wrong"),
        (b"tjgg", "it is a file of the time before GGUF: convert the model again"),
        (b"lmgg", "it is a file of the time before GGUF: convert the model again"),
        (b"fmgg", "it is a file of the time before GGUF: convert the model again"),
        (b"FUGG", "it is GGUF with its bytes swapped"),
        (b"PK\x03\x04", "it is a zip archive, perhaps one that PyTorch wrote"),
    ];
    // The length of its header may look like anything.
    if first.get(4..9) == Some(b"\0\0\0\0{") {
        return Some("it looks like a safetensors file");
    }
    known.iter().find(|(magic, _)| first.starts_with(magic)).map(|(_, what)| *what)
}
