//! Longshore: spaces and sessions.
#![expect(unsafe_code, reason = "maps memory that outlives the space")]

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Context, Result};
use longshore_access::dirty::{DirtyLog, ExternalLog, Log};
use longshore_access::{Barrier, Logs, Region, Session, Space, SpaceConfig};
use longshore_mem::{AddrRange, BusAddr, Granule, Iova};
use longshore_pagetable::Prot;

use super::doors::{Door, Doors};
use super::memory::{BASE, Maps, Memory, SPACE_BYTES};

/// One space, or one for each thread.
pub(super) struct Ours<'m> {
    spaces: Vec<Space>,
    _memory: &'m Memory,
}

impl<'m> Ours<'m> {
    /// A space mapped by the safe door, which all threads share.
    pub(super) fn new(memory: &'m Memory, maps: &Maps) -> Result<Self> {
        let space = Space::new()?;
        map_region(&space, &region(memory)?, maps)?;
        Ok(Self { spaces: vec![space], _memory: memory })
    }

    /// As [`new`](Self::new), and what is written is noted in a log of this process, keyed by IOVA.
    pub(super) fn with_internal_log(memory: &'m Memory, maps: &Maps) -> Result<Self> {
        let ours = Self::new(memory, maps)?;
        let range = AddrRange::new(Iova::new(BASE), SPACE_BYTES)?;
        let log = Arc::new(DirtyLog::new(Granule::SIZE_4K, range)?);
        let logs = Logs::default().with_iova(Log::Internal(Arc::clone(&log)));
        log.start(|| ours.spaces[0].set_logs(logs))?;
        Ok(ours)
    }

    /// As [`new`](Self::new), and what is written is noted in a bitmap as another process shares it,
    /// keyed by IOVA.
    pub(super) fn with_external_log(memory: &'m Memory, maps: &Maps) -> Result<Self> {
        let ours = Self::new(memory, maps)?;
        // From address zero on, a bit for each page.
        let words = ((BASE + SPACE_BYTES) / 4096).div_ceil(64) as usize;
        let bits: Arc<[AtomicU64]> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let start = NonNull::from(&*bits).cast::<u8>();
        // SAFETY: the log keeps the bits, which are atomics, and nothing else looks at them.
        let log = unsafe { ExternalLog::from_raw_parts(start, words * 8, bits) };
        let logs = Logs::default().with_iova(Log::External(Arc::new(log)));
        ours.spaces[0].set_logs(logs)?;
        Ok(ours)
    }

    /// `count` spaces mapped by the raw door, one for each thread.
    pub(super) fn raw(
        memory: &'m Memory,
        maps: &Maps,
        count: u64,
        barrier: Option<Barrier>,
    ) -> Result<Self> {
        let spaces = (0..count).map(|_| raw_space(memory, maps, barrier)).collect::<Result<_>>()?;
        Ok(Self { spaces, _memory: memory })
    }

    /// The space of the first thread, or of all.
    pub(super) fn space(&self) -> &Space {
        &self.spaces[0]
    }
}

/// The memory as a region. It must outlive the spaces that the region is attached to.
pub(super) fn region(memory: &Memory) -> Result<Arc<Region>> {
    let start = ptr::with_exposed_provenance_mut(memory.address(0) as usize);
    let start = NonNull::new(start).context("memory is not at address 0")?;
    // SAFETY: whoever keeps a space borrows the memory, which lends out no reference to its bytes.
    Ok(Arc::new(unsafe { Region::from_raw_parts(start, SPACE_BYTES) }?))
}

fn map_region(space: &Space, region: &Arc<Region>, maps: &Maps) -> Result<()> {
    space.attach(region)?;
    for (place, offset) in maps.pieces() {
        let iova = Iova::new(BASE + place);
        space.map(iova, region, offset, maps.piece_bytes(), Prot::READ_WRITE)?;
    }
    Ok(())
}

/// A space whose entries have host addresses. The memory must outlive it.
pub(super) fn raw_space(memory: &Memory, maps: &Maps, barrier: Option<Barrier>) -> Result<Space> {
    let space = Space::with_config(SpaceConfig::new().with_barrier(barrier))?;
    for (place, offset) in maps.pieces() {
        map_raw(&space, memory, place, offset, maps.piece_bytes())?;
    }
    Ok(space)
}

/// Maps `len_bytes` of the space from `place` to the memory from `offset`.
pub(super) fn map_raw(
    space: &Space,
    memory: &Memory,
    place: u64,
    offset: u64,
    len_bytes: u64,
) -> Result<()> {
    let (iova, bus) = (Iova::new(BASE + place), BusAddr::new(memory.address(offset)));
    // SAFETY: whoever keeps a space borrows the memory, which lends out no reference to its bytes.
    Ok(unsafe { space.map_raw(iova, bus, len_bytes, Prot::READ_WRITE) }?)
}

impl Door for Session {
    #[inline(always)]
    fn read(&self, at: u64, into: &mut [u8]) {
        assert!(self.read(Iova::new(at), into).is_ok());
    }

    #[inline(always)]
    fn write(&self, at: u64, from: &[u8]) {
        assert!(self.write(Iova::new(at), from).is_ok());
    }

    #[inline(always)]
    fn read_word(&self, at: u64) -> u64 {
        self.read_obj(Iova::new(at)).expect("it is mapped")
    }

    #[inline(always)]
    fn write_word(&self, at: u64, word: u64) {
        self.write_obj(Iova::new(at), word).expect("it is mapped");
    }
}

impl<'m> Doors for Ours<'m> {
    type Door<'a>
        = Session
    where
        Self: 'a;

    fn open(&self, thread: u64) -> Session {
        self.spaces[thread as usize % self.spaces.len()].session()
    }

    fn address(&self, place: u64) -> u64 {
        BASE + place
    }
}
