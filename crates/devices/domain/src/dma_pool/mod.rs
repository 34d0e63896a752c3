//! DMA pools: elements of one length in memory that stays mapped.
//!
//! A pool uses the chunks of bounce buffers (`crate::pool`), with elements of any length in them.

mod cache;
mod element;
mod options;
pub(crate) mod refs;
pub(crate) mod shared;
#[cfg(test)]
mod tests;
mod threads;
mod usage;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::backend::BackendError;
use crate::direction::Direction;
use crate::domain::Domain;
use crate::error::Error;
use crate::state::DmaChunks as _;
pub use element::{DmaElement, DmaSlice, SliceError};
pub use options::DmaPoolOptions;
use shared::Shared;
pub use usage::DmaPoolUsage;

/// A pool of elements of one length that the device can reach all the time, like the kernel's
/// `dma_pool` and DPDK's mempools.
///
/// ```text
///   a thread      its cache: up to 64 elements               no lock
///                    │  ▲
///                    ▼  │  half of them at once
///   the pool      chunks with their free elements            a lock
///                    │  ▲
///                    ▼  │  2 MiB at once
///   the domain    memory, IOVAs, the backend                 map, unmap
/// ```
///
/// Each thread caches up to 64 elements for its next use, so that once warm [`take`](Self::take) and
/// dropping an element allocate nothing, take no lock and make no system call. If one thread takes
/// and another drops, each takes a lock once for half a cache. An element longer than 2 MiB has a
/// chunk of its own length.
///
/// The device can reach every element of the pool at any time, also free ones: a pool saves mapping and
/// unmapping each transfer, but also gives up the protection by them. Elements of a pool for
/// [`Direction::ToDevice`] are read-only for the device.
///
/// A pool can be dropped before its elements, and before or after its domain: each chunk stays mapped
/// until its last element is dropped, and is unmapped and freed then. If the dropping thread cannot
/// unmap it, for example because it holds a pin, a thread of this crate does so later. An element that
/// is leaked ([`mem::forget`](std::mem::forget)) keeps its chunk and the domain's backend for ever.
///
/// ```
/// use longshore_domain::{DmaPoolOptions, Domain, backend::Soft};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let soft = Soft::new()?;
/// let device = soft.space().session();
/// let domain = Domain::builder(soft).build();
///
/// // Lists of 256 bytes, of which none may cross a page.
/// let options = DmaPoolOptions::new().boundary(4096).limit(1000);
/// let pool = domain.dma_pool(256, 64, options)?;
/// let mut list = pool.take()?;
/// list.write_at(0, b"a descriptor")?;
/// let mut seen = [0; 12];
/// device.read(list.iova(), &mut seen)?;
/// assert_eq!(&seen, b"a descriptor");
///
/// // A received packet: its header and its payload go to different threads.
/// let packet = pool.take()?.freeze();
/// let (header, payload) = (packet.slice(0..14)?, packet.slice(14..100)?);
/// drop(packet);
/// std::thread::spawn(move || drop(payload)).join().unwrap();
/// drop(header); // The element returns to the pool here.
/// # Ok(())
/// # }
/// ```
pub struct DmaPool {
    shared: Arc<Shared>,
}

impl Domain {
    /// Makes a pool of elements of one length.
    ///
    /// `element_len` is the length of an element in bytes: 1 byte to 1 GiB. `align` is the alignment of
    /// its IOVA in bytes: a power of two of at most 1 GiB. `dma_pool(2048, 64, ..)` makes elements of
    /// 2048 bytes at multiples of 64. The pool takes memory as it is needed, a chunk of 2 MiB at a
    /// time, unless [some is reserved](DmaPoolOptions::reserve).
    ///
    /// Its chunks, and some 50 bytes of state for each element, are charged to the budget of the process
    /// ([`set_process_budget`](crate::set_process_budget)). Idle chunks are freed like those of bounce
    /// buffers ([`Builder::free_after`](crate::Builder::free_after), [`shrink`](Self::shrink)).
    ///
    /// # Errors
    /// [`Error::PoolLayout`] if the lengths and options do not fit together; [`Error::Pool`] if the
    /// reserve could not be allocated.
    pub fn dma_pool(
        &self,
        element_len: u64,
        align: u64,
        options: DmaPoolOptions,
    ) -> Result<DmaPool, Error> {
        let pool = DmaPool { shared: Shared::new(self.state(), element_len, align, &options)? };
        // If this fails, the pool is dropped, and frees its chunks.
        let chunks: Weak<Shared> = Arc::downgrade(&pool.shared);
        self.state().dma_pools.add(chunks);
        pool.shared.reserve()?;
        Ok(pool)
    }
}

impl DmaPool {
    /// Takes an element whose bytes are all zero.
    ///
    /// # Errors
    /// [`Error::Pool`]: [`PoolError::Exhausted`](crate::PoolError::Exhausted) if all elements that the
    /// limit allows are in use, otherwise the reason that no chunk could be added. [`Error::Copy`] if
    /// the element's memory is missing.
    #[inline]
    pub fn take(&self) -> Result<DmaElement, Error> {
        let mut element = self.take_unzeroed()?;
        match element.zero() {
            Ok(()) => Ok(element),
            Err(source) => Err(Error::Copy { iova: element.iova(), source }),
        }
    }

    /// Takes an element without clearing it. It has the bytes of its last use, which may belong to
    /// another transfer, or zeros if it is new.
    ///
    /// This avoids writing an element twice if all of it is overwritten anyway. Do not use it if the
    /// device could read bytes that were not overwritten.
    ///
    /// # Errors
    /// [`Error::Pool`], as [`take`](Self::take).
    #[inline]
    pub fn take_unzeroed(&self) -> Result<DmaElement, Error> {
        Ok(DmaElement::whole(threads::take(&self.shared)?))
    }

    /// Returns the length of an element in bytes.
    pub fn element_len(&self) -> usize {
        self.shared.element_len() as usize
    }

    /// Returns the direction of the transfers.
    pub fn direction(&self) -> Direction {
        self.shared.direction()
    }

    /// Returns how many elements are in use, cached and free.
    pub fn usage(&self) -> DmaPoolUsage {
        self.shared.usage()
    }

    /// Frees the chunks of which no element is in use, except the [reserve](DmaPoolOptions::reserve).
    /// Elements in the caches of threads are not in use. Returns the number of bytes that were freed.
    ///
    /// # Errors
    /// [`BackendError`] if a chunk could not be unmapped; it is leaked. If this thread cannot unmap it
    /// because of a pin or a lease of its own, the chunk is kept instead, and can be freed later.
    pub fn shrink(&self) -> Result<u64, BackendError> {
        Ok(self.shared.shrink(Duration::ZERO)?)
    }
}

impl Drop for DmaPool {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl fmt::Debug for DmaPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaPool").field("usage", &self.usage()).finish_non_exhaustive()
    }
}
