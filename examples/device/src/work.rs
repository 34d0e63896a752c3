//! The execution of one descriptor through a session.

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, Ordering};

use longshore::access::{Fault, Reason, Session};
use longshore::iov::checksum::Checksum;
use longshore::iov::crc32c::Crc32c;
use longshore::iov::{Cursor, Dest, SegmentSource, Source};
use longshore::mem::Iova;

use crate::layout::{
    Completion, DESCRIPTOR_BYTES_MAX, Descriptor, SEGMENT_BYTES, SEGMENTS_MAX, opcode, outcome,
};

/// The length of the staging buffer. It stays in the core's cache between reading and writing.
const STAGING_BYTES: usize = 64 << 10;

/// The state of a thread that executes descriptors.
pub(crate) struct Worker<'a> {
    pub(crate) session: &'a Session,
    /// `true` if the current descriptor must be cancelled.
    pub(crate) is_cancelled: &'a AtomicBool,
    staging: Vec<u8>,
}

/// The reason that a descriptor was not executed.
enum Stop {
    UnknownOpcode,
    TooLong,
    Fault(Fault),
    /// The engine was stopped.
    Cancelled,
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// An entry of a scatter list.
#[derive(Clone, Copy, Default)]
struct Segment {
    iova: u64,
    len_bytes: u64,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(session: &'a Session, is_cancelled: &'a AtomicBool) -> Self {
        Self { session, is_cancelled, staging: vec![0; STAGING_BYTES] }
    }

    /// Executes `descriptor`, and returns its completion, or `None` if it was cancelled.
    pub(crate) fn run(&mut self, descriptor: &Descriptor, sequence: u32) -> Option<Completion> {
        let cookie = descriptor.cookie;
        let mut completion = Completion { cookie, sequence, ..Completion::default() };
        let done_bytes = &mut completion.done_bytes;
        let done = match descriptor.opcode {
            opcode::COPY => self.copy(descriptor, done_bytes),
            opcode::CHECKSUM => {
                let mut sum = Checksum::new();
                let summed = self.gather(descriptor, done_bytes, |bytes| {
                    sum.update(bytes);
                    Ok(())
                });
                summed.map(|()| completion.value = sum.finish().into())
            }
            opcode::CRC32C => {
                let mut crc = Crc32c::new();
                let summed = self.gather(descriptor, done_bytes, |bytes| {
                    crc.update(bytes);
                    Ok(())
                });
                summed.map(|()| completion.value = crc.finish())
            }
            _ => Err(Stop::UnknownOpcode),
        };
        completion.outcome = match done {
            Ok(()) => outcome::DONE,
            Err(Stop::UnknownOpcode) => outcome::UNKNOWN_OPCODE,
            Err(Stop::TooLong) => outcome::TOO_LONG,
            // A cancelled wait for remote memory ends with a fault.
            Err(Stop::Fault(_)) if self.is_cancelled.load(Ordering::Relaxed) => return None,
            Err(Stop::Fault(fault)) => {
                completion.fault = fault.iova.raw();
                match fault.reason {
                    Reason::Unmapped => outcome::UNMAPPED,
                    Reason::Permission => outcome::NOT_PERMITTED,
                    Reason::Overflow => outcome::TOO_LONG,
                    _ => outcome::LOST,
                }
            }
            Err(Stop::Cancelled) => return None,
        };
        Some(completion)
    }

    fn copy(&mut self, descriptor: &Descriptor, done_bytes: &mut u32) -> Result<(), Stop> {
        let session = self.session;
        let mut target = Iova::new(descriptor.target);
        self.gather(descriptor, done_bytes, |bytes| {
            let parts = [IoSlice::new(bytes)];
            session.write_iter(target, &mut Cursor::<Source>::own_vec(&parts), bytes.len())?;
            // This does not wrap: a write that reaches the end of the address space has failed, because
            // nothing is mapped there.
            target = Iova::new(target.raw().wrapping_add(bytes.len() as u64));
            Ok(())
        })
    }

    /// Passes the bytes of the scatter list to `step`, a staging buffer at a time. A cursor over that
    /// buffer continues across the entries of the list, of whatever length. Bytes before an address
    /// that cannot be read are passed, too.
    fn gather(
        &mut self,
        descriptor: &Descriptor,
        done_bytes: &mut u32,
        mut step: impl FnMut(&[u8]) -> Result<(), Fault>,
    ) -> Result<(), Stop> {
        let segments = self.segments(descriptor)?;
        let mut segments = segments.into_iter();
        let mut segment = Segment::default();
        loop {
            if self.is_cancelled.load(Ordering::Relaxed) {
                return Err(Stop::Cancelled);
            }
            let mut parts = [IoSliceMut::new(&mut self.staging)];
            let mut staging = Cursor::<Dest>::own_vec(&mut parts);
            let mut read = Ok(0);
            while staging.remaining() > 0 {
                if segment.len_bytes == 0 {
                    let Some(next) = segments.next() else { break };
                    segment = next;
                    continue;
                }
                let (iova, len) = (Iova::new(segment.iova), segment.len_bytes as usize);
                read = self.session.read_iter(iova, &mut staging, len);
                let Ok(read) = read else { break };
                segment.iova += read as u64;
                segment.len_bytes -= read as u64;
            }
            let len = STAGING_BYTES - staging.remaining();
            if len > 0 {
                // The sum is at most `DESCRIPTOR_BYTES_MAX`.
                let stepped = step(&self.staging[..len]);
                *done_bytes += stepped.map_or_else(|fault| fault.done, |()| len) as u32;
                stepped?;
            }
            read?;
            if len < STAGING_BYTES {
                return Ok(());
            }
        }
    }

    /// Reads the scatter list, and checks it against the limits.
    fn segments(&self, descriptor: &Descriptor) -> Result<Vec<Segment>, Stop> {
        if descriptor.segments > SEGMENTS_MAX {
            return Err(Stop::TooLong);
        }
        let mut left = DESCRIPTOR_BYTES_MAX;
        let segment = |index: u64| {
            let at = descriptor.list.checked_add(index * SEGMENT_BYTES).ok_or(Stop::TooLong)?;
            let words = self.session.read_obj::<[u64; 2]>(Iova::new(at))?;
            let [iova, len_bytes] = words.map(u64::from_le);
            left = left.checked_sub(len_bytes).ok_or(Stop::TooLong)?;
            iova.checked_add(len_bytes).ok_or(Stop::TooLong)?;
            Ok(Segment { iova, len_bytes })
        };
        (0..descriptor.segments.into()).map(segment).collect()
    }
}
