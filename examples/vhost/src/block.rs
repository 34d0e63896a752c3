//! Requests of a virtio block device.
//!
//! ```text
//!   the device reads                 the device writes
//!   ┌──────┬──────────┬────────┬──────┐   ┌──────┬────────┐
//!   │ kind │ reserved │ sector │ data │   │ data │ status │    in descriptors of any lengths
//!   │ u32  │ u32      │ u64    │ …    │   │ …    │ u8     │
//!   └──────┴──────────┴────────┴──────┘   └──────┴────────┘
//! ```
//!
//! Source: VIRTIO 1.2, 5.2.

use longshore::vhost_user::wire::CONFIG_LEN_BYTES;
use longshore::vhost_user::{AccessError, QueueMemory};

use crate::disk::{Disk, SERIAL_BYTES};
use crate::ring::{Chain, Segment};
use crate::status::Status;
use crate::trace::Counts;

/// Feature bits of the device.
pub mod feature {
    /// The configuration has the maximum number of segments of a request.
    pub const SEG_MAX: u64 = 1 << 2;
    /// The disk is read-only.
    pub const READ_ONLY: u64 = 1 << 5;
    /// The configuration has the block size.
    pub const BLK_SIZE: u64 = 1 << 6;
    /// The disk supports flush requests.
    pub const FLUSH: u64 = 1 << 9;
    /// The device has several rings.
    pub const MQ: u64 = 1 << 12;
    /// The device supports indirect descriptors.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// The device complies with VIRTIO 1.
    pub const VERSION_1: u64 = 1 << 32;
}

/// The maximum number of segments of a request, besides header and status.
const SEGMENTS_MAX: u32 = 126;
/// The maximum number of bytes that are read from the disk, or written to it, at once.
pub(crate) const BOUNCE_BYTES: usize = 256 << 10;
const HEADER_BYTES: usize = 16;

mod kind {
    pub(super) const IN: u32 = 0;
    pub(super) const OUT: u32 = 1;
    pub(super) const FLUSH: u32 = 4;
    pub(super) const GET_ID: u32 = 8;
}

/// Returns the content of the configuration space.
pub(crate) fn config_space(disk: &Disk, rings: u16) -> [u8; CONFIG_LEN_BYTES] {
    let mut bytes = [0; CONFIG_LEN_BYTES];
    bytes[..8].copy_from_slice(&disk.sectors().to_le_bytes());
    bytes[12..16].copy_from_slice(&SEGMENTS_MAX.to_le_bytes());
    bytes[20..24].copy_from_slice(&512_u32.to_le_bytes());
    bytes[34..36].copy_from_slice(&rings.to_le_bytes());
    bytes
}

/// Executes the request in `chain`, and returns the number of bytes that it has written to memory.
/// Returns `None` if the chain has no room for a status.
///
/// # Errors
/// [`AccessError`] if the ring is stopped, or the status cannot be written.
pub(crate) fn serve(
    memory: &QueueMemory<'_>,
    disk: &Disk,
    counts: &Counts,
    chain: &Chain,
    bounce: &mut [u8],
) -> Result<Option<u32>, AccessError> {
    let mut writable = Parts::new(&chain.writable);
    let Some(data_bytes) = writable.left_bytes.checked_sub(1) else { return Ok(None) };
    let mut request = Request { memory, disk, counts, bounce, written_bytes: 0 };
    let outcome = request.serve(&mut Parts::new(&chain.readable), &mut writable, data_bytes);
    let status = match outcome {
        Ok(status) => status,
        Err(AccessError::Stopped) => return Err(AccessError::Stopped),
        Err(AccessError::Fault(fault)) => {
            counts.data_fault(&fault);
            Status::IoError
        }
    };
    if status != Status::Ok {
        counts.failed(status);
    }
    let mut last = Parts::new(&chain.writable);
    last.skip(data_bytes);
    last.each(1, |at, _| memory.write_obj(at, status as u8))?;
    // The written bytes of a chain are counted from its start. So the status, which is the last byte,
    // is included only if all bytes before it were written.
    let is_whole = request.written_bytes == data_bytes;
    Ok(Some(if is_whole { data_bytes as u32 + 1 } else { request.written_bytes as u32 }))
}

struct Request<'r, 't> {
    memory: &'r QueueMemory<'t>,
    disk: &'r Disk,
    counts: &'r Counts,
    bounce: &'r mut [u8],
    written_bytes: u64,
}

