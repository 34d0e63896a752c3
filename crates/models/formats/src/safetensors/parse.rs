//! The parser of headers.

use super::header::Header;
use super::limits::{FORMAT, HEADER_LEN_MAX_BYTES, PREFIX_BYTES};
use super::{layout, text};
use crate::error::{Error, Result};
use crate::reason::{LooksLike, Reason, Start, TruncatedPart};

impl Header {
    /// Parses the header in `bytes`, the beginning of a file of `file_len_bytes`. They must contain the
    /// whole header: at least [`header_end`] bytes.
    ///
    /// # Errors
    /// [`Error`] if the file is not valid, or if its header is longer than `bytes`.
    pub fn parse(bytes: &[u8], file_len_bytes: u64) -> Result<Self> {
        Self::checked(bytes, file_len_bytes).map_err(|reason| Error::new(FORMAT, reason))
    }

    fn checked(bytes: &[u8], file_len_bytes: u64) -> std::result::Result<Self, Box<Reason>> {
        let data_offset = opening(bytes, file_len_bytes)?;
        let (given_bytes, needed_bytes) = (bytes.len(), data_offset);
        let text = bytes
            .get(PREFIX_BYTES..data_offset)
            .ok_or(Reason::HeaderIncomplete { given_bytes, needed_bytes })?;
        let text = std::str::from_utf8(text).map_err(|error| {
            let offset = (PREFIX_BYTES + error.valid_up_to()) as u64;
            Reason::NotUtf8 { item: None, offset }
        })?;
        let text::Claims { mut tensors, metadata } = text::parse(text)?;
        let data_offset = data_offset as u64;
        let (described, there) = (layout::check(&mut tensors)?, file_len_bytes - data_offset);
        if described > there {
            return Err(Box::new(Reason::Truncated {
                part: TruncatedPart::Data { len_bytes: described },
                needed_bytes: u128::from(data_offset) + u128::from(described),
                found_bytes: file_len_bytes,
            }));
        }
        if described < there {
            let bytes = data_offset + described..file_len_bytes;
            return Err(Box::new(Reason::Trailing { bytes }));
        }
        for tensor in &mut tensors {
            tensor.data.start += data_offset;
            tensor.data.end += data_offset;
        }
        Ok(Self { tensors, metadata, data_offset })
    }
}

/// Returns the offset at which the header ends and the data begins, from the first bytes of a file of
/// `file_len_bytes`. The offset is within the file, and at most [`HEADER_LEN_MAX_BYTES`] + 8. `first`
/// must have at least 8 bytes, unless the file is shorter. With more bytes, such as 4096, the error can
/// identify a file of another format.
///
/// # Errors
/// [`Error`] if the file is of another format, was cut short in its header, or has too long a header.
pub fn header_end(first: &[u8], file_len_bytes: u64) -> Result<usize> {
    opening(first, file_len_bytes).map_err(|reason| Error::new(FORMAT, reason))
}

fn opening(first: &[u8], file_len_bytes: u64) -> std::result::Result<usize, Reason> {
    let cut_short = |part, needed_bytes: u64| Reason::Truncated {
        part,
        needed_bytes: needed_bytes.into(),
        found_bytes: file_len_bytes,
    };
    let Some((prefix, text)) = first.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(cut_short(TruncatedPart::Start, PREFIX_BYTES as u64));
    };
    let header_len = u64::from_le_bytes(*prefix);
    if header_len == 0 {
        let looks_like = looks_like(first);
        return Err(Reason::BadStart { start: Start::EmptyHeader, looks_like });
    }
    if header_len > HEADER_LEN_MAX_BYTES {
        let start = Start::LongHeader { len_bytes: header_len, max_bytes: HEADER_LEN_MAX_BYTES };
        return Err(Reason::BadStart { start, looks_like: looks_like(first) });
    }
    let end = header_len + PREFIX_BYTES as u64;
    if end > file_len_bytes {
        return Err(cut_short(TruncatedPart::Header, end));
    }
    // The cast is lossless: the length is below the limit above.
    let end = end as usize;
    let text = &text[..text.len().min(end - PREFIX_BYTES)];
    let begin = text.iter().find(|byte| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
    if let Some(byte) = begin.filter(|byte| **byte != b'{') {
        let start = Start::HeaderByte(*byte);
        return Err(Reason::BadStart { start, looks_like: None });
    }
    Ok(end)
}

/// Guesses the kind of a file that is not a safetensors file.
fn looks_like(first: &[u8]) -> Option<LooksLike> {
    let known: [(&[u8], LooksLike); 6] = [
        (b"version https://git-lfs", LooksLike::GitLfsPointer),
        (b"<", LooksLike::WebPage),
        (b"{", LooksLike::Json),
        (b"GGUF", LooksLike::Gguf),
        (b"PK\x03\x04", LooksLike::ZipArchive),
        (b"\x80\x02", LooksLike::Pickle),
    ];
    known.iter().find(|(magic, _)| first.starts_with(magic)).map(|(_, kind)| *kind)
}
