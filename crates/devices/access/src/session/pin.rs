//! Memory that is translated once and used many times.
#![expect(unsafe_code, reason = "accesses memory that is pinned or leased")]

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use longshore_mem::Iova;
use longshore_mem::isa::IsaToken;
use longshore_mem::{VolatileSlice, VolatileSliceMut};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::private::{Extent, push};
use super::{Entered, Place, Scope, Session, last_of};
use crate::fault::{Fault, Reason};
use crate::lease::{Leased, OnUnmap, Revoke, Written};
use crate::region::PAGE_BYTES;
use crate::space::{Space, thread_token};
use crate::{tlb, words};

mod sealed {
    pub trait Sealed {}
}

/// The accesses that a pin or a lease permits: [`ReadOnly`], [`WriteOnly`] or [`ReadWrite`].
pub trait ViewAccess: sealed::Sealed + Copy + fmt::Debug + Send + Sync + 'static {
    #[doc(hidden)]
    const WANT: u64;
}

/// An access that includes reading.
pub trait Readable: ViewAccess {}

/// An access that includes writing.
pub trait Writable: ViewAccess {}

/// The memory is read.
#[derive(Clone, Copy, Debug)]
pub struct ReadOnly;

/// The memory is written.
#[derive(Clone, Copy, Debug)]
pub struct WriteOnly;

/// The memory is read and written.
#[derive(Clone, Copy, Debug)]
pub struct ReadWrite;

impl sealed::Sealed for ReadOnly {}
impl sealed::Sealed for WriteOnly {}
impl sealed::Sealed for ReadWrite {}

impl ViewAccess for ReadOnly {
    const WANT: u64 = tlb::READ;
}

impl ViewAccess for WriteOnly {
    const WANT: u64 = tlb::WRITE;
}

impl ViewAccess for ReadWrite {
    const WANT: u64 = tlb::READ | tlb::WRITE;
}

impl Readable for ReadOnly {}
impl Readable for ReadWrite {}
impl Writable for WriteOnly {}
impl Writable for ReadWrite {}

/// The extents of a view.
#[derive(Clone, Copy)]
enum Extents<'p> {
    Pinned(&'p RefCell<Vec<Extent>>, usize, usize),
    Leased(&'p [Extent]),
}

impl Extents<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Pinned(_, start, end) => end - start,
            Self::Leased(list) => list.len(),
        }
    }

    fn get(&self, index: usize) -> Extent {
        match self {
            Self::Pinned(arena, start, _) => arena.borrow()[start + index],
            Self::Leased(list) => list[index],
        }
    }
}

/// Pinned or leased memory: a list of [`ViewSlice`]s with adjacent IOVAs, addressed as one range.
///
/// A view of a pin cannot leave the scope:
///
/// ```compile_fail
/// # use longshore_access::{ReadOnly, Space};
/// # use longshore_mem::Iova;
/// let space = Space::new().unwrap();
/// let session = space.session();
/// let escaped = session.pin(Iova::new(0), 8, ReadOnly, |view| view).unwrap();
/// ```
///
/// ```compile_fail
/// # use longshore_access::{ReadOnly, Space};
/// # use longshore_mem::Iova;
/// let space = Space::new().unwrap();
/// let session = space.session();
/// let mut kept = None;
/// session.pin(Iova::new(0), 8, ReadOnly, |view| kept = view.slices().next()).unwrap();
/// ```
pub struct View<'p, A> {
    extents: Extents<'p>,
    iova: Iova,
    len: usize,
    token: IsaToken,
    access: PhantomData<A>,
}

/// A part of a view that is contiguous in this process.
#[derive(Clone, Copy)]
pub struct ViewSlice<'p, A> {
    extent: Extent,
    token: IsaToken,
    memory: PhantomData<(&'p (), A)>,
}

