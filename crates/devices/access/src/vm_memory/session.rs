//! vm-memory's `GuestMemory` for a whole space, translated at each access while a session's slot stays
//! entered.

use std::fmt;
use std::iter::FusedIterator;

use longshore_mem::Iova;
use vm_memory::bitmap::{Bitmap, BitmapSlice, WithBitmapSlice};
use vm_memory::guest_memory::GuestMemorySliceIterator;
use vm_memory::{GuestAddress, GuestMemory, GuestMemoryError, Permissions, VolatileSlice};

use super::copies::Copies;
use super::{PinnedRegions, check_end, refused, wanted};
use crate::dirty::Log;
use crate::fault::Reason;
use crate::session::{Place, Session};
use crate::tlb;

/// The memory of a session's space as vm-memory's `GuestMemory`, for a scope of
/// [`Session::guest_memory`].
///
/// It cannot leave the scope, and neither can a slice of it:
///
/// ```compile_fail
/// # use longshore_access::Space;
/// let space = Space::new().unwrap();
/// let session = space.session();
/// let escaped = session.guest_memory(|memory| memory);
/// ```
///
/// ```compile_fail
/// # use longshore_access::Space;
/// # use vm_memory::{GuestAddress, GuestMemory, Permissions};
/// let space = Space::new().unwrap();
/// let session = space.session();
/// let mut kept = None;
/// session.guest_memory(|memory| {
///     let mut slices = memory.get_slices(GuestAddress(0), 8, Permissions::Read).unwrap();
///     kept = slices.next();
/// });
/// ```
///
/// This compiles, because only a `bool` leaves the scope:
///
/// ```
/// # use longshore_access::Space;
/// # use vm_memory::{GuestAddress, GuestMemory, Permissions};
/// let space = Space::new().unwrap();
/// let session = space.session();
/// let mut kept = None;
/// session.guest_memory(|memory| {
///     let mut slices = memory.get_slices(GuestAddress(0), 8, Permissions::Read).unwrap();
///     kept = slices.next().map(|slice| slice.is_err());
/// });
/// assert_eq!(kept, Some(true)); // nothing is mapped
/// ```
pub struct SessionMemory<'p> {
    /// Its slot stays entered while this lives.
    session: &'p Session,
    copies: Copies,
}

impl Session {
    /// Calls `work` with the space as vm-memory's `GuestMemory`, addressed by IOVA, for code written for
    /// rust-vmm.
    ///
    /// Each access is translated separately and checked against the permissions of its mapping. All
    /// memory that `work` has accessed stays valid until it returns, as in a [`pin`](Self::pin):
    /// unmapping threads wait for it. So keep it short, for example one pass over a queue. Scopes and
    /// pins can be nested. It allocates nothing itself.
    ///
    /// Unlike in a pin, the accessed memory is not recorded. So if `work` calls a remote region by the
    /// session's own methods, any thread that must wait for the scope cancels the call, which fails with
    /// [`Reason::Revoked`].
    pub fn guest_memory<R>(&self, work: impl for<'p> FnOnce(&SessionMemory<'p>) -> R) -> R {
        let _entered = self.enter().nest();
        work(&SessionMemory { session: self, copies: Copies::new() })
    }
}

impl<'p> GuestMemory for SessionMemory<'p> {
    type PhysicalMemory = PinnedRegions;
    type Bitmap = DirtySlice<'p>;

    fn check_range(&self, address: GuestAddress, count: usize, access: Permissions) -> bool {
        Pieces::is_whole(self.session, address, count, access)
    }

    fn get_slices<'a>(
        &'a self,
        address: GuestAddress,
        count: usize,
        access: Permissions,
    ) -> Result<impl GuestMemorySliceIterator<'a, DirtySlice<'p>>, GuestMemoryError> {
        // SAFETY: the slot stays entered for longer than the memory is borrowed.
        unsafe { Slices::of(self.session, &self.copies, address, count, access) }
    }
}

impl fmt::Debug for SessionMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SessionMemory").field(self.session.space()).finish()
    }
}

/// An iterator that translates a range part by part. It ends after the first error.
pub(super) struct Pieces<'p> {
    session: &'p Session,
    at: u64,
    left: usize,
    done: usize,
    want: u64,
}

impl<'p> Pieces<'p> {
    fn of(
        session: &'p Session,
        address: GuestAddress,
        count: usize,
        access: Permissions,
    ) -> Result<Self, GuestMemoryError> {
        check_end(address, count)?;
        Ok(Self { session, at: address.0, left: count, done: 0, want: wanted(access) })
    }