impl Request<'_, '_> {
    fn serve(
        &mut self,
        readable: &mut Parts<'_>,
        writable: &mut Parts<'_>,
        data_bytes: u64,
    ) -> Result<Status, AccessError> {
        let mut header = [0; HEADER_BYTES];
        if readable.left_bytes < HEADER_BYTES as u64 {
            return Ok(Status::IoError);
        }
        readable.read(self.memory, &mut header)?;
        let [word, sector] = *header.as_chunks::<8>().0 else { return Ok(Status::IoError) };
        let (word, sector) = (u64::from_le_bytes(word), u64::from_le_bytes(sector));
        match word as u32 {
            kind::IN => self.read(sector, writable, data_bytes),
            kind::OUT => self.write(sector, readable),
            kind::FLUSH => {
                self.counts.flush();
                Ok(self.disk.flush().map_or(Status::IoError, |()| Status::Ok))
            }
            kind::GET_ID => {
                let serial = self.disk.serial();
                let len = data_bytes.min(SERIAL_BYTES as u64) as usize;
                writable.write(self.memory, &serial[..len])?;
                self.written_bytes = len as u64;
                self.counts.get_id();
                Ok(Status::Ok)
            }
            _ => Ok(Status::Unsupported),
        }
    }

    /// Reads from the disk into memory.
    fn read(
        &mut self,
        sector: u64,
        writable: &mut Parts<'_>,
        data_bytes: u64,
    ) -> Result<Status, AccessError> {
        let Some(start) = self.disk.place(sector, data_bytes) else { return Ok(Status::IoError) };
        while self.written_bytes < data_bytes {
            self.memory.check_stop()?;
            let part = self.bounce.len().min((data_bytes - self.written_bytes) as usize);
            let part = &mut self.bounce[..part];
            if self.disk.read(start + self.written_bytes, part).is_err() {
                return Ok(Status::IoError);
            }
            writable.write(self.memory, part)?;
            self.written_bytes += part.len() as u64;
        }
        self.counts.read(data_bytes);
        Ok(Status::Ok)
    }

    /// Writes from memory to the disk.
    fn write(&mut self, sector: u64, readable: &mut Parts<'_>) -> Result<Status, AccessError> {
        let data_bytes = readable.left_bytes;
        let Some(mut at) = self.disk.place(sector, data_bytes) else { return Ok(Status::IoError) };
        while readable.left_bytes > 0 {
            self.memory.check_stop()?;
            let part = self.bounce.len().min(readable.left_bytes as usize);
            let part = &mut self.bounce[..part];
            readable.read(self.memory, part)?;
            if self.disk.write(at, part).is_err() {
                return Ok(Status::IoError);
            }
            at += part.len() as u64;
        }
        self.counts.write(data_bytes);
        Ok(Status::Ok)
    }
}

/// A position in a list of segments.
struct Parts<'c> {
    /// The segments from the position on.
    segments: &'c [Segment],
    /// The bytes of the first segment that are before the position.
    done_bytes: u32,
    left_bytes: u64,
}

impl<'c> Parts<'c> {
    fn new(segments: &'c [Segment]) -> Self {
        let left_bytes = segments.iter().map(|segment| u64::from(segment.len_bytes)).sum();
        Self { segments, done_bytes: 0, left_bytes }
    }

    fn skip(&mut self, len_bytes: u64) {
        let Ok(()) = self.each(len_bytes, |_, _| Ok::<_, std::convert::Infallible>(()));
    }

    fn read(&mut self, memory: &QueueMemory<'_>, into: &mut [u8]) -> Result<(), AccessError> {
        let mut done = 0;
        self.each(into.len() as u64, |at, len_bytes| {
            let part = &mut into[done..done + len_bytes as usize];
            done += part.len();
            memory.read(at, part)
        })
    }

    fn write(&mut self, memory: &QueueMemory<'_>, from: &[u8]) -> Result<(), AccessError> {
        let mut done = 0;
        self.each(from.len() as u64, |at, len_bytes| {
            let part = &from[done..done + len_bytes as usize];
            done += part.len();
            memory.write(at, part)
        })
    }

    /// Calls `visit` for each part of the next `len_bytes`, or of all that is left if that is less.
    fn each<E>(
        &mut self,
        mut len_bytes: u64,
        mut visit: impl FnMut(u64, u32) -> Result<(), E>,
    ) -> Result<(), E> {
        while let (Some((first, rest)), 1..) = (self.segments.split_first(), len_bytes) {
            let room = first.len_bytes - self.done_bytes;
            let part = u64::from(room).min(len_bytes) as u32;
            if part > 0 {
                // An access beyond the end of the address space faults.
                visit(first.at.wrapping_add(u64::from(self.done_bytes)), part)?;
            }
            len_bytes -= u64::from(part);
            self.left_bytes -= u64::from(part);
            self.done_bytes += part;
            if self.done_bytes == first.len_bytes {
                (self.segments, self.done_bytes) = (rest, 0);
            }
        }
        Ok(())
    }
}
