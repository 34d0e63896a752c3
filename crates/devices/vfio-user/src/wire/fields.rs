//! Reading and writing the fields of a payload.

use crate::Errno;

/// The unread rest of a payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn of(payload: &'a [u8]) -> Self {
        Self(payload)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (head, rest) = self.0.split_first_chunk().ok_or(Errno::EINVAL)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Errno> {
        self.array().map(u16::from_ne_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Errno> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Errno> {
        self.array().map(u64::from_ne_bytes)
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        self.array()
    }

    /// Returns the rest.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Returns the rest, which must have this length.
    pub(crate) fn rest_of(self, len_bytes: u64) -> Result<&'a [u8], Errno> {
        if self.0.len() as u64 == len_bytes { Ok(self.0) } else { Err(Errno::EINVAL) }
    }

    /// Checks that nothing is left.
    pub(crate) fn end(self) -> Result<(), Errno> {
        if self.0.is_empty() { Ok(()) } else { Err(Errno::EINVAL) }
    }
}

/// A payload that is being written.
#[derive(Debug, Default)]
pub(crate) struct Builder(Vec<u8>);

impl Builder {
    pub(crate) fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub(crate) fn end(self) -> Vec<u8> {
        self.0
    }
}
