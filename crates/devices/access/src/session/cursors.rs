//! Transfers between mapped memory and a cursor of any kind.
#![expect(unsafe_code, reason = "views translated addresses while the slot is entered")]

use std::ptr::NonNull;

use longshore_iov::{Cursor, Dest, Error, SegmentSource, Source, copy};
use longshore_mem::Iova;
use longshore_mem::{VolatileSlice, VolatileSliceMut};

use super::Place;
use super::remote::Noted;
use super::{Session, last_of};
use crate::fault::{Fault, Reason};
use crate::region::{RemoteFault, RemoteMemory};
use crate::tlb::{READ, WRITE};

impl Session {
    /// Reads up to `len` bytes from `iova` to the position of `dest`, across extents and regions.
    /// Returns their number, which is less than `len` only if `dest` ended. `dest` advances by the same
    /// number.
    ///
    /// # Errors
    /// [`Fault`]. `dest` has advanced by `done` bytes then.
    pub fn read_iter(
        &self,
        iova: Iova,
        dest: &mut impl SegmentSource<Dest>,
        len: usize,
    ) -> Result<usize, Fault> {
        let mut entered = self.enter().nest();
        let len = len.min(dest.remaining());
        let mut done = 0;
        if len != 0 {
            last_of(iova, len)?;
        }
        while done < len {
            let at = iova.raw() + done as u64;
            let place = self.translate(at, len - done, READ);
            match place.map_err(|reason| Fault::at(iova, done, reason))? {
                Place::Direct(entry) => {
                    let (host, room) = entry.place(at);
                    let part = room.min((len - done) as u64) as usize;
                    let start = NonNull::new(host).unwrap_or(NonNull::dangling());
                    // SAFETY: translated while the slot is entered, which outlives the view.
                    let view = unsafe { VolatileSlice::from_raw_parts(start, part) };
                    let mut from = Cursor::<Source>::foreign_buf(view);
                    let moved = copy::transfer(&mut from, dest, part);
                    // Do not rely on the progress that `dest` reports.
                    done += from.walked();
                    let moved = moved.map_err(|error| stopped(iova, done, host, part, &error))?;
                    if moved < part {
                        break;
                    }
                }
                Place::Remote { memory, offset, len: part, .. } => {
                    let Some(segment) = dest.next_segment(part) else { break };
                    let mut view = segment.into_view();
                    let part = view.len().min(part);
                    let Ok(view) = view.subslice_mut(0, part) else { break };
                    // An empty segment, which a cursor should not have, needs no call.
                    if part == 0 {
                        break;
                    }
                    let read = |m: &dyn RemoteMemory| m.read(offset, view);
                    let asked = entered.ask(at, offset, part, memory, Noted::Not, read);
                    let moved = asked.map_or_else(|stop| stop.done, |()| part);
                    dest.advance(moved);
                    done += moved;
                    asked.map_err(|stop: RemoteFault| Fault::at(iova, done, stop.reason))?;
                }
            }
        }
        Ok(done)
    }

    /// Writes up to `len` bytes from the position of `source` to `iova`. Returns their number, which is
    /// less than `len` only if `source` ended. `source` advances by the same number.
    ///
    /// # Errors
    /// [`Fault`]. `source` has advanced by `done` bytes then.
    pub fn write_iter(
        &self,
        iova: Iova,
        source: &mut impl SegmentSource<Source>,
        len: usize,
    ) -> Result<usize, Fault> {
        let mut entered = self.enter().nest();
        let len = len.min(source.remaining());
        let mut done = 0;
        if len != 0 {
            last_of(iova, len)?;
        }
        while done < len {
            let at = iova.raw() + done as u64;
            let place = self.translate(at, len - done, WRITE);
            match place.map_err(|reason| Fault::at(iova, done, reason))? {
                Place::Direct(entry) => {
                    let (host, room) = entry.place(at);
                    let part = room.min((len - done) as u64) as usize;
                    let start = NonNull::new(host).unwrap_or(NonNull::dangling());
                    // SAFETY: translated while the slot is entered, which outlives the view.
                    let view = unsafe { VolatileSliceMut::from_raw_parts(start, part) };
                    let mut to = Cursor::<Dest>::foreign_buf(view);
                    let moved = copy::transfer(source, &mut to, part);
                    // Do not rely on the progress that `source` reports.
                    self.after_write(&entry, at, to.walked());
                    done += to.walked();
                    let moved = moved.map_err(|error| stopped(iova, done, host, part, &error))?;
                    if moved < part {
                        break;
                    }
                }
                Place::Remote { memory, offset, guest_phys, len: part } => {
                    let Some(segment) = source.next_segment(part) else { break };
                    let part = segment.len().min(part);
                    let Ok(view) = segment.view().subslice(0, part) else { break };
                    if part == 0 {
                        break;
                    }
                    let write = |m: &dyn RemoteMemory| m.write(offset, view);
                    let noted = Noted::As(guest_phys);
                    let asked = entered.ask(at, offset, part, memory, noted, write);
                    let moved = asked.map_or_else(|stop| stop.done, |()| part);
                    source.advance(moved);
                    done += moved;
                    asked.map_err(|stop: RemoteFault| Fault::at(iova, done, stop.reason))?;
                }
            }
        }
        Ok(done)
    }
}

/// Returns the fault of a transfer that stopped in the mapped memory, `len` bytes at `host`, or in the
/// memory of the cursor.
fn stopped(iova: Iova, done: usize, host: *mut u8, len: usize, error: &Error) -> Fault {
    let reason = match error {
        Error::Fault { fault, .. } => {
            let offset = (fault.address.raw() as usize).wrapping_sub(host.addr());
            if offset < len { Reason::BackingLost } else { Reason::Cursor }
        }
        Error::Overlap { .. } => Reason::Overlap,
        _ => Reason::Cursor,
    };
    Fault::at(iova, done, reason)
}
