//! Which transfers go through bounce buffers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longshore_mem::Granule;

use crate::direction::Direction;
use crate::pool::classes::Class;
use crate::pool::kind::Kind;

/// When a transfer is copied through memory that stays mapped, instead of being mapped itself.
///
/// A bounce buffer belongs to one transfer, and no two share a granule: all that the device can reach
/// beyond the bytes of the transfer is zero. Bounce buffers lie in chunks of 2 MiB, each of which is
/// mapped once, for one direction. A [`Local`](crate::Local) handle caches a few, so that its transfers
/// take no lock once it is warm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bounce {
    /// Only if it must be: the memory is not made of whole granules, and the device is not
    /// [trusted](crate::Builder::trusted) with the bytes beside it. A transfer longer than the largest
    /// bounce buffer (64 granules: 256 KiB with granules of 4 KiB) is mapped, and only its ends that
    /// share a granule with other bytes are copied.
    Never,
    /// Where it has fewer bytes than this, and fits a slot.
    Below(u64),
    /// Wherever it fits a slot: for tests.
    Always,
}

/// What happens to a transfer that would be bounced when the pools may not grow any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// It is mapped itself, where it is made of whole granules, and else refused.
    MapDirectly,
    /// It is refused.
    Refuse,
    /// It waits so long for other transfers to end, and is refused then. A thread that has all the
    /// slots itself waits in vain.
    Wait(Duration),
}

/// What a domain was told.
#[derive(Debug)]
pub(crate) struct Policy {
    /// What has fewer bytes than this is bounced, where it fits.
    below: AtomicU64,
    pub(crate) when_full: WhenFull,
    /// `true` if the device may reach bytes that share a granule with a transfer; never for one that is
    /// code of this process.
    pub(crate) trusted: bool,
    /// Bits of an address that a bounce buffer keeps; all below the granule.
    pub(crate) align_mask: u64,
}

/// How a transfer is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Its granules are mapped.
    Direct,
    /// It is copied.
    Bounce { kind: Kind, else_direct: bool },
    /// What lies in whole granules is mapped, and the ends are copied.
    Unaligned,
}

impl Policy {
    pub(crate) fn new(bounce: Bounce, when_full: WhenFull, trusted: bool, align_mask: u64) -> Self {
        let policy = Self { below: AtomicU64::new(0), when_full, trusted, align_mask };
        policy.set(bounce);
        policy
    }

    /// For transfers that begin from here on.
    pub(crate) fn set(&self, bounce: Bounce) {
        let below = match bounce {
            Bounce::Never => 0,
            Bounce::Below(bytes) => bytes,
            Bounce::Always => u64::MAX,
        };
        self.below.store(below, Ordering::Relaxed);
    }

    pub(crate) fn bounce(&self) -> Bounce {
        match self.below.load(Ordering::Relaxed) {
            0 => Bounce::Never,
            u64::MAX => Bounce::Always,
            bytes => Bounce::Below(bytes),
        }
    }

    /// Whether so many bytes are better copied.
    pub(crate) fn bounces(&self, len_bytes: u64) -> bool {
        len_bytes < self.below.load(Ordering::Relaxed)
    }

    /// Where in a slot a transfer begins whose memory is at `start`: slots begin with a granule, so the
    /// bits that are kept are this offset.
    #[inline(always)]
    pub(crate) fn slot_offset(&self, start: u64) -> u64 {
        start & self.align_mask
    }

    #[inline]
    pub(crate) fn route(
        &self,
        granule: Granule,
        start: u64,
        len_bytes: u64,
        direction: Direction,
    ) -> Route {
        let maps = self.trusted || granule.is_aligned(start | len_bytes);
        let bounces = !maps || self.bounces(len_bytes);
        if bounces
            && let Some(class) =
                Class::of_bytes(self.slot_offset(start) + len_bytes, granule.log2())
        {
            let else_direct = maps && self.when_full == WhenFull::MapDirectly;
            return Route::Bounce { kind: Kind { class, direction }, else_direct };
        }
        if maps { Route::Direct } else { Route::Unaligned }
    }
}
