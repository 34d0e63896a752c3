//! The expected state of a domain, which outlives rounds, and the checks of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use longshore_access::Session;
use longshore_domain::{Counters, Domain};

use crate::backend::{CHUNK, Entry, Script, lock};
use crate::memory::PAGE;
use crate::oracle::{Rules, Transfer};

/// The expected state of a domain, which outlives rounds.
pub(crate) struct Books {
    pub(crate) rules: Rules,
    pub(crate) sessions: [Session; 2],
    script: Arc<Mutex<Script>>,
    pub(crate) pool_limit: u64,
    pub(crate) is_narrow: bool,
    pub(crate) counts: Counts,
    pub(crate) transfers: BTreeMap<u64, Transfer>,
    /// Transfers whose memory is leaked.
    pub(crate) lost: Vec<Transfer>,
    /// The number of leaked allocations of coherent memory.
    pub(crate) lost_shares: u64,
    /// `true` if slots, a chunk or addresses are leaked for good.
    pub(crate) is_stuck: bool,
    pub(crate) next: u64,
    pub(crate) past: Vec<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) maps: u64,
    pub(crate) unmaps: u64,
    pub(crate) bounced: u64,
    pub(crate) copied: u64,
    pub(crate) flushes: u64,
    pub(crate) leaked: u64,
}

impl From<Counters> for Counts {
    fn from(of: Counters) -> Self {
        let Counters { maps, unmaps, bounced, copied_bytes: copied, flushes, leaked, .. } = of;
        Self { maps, unmaps, bounced, copied, flushes, leaked }
    }
}

impl Books {
    pub(crate) fn new(
        rules: Rules,
        sessions: [Session; 2],
        script: Arc<Mutex<Script>>,
        pool_limit: u64,
        address_bits: u32,
    ) -> Self {
        Self {
            rules,
            sessions,
            script,
            pool_limit,
            is_narrow: address_bits < 32,
            counts: Counts::default(),
            transfers: BTreeMap::new(),
            lost: Vec::new(),
            lost_shares: 0,
            is_stuck: false,
            next: 0,
            past: Vec::new(),
        }
    }

    pub(crate) fn script(&self) -> MutexGuard<'_, Script> {
        lock(&self.script)
    }

    /// Asserts that nothing is held except leaks.
    pub(crate) fn check_rest(&self, domain: &Domain) {
        assert!(self.transfers.is_empty());
        let (counters, iovas) = (domain.counters(), domain.iovas());
        assert_eq!(Counts::from(counters), self.counts);
        assert_eq!(counters.maps, counters.unmaps + self.lost.len() as u64 + self.lost_shares);
        let free_bytes = iovas.free_bytes();
        if self.is_stuck {
            assert!(counters.leaked != 0 || counters.pool_bytes != 0);
            assert!(free_bytes < iovas.all_bytes());
            return;
        }
        assert_eq!(counters.pool_bytes, 0);
        assert_eq!(counters.pool_grows, counters.pool_shrinks);
        assert_eq!(free_bytes, iovas.all_bytes());
        assert!(self.script().entries.is_empty());
    }

    /// Asserts the same after the domain was dropped: leaked memory is not freed.
    pub(crate) fn check_end(&self) {
        assert!(self.lost.iter().all(|transfer| transfer.place.is_alive()));
        assert!(self.is_stuck || self.script().entries.is_empty());
    }

    /// Asserts that the counters and the mappings of the backend are as expected.
    pub(crate) fn check(&self, domain: &Domain, shared: impl Iterator<Item = (u64, u64)>) {
        assert_eq!(Counts::from(domain.counters()), self.counts);
        assert!(domain.counters().pool_bytes <= self.pool_limit);
        let script = self.script();
        let mut rest = script.entries.clone();
        for transfer in self.transfers.values().chain(&self.lost) {
            let start = transfer.place.start.addr().get() as u64;
            let own = transfer.own().map(|(at, len_bytes, page)| {
                let entry = Entry { len_bytes, host: start + page, prot: transfer.rights };
                (at, entry)
            });
            if let Some((at, entry)) = own {
                let found = rest.remove(&at);
                let is_right = found == Some(entry) || found.is_none() && transfer.is_shaky;
                assert!(is_right, "expected {entry:x?} at {at:#x}, found {found:x?}");
            }
            for at in transfer.ends() {
                let found = rest.remove(&at).map(|entry| (entry.len_bytes, entry.prot));
                let is_right = found == Some((PAGE, transfer.rights));
                assert!(is_right || found.is_none() && transfer.is_shaky, "{found:x?} at {at:#x}");
            }
        }
        for (iova, len_bytes) in shared {
            assert_eq!(rest.remove(&iova).map(|entry| entry.len_bytes), Some(len_bytes));
        }
        if !self.is_stuck {
            let odd = rest.iter().find(|(_, entry)| entry.len_bytes != CHUNK);
            assert!(odd.is_none(), "{odd:x?} is mapped without a transfer");
            let held = rest.len() as u64 * CHUNK;
            assert_eq!(held, domain.counters().pool_bytes);
        }
    }
}
