//! The chunks of a range of a xorb, while they are received.

use std::io::{self, ErrorKind};

use longshore_mem::VolatileSliceMut;

use super::InvalidXet;
use super::chunk::{CHUNK_HEADER_BYTES, ChunkHeader, DATA_MAX_BYTES};
use crate::http::{HttpError, Limits, Progress, Response};

/// The body of a response. Never more than one chunk, with the header of the next one, is in its memory.
pub(super) struct Body<'r> {
    response: &'r mut Response,
    limits: &'r Limits<'r>,
    progress: Progress,
    /// The number of bytes that were received.
    received: usize,
    /// The number of bytes that were not received.
    left: usize,
    buffer: &'r mut Vec<u8>,
    /// The bytes of the buffer that were received and not used.
    start: usize,
    end: usize,
}

impl<'r> Body<'r> {
    /// Begins with a body of `len` bytes. The buffer is used again for the next one.
    pub(super) fn new(
        response: &'r mut Response,
        len: usize,
        buffer: &'r mut Vec<u8>,
        limits: &'r Limits<'r>,
    ) -> Self {
        buffer.resize(2 * CHUNK_HEADER_BYTES + DATA_MAX_BYTES, 0);
        let progress = Progress::new(0);
        Self { response, limits, progress, received: 0, left: len, buffer, start: 0, end: 0 }
    }

    /// Returns `true` if all bytes were used.
    pub(super) fn is_at_end(&self) -> bool {
        self.left == 0 && self.start == self.end
    }

    /// Receives the header of a chunk.
    pub(super) fn header(&mut self) -> Result<ChunkHeader, HttpError> {
        self.need(CHUNK_HEADER_BYTES)?;
        let mut header = [0; CHUNK_HEADER_BYTES];
        header.copy_from_slice(self.used(CHUNK_HEADER_BYTES));
        let header = ChunkHeader::parse(header)?;
        match header.data_len_bytes <= self.end - self.start + self.left {
            true => Ok(header),
            false => Err(InvalidXet("a chunk ends behind its range").into()),
        }
    }

    /// Receives the data of a chunk.
    pub(super) fn data(&mut self, header: &ChunkHeader) -> Result<&[u8], HttpError> {
        self.need(header.data_len_bytes)?;
        Ok(self.used(header.data_len_bytes))
    }

    /// Receives data that is not compressed to its place.
    pub(super) fn data_to(&mut self, place: &mut VolatileSliceMut<'_>) -> Result<(), HttpError> {
        let known = place.len().min(self.end - self.start);
        place.write(0, self.used(known)).map_err(io::Error::other)?;
        let mut done = known;
        while done < place.len() {
            let rest = place.len() - done;
            let mut rest = place.subslice_mut(done, rest).map_err(io::Error::other)?;
            done += self.receive(&mut rest)?;
        }
        Ok(())
    }

    /// Uses bytes of the buffer, which has them.
    fn used(&mut self, len: usize) -> &[u8] {
        let used = self.start..self.start + len;
        self.start = used.end;
        &self.buffer[used]
    }

    /// Receives until the buffer has `len` bytes, and at most the header of the next chunk behind them.
    fn need(&mut self, len: usize) -> Result<(), HttpError> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        while self.end < len {
            let upto = (len + CHUNK_HEADER_BYTES).min(self.end + self.left);
            if upto <= self.end {
                return Err(InvalidXet("a range ends within a chunk").into());
            }
            // The buffer is lent to the call, so that both can be changed.
            let mut buffer = std::mem::take(self.buffer);
            let mut place = VolatileSliceMut::from(&mut buffer[self.end..upto]);
            let received = self.receive(&mut place);
            *self.buffer = buffer;
            self.end += received?;
        }
        Ok(())
    }

    fn receive(&mut self, place: &mut VolatileSliceMut<'_>) -> Result<usize, HttpError> {
        self.progress.check(self.received, self.limits)?;
        let len = place.len().min(self.left);
        if len == 0 {
            return Err(InvalidXet("a range ends within a chunk").into());
        }
        let mut place = place.subslice_mut(0, len).map_err(io::Error::other)?;
        match self.response.connection.receive(&mut place, self.limits)? {
            0 => Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
            received => {
                self.received += received;
                self.left -= received;
                Ok(received)
            }
        }
    }
}
