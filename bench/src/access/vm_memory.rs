//! The crate `vm-memory`, in the version that many use and in the newest: guest memory in one region
//! or sixteen, with and without a bitmap of what was written, and behind its IOMMU.
#![expect(unsafe_code, reason = "the peers are given memory by pointer")]

/// What both versions have, by the crate's name.
macro_rules! regions {
    ($vm:ident, $accesses:path) => {
        use std::ptr;

        use anyhow::{Context, Result};
        use $vm::bitmap::Bitmap;
        use $vm::mmap::{MmapRegionBuilder, NewBitmap};
        use $vm::{Bytes, GuestAddress, GuestMemoryMmap, GuestRegionMmap, VolatileSlice};

        use super::super::doors::{Door, Doors};
        use super::super::memory::{BASE, Maps, Memory, SPACE_BYTES};
        use $accesses as Accesses;

        /// Guest memory.
        pub(in super::super) struct Regions<'m, B> {
            pub(super) guest: GuestMemoryMmap<B>,
            /// The mapping that the regions stand for; none where there is one region, which has
            /// all of the memory in its own order.
            maps: Option<Maps>,
            _memory: &'m Memory,
        }

        impl<'m, B: Bitmap + NewBitmap + 'static> Regions<'m, B> {
            /// All of the memory in one region: a guest address is an offset into it.
            pub(in super::super) fn one(memory: &'m Memory) -> Result<Self> {
                let region = region(memory, 0, SPACE_BYTES, 0)?;
                let guest = GuestMemoryMmap::from_regions(vec![region])?;
                Ok(Self { guest, maps: None, _memory: memory })
            }

            /// A region for each mapping.
            pub(in super::super) fn each(memory: &'m Memory, maps: &Maps) -> Result<Self> {
                let bytes = maps.piece_bytes();
                let region = |(place, offset)| region(memory, offset, bytes, BASE + place);
                let regions = maps.pieces().map(region).collect::<Result<_>>()?;
                let guest = GuestMemoryMmap::from_regions(regions)?;
                Ok(Self { guest, maps: Some(maps.clone()), _memory: memory })
            }

            /// The guest address of a place of the space that `maps` maps.
            fn address_of(&self, maps: &Maps, place: u64) -> u64 {
                match self.maps {
                    Some(_) => BASE + place,
                    None => maps.memory_offset(place),
                }
            }
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
            // SAFETY: the region is kept with a borrow of the memory, which is mapped.
            let builder = unsafe { builder.with_raw_mmap_pointer(start) };
            let region = GuestRegionMmap::new(builder.build()?, GuestAddress(guest));
            region.into_iter().next().context("a guest region that does not fit")
        }

        /// By the trait that device models use.
        pub(in super::super) struct ByBytes<'m, B> {
            pub(super) regions: Regions<'m, B>,
            pub(super) maps: Maps,
        }

        impl<'m, B: Bitmap + NewBitmap + 'static> ByBytes<'m, B> {
            pub(in super::super) fn new(regions: Regions<'m, B>, maps: &Maps) -> Self {
                Self { regions, maps: maps.clone() }
            }
        }

        impl<B: Bitmap + NewBitmap + 'static> Door for ByBytes<'_, B> {
            #[inline(always)]
            fn read(&self, at: u64, into: &mut [u8]) {
                assert!(self.regions.guest.read_slice(into, GuestAddress(at)).is_ok());
            }

            #[inline(always)]
            fn write(&self, at: u64, from: &[u8]) {
                assert!(self.regions.guest.write_slice(from, GuestAddress(at)).is_ok());
            }

            #[inline(always)]
            fn read_word(&self, at: u64) -> u64 {
                self.regions.guest.read_obj(GuestAddress(at)).expect("it is there")
            }

            #[inline(always)]
            fn write_word(&self, at: u64, word: u64) {
                self.regions.guest.write_obj(word, GuestAddress(at)).expect("it is there");
            }
        }

        impl<'m, B: Bitmap + NewBitmap + Send + Sync + 'static> Doors for ByBytes<'m, B> {
            type Door<'a>
                = &'a Self
            where
                Self: 'a;

            fn open(&self, _thread: u64) -> &Self {
                self
            }

            fn address(&self, place: u64) -> u64 {
                self.regions.address_of(&self.maps, place)
            }
        }

        /// By a slice of the region, which is shorter where all of an access lies in one.
        pub(in super::super) struct BySlice<'m, B>(pub(in super::super) ByBytes<'m, B>);

        impl<B: Bitmap + NewBitmap + 'static> BySlice<'_, B> {
            #[inline(always)]
            fn slice(
                &self,
                at: u64,
                len: usize,
            ) -> VolatileSlice<'_, impl $vm::bitmap::BitmapSlice> {
                let slice = Accesses::get_slice(&self.0.regions.guest, GuestAddress(at), len);
                slice.expect("it is there")
            }
        }

        impl<B: Bitmap + NewBitmap + 'static> Door for BySlice<'_, B> {
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

        impl<'m, B: Bitmap + NewBitmap + Send + Sync + 'static> Doors for BySlice<'m, B> {
            type Door<'a>
                = &'a Self
            where
                Self: 'a;

            fn open(&self, _thread: u64) -> &Self {
                self
            }

            fn address(&self, place: u64) -> u64 {
                self.0.address(place)
            }
        }
    };
}

