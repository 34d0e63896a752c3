//! Properties of the reader of GGUF headers for any input: a plain reader without limits accepts and
//! refuses the same headers, and reads the same content.
//!
//! The fuzz target calls this, and so does the test of `longshore-load` that replays the corpus.

use std::collections::BTreeSet;

use longshore_formats::Error;
use longshore_formats::gguf::{Array, Dtype, Header, Value, ValueType};
use longshore_mem::Granule;

/// A file length that has room for any data that a header may declare, unless that is absurd.
const VAST: u64 = 1 << 62;
/// The allowed depth of arrays in arrays.
const DEPTH_MAX: u32 = 4;

/// Parses `data` as the beginning of a file, which may continue.
pub fn gguf_header(data: &[u8]) {
    compare(data, data.len() as u64);
    let Some(header) = compare(data, VAST) else { return };
    let end = header.data_end();
    if header.tensors.iter().any(|tensor| tensor.len_bytes() > 0) && end > data.len() as u64 {
        let parse = |len| Header::parse(data, len);
        assert_eq!(parse(end).expect("all is inside"), header);
        is_presentable(&parse(end - 1).expect_err("a byte is missing"));
    }
    written_anew(&header, data);
}

/// Compares our result with the plain reader's.
fn compare(data: &[u8], file_len: u64) -> Option<Header> {
    let ours = Header::parse(data, file_len);
    let plain = Plain::read(data).filter(|plain| plain.is_sound(file_len));
    match (ours, plain) {
        (Ok(ours), Some(plain)) => {
            plain.agrees_with(&ours);
            Some(ours)
        }
        (Ok(ours), None) => panic!("accepted: {ours:?}"),
        (Err(refused), Some(_)) => panic!("refused: {refused}"),
        (Err(refused), None) => {
            is_presentable(&refused);
            None
        }
    }
}

/// Encodes the header for its own alignment, which must give the same bytes, and for others, which must
/// give the same tensors at other places.
fn written_anew(header: &Header, data: &[u8]) {
    let same = header.encode_aligned(header.alignment).expect("it has it already");
    assert!(data.starts_with(&same.head), "not the same bytes");
    assert_eq!(same.data_offset, header.data_offset);
    assert!(same.offsets.iter().eq(header.tensors.iter().map(|tensor| &tensor.data.start)));
    for log2 in [3, 5, 12, 21, 31] {
        let alignment = Granule::new(1 << log2).expect("a power of two");
        let Ok(encoded) = header.encode_aligned(alignment) else {
            // Padding to 2 GiB makes large files too large.
            assert!(header.data_end() > 1 << 32, "not written for {alignment}");
            continue;
        };
        let again =
            Header::parse(&encoded.head, encoded.file_len_bytes).expect("it was written so");
        assert_eq!((again.version, again.alignment), (header.version, alignment));
        assert_eq!(again.data_offset, encoded.data_offset);
        assert_eq!(again.tensors.len(), header.tensors.len());
        // Tensors without data may now be at the same place, and in another order.
        for (tensor, offset) in header.tensors.iter().zip(&encoded.offsets) {
            let again = again.tensor(&tensor.name).expect("it was written");
            assert_eq!((again.dtype, &again.shape), (tensor.dtype, &tensor.shape));
            assert_eq!((again.data.start, again.len_bytes()), (*offset, tensor.len_bytes()));
            assert!(alignment.is_aligned(*offset));
        }
        assert!(encoded.offsets.is_sorted());
        let but_alignment = |header: &Header| -> Vec<String> {
            let entries = header.metadata.iter().filter(|(key, _)| *key != "general.alignment");
            entries.map(|(key, value)| format!("{key} {value:?}")).collect()
        };
        assert_eq!(but_alignment(&again), but_alignment(header));
    }
}

/// Checks that a message has no control characters, which a hostile name could bring to a terminal.
fn is_presentable(error: &Error) {
    let text = error.to_string();
    assert!(!text.is_empty() && !text.contains(char::is_control), "{text:?}");
    assert!(text.len() < 4096, "{} bytes of message", text.len());
}

