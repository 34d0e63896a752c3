//! vm-memory's `GuestMemory` for one range that is translated once.

use std::fmt;
use std::iter::FusedIterator;
use std::marker::PhantomData;

use vm_memory::guest_memory::GuestMemorySliceIterator;
use vm_memory::{
    GuestAddress, GuestMemory, GuestMemoryBackend, GuestMemoryError, GuestMemoryRegion,
    GuestMemoryRegionBytes, GuestUsize, MemoryRegionAddress, Permissions, VolatileSlice,
};

use super::{check_end, refused, wanted};
use crate::fault::Reason;
use crate::session::{Lease, ReadWrite, View, ViewAccess, ViewSlice};

/// A pinned or leased range as vm-memory's `GuestMemory`. It permits the same accesses as the pin or
/// lease.
///
/// Made `from` a [`View`], it lives as long as the view. Made from a [`Lease`], it keeps the lease. Both
/// may be used on other threads. Making it allocates memory.
///
/// It cannot outlive the pin:
///
/// ```compile_fail
/// # use longshore_access::{ReadOnly, Space, vm_memory::PinnedMemory};
/// # use longshore_mem::Iova;
/// let space = Space::new().unwrap();
/// let session = space.session();
/// let escaped = session.pin(Iova::new(0), 8, ReadOnly, |view| PinnedMemory::from(view)).unwrap();
/// ```
///
/// ```compile_fail
/// # use longshore_access::{ReadOnly, Space, vm_memory::PinnedMemory};
/// # use longshore_mem::Iova;
/// let space = Space::new().unwrap();
/// let session = space.session();
/// let mut kept = None;
/// session.pin(Iova::new(0), 0, ReadOnly, |view| kept = Some(PinnedMemory::from(view))).unwrap();
/// ```
///
/// A slice cannot outlive the `PinnedMemory`:
///
/// ```compile_fail,E0505
/// # use longshore_access::{OnUnmap, ReadOnly, Space, vm_memory::PinnedMemory};
/// # use longshore_mem::Iova;
/// # use vm_memory::{GuestAddress, GuestMemory, Permissions};
/// let space = Space::new().unwrap();
/// let lease = space.session().lease(Iova::new(0), 0, ReadOnly, OnUnmap::Wait).unwrap();
/// let memory = PinnedMemory::from(lease);
/// let mut slices = memory.get_slices(GuestAddress(0), 0, Permissions::Read).unwrap();
/// drop(memory);
/// slices.next();
/// ```
pub struct PinnedMemory<'p, A: ViewAccess> {
    regions: PinnedRegions,
    held: Held<'p, A>,
}

/// The owner that keeps the memory mapped.
enum Held<'p, A: ViewAccess> {
    Pin(PhantomData<&'p ()>),
    Lease(Lease<A>),
}

/// The parts of a [`PinnedMemory`] that are contiguous in this process, as vm-memory's
/// `GuestMemoryBackend`.
pub struct PinnedRegions(Box<[PinnedRegion]>);

/// A contiguous part of a [`PinnedMemory`], as vm-memory's `GuestMemoryRegion`.
pub struct PinnedRegion {
    host: *mut u8,
    iova: u64,
    /// Not zero.
    len: usize,
    /// `true` if this process can write the memory. Otherwise it has no slices.
    is_writable: bool,
}

// SAFETY: the memory stays mapped for as long as the owner of the region lives, on any thread, and is
// only accessed as foreign memory.
unsafe impl Send for PinnedRegion {}
// SAFETY: as above.
unsafe impl Sync for PinnedRegion {}

impl<'p, A: ViewAccess> From<View<'p, A>> for PinnedMemory<'p, A> {
    fn from(view: View<'p, A>) -> Self {
        Self { regions: PinnedRegions::of(view.slices()), held: Held::Pin(PhantomData) }
    }
}

impl<A: ViewAccess> From<Lease<A>> for PinnedMemory<'static, A> {
    fn from(lease: Lease<A>) -> Self {
        let regions = PinnedRegions::of(lease.view().slices());
        Self { regions, held: Held::Lease(lease) }
    }
}

impl<A: ViewAccess> PinnedMemory<'_, A> {
    /// Returns the lease, if it was made from one.
    pub fn lease(&self) -> Option<&Lease<A>> {
        match &self.held {
            Held::Pin(_) => None,
            Held::Lease(lease) => Some(lease),
        }
    }
}

impl PinnedMemory<'_, ReadWrite> {
    /// Returns the same memory as a backend, for code that needs a `GuestMemoryBackend` and not only a
    /// `GuestMemory`. A backend does not distinguish between accesses, so this is available only if the
    /// memory is pinned for reading and writing.
    ///
    /// ```compile_fail,E0599
    /// # use longshore_access::{ReadOnly, Space, vm_memory::PinnedMemory};
    /// # use longshore_mem::Iova;
    /// # let space = Space::new().unwrap();
    /// # let session = space.session();
    /// session.pin(Iova::new(0), 0, ReadOnly, |view| {
    ///     PinnedMemory::from(view).regions();
    /// });
    /// ```
    pub fn regions(&self) -> &PinnedRegions {
        &self.regions
    }
}