    /// Returns `true` if each byte of the range can be accessed.
    pub(super) fn is_whole(
        session: &'p Session,
        address: GuestAddress,
        count: usize,
        access: Permissions,
    ) -> bool {
        Self::of(session, address, count, access)
            .is_ok_and(|mut pieces| pieces.all(|piece| piece.is_ok()))
    }
}

impl<'p> Iterator for Pieces<'p> {
    /// The address of a part, and the bitmap for its writes.
    type Item = Result<(*mut u8, DirtySlice<'p>), GuestMemoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let (at, left, session) = (self.at, self.left, self.session);
        // The slot is entered already. Enter it again, so that the TLB is emptied if a flush is pending.
        let _entered = session.enter();
        let entry = match session.translate(at, left, self.want) {
            Ok(Place::Direct(entry)) => Ok(entry),
            Ok(Place::Remote { .. }) => Err(Reason::NotDirect),
            Err(reason) => Err(reason),
        };
        let entry = match entry {
            Ok(entry) => entry,
            Err(reason) => {
                self.left = 0;
                return Some(Err(refused(at, self.done, reason)));
            }
        };
        let (host, room) = entry.place(at);
        let len = room.min(left as u64) as usize;
        // This wraps only if nothing is left.
        self.at = at.wrapping_add(len as u64);
        self.left -= len;
        self.done += len;
        Some(Ok((host, DirtySlice { session, entry, iova: at, len })))
    }
}

/// An iterator over the slices of a range: of the memory itself, or of a copy if this process must not
/// write it.
pub(super) struct Slices<'a, 'p> {
    pieces: Pieces<'p>,
    copies: &'a Copies,
}

impl<'a, 'p> Slices<'a, 'p> {
    /// # Safety
    /// The session's slot must stay entered for `'a`.
    pub(super) unsafe fn of(
        session: &'p Session,
        copies: &'a Copies,
        address: GuestAddress,
        count: usize,
        access: Permissions,
    ) -> Result<Self, GuestMemoryError> {
        Ok(Self { pieces: Pieces::of(session, address, count, access)?, copies })
    }
}

impl<'a, 'p> Iterator for Slices<'a, 'p> {
    type Item = Result<VolatileSlice<'a, DirtySlice<'p>>, GuestMemoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        let piece = self.pieces.next()?;
        Some(piece.and_then(|(host, dirty)| {
            let len = dirty.len;
            let place = if dirty.entry.permits(tlb::WRITABLE) {
                host
            } else {
                // SAFETY: `len` bytes from `host` were translated while the slot is entered.
                let copy = unsafe { self.copies.copy(dirty.session.token(), host, len) };
                match copy {
                    Ok(copy) => copy,
                    Err(error) => {
                        self.pieces.left = 0;
                        return Err(error.at(dirty.iova));
                    }
                }
            };
            // SAFETY: the `len` bytes are of a copy that is kept for `'a`, or were translated in the
            // slot, which stays entered for `'a`; they are only accessed as foreign memory.
            Ok(unsafe { VolatileSlice::with_bitmap(place, len, dirty, None) })
        }))
    }
}

impl FusedIterator for Slices<'_, '_> {}

impl<'a, 'p> GuestMemorySliceIterator<'a, DirtySlice<'p>> for Slices<'a, 'p> {}

/// vm-memory's `Bitmap` of a slice: it marks writes to the slice in the space's logs.
#[derive(Clone)]
pub struct DirtySlice<'p> {
    session: &'p Session,
    /// The extent of the slice, which has `len` bytes of it from `iova`.
    entry: tlb::Entry,
    iova: u64,
    len: usize,
}

impl DirtySlice<'_> {
    /// Returns the part of the range that is in the slice.
    fn within(&self, offset: usize, len: usize) -> (u64, usize) {
        let offset = offset.min(self.len);
        (self.iova + offset as u64, len.min(self.len - offset))
    }
}

impl WithBitmapSlice<'_> for DirtySlice<'_> {
    type S = Self;
}

impl BitmapSlice for DirtySlice<'_> {}

impl Bitmap for DirtySlice<'_> {
    fn mark_dirty(&self, offset: usize, len: usize) {
        let (iova, len) = self.within(offset, len);
        if len != 0 {
            self.session.after_write(&self.entry, iova, len);
        }
    }

    fn dirty_at(&self, offset: usize) -> bool {
        let (iova, len) = self.within(offset, 1);
        match &self.session.space().inner.logs.get().by_iova {
            Log::Internal(log) => len != 0 && log.peek(Iova::new(iova)),
            _ => false,
        }
    }

    fn slice_at(&self, offset: usize) -> Self {
        let (iova, len) = self.within(offset, self.len);
        Self { iova, len, ..self.clone() }
    }
}

impl fmt::Debug for DirtySlice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirtySlice({:#x} + {:#x})", self.iova, self.len)
    }
}
