//! The slots that a `Local` handle caches for its next transfers.

use std::fmt;

use super::Pools;
use super::chunk::Slot;
use super::error::PoolError;
use super::kind::{KINDS, Kind};
use crate::core::Core;

/// The maximum number of cached slots of one kind, and of their granules together.
const SLOTS: u64 = 8;
const GRANULES: u64 = 16;

/// The cached slots of one thread. While there are neither none nor too many, taking and giving back
/// take no lock. The slots must be given back ([`clear`](Self::clear)) before this is dropped.
pub(crate) struct Magazines {
    /// The slots by kind. A kind that was never used has no memory.
    kept: Box<[Vec<Slot>]>,
}

impl Magazines {
    pub(crate) fn new() -> Self {
        Self { kept: (0..KINDS).map(|_| Vec::new()).collect() }
    }

    /// Takes a slot.
    #[inline(always)]
    pub(crate) fn take(&mut self, kind: Kind) -> Option<Slot> {
        self.kept[kind.index()].pop()
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

    /// Gives all slots back.
    pub(crate) fn clear(&mut self, pools: &Pools) {
        for kept in &mut self.kept {
            if let Some(kind) = kept.first().map(Slot::kind) {
                pools.give(kind, kept.drain(..));
            }
        }
    }
}

/// Slots that were taken together: one for a transfer, and others for the cache.
pub(crate) struct Refill(pub(crate) Slot, pub(crate) [Option<Slot>; SLOTS as usize / 2]);

/// Takes slots from the pools for magazines that have none of this kind. It is not a method, because
/// the cache must not be in use during the call.
pub(crate) fn refill(core: &Core, pools: &Pools, kind: Kind) -> Result<Refill, PoolError> {
    let (mut first, mut others, mut count) = (None, [const { None }; SLOTS as usize / 2], 0);
    pools.take(core, kind, most(kind).div_ceil(2), |slot| match first {
        None => first = Some(slot),
        Some(_) => {
            others[count] = Some(slot);
            count += 1;
        }
    })?;
    Ok(Refill(first.expect("there is one at least"), others))
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
