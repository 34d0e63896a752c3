//! Elements of a DMA pool, taken and dropped, beside mapping each transfer.

use std::hint::black_box;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use longshore_domain::backend::Soft;
use longshore_domain::{DmaPool, DmaPoolOptions, Domain};

use super::timed::{Drive, STRETCH, Work};

/// The operation on each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// It keeps the bytes of its last use.
    Unzeroed,
    /// It is zeroed when it is taken.
    Zeroed,
    /// It is frozen, and a slice of it outlives it.
    Sliced,
}

/// A pool, and the way its elements are used.
pub(super) struct Elements {
    _domain: Domain,
    pool: DmaPool,
    of: Use,
}

impl Elements {
    pub(super) fn new(len_bytes: u64, of: Use) -> Result<Self> {
        // Nothing but what is measured happens meanwhile.
        let domain = Domain::builder(Soft::new()?).free_after(None).build();
        let pool = domain.dma_pool(len_bytes, len_bytes, DmaPoolOptions::new())?;
        Ok(Self { _domain: domain, pool, of })
    }
}

impl Work for Elements {
    fn run(&self, _thread: usize, drive: Drive<'_>) -> Result<()> {
        drive(&mut || {
            for _ in 0..STRETCH {
                let element = match self.of {
                    Use::Zeroed => self.pool.take()?,
                    Use::Unzeroed | Use::Sliced => self.pool.take_unzeroed()?,
                };
                black_box(element.iova());
                if self.of == Use::Sliced {
                    let whole = element.freeze();
                    let slice = whole.slice(16..64)?;
                    drop(whole);
                    black_box(slice.iova());
                }
            }
            Ok(())
        })
    }
}

/// A pool as a short program has it: a list of addresses behind a mutex, nothing counted.
pub(super) struct List(Mutex<Vec<u64>>);

impl List {
    pub(super) fn new() -> Self {
        Self(Mutex::new((0..64).collect()))
    }

    fn take(&self) -> Result<u64> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        taken.context("the list is empty")
    }

    fn give(&self, element: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(element);
    }
}

impl Work for List {
    fn run(&self, _thread: usize, drive: Drive<'_>) -> Result<()> {
        drive(&mut || {
            for _ in 0..STRETCH {
                self.give(black_box(self.take()?));
            }
            Ok(())
        })
    }
}
