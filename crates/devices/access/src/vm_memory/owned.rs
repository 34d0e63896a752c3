//! Owned access to a whole space: vm-memory's `GuestAddressSpace`.

use std::fmt;
use std::rc::Rc;

use vm_memory::bitmap::{BS, Bitmap, WithBitmapSlice};
use vm_memory::guest_memory::GuestMemorySliceIterator;
use vm_memory::{GuestAddress, GuestAddressSpace, GuestMemory, GuestMemoryError, Permissions};

use super::copies::Copies;
use super::session::{Pieces, Slices};
use super::{DirtySlice, PinnedRegions};
use crate::session::{Entered, Session};
use crate::space::Space;

/// The memory of a space as an owned `GuestMemory` of the calling thread, from
/// [`memory`](GuestAddressSpace::memory) of a [`Space`].
///
/// It has a session of its own, whose slot stays entered until this is dropped: unmapping waits for
/// that, and fails on the same thread ([`PinnedByCaller`](crate::Error::PinnedByCaller)). So call
/// `memory()` each time that a queue is served, and do not keep the result or a descriptor chain that
/// holds it. If the value is leaked, unmapping waits for ever.
///
/// It stays on its thread:
///
/// ```compile_fail,E0277
/// # use longshore_access::Space;
/// # use vm_memory::GuestAddressSpace;
/// let memory = Space::new().unwrap().memory();
/// std::thread::spawn(move || drop(memory));
/// ```
///
/// A slice cannot outlive it:
///
/// ```compile_fail,E0505
/// # use longshore_access::Space;
/// # use vm_memory::{GuestAddress, GuestAddressSpace, GuestMemory, Permissions};
/// let memory = Space::new().unwrap().memory();
/// let mut slices = memory.get_slices(GuestAddress(0), 8, Permissions::Read).unwrap();
/// drop(memory);
/// slices.next();
/// ```
pub struct SpaceMemory {
    /// A session whose slot is entered.
    session: Session,
    copies: Copies,
}

impl SpaceMemory {
    fn new(space: &Space) -> Self {
        let session = space.session();
        session.enter().nest().forget();
        Self { session, copies: Copies::new() }
    }
}

impl Drop for SpaceMemory {
    fn drop(&mut self) {
        drop(Entered::nested(&self.session));
    }
}

/// A space is vm-memory's `GuestAddressSpace`: it can be cloned, sent and kept. `memory()` returns
/// memory for the calling thread.
impl GuestAddressSpace for Space {
    type M = SpaceMemory;
    type T = Rc<SpaceMemory>;

    fn memory(&self) -> Rc<SpaceMemory> {
        Rc::new(SpaceMemory::new(self))
    }
}

impl GuestMemory for SpaceMemory {
    type PhysicalMemory = PinnedRegions;
    type Bitmap = SpaceBitmap;

    fn check_range(&self, address: GuestAddress, count: usize, access: Permissions) -> bool {
        Pieces::is_whole(&self.session, address, count, access)
    }

    fn get_slices<'a>(
        &'a self,
        address: GuestAddress,
        count: usize,
        access: Permissions,
    ) -> Result<impl GuestMemorySliceIterator<'a, DirtySlice<'a>>, GuestMemoryError> {
        // SAFETY: the slot stays entered until this is dropped.
        unsafe { Slices::of(&self.session, &self.copies, address, count, access) }
    }
}

impl fmt::Debug for SpaceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SpaceMemory").field(self.session.space()).finish()
    }
}

/// A type without values. It declares that slices of a [`SpaceMemory`] have a [`DirtySlice`] as their
/// bitmap.
#[derive(Debug)]
pub enum SpaceBitmap {}

impl<'a> WithBitmapSlice<'a> for SpaceBitmap {
    type S = DirtySlice<'a>;
}

impl Bitmap for SpaceBitmap {
    fn mark_dirty(&self, _: usize, _: usize) {
        match *self {}
    }

    fn dirty_at(&self, _: usize) -> bool {
        match *self {}
    }

    fn slice_at(&self, _: usize) -> BS<'_, Self> {
        match *self {}
    }
}
