//! The slow path of reads and writes, which are done part by part.
#![expect(unsafe_code, reason = "copies through translated addresses while the slot is entered")]

use std::ptr::NonNull;

use longshore_mem::Iova;
use longshore_mem::dispatch_isa;
use longshore_mem::{VolatileSlice, VolatileSliceMut};

use super::Place;
use super::remote::Noted;
use super::{Session, last_of};
use crate::fault::{Fault, Reason};
use crate::region::{RemoteFault, RemoteMemory};
use crate::tlb::{CLEAN, READ, WRITE};
use crate::words;

/// The number of bytes of a part that were done, and the reason why it is not all of them.
type Stopped = (usize, Reason);

impl Session {
    /// Sets `len` bytes from `iova` to `byte`.
    ///
    /// # Errors
    /// [`Fault`]. The first `done` bytes are set then, and no others.
    pub fn fill(&self, iova: Iova, byte: u8, len: usize) -> Result<(), Fault> {
        let token = self.private().token;
        let direct = |to: *mut u8, _, len| {
            // SAFETY: translated while the slot is entered.
            let filled = dispatch_isa!(token, isa => unsafe { longshore_mem::copy::fill(isa, to, byte, len) });
            filled.map_err(|stop| (stop.done_bytes, Reason::BackingLost))
        };
        let remote = |memory: &dyn RemoteMemory, offset: u64, _, len: usize| {
            let bytes = [byte; 4096];
            let mut done = 0;
            while done < len {
                let part = &bytes[..bytes.len().min(len - done)];
                // SAFETY: the bytes are private and are not written meanwhile.
                let view = unsafe {
                    VolatileSlice::from_raw_parts(NonNull::from(part).cast(), part.len())
                };
                memory.write(offset + done as u64, view).map_err(|stop| RemoteFault {
                    done: done + stop.done.min(part.len()),
                    ..stop
                })?;
                done += part.len();
            }
            Ok(())
        };
        self.by_pieces(iova, len, WRITE, direct, remote)
    }

    /// # Safety
    /// `to` must point to `len` bytes of private memory.
    #[inline(never)]
    pub(super) unsafe fn read_slow(
        &self,
        iova: Iova,
        to: *mut u8,
        len: usize,
    ) -> Result<(), Fault> {
        let token = self.private().token;
        let direct = |from: *mut u8, done, len| {
            let to = to.wrapping_add(done);
            // SAFETY: translated while the slot is entered; the caller's promise.
            let copied = unsafe { words::copy_exact(token, from, to, len) };
            copied.map_err(|stop| (stop.done_bytes, Reason::BackingLost))
        };
        let remote = |memory: &dyn RemoteMemory, offset, done, len| {
            // A pointer to private memory is not null.
            let to = NonNull::new(to.wrapping_add(done)).unwrap_or(NonNull::dangling());
            // SAFETY: the caller's promise, for as long as this call.
            memory.read(offset, unsafe { VolatileSliceMut::from_raw_parts(to, len) })
        };
        self.by_pieces(iova, len, READ, direct, remote)
    }

    /// # Safety
    /// `from` must point to `len` bytes of private memory.
    #[inline(never)]
    pub(super) unsafe fn write_slow(
        &self,
        iova: Iova,
        from: *const u8,
        len: usize,
    ) -> Result<(), Fault> {
        let token = self.private().token;
        let direct = |to: *mut u8, done, len| {
            let from = from.wrapping_add(done);
            // SAFETY: translated while the slot is entered; the caller's promise.
            let copied = unsafe { words::copy_exact(token, from, to, len) };
            copied.map_err(|stop| (stop.done_bytes, Reason::BackingLost))
        };
        let remote = |memory: &dyn RemoteMemory, offset, done, len| {
            let from = from.wrapping_add(done).cast_mut();
            let from = NonNull::new(from).unwrap_or(NonNull::dangling());
            // SAFETY: the caller's promise, for as long as this call.
            memory.write(offset, unsafe { VolatileSlice::from_raw_parts(from, len) })
        };
        self.by_pieces(iova, len, WRITE, direct, remote)
    }

    /// Writes to an extent that the first probe did not find, or whose writes are logged. The slot is
    /// entered.
    ///
    /// # Safety
    /// The same as for [`write_slow`](Self::write_slow).
    #[inline(never)]
    pub(super) unsafe fn write_second(
        &self,
        iova: Iova,
        from: *const u8,
        len: usize,
    ) -> Result<(), Fault> {
        let private = self.private();
        if private.seen.is_current(self.slot())
            && let Some(entry) = self.find_or_walk(iova.raw())
            && entry.permits(WRITE)
            && !entry.permits(CLEAN)
        {
            let (to, room) = entry.place(iova.raw());
            // The word at `from` was perhaps stored just before, and a masked load would not get the
            // value // by store forwarding.
            let is_word = len <= size_of::<u64>();
            let copied = match len as u64 <= room {
                // SAFETY: translated while the slot is entered; the caller's promise.
                true if is_word => unsafe { words::copy::<true>(private.token, from, to, len) },
                // SAFETY: the same.
                true => unsafe { words::copy::<false>(private.token, from, to, len) },
                false => false,
            };
            if copied {
                self.after_write(&entry, iova.raw(), len);
                self.slot().leave();
                return Ok(());
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.write_slow(iova, from, len) }
    }

    /// Does an access of kind `want` part by part. `direct` gets an address in this process, the number
    /// of bytes done before, and the length of the part; `remote` gets an offset in a region instead of
    /// the address.
    #[inline(always)]
    fn by_pieces(
        &self,
        iova: Iova,
        len: usize,
        want: u64,
        mut direct: impl FnMut(*mut u8, usize, usize) -> Result<(), Stopped>,
        mut remote: impl FnMut(&dyn RemoteMemory, u64, usize, usize) -> Result<(), RemoteFault>,
    ) -> Result<(), Fault> {
        let mut entered = self.enter();
        if len == 0 {
            return Ok(());
        }
        last_of(iova, len)?;
        let mut done = 0;
        while done < len {
            let at = iova.raw() + done as u64;
            let place = self.translate(at, len - done, want);
            let part = match place.map_err(|reason| Fault::at(iova, done, reason))? {
                Place::Direct(entry) => {
                    let (host, room) = entry.place(at);
                    let part = room.min((len - done) as u64) as usize;
                    let moved = direct(host, done, part);
                    let moved_bytes = moved.map_or_else(|stop| stop.0, |()| part);
                    if want == WRITE {
                        self.after_write(&entry, at, moved_bytes);
                    }
                    moved.map_err(|(more, reason)| Fault::at(iova, done + more, reason))?;
                    part
                }
                Place::Remote { memory, offset, guest_phys, len: part } => {
                    let noted = if want == WRITE { Noted::As(guest_phys) } else { Noted::Not };
                    let asked = entered.ask(at, offset, part, memory, noted, |memory| {
                        remote(memory, offset, done, part)
                    });
                    asked.map_err(|stop| Fault::at(iova, done + stop.done, stop.reason))?;
                    part
                }
            };
            done += part;
        }
        Ok(())
    }
}
