//! Checks if the files of models in memory were changed or deleted on the disk.
//!
//! This sweep runs at an interval and for clients that want a list, once at a time. First a thread finds
//! deleted files by the descriptors that keep their inodes in use, as far as the kernel knows of them
//! without asking a file system. Then each model is looked up by its path, in the turn of the user that
//! gave the path. A lookup that hangs is given up, and its model is left out until it ends: it delays no
//! model of another user.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::core::{Core, Memory};
use super::jobs::{Job, Sweep};
use super::users::User;
use crate::model_cache::Model;
use crate::served::{Found, Freshness, is_same_path};

/// The interval between sweeps. For about this long a deleted file may keep its blocks.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// The time that a client which wants a list waits for the sweep. Then the list has the state that is
/// known: every user can make lookups of files of theirs hang.
const LIST_TIME: Duration = Duration::from_secs(1);

/// When the files were and will be checked, and which clients wait for that.
#[derive(Debug)]
pub(super) struct Sweeps {
    /// The running sweep.
    running: Option<Running>,
    next: Instant,
    /// Clients whose lists wait for the sweep that runs, and those that came while it ran and wait for
    /// another, with the time at which they are answered in any case.
    now: BTreeMap<u64, Instant>,
    then: BTreeMap<u64, Instant>,
}

/// A running sweep.
#[derive(Debug)]
struct Running {
    since: Instant,
    /// The user for whose list it was begun, also if that client has disconnected since.
    asked_by: Option<User>,
    /// Models that are looked at, or will be; `None` while deleted files are looked for.
    left: Option<BTreeSet<u64>>,
}

impl Sweeps {
    pub(super) fn new(now: Instant) -> Self {
        let next = now + SWEEP_EVERY;
        Self { running: None, next, now: BTreeMap::new(), then: BTreeMap::new() }
    }

    /// Returns `true` if the running sweep has yet to check this model.
    #[cfg(test)]
    pub(super) fn has_left(&self, id: u64) -> bool {
        let left = self.running.as_ref().map(|running| running.left.as_ref());
        left.is_some_and(|left| left.is_none_or(|left| left.contains(&id)))
    }

    /// Returns the user for whose list the sweep was begun, if it was begun for one.
    pub(super) fn asked_by(&self) -> Option<User> {
        self.running.as_ref()?.asked_by
    }

    /// Forgets a client that has disconnected.
    pub(super) fn forget_client(&mut self, gone: u64) {
        self.now.remove(&gone);
        self.then.remove(&gone);
    }
}

impl Core {
    /// Lists the models for a client, after their files were checked.
    pub(super) fn list_after_sweep(&mut self, client: u64, now: Instant) {
        match &self.sweeps.running {
            // A disk hangs: the list has the state that is known.
            Some(Running { since, .. }) if *since + LIST_TIME <= now => self.list(client, now),
            Some(_) => _ = self.sweeps.then.insert(client, now + LIST_TIME),
            None => {
                self.sweeps.now.insert(client, now + LIST_TIME);
                self.begin_sweep(Some(client), now);
            }
        }
    }

    /// Returns the next time when [`Self::sweep`] has something to do.
    pub(super) fn next_sweep(&self) -> Option<Instant> {
        let Sweeps { running, next, now, then } = &self.sweeps;
        let next = (running.is_none() && self.cache.open_files() > 0).then_some(*next);
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
        let is_due = self.sweeps.next <= now && self.cache.open_files() > 0;
        if is_due && self.sweeps.running.is_none() {
            self.begin_sweep(None, now);
        }
    }

    fn begin_sweep(&mut self, client: Option<u64>, now: Instant) {
        let client = client.and_then(|client| self.connections.get(&client));
        let asked_by = client.map(|connection| connection.user);
        self.sweeps.running = Some(Running { since: now, asked_by, left: None });
        self.sweeps.next = now + SWEEP_EVERY;
        let inodes = self.cache.iter().map(|(id, model)| Some((id, model.found.inodes.clone()?)));
        let models = inodes.flatten().collect();
        self.jobs.begin(self.users.own(), Job::FindDeleted { models }, now);
    }

