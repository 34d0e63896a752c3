//! The rules that decide which transfers go through bounce buffers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longshore_mem::Granule;

use crate::direction::Direction;
use crate::pool::classes::Class;
use crate::pool::kind::Kind;

/// Which transfers are copied through a bounce buffer instead of being mapped themselves.
///
/// A bounce buffer belongs to one transfer, and no two share a granule: all other bytes that the
/// device can reach in it are zero. Bounce buffers lie in chunks of 2 MiB, each of which is mapped
/// once, for one direction. A [`Local`](crate::Local) handle caches a few, so that its transfers
/// take no lock once it is warm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bounce {
    /// Bounce only the transfers that must be: the memory does not consist of whole granules, and
    /// the device is not [trusted](crate::Builder::trusted) with the bytes beside it. A transfer
    /// longer than the largest bounce buffer (64 granules: 256 KiB with granules of 4 KiB) is
    /// mapped, and only its ends that share a granule with other bytes are copied.
    Never,
    /// Bounce also transfers of fewer bytes than this that fit into a bounce buffer.
    Below(u64),
    /// Bounce all transfers that fit into a bounce buffer: for tests.
    Always,
}

/// The handling of a transfer that would be bounced when the pools are at their limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenFull {
    /// The transfer is mapped itself if it consists of whole granules. Otherwise it fails.
    MapDirectly,
    /// The transfer fails.
    Refuse,
    /// The transfer waits up to this long for other transfers to end, and then fails. A thread that
    /// holds all the slots itself waits in vain.
    Wait(Duration),
}

/// The policy of a domain.
#[derive(Debug)]
pub(crate) struct Policy {
    /// Transfers of fewer bytes than this are bounced if they fit.
    below: AtomicU64,
    pub(crate) when_full: WhenFull,
    /// `true` if the device may reach bytes that share a granule with a transfer. Always `false`
    /// for a device that is code of this process.
    pub(crate) trusted: bool,
    /// The bits of an address that a bounce buffer keeps, all below the granule.
    pub(crate) align_mask: u64,
}

/// The way in which a transfer is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// All its granules are mapped.
    Direct,
    /// It is copied to a bounce buffer.
    Bounce { kind: Kind, else_direct: bool },
    /// Its whole granules are mapped, and its ends are copied.
    Unaligned,
}

impl Policy {
    pub(crate) fn new(bounce: Bounce, when_full: WhenFull, trusted: bool, align_mask: u64) -> Self {
        let policy = Self { below: AtomicU64::new(0), when_full, trusted, align_mask };
        policy.set(bounce);
        policy
    }

    /// Sets the policy for transfers that begin after this call.
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

    /// Returns true if a copy is better for this many bytes.
    pub(crate) fn bounces(&self, len_bytes: u64) -> bool {
        len_bytes < self.below.load(Ordering::Relaxed)
    }

    /// Returns the offset in its slot of a transfer whose memory is at `start`. A slot begins at a
    /// granule, so the offset is the value of the bits that are kept.
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
