//! Whole bodies of short responses.

use std::io::{self, ErrorKind};

use longshore_mem::VolatileSliceMut;

use super::client::Response;
use super::connection::Limits;
use super::progress::Progress;

/// The length of a read of a body whose length is not known.
const STEP_BYTES: usize = 16 << 10;
/// The longest line with the length of a chunk.
const CHUNK_LINE_MAX: usize = 1024;

impl Response {
    /// Receives the whole body, of at most `max_bytes`.
    ///
    /// # Errors
    /// Those of the connection; [`ErrorKind::InvalidData`] if the body is longer, or its chunks are not
    /// valid.
    pub fn body(&mut self, max_bytes: usize, limits: &Limits<'_>) -> io::Result<Vec<u8>> {
        let too_long = || io::Error::new(ErrorKind::InvalidData, "the response is too long");
        let mut pace = (Progress::new(0), 0);
        if let Some(len) = self.head.content_length.filter(|_| !self.head.is_chunked) {
            let len = usize::try_from(len).ok().filter(|len| *len <= max_bytes);
            let len = len.ok_or_else(too_long)?;
            let mut body = Vec::new();
            while body.len() < len {
                self.receive_some(&mut body, len, &mut pace, limits)?;
            }
            return Ok(body);
        }
        let mut received = Vec::new();
        if !self.head.is_chunked {
            // The end of the connection is that of the body.
            loop {
                let upto = received.len() + STEP_BYTES;
                match self.receive_some(&mut received, upto, &mut pace, limits) {
                    Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(received),
                    done => done?,
                }
                if received.len() > max_bytes {
                    return Err(too_long());
                }
            }
        }
        // There may be fields behind the last chunk, which are not received.
        self.head.closes = true;
        let invalid = || io::Error::new(ErrorKind::InvalidData, "a chunk is not valid");
        let (mut body, mut used) = (Vec::new(), 0);
        loop {
            if used > STEP_BYTES {
                received.drain(..used);
                used = 0;
            }
            let line = &received[used..received.len().min(used + CHUNK_LINE_MAX)];
            // The parser takes a line without digits for that of the last chunk.
            if line.first().is_some_and(|byte| !byte.is_ascii_hexdigit()) {
                return Err(invalid());
            }
            match httparse::parse_chunk_size(line) {
                Ok(httparse::Status::Complete((_, 0))) => return Ok(body),
                Ok(httparse::Status::Complete((start, len))) => {
                    let left = max_bytes - body.len();
                    let len = usize::try_from(len).ok().filter(|len| *len <= left);
                    let start = used + start;
                    let end = start + len.ok_or_else(too_long)?;
                    // The data of a chunk ends with a line break.
                    while received.len() < end + 2 {
                        self.receive_some(&mut received, end + 2, &mut pace, limits)?;
                    }
                    if received[end..end + 2] != *b"\r\n" {
                        return Err(invalid());
                    }
                    body.extend_from_slice(&received[start..end]);
                    used = end + 2;
                }
                Ok(httparse::Status::Partial) if line.len() < CHUNK_LINE_MAX => {
                    let upto = received.len() + STEP_BYTES;
                    self.receive_some(&mut received, upto, &mut pace, limits)?;
                }
                _ => return Err(invalid()),
            }
        }
    }

    /// Receives some bytes behind `bytes`, up to the length `upto`.
    fn receive_some(
        &mut self,
        bytes: &mut Vec<u8>,
        upto: usize,
        (progress, total): &mut (Progress, usize),
        limits: &Limits<'_>,
    ) -> io::Result<()> {
        progress.check(*total, limits)?;
        let before = bytes.len();
        bytes.resize(upto.min(before + STEP_BYTES), 0);
        let mut place = VolatileSliceMut::from(&mut bytes[before..]);
        let received = self.connection.receive(&mut place, limits);
        bytes.truncate(before + received.as_ref().map_or(0, |received| *received));
        match received? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            received => {
                *total += received;
                Ok(())
            }
        }
    }
}
