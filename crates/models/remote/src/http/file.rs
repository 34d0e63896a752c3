//! A file of a server, read by ranges.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_mem::VolatileSliceMut;

use super::client::{Client, Response};
use super::connection::Limits;
use super::error::HttpError;
use super::head::Head;
use super::pace::Watched;
use super::progress::{PROGRESS_BYTES, Progress};
use super::requests::{Requests, Version};
use crate::xet::XetId;

/// The length of the first request, which also returns the length of the file. Most headers are shorter.
pub(crate) const FIRST_BYTES: u64 = 64 << 10;
/// The number of times that a request is made without progress.
const TRIES_MAX: u32 = 5;
/// The longest time between two tries.
const PAUSE_MAX: Duration = Duration::from_secs(20);

/// The number of answers to one read that may have fewer than [`PROGRESS_BYTES`].
const SHORT_MAX: u32 = 16;

/// A file of a server, of one version.
pub struct HttpFile {
    client: Arc<Client>,
    requests: Arc<dyn Requests>,
    len_bytes: u64,
    version: Version,
    linked: Option<String>,
    xet: Option<XetId>,
    /// The first bytes.
    first: Vec<u8>,
}

impl std::fmt::Debug for HttpFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { requests, len_bytes, .. } = self;
        f.debug_struct("HttpFile")
            .field("requests", requests)
            .field("len_bytes", len_bytes)
            .finish_non_exhaustive()
    }
}

impl HttpFile {
    /// Requests the first bytes of a file, and so its length and version.
    ///
    /// # Errors
    /// [`HttpError`].
    pub fn open(
        client: &Arc<Client>,
        requests: Arc<dyn Requests>,
        limits: &Limits<'_>,
    ) -> Result<Self, HttpError> {
        let client = Arc::clone(client);
        let mut tries = Tries::default();
        loop {
            let request = requests.get(&client, &(0..FIRST_BYTES), &Version::default(), limits);
            let (retry_after_s, error) = match request {
                Ok(response) if response.head.is_empty => {
                    // No byte of an empty file can be requested.
                    let (version, first) = (Version::default(), Vec::new());
                    let (linked, xet) = (None, None);
                    return Ok(Self {
                        client,
                        requests,
                        len_bytes: 0,
                        version,
                        linked,
                        xet,
                        first,
                    });
                }
                Ok(mut response) => match first_bytes(&mut response, limits) {
                    Ok((len_bytes, first)) => {
                        let version = Version::of(&response.head);
                        let linked = response.head.linked_etag.clone();
                        let xet = xet_id(&response.head);
                        client.keep(response);
                        return Ok(Self {
                            client,
                            requests,
                            len_bytes,
                            version,
                            linked,
                            xet,
                            first,
                        });
                    }
                    Err(error) => (response.head.retry_after_s, error),
                },
                Err(error) => (None, error),
            };
            tries.again(retry_after_s, error, limits)?;
        }
    }

    /// Returns the length of the file in bytes.
    pub fn len(&self) -> u64 {
        self.len_bytes
    }

    /// Returns `true` if the file is empty.
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Returns the version that was opened.
    pub fn version(&self) -> &Version {
        &self.version
    }

    /// Returns the `X-Linked-Etag` of the server that redirected to the file.
    pub fn linked(&self) -> Option<&str> {
        self.linked.as_deref()
    }

    /// Returns the name of the file in Xet storage, if the Hub has sent it with the first bytes.
    pub(crate) fn xet(&self) -> Option<&XetId> {
        self.xet.as_ref()
    }

    /// Frees the memory of the first bytes, which are requested again when they are read.
    pub(crate) fn forget_first(&mut self) {
        self.first = Vec::new();
    }

    /// Returns the first bytes of the file, at most 64 KiB, which came with its length.
    pub fn first(&self) -> &[u8] {
        &self.first
    }

    /// Receives the range of the file at `offset` that fills `memory`. A transfer that breaks off is resumed
    /// where it did. The rest of one that takes four times as long as usual is requested again.
    ///
    /// # Errors
    /// [`HttpError`]; [`ErrorKind::UnexpectedEof`] if the file is shorter.
    pub fn read(
        &self,
        memory: &mut VolatileSliceMut<'_>,
        offset: u64,
        limits: &Limits<'_>,
    ) -> Result<(), HttpError> {
        let end = offset.checked_add(memory.len() as u64).filter(|end| *end <= self.len_bytes);
        let end = end.ok_or_else(|| HttpError::from(io::Error::from(ErrorKind::UnexpectedEof)))?;
        let (mut done, mut tries, mut slow, mut short) = (0, Tries::default(), 0, 0);
        while done < memory.len() {
            let before = done;
            let wanted = offset + done as u64..end;
            match self.part(memory, &mut done, &wanted, slow, limits) {
                Ok(()) if done == memory.len() || done - before >= PROGRESS_BYTES => {}
                // A server may send less than requested, but not for ever.
                Ok(()) => {
                    short += 1;
                    if short > SHORT_MAX {
                        return Err(HttpError::NoRanges { reason: "it sends only small parts" });
                    }
                }
                Err(Failure::Slow) => slow += 1,
                Err(Failure::Error { retry_after_s, error }) => {
                    if done - before >= PROGRESS_BYTES {
                        tries = Tries::default();
                    }
                    tries.again(retry_after_s, error, limits)?;
                }
            }
        }
        Ok(())
    }

