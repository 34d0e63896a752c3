//! The same work by other crates. None of them cleans caches, links a whole subtree at once or tracks
//! what a TLB may contain: each row is of a coherent walker.
#![expect(unsafe_code, reason = "the peers take pointers to tables")]

use std::alloc::{Layout as MemoryLayout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use aarch64_paging::descriptor::{El1Attributes, PhysicalAddress};
use aarch64_paging::paging::{Constraints, El1And0, MemoryRegion, RootTable, Translation, VaRange};
use x86_64::structures::paging::mapper::{MappedPageTable, MapperFlush, PageTableFrameMapping};
use x86_64::structures::paging::{
    FrameAllocator, Mapper, Page, PageTable, PageTableFlags, PhysFrame, Size2MiB, Size4KiB,
    Translate,
};
use x86_64::{PhysAddr, VirtAddr};

use super::layout::{Piece, Stretch};
use super::tables::Tables;

const FRAME_LOG2: u32 = 12;
const FRAME_BYTES: usize = 1 << FRAME_LOG2;
/// Enough tables for every case; the sparse one takes the most.
const FRAMES: usize = 8192;

/// Frames for a peer's tables, with equal virtual and physical addresses. Taking or returning one is a
/// few instructions, so that no peer is slowed down by an allocator.
struct Frames {
    start: NonNull<u8>,
    free: Vec<u32>,
    fresh: u32,
}

impl Frames {
    fn layout() -> MemoryLayout {
        MemoryLayout::from_size_align(FRAMES * FRAME_BYTES, 1 << 21).expect("a power of two")
    }

    fn new() -> Self {
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(Self::layout()) }).expect("there is memory");
        Self { start, free: Vec::with_capacity(FRAMES), fresh: 0 }
    }

    /// Takes a frame, whose content is arbitrary.
    #[inline]
    fn take(&mut self) -> NonNull<u8> {
        let index = self.free.pop().unwrap_or_else(|| {
            self.fresh += 1;
            self.fresh - 1
        });
        assert!((index as usize) < FRAMES);
        // SAFETY: the offset is inside the allocation.
        unsafe { self.start.add((index as usize) << FRAME_LOG2) }
    }

    #[inline]
    fn give_back(&mut self, frame: NonNull<u8>) {
        let offset = frame.addr().get() - self.start.addr().get();
        self.free.push((offset >> FRAME_LOG2) as u32);
    }

    fn give_back_all(&mut self) {
        self.free.clear();
        self.fresh = 0;
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), Self::layout()) };
    }
}

fn zero(frame: NonNull<u8>) {
    // SAFETY: a whole frame, which no other code uses.
    unsafe { frame.write_bytes(0, FRAME_BYTES) };
}

// --- aarch64-paging ---------------------------------------------------------------------------

type ArmTable = aarch64_paging::paging::PageTable<El1Attributes>;

struct ArmFrames(Frames);

impl Translation<El1Attributes> for ArmFrames {
    fn allocate_table(&mut self) -> (NonNull<ArmTable>, PhysicalAddress) {
        let frame = self.0.take();
        zero(frame);
        (frame.cast(), PhysicalAddress(frame.addr().get()))
    }

    unsafe fn deallocate_table(&mut self, table: NonNull<ArmTable>) {
        self.0.give_back(table.cast());
    }

    fn physical_to_virtual(&self, address: PhysicalAddress) -> NonNull<ArmTable> {
        let frames = self.0.start;
        // SAFETY: the address is that of one of the frames.
        unsafe { frames.byte_add(address.0 - frames.addr().get()) }.cast()
    }
}

/// `aarch64-paging`: Arm stage 1, 4 KiB granule, four levels.
pub(super) struct Aarch64Paging(RootTable<El1And0, ArmFrames>);

impl Aarch64Paging {
    pub(super) fn new() -> Self {
        let frames = ArmFrames(Frames::new());
        Self(RootTable::with_va_range(frames, 0, El1And0, VaRange::Lower))
    }

    fn region(stretch: &Stretch) -> MemoryRegion {
        let start = stretch.iova as usize;
        MemoryRegion::new(start, start + stretch.len_bytes as usize)
    }
}