impl<A: ViewAccess> GuestMemory for PinnedMemory<'_, A> {
    type PhysicalMemory = PinnedRegions;
    type Bitmap = ();

    fn check_range(&self, address: GuestAddress, count: usize, access: Permissions) -> bool {
        self.get_slices(address, count, access)
            .is_ok_and(|mut slices| slices.all(|slice| slice.is_ok()))
    }

    fn get_slices<'a>(
        &'a self,
        address: GuestAddress,
        count: usize,
        access: Permissions,
    ) -> Result<impl GuestMemorySliceIterator<'a, ()>, GuestMemoryError> {
        check_end(address, count)?;
        if wanted(access) & !A::WANT != 0 {
            return Err(refused(address.0, 0, Reason::Permission));
        }
        Ok(Slices { regions: self.regions.from(address.0), at: address.0, left: count })
    }
}

/// An iterator over the slices of a range. It ends after the first error.
struct Slices<'a> {
    /// The regions from the first that ends at or after `at`.
    regions: &'a [PinnedRegion],
    at: u64,
    left: usize,
}

impl<'a> Iterator for Slices<'a> {
    type Item = Result<VolatileSlice<'a, ()>, GuestMemoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let at = self.at;
        let found = self.regions.split_first().filter(|(region, _)| region.iova <= at);
        let Some((region, rest)) = found else {
            self.left = 0;
            return Some(Err(refused(at, 0, Reason::Unmapped)));
        };
        if !region.is_writable {
            self.left = 0;
            return Some(Err(refused(at, 0, Reason::Permission)));
        }
        let offset = (at - region.iova) as usize;
        let len = (region.len - offset).min(self.left);
        self.regions = rest;
        // This wraps only if nothing is left.
        self.at = at.wrapping_add(len as u64);
        self.left -= len;
        Some(region.slice(offset, len))
    }
}

impl FusedIterator for Slices<'_> {}

impl<'a> GuestMemorySliceIterator<'a, ()> for Slices<'a> {}

impl PinnedRegions {
    fn of<'p, A: ViewAccess>(slices: impl Iterator<Item = ViewSlice<'p, A>>) -> Self {
        let mut regions: Vec<PinnedRegion> = Vec::new();
        let mut before = None;
        for slice in slices {
            match regions.last_mut() {
                // Merge only slices that are adjacent in their region, too, because a pointer is valid
                // for one allocation only.
                Some(last)
                    if before.is_some_and(|before| slice.continues(&before))
                        && last.is_writable == slice.is_writable() =>
                {
                    last.len += slice.len();
                }
                _ => regions.push(PinnedRegion {
                    host: slice.start().as_ptr(),
                    iova: slice.iova().raw(),
                    len: slice.len(),
                    is_writable: slice.is_writable(),
                }),
            }
            before = Some(slice);
        }
        Self(regions.into())
    }

    /// Returns the regions from the first that ends at or after `address`.
    fn from(&self, address: u64) -> &[PinnedRegion] {
        let before = self.0.partition_point(|region| region.last() < address);
        &self.0[before..]
    }
}

impl GuestMemoryBackend for PinnedRegions {
    type R = PinnedRegion;

    fn num_regions(&self) -> usize {
        self.0.len()
    }

    fn find_region(&self, address: GuestAddress) -> Option<&PinnedRegion> {
        self.from(address.0).first().filter(|region| region.iova <= address.0)
    }

    fn iter(&self) -> impl Iterator<Item = &PinnedRegion> {
        self.0.iter()
    }
}

impl PinnedRegion {
    fn last(&self) -> u64 {
        self.iova + (self.len as u64 - 1)
    }

    fn slice(&self, offset: usize, len: usize) -> Result<VolatileSlice<'_, ()>, GuestMemoryError> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(GuestMemoryError::InvalidBackendAddress);
        }
        let host = self.host.wrapping_add(offset);
        // SAFETY: the bytes are within the region, which stays pinned or leased while it is borrowed,
        // and are only accessed as foreign memory.
        Ok(unsafe { VolatileSlice::new(host, len) })
    }
}

impl GuestMemoryRegion for PinnedRegion {
    type B = ();

    fn len(&self) -> GuestUsize {
        self.len as u64
    }

    fn start_addr(&self) -> GuestAddress {
        GuestAddress(self.iova)
    }

    fn bitmap(&self) {}

    /// Returns an address that is valid while the pin or the lease lives.
    fn get_host_address(&self, address: MemoryRegionAddress) -> Result<*mut u8, GuestMemoryError> {
        let address = self.check_address(address).ok_or(GuestMemoryError::InvalidBackendAddress)?;
        Ok(self.host.wrapping_add(address.0 as usize))
    }

    fn get_slice(
        &self,
        offset: MemoryRegionAddress,
        count: usize,
    ) -> Result<VolatileSlice<'_, ()>, GuestMemoryError> {
        self.slice(offset.0 as usize, count)
    }
}

impl GuestMemoryRegionBytes for PinnedRegion {}

impl<A: ViewAccess> fmt::Debug for PinnedMemory<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("PinnedMemory");
        shown.field("regions", &self.regions).field("lease", &self.lease()).finish()
    }
}

impl fmt::Debug for PinnedRegions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.0).finish()
    }
}

impl fmt::Debug for PinnedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedRegion({:#x} + {:#x})", self.iova, self.len)
    }
}