    /// Makes one request for the rest of a range, of which a connection was too slow `slow` times.
    fn part(
        &self,
        memory: &mut VolatileSliceMut<'_>,
        done: &mut usize,
        wanted: &Range<u64>,
        slow: u32,
        limits: &Limits<'_>,
    ) -> Result<(), Failure> {
        let began = Instant::now();
        let mut response = self.requests.get(&self.client, wanted, &self.version, limits)?;
        let head = &response.head;
        if let Some(error) = failure(head) {
            return Err(Failure::Error { retry_after_s: head.retry_after_s, error });
        }
        let (range, len_bytes) = partial(head)?;
        if len_bytes != self.len_bytes || !self.version.is_same(head) {
            return Err(HttpError::Changed.into());
        }
        if range.start != wanted.start || range.end > wanted.end {
            return Err(HttpError::NoRanges { reason: "another range was sent" }.into());
        }
        let len = range.end - range.start;
        let watched = Watched::new(limits.control, response.pace(), began, len, 1 << slow.min(8));
        let limited = Limits { control: &watched, ..*limits };
        let to = *done + len as usize;
        let mut place = memory.subslice_mut(0, to).map_err(io::Error::other)?;
        match receive(&mut response, &mut place, done, &limited) {
            Ok(()) => {}
            Err(_) if watched.is_slow() && limits.check().is_ok() => return Err(Failure::Slow),
            Err(error) => return Err(error.into()),
        }
        watched.complete();
        self.client.keep(response);
        Ok(())
    }
}

/// The reason why a part has not been received.
enum Failure {
    /// Other connections are much faster.
    Slow,
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

/// Receives the first bytes of a file. Returns its length with them.
fn first_bytes(response: &mut Response, limits: &Limits<'_>) -> Result<(u64, Vec<u8>), HttpError> {
    if let Some(error) = failure(&response.head) {
        return Err(error);
    }
    let (range, len_bytes) = partial(&response.head)?;
    if range.start != 0 || range.end != len_bytes.min(FIRST_BYTES) {
        return Err(HttpError::NoRanges { reason: "another range was sent" });
    }
    let mut first = vec![0; range.end as usize];
    let mut place = VolatileSliceMut::from(first.as_mut_slice());
    receive(response, &mut place, &mut 0, limits)?;
    Ok((len_bytes, first))
}

/// Receives the rest of `memory` behind the first `done` bytes.
fn receive(
    response: &mut Response,
    memory: &mut VolatileSliceMut<'_>,
    done: &mut usize,
    limits: &Limits<'_>,
) -> io::Result<()> {
    let mut progress = Progress::new(*done);
    while *done < memory.len() {
        progress.check(*done, limits)?;
        let rest = memory.len() - *done;
        let mut place = memory.subslice_mut(*done, rest).map_err(io::Error::other)?;
        match response.connection.receive(&mut place, limits)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            received => *done += received,
        }
        limits.control.filled(*done);
    }
    Ok(())
}

/// Returns the error for a status that is not that of a range.
fn failure(head: &Head) -> Option<HttpError> {
    let status = head.status;
    if matches!(status, 400 | 403)
        && let Some(file) = xet_id(head)
    {
        return Some(HttpError::RangesRefused { status, file: Box::new(file) });
    }
    match status {
        206 => None,
        200 => Some(HttpError::NoRanges {
            reason: "it sent the whole file; download it, and load the local one",
        }),
        status => Some(HttpError::of_status(status)),
    }
}

/// Returns the name of the file in Xet storage, if the Hub has sent one.
fn xet_id(head: &Head) -> Option<XetId> {
    let id = XetId::new(head.xet_hash.as_deref()?)?;
    Some(XetId { len_bytes: head.linked_size, linked_etag: head.linked_etag.clone(), ..id })
}

/// Returns the range of a partial response and the length of the file.
fn partial(head: &Head) -> Result<(Range<u64>, u64), HttpError> {
    let wrong = |reason| HttpError::NoRanges { reason };
    if head.content_encoding.is_some() {
        return Err(wrong("it encodes the file"));
    }
    let range = head.content_range.ok_or_else(|| wrong("its response has no Content-Range"))?;
    let len_bytes = range.len_bytes.ok_or_else(|| wrong("it does not send the length"))?;
    if head.is_chunked || head.content_length != Some(range.end - range.start) {
        return Err(wrong("the lengths in its response differ"));
    }
    Ok((range.start..range.end, len_bytes))
}

/// The tries of one request.
#[derive(Debug, Default)]
pub(crate) struct Tries(u32);

impl Tries {
    /// Waits before the next try.
    ///
    /// # Errors
    /// `error` if it is final, or if there were enough tries; [`HttpError::Stopped`],
    /// [`HttpError::TimeLimit`].
    pub(crate) fn again(
        &mut self,
        retry_after_s: Option<u64>,
        error: HttpError,
        limits: &Limits<'_>,
    ) -> Result<(), HttpError> {
        let ended = || match () {
            () if limits.control.should_stop() => Err(HttpError::Stopped),
            () if limits.has_passed() => Err(HttpError::TimeLimit),
            () => Ok(()),
        };
        ended()?;
        if matches!(&error, HttpError::Connection(error) if error.kind() == ErrorKind::Interrupted)
        {
            return Err(HttpError::Stopped);
        }
        self.0 += 1;
        if self.0 >= TRIES_MAX || !error.is_transient() {
            return Err(error);
        }
        let requested = retry_after_s.map_or(Duration::ZERO, Duration::from_secs);
        // Clients that failed together do not return together.
        let jitter = RandomState::new().hash_one(0) % (50 << self.0);
        let usual = Duration::from_millis((75 << self.0) + jitter);
        let until = Instant::now() + requested.max(usual).min(PAUSE_MAX);
        while Instant::now() < until {
            ended()?;
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}