impl Tables for Aarch64Paging {
    #[inline]
    fn map(&mut self, piece: &Piece) {
        let flags = El1Attributes::VALID
            | El1Attributes::ATTRIBUTE_INDEX_1
            | El1Attributes::ACCESSED
            | El1Attributes::NON_GLOBAL;
        let bus = PhysicalAddress(piece.bus as usize);
        let region = Self::region(&piece.stretch());
        let done = self.0.map_range(&region, bus, flags, Constraints::empty());
        assert!(done.is_ok());
    }

    #[inline]
    fn unmap(&mut self, stretch: &Stretch) {
        let nothing = El1Attributes::empty();
        let region = Self::region(stretch);
        let done = self.0.map_range(&region, PhysicalAddress(0), nothing, Constraints::empty());
        assert!(done.is_ok());
    }

    fn reset(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            self.unmap(&piece.stretch());
        }
        self.0.compact_subtables();
    }

    #[inline]
    fn lookup(&self, iova: u64) -> u64 {
        let page = iova & !(FRAME_BYTES as u64 - 1);
        let region = Self::region(&Stretch { iova: page, len_bytes: FRAME_BYTES as u64 });
        let mut found = 0;
        let done = self.0.walk_range(&region, &mut |_, entry, level| {
            if entry.is_valid() {
                let below = (1u64 << (39 - 9 * level)) - 1;
                found = entry.output_address().0 as u64 & !below | iova & below;
            }
            Ok(())
        });
        assert!(done.is_ok());
        found
    }
}

// --- x86_64 -----------------------------------------------------------------------------------

#[derive(Clone, Copy)]
struct Identity(NonNull<u8>);

// SAFETY: a frame's physical address equals its virtual address.
unsafe impl PageTableFrameMapping for Identity {
    #[inline]
    fn frame_to_pointer(&self, frame: PhysFrame) -> *mut PageTable {
        let address = frame.start_address().as_u64() as usize;
        self.0.as_ptr().with_addr(address).cast()
    }
}

// SAFETY: no frame is handed out twice.
unsafe impl FrameAllocator<Size4KiB> for Frames {
    #[inline]
    fn allocate_frame(&mut self) -> Option<PhysFrame<Size4KiB>> {
        let address = self.take().addr().get() as u64;
        Some(PhysFrame::containing_address(PhysAddr::new(address)))
    }
}

/// `x86_64`: four levels.
pub(super) struct X86_64 {
    frames: Frames,
    mapper: MappedPageTable<'static, Identity>,
}

impl X86_64 {
    pub(super) fn new() -> Self {
        let mut frames = Frames::new();
        let mapper = Self::empty(&mut frames);
        Self { frames, mapper }
    }

    fn empty(frames: &mut Frames) -> MappedPageTable<'static, Identity> {
        let root = frames.take();
        zero(root);
        // SAFETY: a table of zeros, which lives as long as the frames; the frames live at least as long
        // as the mapper.
        let table = unsafe { root.cast::<PageTable>().as_mut() };
        // SAFETY: an empty hierarchy.
        unsafe { MappedPageTable::new(table, Identity(frames.start)) }
    }

    const FLAGS: PageTableFlags = PageTableFlags::PRESENT
        .union(PageTableFlags::WRITABLE)
        .union(PageTableFlags::USER_ACCESSIBLE)
        .union(PageTableFlags::ACCESSED);
}

impl Tables for X86_64 {
    #[inline]
    fn map(&mut self, piece: &Piece) {
        let page_bytes = 1u64 << piece.page_log2;
        for offset in (0..piece.len_bytes).step_by(page_bytes as usize) {
            let iova = VirtAddr::new(piece.iova + offset);
            let bus = PhysAddr::new(piece.bus + offset);
            let frames = &mut self.frames;
            let done = if piece.page_log2 == FRAME_LOG2 {
                let (page, frame) = (
                    Page::<Size4KiB>::containing_address(iova),
                    PhysFrame::containing_address(bus),
                );
                // SAFETY: no processor uses these tables.
                unsafe { self.mapper.map_to(page, frame, Self::FLAGS, frames) }
                    .map(MapperFlush::ignore)
                    .is_ok()
            } else {
                let (page, frame) = (
                    Page::<Size2MiB>::containing_address(iova),
                    PhysFrame::containing_address(bus),
                );
                // SAFETY: as above.
                unsafe { self.mapper.map_to(page, frame, Self::FLAGS, frames) }
                    .map(MapperFlush::ignore)
                    .is_ok()
            };
            assert!(done);
        }
    }