impl Session {
    /// Translates `len` bytes from `iova` once, and calls `work` with a view of them. Unmapping them
    /// waits until `work` returns. Pins can be nested. After the first few pins this allocates nothing.
    ///
    /// When `work` returns, dirty logs mark all bytes of a writable pin.
    ///
    /// `work` may access any memory. Within a pin, a call to a remote region is cancelled not only by a
    /// thread that unmaps that region, but also by a thread that unmaps the pinned memory, which would
    /// otherwise wait for the other side's answer. Do not wait for other threads within a pin in any
    /// other way; use a lease instead.
    ///
    /// # Errors
    /// [`Fault`], before `work` is called, unless all of the range is mapped, permits the access, and is
    /// memory of this process.
    pub fn pin<A: ViewAccess, R>(
        &self,
        iova: Iova,
        len: usize,
        _access: A,
        work: impl for<'p> FnOnce(View<'p, A>) -> R,
    ) -> Result<R, Fault> {
        let entered = self.enter().nest_as(Scope::Pin);
        let start = self.private().arena.borrow().len();
        let mut pinned = Pinned { session: self, entered, range: start..start, is_whole: false };
        self.extents(iova, len, A::WANT, |extent| {
            push(&self.private().arena, extent);
            pinned.range.end += 1;
        })?;
        pinned.is_whole = true;
        let arena = &self.private().arena;
        let extents = Extents::Pinned(arena, start, pinned.range.end);
        Ok(work(View { extents, iova, len, token: self.token(), access: PhantomData }))
    }

    /// Translates `len` bytes from `iova` for longer than a scope, for example during blocking I/O.
    /// `on_unmap` chooses what happens if they are unmapped meanwhile.
    ///
    /// Dirty logs mark all bytes of a writable lease when it is dropped, and for each collection while it
    /// lives ([`Space::log_leases`]).
    ///
    /// # Errors
    /// The same as for [`pin`](Self::pin).
    pub fn lease<A: ViewAccess>(
        &self,
        iova: Iova,
        len: usize,
        _access: A,
        on_unmap: OnUnmap,
    ) -> Result<Lease<A>, Fault> {
        // This allocates before the lease is on the list, and the program's allocator can use this
        // session.
        let _entered = self.enter().nest();
        let mut extents = Vec::new();
        self.extents(iova, len, A::WANT, |extent| extents.push(extent))?;
        let written = extents.iter().filter(|extent| extent.is_written);
        let written: Arc<[Written]> = written.map(|extent| self.written(extent)).collect();
        // An unmapping thread need not wait for an empty lease.
        let id = (len != 0).then(|| {
            self.space().inner.leases.register(Leased {
                first: iova.raw(),
                last: iova.raw() + (len as u64 - 1),
                owner: thread_token(),
                revoke: Revoke::Chosen(on_unmap),
                written: Arc::clone(&written),
            })
        });
        Ok(Lease {
            space: self.space().clone(),
            id,
            extents: extents.into(),
            written,
            iova,
            len,
            token: self.token(),
            access: PhantomData,
        })
    }

    /// Sets the dirty bits of the writable pages among `len_bytes` from `iova`.
    pub(crate) fn set_dirty(&self, iova: Iova, len_bytes: u64) {
        let _entered = self.enter();
        let mut done = 0;
        while done < len_bytes {
            let at = iova.raw() + done;
            // Pages that were unmapped meanwhile are skipped.
            done += match self.translate(at, 1, tlb::WRITE) {
                Ok(Place::Direct(entry)) => entry.place(at).1,
                _ => PAGE_BYTES - at % PAGE_BYTES,
            };
        }
    }

    /// Calls `found` with the extents of a range, in order. The slot must be entered.
    fn extents(
        &self,
        iova: Iova,
        len: usize,
        want: u64,
        mut found: impl FnMut(Extent),
    ) -> Result<(), Fault> {
        if len == 0 {
            return Ok(());
        }
        last_of(iova, len)?;
        let mut done = 0;
        while done < len {
            let at = iova.raw() + done as u64;
            let place = self.translate(at, len - done, want);
            let Place::Direct(entry) = place.map_err(|reason| Fault::at(iova, done, reason))?
            else {
                return Err(Fault::at(iova, done, Reason::NotDirect));
            };
            let (host, room) = entry.place(at);
            let part = room.min((len - done) as u64) as usize;
            // Nothing is mapped at address zero.
            let host = NonNull::new(host).ok_or(Fault::at(iova, done, Reason::Unmapped))?;
            let is_written = want & tlb::WRITE != 0;
            found(Extent { host, len: part, iova: at, entry, is_written });
            done += part;
        }
        Ok(())
    }
}

/// The extents of one pin, and the slot that they keep busy.
struct Pinned<'s> {
    session: &'s Session,
    range: Range<usize>,
    /// `true` if all of the range was translated, so that `work` was called.
    is_whole: bool,
    /// The slot is left last.
    entered: Entered<'s>,
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        let session = self.session;
        let arena = &session.private().arena;
        let was_left = session.has_leased_pins(self.range.start);
        for index in self.range.clone() {
            let extent = arena.borrow()[index];
            if !self.is_whole || !extent.is_written {
                break;
            } else if was_left {
                let Written { iova, len, guest_phys } = session.written(&extent);
                session.space().inner.log_write_outside(iova, len, guest_phys);
            } else {
                session.after_write(&extent.entry, extent.iova, extent.len);
            }
        }
        if was_left {
            // Freeing memory calls the program's allocator. If that accesses a remote region, it must
            // not // make the leases again.
            self.entered.open(Scope::Untold);
            session.end_leased_pins(self.range.start);
            self.entered.close(Scope::Untold);
        }
        arena.borrow_mut().truncate(self.range.start);
    }
}

