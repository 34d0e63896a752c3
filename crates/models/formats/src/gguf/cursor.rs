//! Reading the head of a file from front to back, never past what the file can have.

use super::limits::{HEADER_LEN_MAX_BYTES, NAME_LEN_MAX_BYTES};
use super::value_type::ValueType;

/// Arrays in arrays in arrays: how deep they may be. Nothing known has more than two.
pub(super) const ARRAY_DEPTH_MAX: usize = 4;

/// Why reading stopped.
#[derive(Debug)]
pub(super) enum Stop {
    /// The header is wrong.
    Refused(String),
    /// The header needs all bytes up to here, and they may be in the file.
    Short {
        /// Where the next value ends, from the beginning of the file.
        end: usize,
    },
}

pub(super) type Step<T> = Result<T, Stop>;

/// Makes a refusal.
pub(super) fn refuse<T>(reason: impl Into<String>) -> Step<T> {
    Err(Stop::Refused(reason.into()))
}

/// A place in the beginning of a file.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    file_len_bytes: u64,
}

impl<'a> Cursor<'a> {
    /// At the beginning of `bytes`, the beginning of a file of this length.
    pub(super) fn new(bytes: &'a [u8], file_len_bytes: u64) -> Self {
        Self { bytes, at: 0, file_len_bytes }
    }

    /// How far it is from the beginning.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// How many bytes of a header there can be from here on.
    pub(super) fn left_max(&self) -> u64 {
        self.file_len_bytes.min(HEADER_LEN_MAX_BYTES) - self.at as u64
    }

    /// The next bytes.
    pub(super) fn take(&mut self, len_bytes: u64) -> Step<&'a [u8]> {
        if len_bytes > self.left_max() {
            let end = u128::from(len_bytes) + self.at as u128;
            if end > u128::from(self.file_len_bytes) {
                return refuse(format!(
                    "it was cut short in its header, or that is damaged: what begins at byte {} \
                     would end at byte {end}, but it has {}",
                    self.at, self.file_len_bytes
                ));
            }
            return refuse(format!(
                "its header goes on to byte {end} at least, more than the {HEADER_LEN_MAX_BYTES} \
                 there may be"
            ));
        }
        // Fits: below the limit of a header.
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

    /// The bytes of a string.
    pub(super) fn string(&mut self) -> Step<&'a [u8]> {
        let len_bytes = self.u64()?;
        self.take(len_bytes)
    }

    /// The bytes of a key or of the name of a tensor.
    pub(super) fn name(&mut self) -> Step<&'a [u8]> {
        let len_bytes = self.u64()?;
        if len_bytes > NAME_LEN_MAX_BYTES {
            return refuse(format!(
                "its name has {len_bytes} bytes, more than {NAME_LEN_MAX_BYTES}"
            ));
        }
        self.take(len_bytes)
    }

    pub(super) fn value_type(&mut self) -> Step<ValueType> {
        let number = self.u32()?;
        ValueType::from_number(number).map_or_else(
            || refuse(format!("a value has the type {number}, and there are 0 to 12")),
            Ok,
        )
    }

    /// Goes past a value and checks all of it but the encoding of strings.
    pub(super) fn skip_value(&mut self, kind: ValueType) -> Step<()> {
        self.skip(kind, 1, 0)
    }

    /// Goes past so many values of a type, which are in so many arrays.
    pub(super) fn skip(&mut self, kind: ValueType, count: u64, depth: usize) -> Step<()> {
        if let Some(size) = kind.size_bytes() {
            let taken = self.take(count.saturating_mul(size))?;
            if kind == ValueType::Bool
                && let Some(byte) = taken.iter().find(|byte| **byte > 1)
            {
                return refuse(format!("a truth value is {byte}, and neither 0 nor 1"));
            }
            return Ok(());
        }
        // At least a length each. This bounds the loop by the length of the header.
        if count.saturating_mul(8) > self.left_max() {
            self.take(count.saturating_mul(8))?;
        }
        if kind == ValueType::Array && depth == ARRAY_DEPTH_MAX {
            return refuse(format!("arrays are in more than {ARRAY_DEPTH_MAX} arrays"));
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
