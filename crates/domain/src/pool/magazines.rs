//! Slots that a door keeps for its next transfers.

use std::fmt;

use super::chunk::{Kind, Slot};
use super::{KINDS, PoolError, Pools};
use crate::core::Core;

/// Slots of one kind that are kept at most, and granules that they may have together.
const SLOTS: u64 = 8;
const GRANULES: u64 = 16;

/// One thread's slots. As long as they suffice, taking and giving back costs no lock. Before it is
/// dropped they must be given back ([`clear`](Self::clear)).
pub(crate) struct Magazines {
    /// By kind. One that was never used has no memory.
    kept: Box<[Vec<Slot>]>,
}

impl Magazines {
    pub(crate) fn new() -> Self {
        Self { kept: (0..KINDS).map(|_| Vec::new()).collect() }
    }

    #[inline(always)]
    pub(crate) fn take(
        &mut self,
        core: &Core,
        pools: &Pools,
        kind: Kind,
    ) -> Result<Slot, PoolError> {
        let kept = &mut self.kept[kind.index()];
        match kept.pop() {
            Some(slot) => Ok(slot),
            None => refill(kept, core, pools, kind),
        }
    }

    #[inline(always)]
    pub(crate) fn give(&mut self, pools: &Pools, slot: Slot) {
        let kind = slot.kind();
        let kept = &mut self.kept[kind.index()];
        if kept.len() >= most(kind) {
            pools.give(kind, kept.drain(..most(kind).div_ceil(2)));
        }
        kept.push(slot);
    }

    /// Gives all of them back.
    pub(crate) fn clear(&mut self, pools: &Pools) {
        for kept in &mut self.kept {
            if let Some(kind) = kept.first().map(Slot::kind) {
                pools.give(kind, kept.drain(..));
            }
        }
    }
}

#[cold]
fn refill(kept: &mut Vec<Slot>, core: &Core, pools: &Pools, kind: Kind) -> Result<Slot, PoolError> {
    kept.reserve_exact(most(kind));
    pools.take(core, kind, most(kind).div_ceil(2), |slot| kept.push(slot))?;
    Ok(kept.pop().expect("there is one at least"))
}

#[inline(always)]
fn most(kind: Kind) -> usize {
    (GRANULES / kind.class.granules()).clamp(1, SLOTS) as usize
}

impl fmt::Debug for Magazines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots: usize = self.kept.iter().map(Vec::len).sum();
        f.debug_struct("Magazines").field("slots", &slots).finish()
    }
}