/// Memory that stays translated until this is dropped, which any thread may do. A thread that unmaps the
/// memory waits for that.
///
/// Writes through a lease are not observed. So dirty logs mark all bytes of a writable lease when it is
/// dropped, and for each collection while it lives.
#[must_use = "the memory is leased while this lives"]
pub struct Lease<A: ViewAccess> {
    space: Space,
    id: Option<u64>,
    extents: Box<[Extent]>,
    /// The extents that may be written, for the logs.
    written: Arc<[Written]>,
    iova: Iova,
    len: usize,
    token: IsaToken,
    access: PhantomData<A>,
}

// SAFETY: the memory stays mapped while the lease lives, and every thread accesses it as foreign memory.
unsafe impl<A: ViewAccess> Send for Lease<A> {}
// SAFETY: as above.
unsafe impl<A: ViewAccess> Sync for Lease<A> {}

impl<A: ViewAccess> Lease<A> {
    /// Returns a view of the memory.
    pub fn view(&self) -> View<'_, A> {
        let extents = Extents::Leased(&self.extents);
        View { extents, iova: self.iova, len: self.len, token: self.token, access: PhantomData }
    }

    /// Returns `true` if the memory is being unmapped, and the unmapping thread waits until this is
    /// dropped.
    pub fn is_revoked(&self) -> bool {
        self.id.is_some_and(|id| self.space.inner.leases.is_revoked(id))
    }
}

impl<A: ViewAccess> Drop for Lease<A> {
    fn drop(&mut self) {
        let inner = &self.space.inner;
        for Written { iova, len, guest_phys } in &*self.written {
            inner.log_write_outside(*iova, *len, *guest_phys);
        }
        if let Some(id) = self.id {
            inner.leases.unregister(id);
        }
    }
}

impl<A: ViewAccess> fmt::Debug for Lease<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({:#x} + {:#x})", self.iova, self.len)
    }
}

impl<'p, A: ViewAccess> View<'p, A> {
    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the first address.
    pub fn iova(&self) -> Iova {
        self.iova
    }

    /// Returns the contiguous parts, in order.
    pub fn slices(&self) -> impl Iterator<Item = ViewSlice<'p, A>> + use<'p, A> {
        let (extents, token) = (self.extents, self.token);
        (0..extents.len()).map(move |index| ViewSlice {
            extent: extents.get(index),
            token,
            memory: PhantomData,
        })
    }

    /// Returns all of it as one slice, if it is contiguous in this process.
    pub fn as_slice(&self) -> Option<ViewSlice<'p, A>> {
        if self.extents.len() == 1 { self.slices().next() } else { None }
    }

    /// Calls `part` with each slice that has some of `len` bytes from `offset`, the offset in the slice,
    /// the number of bytes before it, and the number of bytes in it.
    fn parts(
        &self,
        offset: usize,
        len: usize,
        mut part: impl FnMut(ViewSlice<'p, A>, usize, usize, usize) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let start = Fault::at(self.iova, offset, Reason::Overflow).iova;
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Fault { iova: start, done: 0, reason: Reason::Overflow });
        }
        let (mut skip, mut done) = (offset, 0);
        for slice in self.slices() {
            if done == len {
                break;
            }
            if skip >= slice.len() {
                skip -= slice.len();
                continue;
            }
            let now = (slice.len() - skip).min(len - done);
            part(slice, skip, done, now)
                .map_err(|fault| Fault { done: done + fault.done, ..fault })?;
            (skip, done) = (0, done + now);
        }
        Ok(())
    }
}

impl<A: Readable> View<'_, A> {
    /// Reads from `offset` into all of `into`.
    ///
    /// # Errors
    /// [`Reason::Overflow`] if the range ends beyond the view; [`Reason::BackingLost`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Fault> {
        self.parts(offset, into.len(), |slice, at, done, len| {
            slice.read(at, &mut into[done..done + len])
        })
    }

    /// Reads a value at `offset`, like [`Session::read_obj`].
    ///
    /// # Errors
    /// The same as for [`read`](Self::read).
    pub fn read_obj<T: FromBytes + IntoBytes>(&self, offset: usize) -> Result<T, Fault> {
        let mut value = T::new_zeroed();
        self.read(offset, value.as_mut_bytes())?;
        Ok(value)
    }
}