/// The content of a header, read without limits on time and memory.
struct Plain {
    entries: Vec<(Vec<u8>, Tree)>,
    tensors: Vec<PlainTensor>,
    end: u64,
}

struct PlainTensor {
    name: Vec<u8>,
    /// The innermost dimension first.
    dimensions: Vec<u64>,
    dtype: u32,
    offset: u64,
}

enum Tree {
    Number(u32, Vec<u8>),
    Text(Vec<u8>),
    List(u32, Vec<Tree>),
}

/// The rest of the bytes.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn take(&mut self, len: u64) -> Option<Vec<u8>> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(taken.to_vec())
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn text(&mut self) -> Option<Vec<u8>> {
        let len = self.u64()?;
        self.take(len)
    }

    fn tree(&mut self, kind: u32, depth: u32) -> Option<Tree> {
        Some(match kind {
            0 | 1 => Tree::Number(kind, self.take(1)?),
            2 | 3 => Tree::Number(kind, self.take(2)?),
            4..=6 => Tree::Number(kind, self.take(4)?),
            7 => Tree::Number(kind, self.take(1).filter(|byte| byte[0] <= 1)?),
            8 => Tree::Text(self.text()?),
            9 if depth < DEPTH_MAX => {
                let (element, len) = (self.u32()?, self.u64()?);
                ValueType::from_number(element)?;
                let empty_arrays_too_deep = element == 9 && depth + 1 == DEPTH_MAX;
                if empty_arrays_too_deep {
                    return None;
                }
                let mut list = Vec::new();
                for _ in 0..len {
                    list.push(self.tree(element, depth + 1)?);
                }
                Tree::List(element, list)
            }
            10..=12 => Tree::Number(kind, self.take(8)?),
            _ => return None,
        })
    }
}

impl Plain {
    fn read(data: &[u8]) -> Option<Self> {
        let mut rest = Rest(data);
        let magic = rest.take(4)?;
        let version = rest.u32()?;
        let (tensor_count, entry_count) = (rest.u64()?, rest.u64()?);
        if magic != b"GGUF" || !(2..=3).contains(&version) {
            return None;
        }
        let (mut entries, mut tensors) = (Vec::new(), Vec::new());
        for _ in 0..entry_count {
            let (key, kind) = (rest.text()?, rest.u32()?);
            entries.push((key, rest.tree(kind, 0)?));
        }
        for _ in 0..tensor_count {
            let (name, count) = (rest.text()?, rest.u32()?);
            let dimensions = (0..count).map(|_| rest.u64()).collect::<Option<_>>()?;
            let (dtype, offset) = (rest.u32()?, rest.u64()?);
            tensors.push(PlainTensor { name, dimensions, dtype, offset });
        }
        Some(Self { entries, tensors, end: (data.len() - rest.0.len()) as u64 })
    }

    fn alignment(&self) -> Option<u64> {
        match self.entries.iter().find(|(key, _)| key == b"general.alignment") {
            None => Some(32),
            Some((_, Tree::Number(4, bytes))) => {
                let bytes = u32::from_le_bytes(bytes[..].try_into().ok()?);
                (bytes.is_power_of_two() && bytes >= 8).then_some(bytes.into())
            }
            Some(_) => None,
        }
    }

    /// Returns `true` if the header is valid for a file of this length.
    fn is_sound(&self, file_len: u64) -> bool {
        let Some(alignment) = self.alignment() else { return false };
        let keys: BTreeSet<&[u8]> = self.entries.iter().map(|(key, _)| &key[..]).collect();
        let names: BTreeSet<&[u8]> = self.tensors.iter().map(|tensor| &tensor.name[..]).collect();
        let named = |name: &&[u8]| name.len() < 65_536 && std::str::from_utf8(name).is_ok();
        let mut places: Vec<(u128, u128)> = Vec::new();
        let data_offset = u128::from(self.end.next_multiple_of(alignment));
        for tensor in &self.tensors {
            let Some(len) = tensor.len_bytes() else { return false };
            let start = data_offset + u128::from(tensor.offset);
            if !tensor.offset.is_multiple_of(alignment) || start + len > u128::from(file_len) {
                return false;
            }
            places.push((start, start + len));
        }
        places.sort_unstable();
        keys.len() == self.entries.len()
            && names.len() == self.tensors.len()
            && keys.iter().chain(&names).all(named)
            && places.windows(2).all(|pair| pair[0].1 <= pair[1].0)
    }

