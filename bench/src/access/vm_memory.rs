//! The crate `vm-memory`, in a widely used version and the newest one: guest memory in one region or
//! sixteen, with and without a bitmap of dirty pages, and behind its IOMMU.
#![expect(unsafe_code, reason = "the peers are given memory by pointer")]

/// The code that both versions share, for a crate of the given name.
macro_rules! regions {
    ($vm:ident, $accesses:path) => {
        use std::ptr;

        use anyhow::{Context, Result};
        use $accesses as Accesses;
        use $vm::bitmap::{Bitmap, BitmapSlice};
        use $vm::mmap::{MmapRegionBuilder, NewBitmap};
        use $vm::{Bytes, GuestAddress, GuestMemoryMmap, GuestRegionMmap, VolatileSlice};

        use super::super::accessor::Accessor;
        use super::super::memory::{BASE, Maps, Memory, SPACE_BYTES};

        pub(in super::super) use $vm::bitmap::AtomicBitmap;

        /// Returns all of the memory in one region, accessed by the trait `Bytes`, which device models
        /// use. A guest address is an offset into the memory. The memory must outlive the result.
        pub(in super::super) fn one<B>(memory: &Memory) -> Result<ByBytes<GuestMemoryMmap<B>>>
        where
            B: Bitmap + NewBitmap + 'static,
        {
            let region = region(memory, 0, SPACE_BYTES, 0)?;
            Ok(ByBytes(GuestMemoryMmap::from_regions(vec![region])?))
        }

        /// Like [`one`], with a region for each mapping; a guest address is an IOVA.
        pub(in super::super) fn each(
            memory: &Memory,
            maps: &Maps,
        ) -> Result<ByBytes<GuestMemoryMmap<()>>> {
            let bytes = maps.piece_bytes();
            let region = |(place, offset)| region(memory, offset, bytes, BASE + place);
            let regions = maps.pieces().map(region).collect::<Result<_>>()?;
            Ok(ByBytes(GuestMemoryMmap::from_regions(regions)?))
        }

        fn region<B: Bitmap + NewBitmap>(
            memory: &Memory,
            offset: u64,
            len_bytes: u64,
            guest: u64,
        ) -> Result<GuestRegionMmap<B>> {
            let start = ptr::with_exposed_provenance_mut(memory.address(offset) as usize);
            let len = len_bytes as usize;
            let builder = MmapRegionBuilder::new_with_bitmap(len, B::with_len(len));
            // SAFETY: the owner of the region borrows the memory, which is mapped.
            let builder = unsafe { builder.with_raw_mmap_pointer(start) };
            let region = GuestRegionMmap::new(builder.build()?, GuestAddress(guest));
            region.into_iter().next().context("a guest region that does not fit")
        }

        /// Access by the trait `Bytes`.
        pub(in super::super) struct ByBytes<G>(pub(super) G);

        impl<G: Bytes<GuestAddress>> Accessor for ByBytes<G> {
            #[inline(always)]
            fn read(&self, at: u64, into: &mut [u8]) {
                assert!(self.0.read_slice(into, GuestAddress(at)).is_ok());
            }

            #[inline(always)]
            fn write(&self, at: u64, from: &[u8]) {
                assert!(self.0.write_slice(from, GuestAddress(at)).is_ok());
            }

            #[inline(always)]
            fn read_word(&self, at: u64) -> u64 {
                self.0.read_obj(GuestAddress(at)).ok().expect("it is there")
            }

            #[inline(always)]
            fn write_word(&self, at: u64, word: u64) {
                assert!(self.0.write_obj(word, GuestAddress(at)).is_ok());
            }
        }

        /// Access by a slice of a region, which is faster if the access is within one region.
        pub(in super::super) struct BySlice(pub(in super::super) ByBytes<GuestMemoryMmap<()>>);

        impl BySlice {
            #[inline(always)]
            fn slice(&self, at: u64, len: usize) -> VolatileSlice<'_, impl BitmapSlice> {
                Accesses::get_slice(&self.0.0, GuestAddress(at), len).expect("it is there")
            }
        }

        impl Accessor for BySlice {
            #[inline(always)]
            fn read(&self, at: u64, into: &mut [u8]) {
                assert_eq!(self.slice(at, into.len()).copy_to(into), into.len());
            }

            #[inline(always)]
            fn write(&self, at: u64, from: &[u8]) {
                self.slice(at, from.len()).copy_from(from);
            }

            #[inline(always)]
            fn read_word(&self, at: u64) -> u64 {
                self.slice(at, 8).read_obj(0).expect("it is there")
            }

            #[inline(always)]
            fn write_word(&self, at: u64, word: u64) {
                self.slice(at, 8).write_obj(word, 0).expect("it is there");
            }
        }
    };
}

pub(super) mod v0_16 {
    regions!(vm_memory_0_16, vm_memory_0_16::GuestMemory);
}

pub(super) mod v0_18 {
    regions!(vm_memory, vm_memory::GuestMemoryBackend);

    use std::sync::{RwLock, RwLockReadGuard};

    use vm_memory::iommu::{Error, IotlbFails, IotlbIterator};
    use vm_memory::{Iommu, IommuMemory, Iotlb, Permissions};

    /// An IOMMU that contains all its mappings, behind a read-write lock, as in the crate's own tests
    /// and in vhost back-ends.
    #[derive(Debug)]
    pub(in super::super) struct Locked(RwLock<Iotlb>);

    impl Iommu for Locked {
        type IotlbGuard<'a> = RwLockReadGuard<'a, Iotlb>;

        #[inline]
        fn translate(
            &self,
            iova: GuestAddress,
            length: usize,
            access: Permissions,
        ) -> Result<IotlbIterator<Self::IotlbGuard<'_>>, Error> {
            let iotlb = self.0.read().expect("no thread panicked");
            Iotlb::lookup(iotlb, iova, length, access).map_err(|fails: IotlbFails| {
                Error::IommuMisconfigured { reason: format!("{fails:?}") }
            })
        }
    }

    pub(in super::super) type ByIommu = ByBytes<IommuMemory<GuestMemoryMmap<()>, Locked>>;

    /// Like [`one`], behind the crate's IOMMU.
    pub(in super::super) fn iommu(memory: &Memory, maps: &Maps) -> Result<ByIommu> {
        let mut iotlb = Iotlb::new();
        for (place, offset) in maps.pieces() {
            let (from, to) = (GuestAddress(BASE + place), GuestAddress(offset));
            iotlb.set_mapping(from, to, maps.piece_bytes() as usize, Permissions::ReadWrite)?;
        }
        let locked = Locked(RwLock::new(iotlb));
        Ok(ByBytes(IommuMemory::new(one(memory)?.0, locked, true, ())))
    }

    impl ByIommu {
        /// Maps `len_bytes` bytes at `place`, and unmaps them.
        pub(in super::super) fn map_and_unmap(&self, place: u64, len_bytes: u64) -> Result<()> {
            let (from, len) = (GuestAddress(BASE + place), len_bytes as usize);
            let iotlb = || self.0.iommu().0.write().expect("no thread panicked");
            iotlb().set_mapping(from, GuestAddress(0), len, Permissions::ReadWrite)?;
            iotlb().invalidate_mapping(from, len);
            Ok(())
        }
    }
}
