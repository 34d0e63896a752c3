//! The addresses and bounce buffers that a thread keeps for its next mappings.

use crate::core::Core;
use crate::iova::IovaCache;
use crate::pool::Pools;
use crate::pool::magazines::Magazines;

/// The cache of a [`Local`](crate::Local) handle.
#[derive(Debug)]
pub(crate) struct LocalCache {
    pub(crate) iovas: IovaCache,
    pub(crate) slots: Magazines,
}

impl LocalCache {
    pub(crate) fn new(core: &Core) -> Self {
        Self { iovas: IovaCache::new(&core.iovas), slots: Magazines::new() }
    }

    /// Gives everything back.
    pub(crate) fn clear(&mut self, core: &Core, pools: &Pools) {
        self.iovas.clear(&core.iovas);
        self.slots.clear(pools);
    }
}