    fn agrees_with(&self, header: &Header) {
        assert_eq!(header.metadata.len(), self.entries.len());
        for ((key, value), (plain_key, tree)) in header.metadata.iter().zip(&self.entries) {
            assert_eq!(key.as_bytes(), plain_key);
            same(value, tree);
        }
        assert_eq!(Some(header.alignment.bytes()), self.alignment());
        assert_eq!(header.tensors.len(), self.tensors.len());
        assert!(header.tensors.is_sorted_by_key(|tensor| (tensor.data.start, tensor.data.end)));
        for plain in &self.tensors {
            let name = std::str::from_utf8(&plain.name).expect("it is sound");
            let tensor = header.tensor(name).expect("a tensor that is not there");
            assert_eq!(tensor.dtype.number(), plain.dtype);
            assert!(tensor.shape.iter().rev().eq(&plain.dimensions));
            assert_eq!(tensor.data.start, header.data_offset + plain.offset);
            assert_eq!(Some(u128::from(tensor.len_bytes())), plain.len_bytes());
        }
    }
}

impl PlainTensor {
    fn len_bytes(&self) -> Option<u128> {
        let dtype = Dtype::from_number(self.dtype).filter(|_| self.dimensions.len() <= 4)?;
        let row = self.dimensions.first().copied().unwrap_or(1);
        let whole_blocks = row.is_multiple_of(dtype.block_elements());
        // Multiplied as 64-bit numbers from the outermost on, where an overflow counts even before a
        // zero.
        let mut elements = 1u64;
        for size in self.dimensions.iter().rev() {
            elements = elements.checked_mul(*size)?;
        }
        let blocks = u128::from(elements / dtype.block_elements());
        Some(blocks * u128::from(dtype.block_bytes())).filter(|_| whole_blocks)
    }
}

fn same(value: Value<'_>, tree: &Tree) {
    match (value, tree) {
        (Value::String(bytes), Tree::Text(text)) => assert_eq!(bytes, text),
        (Value::Array(array), Tree::List(element, list)) => same_list(array, *element, list),
        (value, Tree::Number(kind, bytes)) => {
            assert_eq!(value.value_type().number(), *kind);
            let ours = match value {
                Value::U8(number) => number.to_le_bytes().to_vec(),
                Value::I8(number) => number.to_le_bytes().to_vec(),
                Value::U16(number) => number.to_le_bytes().to_vec(),
                Value::I16(number) => number.to_le_bytes().to_vec(),
                Value::U32(number) => number.to_le_bytes().to_vec(),
                Value::I32(number) => number.to_le_bytes().to_vec(),
                Value::F32(number) => number.to_le_bytes().to_vec(),
                Value::Bool(truth) => vec![truth.into()],
                Value::U64(number) => number.to_le_bytes().to_vec(),
                Value::I64(number) => number.to_le_bytes().to_vec(),
                Value::F64(number) => number.to_le_bytes().to_vec(),
                Value::String(_) | Value::Array(_) => panic!("{value:?} is not a number"),
            };
            assert_eq!(&ours, bytes);
        }
        (value, _) => panic!("{value:?} has another type"),
    }
}

fn same_list(array: Array<'_>, element: u32, list: &[Tree]) {
    assert_eq!(array.element_type().number(), element);
    assert_eq!((array.len(), array.values().len()), (list.len() as u64, list.len()));
    assert_eq!(array.values().count(), list.len());
    for (value, tree) in array.values().zip(list) {
        same(value, tree);
    }
}
