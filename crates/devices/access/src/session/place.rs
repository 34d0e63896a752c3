//! The target of a translation ([`Place`]).

use std::sync::Arc;

use longshore_mem::GuestPhys;

use crate::region::RemoteMemory;
use crate::tlb;

/// The target of a translation.
pub(crate) enum Place {
    /// Memory of this process.
    Direct(tlb::Entry),
    /// Remote memory: `len` bytes from `offset` on, at most as many as were requested.
    Remote { memory: Arc<dyn RemoteMemory>, offset: u64, guest_phys: Option<GuestPhys>, len: usize },
}
