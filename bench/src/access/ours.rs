//! The candidate Longshore: spaces, mapped by regions or by raw calls, with and without a dirty log.
#![expect(unsafe_code, reason = "maps memory that outlives the space")]

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Context, Result};
use longshore_access::dirty::{self, DirtyLog, ExternalLog};
use longshore_access::{Barrier, Logs, Region, Session, Space, SpaceConfig};
use longshore_mem::{AddrRange, BusAddr, Granule, Iova};
use longshore_pagetable::Prot;

use super::accessor::Accessor;
use super::memory::{BASE, Maps, Memory, SPACE_BYTES};

/// The dirty log of a space, by IOVA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Log {
    None,
    /// A log in this process.
    Internal,
    /// A bitmap like the one that another process would share.
    External,
}

/// Creates a space with mappings of a region. The memory must outlive it.
pub(super) fn space(memory: &Memory, maps: &Maps, log: Log) -> Result<Space> {
    let space = Space::new()?;
    let region = region(memory)?;
    space.attach(&region)?;
    for (place, offset) in maps.pieces() {
        let iova = Iova::new(BASE + place);
        space.map(iova, &region, offset, maps.piece_bytes(), Prot::READ_WRITE)?;
    }
    match log {
        Log::None => {}
        Log::Internal => {
            let range = AddrRange::new(Iova::new(BASE), SPACE_BYTES)?;
            let log = Arc::new(DirtyLog::new(Granule::SIZE_4K, range)?);
            let logs = Logs::default().with_iova(dirty::Log::Internal(Arc::clone(&log)));
            log.start(|| space.set_logs(logs))?;
        }
        Log::External => {
            // The bitmap has a bit for each page, from address zero on.
            let words = ((BASE + SPACE_BYTES) / 4096).div_ceil(64) as usize;
            let bits: Arc<[AtomicU64]> = (0..words).map(|_| AtomicU64::new(0)).collect();
            let start = NonNull::from(&*bits).cast::<u8>();
            // SAFETY: the log keeps the bits, which are atomics, and no other code accesses them.
            let log = unsafe { ExternalLog::from_raw_parts(start, words * 8, bits) };
            space.set_logs(Logs::default().with_iova(dirty::Log::External(Arc::new(log))))?;
        }
    }
    Ok(space)
}

/// Creates a region of the memory. The memory must outlive the spaces that the region is attached to.
pub(super) fn region(memory: &Memory) -> Result<Arc<Region>> {
    let start = ptr::with_exposed_provenance_mut(memory.address(0) as usize);
    let start = NonNull::new(start).context("memory is not at address 0")?;
    // SAFETY: the owner of a space borrows the memory, which lends out no reference to its bytes.
    Ok(Arc::new(unsafe { Region::from_raw_parts(start, SPACE_BYTES) }?))
}

/// Creates a space whose entries have host addresses. The memory must outlive it.
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
    // SAFETY: the owner of a space borrows the memory, which lends out no reference to its bytes.
    Ok(unsafe { space.map_raw(iova, bus, len_bytes, Prot::READ_WRITE) }?)
}

impl Accessor for Session {
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
