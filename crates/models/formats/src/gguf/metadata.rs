//! The metadata of a file: typed values by name.

use std::fmt;
use std::ops::Range;

use super::cursor::Cursor;
use super::limits::OPENING_BYTES;
use super::value_type::ValueType;

/// A value of the metadata.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// Unsigned 8-bit integer.
    U8(u8),
    /// Signed 8-bit integer.
    I8(i8),
    /// Unsigned 16-bit integer.
    U16(u16),
    /// Signed 16-bit integer.
    I16(i16),
    /// Unsigned 32-bit integer.
    U32(u32),
    /// Signed 32-bit integer.
    I32(i32),
    /// IEEE 754 single precision.
    F32(f32),
    /// A boolean.
    Bool(bool),
    /// A string. The specification requires UTF-8, but some writers store tokens that are not UTF-8, so
    /// the parser does not check it. See [`Value::as_str`].
    String(&'a [u8]),
    /// Values of one type.
    Array(Array<'a>),
    /// Unsigned 64-bit integer.
    U64(u64),
    /// Signed 64-bit integer.
    I64(i64),
    /// IEEE 754 double precision.
    F64(f64),
}

impl<'a> Value<'a> {
    /// Returns the type of the value.
    pub const fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Returns the value if it is a string in UTF-8.
    pub fn as_str(&self) -> Option<&'a str> {
        match self {
            Self::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// Returns the value if it is an integer of any width that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(number) => Some(number.into()),
            Self::U16(number) => Some(number.into()),
            Self::U32(number) => Some(number.into()),
            Self::U64(number) => Some(number),
            Self::I8(number) => number.try_into().ok(),
            Self::I16(number) => number.try_into().ok(),
            Self::I32(number) => number.try_into().ok(),
            Self::I64(number) => number.try_into().ok(),
            _ => None,
        }
    }

    /// Reads a value. Returns `None` if the bytes are not a value of this type, which cannot happen with
    /// bytes that were checked.
    fn read(kind: ValueType, cursor: &mut Cursor<'a>) -> Option<Self> {
        Some(match kind {
            ValueType::U8 => Self::U8(u8::from_le_bytes(cursor.array().ok()?)),
            ValueType::I8 => Self::I8(i8::from_le_bytes(cursor.array().ok()?)),
            ValueType::U16 => Self::U16(u16::from_le_bytes(cursor.array().ok()?)),
            ValueType::I16 => Self::I16(i16::from_le_bytes(cursor.array().ok()?)),
            ValueType::U32 => Self::U32(u32::from_le_bytes(cursor.array().ok()?)),
            ValueType::I32 => Self::I32(i32::from_le_bytes(cursor.array().ok()?)),
            ValueType::F32 => Self::F32(f32::from_le_bytes(cursor.array().ok()?)),
            ValueType::Bool => Self::Bool(cursor.array().ok()? == [1]),
            ValueType::String => Self::String(cursor.string().ok()?),
            ValueType::Array => Self::Array(Array::read(cursor)?),
            ValueType::U64 => Self::U64(u64::from_le_bytes(cursor.array().ok()?)),
            ValueType::I64 => Self::I64(i64::from_le_bytes(cursor.array().ok()?)),
            ValueType::F64 => Self::F64(f64::from_le_bytes(cursor.array().ok()?)),
        })
    }
}

/// An array of values of one type, in the encoding of the file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Array<'a> {
    pub(super) element: ValueType,
    pub(super) len: u64,
    pub(super) bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// Returns the type of the elements.
    pub fn element_type(&self) -> ValueType {
        self.element
    }

    /// Returns the number of elements.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns `true` if the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the elements in the encoding of the file: numbers in little-endian order, a string behind
    /// its length, an array behind its element type and length.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns an iterator over the elements.
    pub fn values(&self) -> Values<'a> {
        let cursor = Cursor::new(self.bytes, self.bytes.len() as u64);
        Values { element: self.element, left: self.len, cursor }
    }

    fn read(cursor: &mut Cursor<'a>) -> Option<Self> {
        let (element, len) = (cursor.value_type().ok()?, cursor.u64().ok()?);
        let mut end = cursor.clone();
        end.skip(element, len, 0).ok()?;
        let bytes = cursor.take((end.at() - cursor.at()) as u64).ok()?;
        Some(Self { element, len, bytes })
    }
}

/// Writes the element type and the length, because arrays are long.
impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}; {}]", self.element, self.len)
    }
}

/// An iterator over the elements of an [`Array`].
#[derive(Clone, Debug)]
pub struct Values<'a> {
    element: ValueType,
    left: u64,
    cursor: Cursor<'a>,
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        Value::read(self.element, &mut self.cursor)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // The cast is lossless: an array is not longer than its header.
        (self.left as usize, Some(self.left as usize))
    }
}

impl ExactSizeIterator for Values<'_> {}

/// Typed values by name, in the order of the file. They are kept in the encoding of the file, and
/// decoded when they are requested.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    /// All entries: key, type, value.
    pub(super) bytes: Vec<u8>,
    pub(super) entries: Vec<Entry>,
}

/// One entry of [`Metadata`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) kind: ValueType,
    /// The range of the value in the bytes of the metadata.
    pub(super) value: Range<u32>,
}

impl Metadata {
    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns `true` if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the value of this name. The search is linear.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        self.value(entry)
    }

    /// Returns an iterator over the names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        self.entries.iter().filter_map(|entry| Some((entry.key.as_str(), self.value(entry)?)))
    }

    /// Returns an iterator over the names and the offsets of their entries in the file. An entry is the
    /// length of the name, the name, the type and the value.
    pub fn offsets(&self) -> impl Iterator<Item = (&str, u64)> {
        self.entries.iter().map(|entry| {
            let before = size_of::<u64>() + entry.key.len() + size_of::<u32>();
            let offset = OPENING_BYTES + entry.value.start as usize - before;
            (entry.key.as_str(), offset as u64)
        })
    }

    fn value(&self, entry: &Entry) -> Option<Value<'_>> {
        let bytes = self.bytes.get(entry.value.start as usize..entry.value.end as usize)?;
        Value::read(entry.kind, &mut Cursor::new(bytes, bytes.len() as u64))
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
