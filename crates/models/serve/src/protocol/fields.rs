//! The fields of a message: little-endian numbers, and bytes after their length.

/// The reason why bytes are not a message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub(crate) &'static str);

/// Reads the fields of a message. Fields that do not fit are refused, and so are bytes after the last
/// one.
#[derive(Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len_bytes: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) =
            self.0.split_at_checked(len_bytes).ok_or(Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads at most `len_max` bytes after their length.
    pub(super) fn bytes(&mut self, len_max: usize) -> Result<&'a [u8], Malformed> {
        let len_bytes = usize::from(self.u16()?);
        if len_bytes > len_max {
            return Err(Malformed("a text in it is too long"));
        }
        self.take(len_bytes)
    }

    /// Reads as [`Self::bytes`] does, as UTF-8.
    pub(super) fn text(&mut self, len_max: usize) -> Result<String, Malformed> {
        let bytes = self.bytes(len_max)?.to_vec();
        String::from_utf8(bytes).map_err(|_| Malformed("a text in it is not UTF-8"))
    }

    pub(super) fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("it is too long")) }
    }
}

/// Writes the fields of a message.
#[derive(Debug)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn new(kind: u16) -> Self {
        Self(kind.to_le_bytes().to_vec())
    }

    pub(super) fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    pub(super) fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Appends bytes after their length. More than `len_max` bytes are cut off; callers avoid that.
    pub(super) fn bytes(mut self, bytes: &[u8], len_max: usize) -> Self {
        let bytes = &bytes[..bytes.len().min(len_max)];
        self.0.extend((bytes.len() as u16).to_le_bytes());
        self.0.extend(bytes);
        self
    }

    /// Appends a text, cut between two characters if it is too long.
    pub(super) fn text(self, text: &str, len_max: usize) -> Self {
        let mut end = text.len().min(len_max);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.bytes(&text.as_bytes()[..end], len_max)
    }
}