pub(super) mod v0_16 {
    regions!(vm_memory_0_16, vm_memory_0_16::GuestMemory);

    pub(in super::super) use vm_memory_0_16::bitmap::AtomicBitmap;
}

pub(super) mod v0_18 {
    regions!(vm_memory, vm_memory::GuestMemoryBackend);

    use std::fmt;
    use std::ops::Deref;
    use std::sync::{RwLock, RwLockReadGuard};

    use vm_memory::iommu::{Error, IotlbFails, IotlbIterator};
    use vm_memory::{Iommu, IommuMemory, Iotlb, Permissions};

    pub(in super::super) use vm_memory::bitmap::AtomicBitmap;

    /// How an IOMMU's translations are guarded.
    pub(in super::super) trait Guard: fmt::Debug + Send + Sync + 'static {
        type Held<'a>: Deref<Target = Iotlb> + 'a;

        fn new(iotlb: Iotlb) -> Self;
        fn hold(&self) -> Self::Held<'_>;
    }

    /// By a lock for reading, as the crate's own tests and vhost backends have it.
    impl Guard for RwLock<Iotlb> {
        type Held<'a> = RwLockReadGuard<'a, Iotlb>;

        fn new(iotlb: Iotlb) -> Self {
            Self::new(iotlb)
        }

        #[inline(always)]
        fn hold(&self) -> RwLockReadGuard<'_, Iotlb> {
            self.read().expect("nobody panicked")
        }
    }

    /// Not at all: nothing may ever be mapped or unmapped.
    #[derive(Debug)]
    pub(in super::super) struct Fixed(Iotlb);

    impl Guard for Fixed {
        type Held<'a> = &'a Iotlb;

        fn new(iotlb: Iotlb) -> Self {
            Self(iotlb)
        }

        #[inline(always)]
        fn hold(&self) -> &Iotlb {
            &self.0
        }
    }

    /// An IOMMU that knows all of its mappings.
    #[derive(Debug)]
    struct Known<G>(G);

    impl<G: Guard> Iommu for Known<G> {
        type IotlbGuard<'a> = G::Held<'a>;

        #[inline]
        fn translate(
            &self,
            iova: GuestAddress,
            length: usize,
            access: Permissions,
        ) -> Result<IotlbIterator<Self::IotlbGuard<'_>>, Error> {
            let found = Iotlb::lookup(self.0.hold(), iova, length, access);
            found.map_err(|fails: IotlbFails| Error::IommuMisconfigured {
                reason: format!("{fails:?}"),
            })
        }
    }

    /// The crate's IOMMU before one region.
    pub(in super::super) struct ByIommu<'m, G: Guard> {
        guest: IommuMemory<GuestMemoryMmap<()>, Known<G>>,
        _memory: &'m Memory,
    }

    impl<'m, G: Guard> ByIommu<'m, G> {
        pub(in super::super) fn new(memory: &'m Memory, maps: &Maps) -> Result<Self> {
            let mut iotlb = Iotlb::new();
            for (place, offset) in maps.pieces() {
                let (from, to) = (GuestAddress(BASE + place), GuestAddress(offset));
                iotlb.set_mapping(from, to, maps.piece_bytes() as usize, Permissions::ReadWrite)?;
            }
            let backend = Regions::<()>::one(memory)?.guest;
            let guest = IommuMemory::new(backend, Known(G::new(iotlb)), true, ());
            Ok(Self { guest, _memory: memory })
        }
    }

    impl ByIommu<'_, RwLock<Iotlb>> {
        /// Maps bytes of the memory at `place`, and unmaps them.
        pub(in super::super) fn map_and_unmap(&self, place: u64, len_bytes: u64) -> Result<()> {
            let (from, len) = (GuestAddress(BASE + place), len_bytes as usize);
            let iotlb = || self.guest.iommu().0.write().expect("nobody panicked");
            iotlb().set_mapping(from, GuestAddress(0), len, Permissions::ReadWrite)?;
            iotlb().invalidate_mapping(from, len);
            Ok(())
        }
    }

    impl<G: Guard> Door for ByIommu<'_, G> {
        #[inline(always)]
        fn read(&self, at: u64, into: &mut [u8]) {
            assert!(self.guest.read_slice(into, GuestAddress(at)).is_ok());
        }

        #[inline(always)]
        fn write(&self, at: u64, from: &[u8]) {
            assert!(self.guest.write_slice(from, GuestAddress(at)).is_ok());
        }

        #[inline(always)]
        fn read_word(&self, at: u64) -> u64 {
            self.guest.read_obj(GuestAddress(at)).expect("it is there")
        }

        #[inline(always)]
        fn write_word(&self, at: u64, word: u64) {
            self.guest.write_obj(word, GuestAddress(at)).expect("it is there");
        }
    }

    impl<'m, G: Guard> Doors for ByIommu<'m, G> {
        type Door<'a>
            = &'a Self
        where
            Self: 'a;

        fn open(&self, _thread: u64) -> &Self {
            self
        }

        fn address(&self, place: u64) -> u64 {
            BASE + place
        }
    }
}