    /// Goes on with a sweep after deleted files were found.
    pub(super) fn on_deleted(&mut self, deleted: Vec<u64>, now: Instant) {
        for id in deleted {
            if let Some(model) = self.cache.get_mut(id) {
                lose_inodes(model);
            }
        }
        let may_look = |id| !self.jobs.is_sweep_hung(id);
        let models = self.cache.iter();
        let models = models.filter(|(id, model)| model.found.inodes.is_some() && may_look(*id));
        let sweeps: Vec<Sweep> = models
            .map(|(id, model)| Sweep {
                id,
                found: model.found.clone(),
                name: (self.named_by(id, model), None),
                others: other_names(model),
                without_index: None,
            })
            .collect();
        if let Some(running) = &mut self.sweeps.running {
            running.left = Some(sweeps.iter().map(|sweep| sweep.id).collect());
        }
        for sweep in sweeps {
            self.jobs.begin(sweep.name.0, Job::Sweep(Box::new(sweep)), now);
        }
        self.end_sweep(now);
    }

    /// Returns the user that gave the path of a model. Looks that hang count for that user.
    fn named_by(&self, id: u64, model: &Model<Memory>) -> User {
        let is_named = |file: &PathBuf| is_same_path(file, &model.found.path);
        if model.is_pinned || self.options.files.iter().any(is_named) {
            return self.users.own();
        }
        let named_by = model.memory.as_ref().map(|memory| memory.named_by);
        let loaded_for = || self.loads.get(&id).map(|load| load.user);
        named_by.or_else(loaded_for).unwrap_or(self.users.own())
    }

    /// Takes what a look at a model has shown. If its path does not lead to it any more, another of its
    /// paths may. It is stale only if none of them leads to the files that are loaded: an index is not
    /// loaded, and may be another user's.
    pub(super) fn on_swept(
        &mut self,
        id: u64,
        swept: Option<(Box<Sweep>, Freshness)>,
        now: Instant,
    ) {
        if let (Some((mut sweep, freshness)), Some(model)) = (swept, self.cache.get_mut(id)) {
            match freshness {
                Freshness::Fresh => use_name(model, sweep.name),
                Freshness::Stale | Freshness::WithoutIndex => {
                    if freshness == Freshness::WithoutIndex {
                        sweep.without_index.get_or_insert(sweep.name);
                    }
                    if let Some((user, other)) = sweep.others.pop_front() {
                        sweep.found.rename(&other);
                        sweep.name = (user, Some(other));
                        return self.jobs.begin(user, Job::Sweep(sweep), now);
                    }
                    match sweep.without_index {
                        Some(name) => use_name(model, name),
                        None => model.is_stale = true,
                    }
                }
                Freshness::Unlinked => lose_inodes(model),
            }
        }
        if let Some(left) = self.sweeps.running.as_mut().and_then(|running| running.left.as_mut()) {
            left.remove(&id);
        }
        self.end_sweep(now);
    }

    /// Ends a sweep if no look is left, and answers the clients that wait for it.
    fn end_sweep(&mut self, now: Instant) {
        let is_over = |running: &Running| running.left.as_ref().is_some_and(BTreeSet::is_empty);
        if !self.sweeps.running.as_ref().is_some_and(is_over) {
            return;
        }
        self.sweeps.running = None;
        let answered = std::mem::take(&mut self.sweeps.now);
        self.sweeps.now = std::mem::take(&mut self.sweeps.then);
        if let Some(client) = self.sweeps.now.keys().next().copied() {
            self.begin_sweep(Some(client), now);
        }
        for client in answered.into_keys() {
            self.list(client, now);
        }
    }
}

/// Has a model known by the paths that were looked up for it, if these are not its own.
fn use_name(model: &mut Model<Memory>, (user, name): (User, Option<Arc<Found>>)) {
    if let (Some(name), Some(memory)) = (name, &mut model.memory)
        && !model.is_pinned
    {
        memory.named_by = user;
        model.found.rename(&name);
    }
}

/// Returns the other paths of a model. A model that is kept for its path has none.
fn other_names(model: &Model<Memory>) -> VecDeque<(User, Arc<Found>)> {
    let memory = model.memory.as_ref().filter(|_| !model.is_pinned);
    memory.into_iter().flat_map(|memory| memory.names.iter()).cloned().collect()
}

/// Handles a deleted file of this model. From here on its inode may become another file.
fn lose_inodes(model: &mut Model<Memory>) {
    model.is_stale = true;
    model.found.inodes = None;
}
