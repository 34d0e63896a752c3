//! Frees all memory of a domain that is not in use.
#![expect(unsafe_code, reason = "tells a backend which addresses are not mapped")]

use std::time::Duration;

use longshore_mem::AddrRange;

use super::Domain;
use crate::backend::BackendError;
use crate::pool::reclaim_thread::Reclaim as _;
use crate::trace::span;

/// The result of [`Domain::reclaim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Reclaimed {
    /// Bytes of bounce buffers and of DMA pools.
    pub pool_bytes: u64,
    /// Page tables of the backend. Other threads that map meanwhile make the count inexact.
    pub tables: u64,
}

impl Domain {
    /// Frees everything that is not in use:
    ///
    /// * bounce buffers that no transfer uses;
    /// * chunks of [DMA pools](Domain::dma_pool) of which no element is in use, except each pool's
    ///   [reserve](crate::DmaPoolOptions::reserve);
    /// * addresses, bounce buffers and elements of DMA pools that other threads cache for their next
    ///   transfers;
    /// * page tables of [`Soft`](crate::backend::Soft) that map nothing.
    ///
    /// [`shrink`](Self::shrink) does the same, except for the page tables. Unmapping frees a table only
    /// if one call covers all of it; pages that are unmapped one by one leave empty tables. The search
    /// reads all tables, and threads whose caches run out of addresses wait for it. So call this when
    /// memory matters more than the next transfers: after a burst, or before a long pause. Transfers
    /// that are mapped are not disturbed.
    ///
    /// ```
    /// use longshore_domain::{Bounce, Direction, Domain, backend::Soft};
    /// use longshore_heap::Heap;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let soft = Soft::new()?;
    /// let space = soft.space().clone();
    /// let domain = Domain::builder(soft).bounce(Bounce::Always).build();
    /// drop(domain.map(Heap::Memfd.allocate(4096)?, Direction::ToDevice)?);
    /// let freed = domain.reclaim()?;
    /// assert_eq!(freed.pool_bytes, 2 << 20);
    /// assert_eq!(space.tables(), 1); // the root
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BackendError`] if a chunk of bounce buffers or of a DMA pool could not be unmapped; the chunk
    /// is leaked. If this thread cannot unmap it because it holds a pin of a session of the space, or a
    /// lease of the chunk, the chunk is kept instead, and can be freed later.
    pub fn reclaim(&self) -> Result<Reclaimed, BackendError> {
        let _span = span!("reclaim",);
        let state = self.state();
        let pool_bytes = state.shrink(Duration::ZERO);
        let core = &state.core;
        let ends = core.limits.usable.iter().filter_map(|range| range.last());
        let end = ends.map(|last| last.raw().saturating_add(1)).max().unwrap_or(0);
        let mut each_unused =
            |each: &mut dyn FnMut(AddrRange<_>)| core.iovas.each_unused(end, each);
        // SAFETY: the domain maps at addresses that it has taken, and gives them back after they are
        // unmapped. `each_unused` passes only addresses that are not taken, and none can be taken while
        // it runs.
        let tables = unsafe { core.backend.reclaim(&mut each_unused) }?;
        Ok(Reclaimed { pool_bytes: pool_bytes?, tables })
    }
}
