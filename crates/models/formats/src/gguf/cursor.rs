//! A cursor that reads a header from front to back, within the length of the file.

use super::limits::{HEADER_LEN_MAX_BYTES, NAME_LEN_MAX_BYTES};
use super::value_type::ValueType;
use crate::reason::{Quantity, Reason, TruncatedPart, ValueProblem};

/// The limit on the nesting of arrays. Known files nest them at most two deep.
pub(super) const ARRAY_DEPTH_MAX: usize = 4;

/// The reason why reading stopped.
#[derive(Debug)]
pub(super) enum Stop {
    /// The header is wrong.
    Refused(Box<Reason>),
    /// The header goes on behind the bytes given, and the file is long enough for it.
    Short {
        /// The offset in the file of the end of the next value.
        end: usize,
    },
}

pub(super) type Step<T> = Result<T, Stop>;

/// Returns a refusal.
#[cold]
pub(super) fn refuse<T>(reason: Reason) -> Step<T> {
    Err(Stop::Refused(Box::new(reason)))
}

/// Returns the refusal of a number above its limit.
#[cold]
fn too_large<T>(quantity: Quantity, found: Option<u64>, max: u64) -> Step<T> {
    refuse(Reason::TooLarge { item: None, quantity, found, max })
}

/// Returns the refusal of a value.
#[cold]
fn bad_value<T>(problem: ValueProblem) -> Step<T> {
    refuse(Reason::BadValue { item: None, problem })
}

/// A position in the beginning of a file.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    file_len_bytes: u64,
}

impl<'a> Cursor<'a> {
    /// Makes a cursor at the start of `bytes`, which are the beginning of a file of this length.
    pub(super) fn new(bytes: &'a [u8], file_len_bytes: u64) -> Self {
        Self { bytes, at: 0, file_len_bytes }
    }

    /// Returns the offset from the beginning.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Returns an upper bound on the rest of the header, in bytes.
    pub(super) fn left_max(&self) -> u64 {
        self.file_len_bytes.min(HEADER_LEN_MAX_BYTES) - self.at as u64
    }

    /// Reads `len_bytes` bytes.
    pub(super) fn take(&mut self, len_bytes: u64) -> Step<&'a [u8]> {
        if len_bytes > self.left_max() {
            let end = u128::from(len_bytes) + self.at as u128;
            if end > u128::from(self.file_len_bytes) {
                return refuse(Reason::Truncated {
                    part: TruncatedPart::Value { item: None, offset: self.at as u64 },
                    needed_bytes: end,
                    found_bytes: self.file_len_bytes,
                });
            }
            // The cast is lossless: `end` is at most the length of the file.
            return too_large(Quantity::HeaderBytes, Some(end as u64), HEADER_LEN_MAX_BYTES);
        }
        // The cast is lossless: the length is below the limit of a header.
        let end = self.at + len_bytes as usize;
        let Some(taken) = self.bytes.get(self.at..end) else { return Err(Stop::Short { end }) };
        self.at = end;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Step<[u8; N]> {
        let taken = self.take(N as u64)?;
        let mut array = [0; N];
        array.copy_from_slice(taken);
        Ok(array)
    }

    pub(super) fn u32(&mut self) -> Step<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Step<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads the bytes of a string.
    pub(super) fn string(&mut self) -> Step<&'a [u8]> {
        let len_bytes = self.u64()?;
        self.take(len_bytes)
    }

    /// Reads the bytes of a key or of the name of a tensor.
    pub(super) fn name(&mut self) -> Step<&'a [u8]> {
        let len_bytes = self.u64()?;
        if len_bytes > NAME_LEN_MAX_BYTES {
            return too_large(Quantity::NameBytes, Some(len_bytes), NAME_LEN_MAX_BYTES);
        }
        self.take(len_bytes)
    }

    pub(super) fn value_type(&mut self) -> Step<ValueType> {
        let number = self.u32()?;
        ValueType::from_number(number)
            .map_or_else(|| bad_value(ValueProblem::UnknownType { number }), Ok)
    }

    /// Skips a value, and checks all of it except the encoding of strings.
    pub(super) fn skip_value(&mut self, kind: ValueType) -> Step<()> {
        self.skip(kind, 1, 0)
    }

    /// Skips `count` values of a type that are nested in `depth` arrays.
    pub(super) fn skip(&mut self, kind: ValueType, count: u64, depth: usize) -> Step<()> {
        if let Some(size) = kind.size_bytes() {
            let taken = self.take(count.saturating_mul(size))?;
            if kind == ValueType::Bool
                && let Some(byte) = taken.iter().find(|byte| **byte > 1)
            {
                return bad_value(ValueProblem::NotBool { byte: *byte });
            }
            return Ok(());
        }
        // Each value has at least a length of 8 bytes. This bounds the loop by the length of the header.
        if count.saturating_mul(8) > self.left_max() {
            self.take(count.saturating_mul(8))?;
        }
        if kind == ValueType::Array && depth == ARRAY_DEPTH_MAX {
            return too_large(Quantity::ArrayDepth, None, ARRAY_DEPTH_MAX as u64);
        }
        for _ in 0..count {
            if kind == ValueType::String {
                self.string()?;
            } else {
                let (element, len) = (self.value_type()?, self.u64()?);
                self.skip(element, len, depth + 1)?;
            }
        }
        Ok(())
    }
}
