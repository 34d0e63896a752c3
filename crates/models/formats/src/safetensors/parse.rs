//! Reading headers: where they end, and what they say.

use super::header::Header;
use super::limits::{FORMAT, HEADER_LEN_MAX_BYTES, PREFIX_BYTES};
use super::{layout, text};
use crate::error::{Error, Result};

impl Header {
    /// Reads a header out of `bytes`, the beginning of a file of `file_len_bytes` that has the
    /// header in it: at least the first [`header_end`] bytes.
    ///
    /// # Errors
    /// [`Error`] with what is wrong with the file.
    pub fn parse(bytes: &[u8], file_len_bytes: u64) -> Result<Self> {
        Self::checked(bytes, file_len_bytes).map_err(|reason| Error::new(FORMAT, reason))
    }

    fn checked(bytes: &[u8], file_len_bytes: u64) -> std::result::Result<Self, String> {
        let data_offset = opening(bytes, file_len_bytes)?;
        let text = bytes.get(PREFIX_BYTES..data_offset).ok_or_else(|| {
            format!("only {} of the {data_offset} bytes before its data are there", bytes.len())
        })?;
        let text = std::str::from_utf8(text).map_err(|error| {
            let at = PREFIX_BYTES + error.valid_up_to();
            format!("its header is not UTF-8: byte {at} of the file begins no character")
        })?;
        let text::Claims { mut tensors, metadata } = text::parse(text)?;
        let data_offset = data_offset as u64;
        let (described, there) = (layout::check(&mut tensors)?, file_len_bytes - data_offset);
        if described > there {
            return Err(format!(
                "it was cut short: with {described} bytes of data it would have {} bytes, but it \
                 has {file_len_bytes}; fetch or copy it again",
                u128::from(data_offset) + u128::from(described)
            ));
        }
        if described < there {
            return Err(format!(
                "its tensors end at byte {}, but it goes on to byte {file_len_bytes}: what is \
                 there belongs to no tensor",
                data_offset + described
            ));
        }
        for tensor in &mut tensors {
            tensor.data.start += data_offset;
            tensor.data.end += data_offset;
        }
        Ok(Self { tensors, metadata, data_offset })
    }
}

/// Looks at the first bytes of a file of `file_len_bytes`, at least 8 if it has so many, and returns
/// where its header ends and its data begins. That is within the file, and at most
/// [`HEADER_LEN_MAX_BYTES`] and 8. More bytes, say 4096, tell more about a file that is of another
/// format.
///
/// # Errors
/// [`Error`] if the file is of another format, was cut short in its header, or has too long a header.
pub fn header_end(first: &[u8], file_len_bytes: u64) -> Result<usize> {
    opening(first, file_len_bytes).map_err(|reason| Error::new(FORMAT, reason))
}

fn opening(first: &[u8], file_len_bytes: u64) -> std::result::Result<usize, String> {
    let Some((prefix, text)) = first.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(format!(
            "it has {file_len_bytes} bytes, and the length of its header alone takes \
             {PREFIX_BYTES}"
        ));
    };
    let instead = || instead(first).map_or(String::new(), |what| format!("; {what}"));
    let header_len = u64::from_le_bytes(*prefix);
    if header_len == 0 {
        return Err(format!("its header has no bytes{}", instead()));
    }
    if header_len > HEADER_LEN_MAX_BYTES {
        return Err(format!(
            "its first 8 bytes say that its header has {header_len} bytes, more than the \
             {HEADER_LEN_MAX_BYTES} there may be{}",
            instead()
        ));
    }
    let end = header_len + PREFIX_BYTES as u64;
    if end > file_len_bytes {
        return Err(format!(
            "it was cut short in its header, which ends at byte {end}: it has {file_len_bytes}; \
             fetch or copy it again"
        ));
    }
    // Fits: below the limit above.
    let end = end as usize;
    let text = &text[..text.len().min(end - PREFIX_BYTES)];
    let begin = text.iter().find(|byte| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
    if let Some(byte) = begin.filter(|byte| **byte != b'{') {
        return Err(format!("its header begins with the byte {byte:#04x} and not with '{{'"));
    }
    Ok(end)
}

/// What a file that is no safetensors file looks like.
fn instead(first: &[u8]) -> Option<&'static str> {
    let known: [(&[u8], &str); 6] = [
        (
            b"version https://git-lfs",
            "it is a Git LFS pointer and not the file: fetch that with 'git lfs pull'",
        ),
        (b"<", "it looks like a web page: the download went wrong"),
        (b"{", "it looks like JSON: the index of shards is known by the name *.index.json"),
        (b"GGUF", "it is a GGUF file"),
        (b"PK\x03\x04", "it is a zip archive, perhaps one that PyTorch wrote"),
        (b"\x80\x02", "it is a Python pickle, perhaps one that PyTorch wrote"),
    ];
    known.iter().find(|(magic, _)| first.starts_with(magic)).map(|(_, what)| *what)
}
