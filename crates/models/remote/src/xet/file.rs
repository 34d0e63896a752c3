//! A file in Xet storage, read by ranges.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use longshore_mem::VolatileSliceMut;

use super::access::XetAccess;
use super::body::Body;
use super::chunk::{ChunkDecoder, Compression};
use super::plan::{Fetch, Plan, Term};
use super::{InvalidXet, XetId};
use crate::http::{FIRST_BYTES, Field, Followed, Head, HttpError, Limits, Response, Tries};

/// The longest range that is described by one response.
const STEP_BYTES: usize = 8 << 20;
/// The number of times that the description of a range is requested again because its URLs are refused.
const RENEWALS_MAX: u32 = 3;

/// A file in Xet storage. Its hash is its version.
#[derive(Debug)]
pub(crate) struct XetFile {
    access: Arc<XetAccess>,
    id: XetId,
    len_bytes: u64,
}

/// The reason why a range of a xorb has not been received.
enum Failure {
    /// The URL is refused. Another signature may be accepted.
    Refused {
        status: u16,
    },
    Error {
        retry_after_s: Option<u64>,
        error: HttpError,
    },
}

impl<E: Into<HttpError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Error { retry_after_s: None, error: error.into() }
    }
}

/// The state of a read: the memory for the chunk that is decoded, and the number of bytes that are at their place.
#[derive(Default)]
struct Decoding {
    buffer: Vec<u8>,
    decoder: ChunkDecoder,
    filled_bytes: usize,
}

impl XetFile {
    /// Makes the access to a file of this length.
    pub(crate) fn new(access: &Arc<XetAccess>, id: XetId, len_bytes: u64) -> Self {
        Self { access: Arc::clone(access), id, len_bytes }
    }

    /// Returns the length of the file in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len_bytes
    }

    /// Returns the hash of the content.
    pub(crate) fn hash(&self) -> &str {
        &self.id.hash
    }

    /// Receives the first bytes, at most 64 KiB.
    ///
    /// # Errors
    /// [`HttpError`].
    pub(crate) fn first(&self, limits: &Limits<'_>) -> Result<Vec<u8>, HttpError> {
        let mut first = vec![0; self.len_bytes.min(FIRST_BYTES) as usize];
        self.read(&mut VolatileSliceMut::from(first.as_mut_slice()), 0, limits)?;
        Ok(first)
    }

    /// Receives the range of the file at `offset` that fills `memory`. A transfer that breaks off begins again with
    /// the range of the xorb.
    ///
    /// # Errors
    /// [`HttpError`]; [`ErrorKind::UnexpectedEof`] if the file is shorter.
    pub(crate) fn read(
        &self,
        memory: &mut VolatileSliceMut<'_>,
        offset: u64,
        limits: &Limits<'_>,
    ) -> Result<(), HttpError> {
        let end = offset.checked_add(memory.len() as u64).filter(|end| *end <= self.len_bytes);
        end.ok_or_else(|| HttpError::from(io::Error::from(ErrorKind::UnexpectedEof)))?;
        let mut decoding = Decoding::default();
        for start in (0..memory.len()).step_by(STEP_BYTES) {
            let len = (memory.len() - start).min(STEP_BYTES);
            let mut step = memory.subslice_mut(start, len).map_err(io::Error::other)?;
            let done = self.step(&mut step, offset + start as u64, &mut decoding, limits);
            done.map_err(|error| match error {
                _ if limits.control.should_stop() => HttpError::Stopped,
                HttpError::Connection(error)
                    if error.kind() == ErrorKind::TimedOut && limits.check().is_err() =>
                {
                    HttpError::TimeLimit
                }
                error => error,
            })?;
        }
        Ok(())
    }

    fn step(
        &self,
        memory: &mut VolatileSliceMut<'_>,
        offset: u64,
        decoding: &mut Decoding,
        limits: &Limits<'_>,
    ) -> Result<(), HttpError> {
        let range = offset..offset + memory.len() as u64;
        let plan = || self.access.plan(&self.id, self.len_bytes, &range, limits);
        let (mut current, mut renewals, mut next, mut tries) = (plan()?, 0, 0, Tries::default());
        let filled_before = decoding.filled_bytes;
        while let Some(fetch) = current.fetches.get(next) {
            let filled_bytes = decoding.filled_bytes;
            match self.fetch(&current, fetch, memory, decoding, limits) {
                Ok(()) => (next, tries) = (next + 1, Tries::default()),
                Err(Failure::Refused { status }) if renewals == RENEWALS_MAX => {
                    return Err(HttpError::RangesRefused {
                        status,
                        file: Box::new(self.id.clone()),
                    });
                }
                Err(Failure::Refused { .. }) => {
                    renewals += 1;
                    (current, next) = (plan()?, 0);
                    decoding.filled_bytes = filled_before;
                }
                Err(Failure::Error { retry_after_s, error }) => {
                    decoding.filled_bytes = filled_bytes;
                    tries.again(retry_after_s, error, limits)?;
                }
            }
        }
        Ok(())
    }

    /// Receives a range of a xorb, and puts its chunks to their places.
    fn fetch(
        &self,
        plan: &Plan,
        fetch: &Fetch,
        memory: &mut VolatileSliceMut<'_>,
        decoding: &mut Decoding,
        limits: &Limits<'_>,
    ) -> Result<(), Failure> {
        let client = self.access.client();
        let Followed { mut response, .. } =
            client.follow(&fetch.url, &[Field::range(&fetch.bytes)?], &[], limits)?;
        let head = &response.head;
        match head.status {
            206 => {}
            status @ (400 | 401 | 403 | 404 | 410) => {
                return Err(Failure::Refused { status });
            }
            200 => return Err(HttpError::NoRanges { reason: "it sent the whole xorb" }.into()),
            status => {
                let (retry_after_s, error) = (head.retry_after_s, HttpError::of_status(status));
                return Err(Failure::Error { retry_after_s, error });
            }
        }
        check(head, fetch)?;
        receive(&mut response, plan, fetch, memory, decoding, limits)?;
        client.keep(response);
        Ok(())
    }
}

