//! Looking after the files of models that are held: whether they were changed or deleted on the disk.
//!
//! One thread at a time does it, at an interval and for clients that want a list, so that neither a
//! disk that hangs nor a flood of lists takes more than that thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::core::Core;
use crate::served::{Found, Freshness};

/// How often models are looked after. For about so long a deleted file may keep its blocks.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// How long a client that wants a list waits for it; then it is given what is known.
const LIST_TIME: Duration = Duration::from_secs(10);

/// When the files were and will be looked after, and who waits for that.
#[derive(Debug)]
pub(super) struct Sweeps {
    /// Since when the thread is at it.
    running: Option<Instant>,
    next: Instant,
    /// Clients whose lists wait for the sweep that runs, and those that came while it ran and wait for
    /// another, with the time at which they are answered in any case.
    now: BTreeMap<u64, Instant>,
    then: BTreeMap<u64, Instant>,
}

impl Sweeps {
    pub(super) fn new(now: Instant) -> Self {
        let next = now + SWEEP_EVERY;
        Self { running: None, next, now: BTreeMap::new(), then: BTreeMap::new() }
    }

    /// Forgets a client that is gone.
    pub(super) fn forget_client(&mut self, gone: u64) {
        self.now.remove(&gone);
        self.then.remove(&gone);
    }
}

impl Core {
    /// Lists what is held for a client, when its files were looked after.
    pub(super) fn list_after_sweep(&mut self, client: u64, now: Instant) {
        match self.sweeps.running {
            // The disk hangs: what is known has to do.
            Some(since) if since + LIST_TIME <= now => self.list(client, now),
            Some(_) => _ = self.sweeps.then.insert(client, now + LIST_TIME),
            None => {
                self.sweeps.now.insert(client, now + LIST_TIME);
                self.begin_sweep(now);
            }
        }
    }

    /// When [`Self::sweep`] has something to do next.
    pub(super) fn next_sweep(&self) -> Option<Instant> {
        let Sweeps { running, next, now, then } = &self.sweeps;
        let next = (running.is_none() && self.shelf.open_files() > 0).then_some(*next);
        now.values().chain(then.values()).copied().chain(next).min()
    }

    /// Begins a sweep if it is time for one, and answers clients that have waited for too long.
    pub(super) fn sweep(&mut self, now: Instant) {
        let Sweeps { now: first, then: second, .. } = &self.sweeps;
        let all = first.iter().chain(second);
        let late: Vec<u64> =
            all.filter(|(_, deadline)| **deadline <= now).map(|(id, _)| *id).collect();
        for client in late {
            self.sweeps.forget_client(client);
            self.list(client, now);
        }
        let is_due = self.sweeps.next <= now && self.shelf.open_files() > 0;
        if is_due && self.sweeps.running.is_none() {
            self.begin_sweep(now);
        }
    }

    fn begin_sweep(&mut self, now: Instant) {
        self.sweeps.running = Some(now);
        self.sweeps.next = now + SWEEP_EVERY;
        let models = self.shelf.iter().map(|(id, model)| {
            // A model that is kept for its path has no other.
            let memory = model.memory.as_ref().filter(|_| !model.is_pinned);
            let names = memory.into_iter().flat_map(|memory| memory.names.iter());
            (id, model.found.clone(), names.cloned().collect())
        });
        let models = models.collect();
        self.jobs.sweep(self.users.own(), models);
    }

    pub(super) fn on_swept(
        &mut self,
        found: Vec<(u64, Freshness, Option<Arc<Found>>)>,
        now: Instant,
    ) {
        for (id, freshness, other) in found {
            let Some(model) = self.shelf.get_mut(id) else { continue };
            match freshness {
                Freshness::Fresh => {
                    if let Some(other) = other.filter(|_| !model.is_pinned) {
                        model.found.rename(&other);
                    }
                }
                Freshness::Stale => model.is_stale = true,
                // From here on its inode may become another file.
                Freshness::Unlinked => {
                    model.is_stale = true;
                    model.found.inodes = None;
                }
            }
        }
        self.sweeps.running = None;
        let answered = std::mem::take(&mut self.sweeps.now);
        self.sweeps.now = std::mem::take(&mut self.sweeps.then);
        if !self.sweeps.now.is_empty() {
            self.begin_sweep(now);
        }
        for client in answered.into_keys() {
            self.list(client, now);
        }
    }
}