impl<A: Writable> View<'_, A> {
    /// Writes all of `from` to `offset`.
    ///
    /// # Errors
    /// The same as for [`read`](View::read).
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), Fault> {
        self.parts(offset, from.len(), |slice, at, done, len| {
            slice.write(at, &from[done..done + len])
        })
    }

    /// Writes a value to `offset`, like [`Session::write_obj`].
    ///
    /// # Errors
    /// The same as for [`read`](View::read).
    pub fn write_obj<T: IntoBytes + Immutable + Copy>(
        &self,
        offset: usize,
        value: T,
    ) -> Result<(), Fault> {
        self.write(offset, value.as_bytes())
    }
}

impl<'p, A: ViewAccess> ViewSlice<'p, A> {
    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.extent.len
    }

    /// Returns `true` if the length is zero. pub fn is_empty(&self) -> bool { self.len() == 0
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the first address.
    pub fn iova(&self) -> Iova {
        Iova::new(self.extent.iova)
    }

    /// Returns the address of the first byte in this process.
    pub fn start(&self) -> NonNull<u8> {
        self.extent.host
    }

    /// Returns `true` if this process can write the memory, whatever the mapping permits.
    #[cfg(feature = "vm-memory")]
    pub(crate) fn is_writable(&self) -> bool {
        self.extent.entry.permits(tlb::WRITABLE)
    }

    /// Returns `true` if it follows `before` in its region as well as in the address space. Always
    /// `false` under Miri, for the same reason as in the page-table walk.
    #[cfg(feature = "vm-memory")]
    pub(crate) fn continues(&self, before: &Self) -> bool {
        let (extent, before) = (&self.extent, &before.extent);
        let bus = |extent: &Extent| extent.entry.bus_of(extent.iova);
        !cfg!(miri)
            && before.host.as_ptr().wrapping_add(before.len) == extent.host.as_ptr()
            && bus(before).checked_add(before.len as u64) == Some(bus(extent))
    }

    fn check(&self, offset: usize, len: usize) -> Result<*mut u8, Fault> {
        if offset.checked_add(len).is_some_and(|end| end <= self.extent.len) {
            Ok(self.extent.host.as_ptr().wrapping_add(offset))
        } else {
            Err(Fault { done: 0, ..Fault::at(self.iova(), offset, Reason::Overflow) })
        }
    }

    fn copied(
        &self,
        offset: usize,
        outcome: Result<(), longshore_mem::copy::CopyFault>,
    ) -> Result<(), Fault> {
        outcome.map_err(|stop| {
            let fault = Fault::at(self.iova(), offset + stop.done_bytes, Reason::BackingLost);
            Fault { done: stop.done_bytes, ..fault }
        })
    }
}

impl<'p, A: Readable> ViewSlice<'p, A> {
    /// Reads from `offset` into all of `into`.
    ///
    /// # Errors
    /// [`Reason::Overflow`] if the range ends beyond the slice; [`Reason::BackingLost`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Fault> {
        let (from, to, len) = (self.check(offset, into.len())?, into.as_mut_ptr(), into.len());
        // SAFETY: the bytes are within the slice, which is pinned or leased; `into` is private memory.
        let outcome = unsafe { words::copy_exact(self.token, from, to, len) };
        self.copied(offset, outcome)
    }

    /// Returns the bytes as a volatile slice for other code. Its accesses are not guarded: if the memory
    /// vanishes, the process gets SIGBUS.
    pub fn volatile(&self) -> VolatileSlice<'p> {
        // SAFETY: the memory is pinned or leased for `'p`, and only accessed as foreign memory.
        unsafe { VolatileSlice::from_raw_parts(self.extent.host, self.extent.len) }
    }
}

impl<'p, A: Writable> ViewSlice<'p, A> {
    /// Writes all of `from` to `offset`.
    ///
    /// # Errors
    /// The same as for [`read`](ViewSlice::read).
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), Fault> {
        let (to, len) = (self.check(offset, from.len())?, from.len());
        // SAFETY: the bytes are within the slice, which is pinned or leased; `from` is private memory.
        let outcome = unsafe { words::copy_exact(self.token, from.as_ptr(), to, len) };
        self.copied(offset, outcome)
    }

    /// Returns the bytes as a writable volatile slice, without a guard as for
    /// [`volatile`](ViewSlice::volatile).
    pub fn volatile_mut(&self) -> VolatileSliceMut<'p> {
        // SAFETY: as in `volatile`, and the memory may be written.
        unsafe { VolatileSliceMut::from_raw_parts(self.extent.host, self.extent.len) }
    }
}

impl<A> fmt::Debug for View<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({:#x} + {:#x}, {} slices)", self.iova, self.len, self.extents.len())
    }
}

impl<A> fmt::Debug for ViewSlice<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slice({:#x} + {:#x})", self.extent.iova, self.extent.len)
    }
}