/// Checks that a response has the range that was requested.
fn check(head: &Head, fetch: &Fetch) -> Result<(), HttpError> {
    let wrong = |reason| Err(HttpError::NoRanges { reason });
    let bytes = &fetch.bytes;
    if head.content_encoding.is_some() {
        return wrong("it encodes the xorb");
    }
    if head.content_range.is_none_or(|it| it.start != bytes.start || it.end != bytes.end) {
        return wrong("another range was sent");
    }
    if head.is_chunked || head.content_length != Some(bytes.end - bytes.start) {
        return wrong("the lengths in its response differ");
    }
    Ok(())
}

/// Receives the chunks of a range of a xorb. Each of its terms is filled to its end.
fn receive(
    response: &mut Response,
    plan: &Plan,
    fetch: &Fetch,
    memory: &mut VolatileSliceMut<'_>,
    decoding: &mut Decoding,
    limits: &Limits<'_>,
) -> Result<(), HttpError> {
    let len = (fetch.bytes.end - fetch.bytes.start) as usize;
    let mut body = Body::new(response, len, &mut decoding.buffer, limits);
    let mut next: Vec<u64> = fetch.terms.iter().map(|term| term.place.start).collect();
    for chunk in fetch.chunks.clone() {
        let header = body.header()?;
        let len = header.len_bytes as u64;
        let mut uses =
            fetch.terms.iter().zip(&mut next).filter(|(it, _)| it.chunks.contains(&chunk));
        let first = uses.next().map(|(term, next)| advance(term, next, len)).transpose()?;
        let others: Vec<u64> =
            uses.map(|(term, next)| advance(term, next, len)).collect::<Result<_, _>>()?;
        let end = plan.offset + memory.len() as u64;
        if let Some(start) = first
            && others.is_empty()
            && header.compression == Compression::None
            && (plan.offset <= start && start + len <= end)
        {
            let at = (start - plan.offset) as usize;
            let place = memory.subslice_mut(at, header.len_bytes);
            body.data_to(&mut place.map_err(io::Error::other)?)?;
            decoding.filled_bytes += header.len_bytes;
            limits.control.filled(decoding.filled_bytes);
            continue;
        }
        let data = body.data(&header)?;
        if first.is_none() {
            continue;
        }
        let content = decoding.decoder.decode(&header, data)?;
        for start in first.into_iter().chain(others) {
            // The first and the last chunk can have bytes outside of the range.
            let part = start.max(plan.offset)..(start + len).min(end);
            if part.start < part.end {
                let bytes = &content[(part.start - start) as usize..(part.end - start) as usize];
                let at = (part.start - plan.offset) as usize;
                memory.write(at, bytes).map_err(io::Error::other)?;
                decoding.filled_bytes += bytes.len();
            }
        }
        limits.control.filled(decoding.filled_bytes);
    }
    let is_filled = fetch.terms.iter().zip(&next).all(|(term, next)| term.place.end == *next);
    match is_filled && body.is_at_end() {
        true => Ok(()),
        false => Err(InvalidXet("the chunks have other lengths than their description").into()),
    }
}

/// Returns the place of the next chunk of a term.
fn advance(term: &Term, next: &mut u64, len: u64) -> Result<u64, InvalidXet> {
    let start = *next;
    *next = start + len;
    match *next <= term.place.end {
        true => Ok(start),
        false => Err(InvalidXet("the chunks are longer than their description")),
    }
}