    /// Unmaps page by page; the crate must be given the page size.
    #[inline]
    fn unmap(&mut self, stretch: &Stretch) {
        let mut at = stretch.iova;
        let end = stretch.iova + stretch.len_bytes;
        while at < end {
            let page = Page::<Size4KiB>::containing_address(VirtAddr::new(at));
            if let Ok((_, flush)) = self.mapper.unmap(page) {
                flush.ignore();
                at += 1 << FRAME_LOG2;
                continue;
            }
            let page = Page::<Size2MiB>::containing_address(VirtAddr::new(at));
            match self.mapper.unmap(page) {
                Ok((_, flush)) => flush.ignore(),
                Err(error) => panic!("{error:?}"),
            }
            at += 1 << 21;
        }
    }

    fn reset(&mut self, _pieces: &[Piece]) {
        self.frames.give_back_all();
        self.mapper = Self::empty(&mut self.frames);
    }

    #[inline]
    fn lookup(&self, iova: u64) -> u64 {
        self.mapper.translate_addr(VirtAddr::new(iova)).map_or(0, PhysAddr::as_u64)
    }
}

// --- page_table_multiarch ---------------------------------------------------------------------

#[cfg(target_arch = "x86_64")]
pub(super) use multiarch::Multiarch;

#[cfg(target_arch = "x86_64")]
mod multiarch {
    use std::cell::RefCell;
    use std::ptr::NonNull;

    use page_table_multiarch::x86_64::X64PageTable;
    use page_table_multiarch::{MappingFlags, PagingHandler};

    use super::{Frames, Piece, Stretch, Tables};

    thread_local! {
        /// The frames are thread-local because the crate's handlers have no state of their own.
        static FRAMES: RefCell<Frames> = RefCell::new(Frames::new());
    }

    struct Handler;

    impl PagingHandler for Handler {
        fn alloc_frames(_num: usize, _align: usize) -> Option<memory_addr::PhysAddr> {
            let frame = FRAMES.with_borrow_mut(Frames::take);
            Some(memory_addr::PhysAddr::from(frame.as_ptr().expose_provenance()))
        }

        fn dealloc_frames(frame: memory_addr::PhysAddr, _num: usize) {
            let frame = NonNull::new(std::ptr::with_exposed_provenance_mut(frame.as_usize()));
            FRAMES.with_borrow_mut(|frames| frames.give_back(frame.expect("a frame")));
        }

        fn phys_to_virt(frame: memory_addr::PhysAddr) -> memory_addr::VirtAddr {
            memory_addr::VirtAddr::from(frame.as_usize())
        }
    }

    /// `page_table_multiarch`: x86-64, four levels.
    pub(in super::super) struct Multiarch(X64PageTable<Handler>);

    impl Multiarch {
        pub(in super::super) fn new() -> Self {
            Self(X64PageTable::try_new().expect("there is memory"))
        }
    }

    impl Tables for Multiarch {
        #[inline]
        fn map(&mut self, piece: &Piece) {
            let flags = MappingFlags::READ | MappingFlags::WRITE | MappingFlags::USER;
            let delta = piece.bus.wrapping_sub(piece.iova) as usize;
            let done = self.0.cursor().map_region(
                (piece.iova as usize).into(),
                |iova| (usize::from(iova)).wrapping_add(delta).into(),
                piece.len_bytes as usize,
                flags,
                true,
            );
            assert!(done.is_ok());
        }

        #[inline]
        fn unmap(&mut self, stretch: &Stretch) {
            let done = self
                .0
                .cursor()
                .unmap_region((stretch.iova as usize).into(), stretch.len_bytes as usize);
            assert!(done.is_ok());
        }

        fn reset(&mut self, _pieces: &[Piece]) {
            self.0 = X64PageTable::try_new().expect("there is memory");
        }

        #[inline]
        fn lookup(&self, iova: u64) -> u64 {
            match self.0.query((iova as usize).into()) {
                Ok((bus, ..)) => bus.as_usize() as u64,
                Err(_) => 0,
            }
        }
    }
}
