//! Where an address leads: see [`Place`].

use std::sync::Arc;

use longshore_mem::GuestPhys;

use crate::region::RemoteMemory;
use crate::tlb;

/// Where an address leads.
pub(crate) enum Place {
    /// To memory of this process.
    Direct(tlb::Entry),
    /// To memory that is asked for: from `offset` on as many bytes as were wanted, or fewer.
    Remote { memory: Arc<dyn RemoteMemory>, offset: u64, guest_phys: Option<GuestPhys>, len: usize },
}
