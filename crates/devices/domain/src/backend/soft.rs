//! The backend in this process: device models reach memory through sessions of a space.
#![expect(unsafe_code, reason = "maps memory that the domain keeps")]

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use longshore_access::{Space, SpaceConfig};
use longshore_mem::{AddrRange, BusAddr, Granule, Iova};
use longshore_pagetable::Prot;

use super::{Backend, BackendError, EachUnused, Limits, Piece};

/// Page tables in this process. A domain owns the backend; device models keep its
/// [`space`](Self::space), and open sessions in it.
#[derive(Debug)]
pub struct Soft {
    space: Space,
}

impl Soft {
    /// Returns a backend with 48 bits of IOVA.
    ///
    /// # Errors
    /// As [`Space::new`].
    pub fn new() -> Result<Self, longshore_access::Error> {
        Self::with_config(SpaceConfig::new())
    }

    /// Returns a backend with this configuration. Only the domain maps and unmaps, even if
    /// [`raw_only`](SpaceConfig::raw_only) is not set in `config`.
    ///
    /// # Errors
    /// As [`Space::with_config`].
    pub fn with_config(config: SpaceConfig) -> Result<Self, longshore_access::Error> {
        let config = config.with_raw_only(true);
        Ok(Self { space: Space::with_config(config)? })
    }

    /// Returns the space, in which device models open sessions. It also has dirty logs and counters.
    pub fn space(&self) -> &Space {
        &self.space
    }
}

// SAFETY: unmapping returns when no session can reach the memory any more, and sessions check
// permissions. The safe functions that map and unmap return an error (`raw_only`), so other code can
// change the mappings only by an unsafe call.
unsafe impl Backend for Soft {
    fn name(&self) -> &'static str {
        "soft"
    }

    fn limits(&self) -> Limits {
        let bits = self.space.input_bits();
        let usable = AddrRange::new(Iova::new(0), 1 << bits).expect("57 bits at most");
        Limits {
            granule: Granule::SIZE_4K,
            usable: vec![usable],
            reserved: Vec::new(),
            denies_reads: true,
            // It takes 54 ns for 4 KiB, and a bounce 52 to 92 ns (`bench/results/bounce-quiet.jsonl`).
            maps_cheaply: true,
            in_process: true,
        }
    }

    unsafe fn map(&self, iova: Iova, piece: Piece<'_>, prot: Prot) -> Result<(), BackendError> {
        let bus = BusAddr::new(piece.host.expose_provenance().get() as u64);
        // SAFETY: the caller keeps the memory, and no other code uses the addresses.
        Ok(unsafe { self.space.map_raw(iova, bus, piece.len_bytes, prot) }?)
    }

    unsafe fn unmap(&self, ranges: &[AddrRange<Iova>]) -> Result<(), BackendError> {
        contained(|| {
            if let [range] = ranges {
                // SAFETY: mapped by `map` above, and no other code uses the addresses.
                return unsafe { self.space.unmap_raw(range.start(), range.len()) };
            }
            // SAFETY: the same holds for each.
            unsafe { self.space.unmap_raw_each(ranges) }
        })
    }

    fn check_unmap(&self, range: AddrRange<Iova>) -> Result<(), BackendError> {
        Ok(self.space.check_unmap(range.start(), range.len())?)
    }

    unsafe fn reclaim(&self, each_unused: &mut EachUnused<'_>) -> Result<u64, BackendError> {
        // SAFETY: the caller's promise.
        Ok(unsafe { self.space.reclaim_raw(|each| each_unused(each)) }?)
    }
}

/// Calls `unmap`, and returns an error if a callback of the program panics in it.
///
/// Mappings end in destructors, also in those of thread-local values, and on a thread of this crate,
/// where a panic would end the process or the thread. A space stays usable after a panic.
#[inline(always)]
fn contained(
    unmap: impl FnOnce() -> Result<(), longshore_access::Error>,
) -> Result<(), BackendError> {
    match catch_unwind(AssertUnwindSafe(unmap)) {
        Ok(unmapped) => Ok(unmapped?),
        Err(panic) => {
            // Its destructor may panic too.
            mem::forget(panic);
            Err(BackendError::CallbackPanicked)
        }
    }
}
