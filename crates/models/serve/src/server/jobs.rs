//! Threads for all work that may wait for a disk: they look files up, load them, and check if the files
//! of models in memory have changed.
//!
//! A lookup or a load that makes no progress for a few seconds loses its place, so that another one may
//! begin. A lookup that does not end in time is given up, and so is a load that makes no progress: its
//! clients are refused. The same time limits a check of the files of a model. The thread cannot be ended
//! and is not waited for, but it counts until it ends, so that the number of such threads is bounded.
//! The memory of a load is charged to its user until then.
//!
//! The user that requests a file is rarely the one that makes it hang: read permission is enough to lock
//! a file against direct reads, and a directory against lookups. So work that hangs is not begun again
//! for any user: one file that hangs keeps one thread, or two, however many users request it. Two
//! lookups of one path are never in progress at once, because both could hang. Other files are loaded as
//! before.

mod hung;
mod job;
mod teller;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Instant;

use longshore_load::ReadMode;
use longshore_sys::event_fd;

use hung::{
    Hung, Loading, Look, OnServer, PACE_BYTES, STALL_TIME, Target, may_load, slow_has_room,
};
use job::{Purpose, WithoutResult};
use teller::{Promise, Said, Teller};

pub(super) use hung::is_hang;
pub(super) use job::{Asker, Done, How, Job, LoadedModel, Sweep};

use super::queue::{Bounds, Queue};
use super::users::{Of, User};
use crate::error::{Error, Result};
use crate::served::Served;

/// The numbers of lookups at once: of all users, and of one.
pub(super) const LOOKING: Bounds = Bounds { max: 16, limited_max: 4, unlimited_max: 4 };
/// The numbers of models whose files are checked at once. A model is checked for the user whose path it
/// has.
const SWEEPING: Bounds = Bounds { max: 8, limited_max: 2, unlimited_max: 2 };
/// The most models that are loaded at once: one keeps a disk busy, and two may be on two disks.
pub(super) const LOADING_MAX: usize = 2;

/// The threads, the work that waits for one, and their results.
#[derive(Debug)]
pub(super) struct Jobs {
    served: Arc<Served>,
    how: How,
    event: Arc<OwnedFd>,
    sender: Sender<Said>,
    receiver: Receiver<Said>,
    last_ticket: u64,
    /// Running lookups, by their ticket.
    looking: BTreeMap<u64, Look>,
    /// Lookups and loads that were given up and have not ended, by their ticket.
    hung: BTreeMap<u64, Hung>,
    /// Running loads, by the model.
    loading: BTreeMap<u64, Loading>,
    to_look: Queue<(Look, Job)>,
    /// `false` if lookups of files of the start take no places from others.
    start_has_places: bool,
    to_load: Queue<Job>,
    to_sweep: Queue<(Look, Job)>,
    /// Models of the start that are not loaded yet.
    pub(super) start_models: BTreeSet<u64>,
    /// Loads of these models, and lookups of them, begin without a thread, as if it hung.
    #[cfg(test)]
    pub(super) hanging: BTreeSet<u64>,
    /// All lookups begin like that.
    #[cfg(test)]
    hangs_looks: bool,
}

impl Jobs {
    pub(super) fn new(served: Arc<Served>, how: How, loads_per_user: usize) -> Result<Self> {
        let event = event_fd::create().map_err(Error::kernel("making an event"))?;
        let (sender, receiver) = mpsc::channel();
        Ok(Self {
            served,
            how,
            event: Arc::new(event),
            sender,
            receiver,
            last_ticket: 0,
            looking: BTreeMap::new(),
            hung: BTreeMap::new(),
            loading: BTreeMap::new(),
            to_look: Queue::new(LOOKING),
            start_has_places: true,
            to_load: Queue::new(Bounds {
                max: LOADING_MAX,
                limited_max: loads_per_user,
                unlimited_max: LOADING_MAX,
            }),
            to_sweep: Queue::new(SWEEPING),
            start_models: BTreeSet::new(),
            #[cfg(test)]
            hanging: BTreeSet::new(),
            #[cfg(test)]
            hangs_looks: false,
        })
    }

    /// Begins a job for this user, now or when a thread is free and it is the user's turn.
    pub(super) fn begin(&mut self, user: User, job: Job, now: Instant) {
        match job {
            Job::Load { .. } => self.to_load.push(user, job),
            Job::Look { asker, ref path, layout, ref shown, .. } => {
                let files = shown.as_ref().map_or(1, Vec::len);
                let target = Some(Target::Look(layout, path.clone().into_os_string()));
                let look = Look::new(user, Purpose::For(asker), now, files);
                self.to_look.push(user, (Look { target, ..look }, job));
            }
            Job::LookRemote { asker, ref path, layout, ref cancel, .. } => {
                let target = Some(Target::Look(layout, path.clone().into_os_string()));
                let remote = Some(OnServer::new(cancel.clone()));
                let look = Look::new(user, Purpose::For(asker), now, 1);
                self.to_look.push(user, (Look { target, remote, ..look }, job));
            }
            Job::FindDeleted { .. } => {
                self.to_sweep.push(user, (Look::new(user, Purpose::FindDeleted, now, 0), job));
            }
            Job::Sweep(ref sweep) => {
                let (purpose, files) = (Purpose::Sweep(sweep.id), sweep.found.open_files());
                self.to_sweep.push(user, (Look::new(user, purpose, now, files), job));
            }
        }
        self.spawn();
    }

    /// Sets the users that want a load that has not ended. It begins in the turn of one of them, and
    /// counts for one of them.
    pub(super) fn set_users(&mut self, model: u64, users: &BTreeSet<User>) {
        self.to_load.set_users(users, |job| matches!(job, Job::Load { id, .. } if *id == model));
        if let Some(loading) = self.loading.get_mut(&model)
            && !users.contains(&loading.user)
            && let Some(user) = users.first()
        {
            if loading.has_place {
                self.to_load.hand_over(loading.user, *user);
            }
            loading.user = *user;
        }
        self.spawn();
        // The load may have to be refused now.
        if !self.hung.is_empty() {
            let _ = event_fd::signal(&self.event);
        }
    }

    /// Forgets a load that has not begun; returns `true` if there was one.
    pub(super) fn forget_load(&mut self, model: u64) -> bool {
        self.to_load.retain(|job| !matches!(job, Job::Load { id, .. } if *id == model)) > 0
    }

    /// Forgets the lookups for a client that has disconnected.
    pub(super) fn forget_client(&mut self, gone: u64) {
        self.to_look.retain(|(look, _)| look.purpose != Purpose::For(Asker::Client(gone)));
        self.looking.values_mut().for_each(|look| look.forget_client(gone));
    }

    /// Ends the requests to servers of all lookups.
    pub(super) fn cancel_looks(&self) {
        let remote = self.looking.values().filter_map(|look| look.remote.as_ref());
        remote.for_each(|remote| remote.cancel.cancel());
    }

    /// Lets lookups of files of the start go on without a place, so that those that hang take none from
    /// clients.
    pub(super) fn free_start_places(&mut self) {
        self.start_has_places = false;
        for look in self.looking.values_mut().filter(|look| look.has_place && look.is_of_start()) {
            look.has_place = false;
            self.to_look.end(look.user);
        }
        self.spawn();
    }

    /// Returns the number of loads that have a place.
    pub(super) fn loading(&self) -> usize {
        self.to_load.running()
    }

    /// Returns the number of files of each lookup for these users that has a place or waits for one.
    pub(super) fn looks(&self, of: Of) -> impl Iterator<Item = usize> {
        let waiting = self.to_look.waiting().map(|(look, _)| look);
        let looks = self.looking.values().filter(|look| look.has_place).chain(waiting);
        let looks = looks.filter(|look| !look.purpose.is_sweep());
        looks.filter(move |look| of.contains(look.user)).map(|look| look.files)
    }

    /// Returns the results since the last call, and the lookups and loads that are given up now.
    pub(super) fn done(&mut self, now: Instant) -> Vec<Done> {
        // An error only wakes the thread once more.
        let _ = event_fd::drain(&self.event);
        let mut done = Vec::new();
        while let Ok(Said { ticket, done: one }) = self.receiver.try_recv() {
            if self.hung.contains_key(&ticket) {
                // Its clients were refused already, and may have other requests.
                if !matches!(one, Done::Progress { .. }) {
                    self.hung.remove(&ticket);
                }
                // Its memory is dropped later, when clients need not wait for that.
                if matches!(one, Done::Loaded { .. }) {
                    done.push(one);
                }
                continue;
            }
            match &one {
                Done::Looked { .. } | Done::FoundDeleted { .. } | Done::Swept { .. } => {
                    if let Some(look) = self.looking.remove(&ticket) {
                        self.end_look(&look);
                        done.extend(look.shared(one));
                        continue;
                    }
                }
                Done::Loaded { id, .. } => {
                    if let Some(loading) = self.loading.remove(id)
                        && loading.has_place
                    {
                        self.to_load.end(loading.user);
                    }
                }
                Done::Progress { id, progress } => {
                    if let Some(loading) = self.loading.get_mut(id) {
                        loading.on_progress(progress.done_bytes, now);
                    }
                }
            }
            done.push(one);
        }
        done.extend(self.give_up(now));
        // These come first: a client whose lookup has ended may want the same model for a user that may
        // load it.
        done.splice(0..0, self.refuse_loads());
        self.spawn();
        done
    }

    /// Ends a lookup, so that another may begin.
    fn end_look(&mut self, look: &Look) {
        match look.purpose.is_sweep() {
            _ if !look.has_place => {}
            true => self.to_sweep.end(look.user),
            false => self.to_look.end(look.user),
        }
    }

    /// Takes the next lookup for which there is a place.
    fn next_look(&mut self) -> Option<(Look, Job)> {
        let looking = &self.looking;
        let slow = || looking.values().filter(|look| !look.has_place).map(|look| look.user);
        // If a lookup hangs, others of the same target would, too, and each would keep a thread.
        let goes_on = |look: &Look| looking.values().any(|other| other.is_as(look));
        let next =
            self.to_look.begin_if(|user| slow_has_room(slow(), user), |(look, _)| !goes_on(look));
        let (_, (look, job)) = next.or_else(|| self.to_sweep.begin())?;
        let has_place = self.start_has_places || !look.is_of_start();
        if !has_place {
            self.to_look.end(look.user);
        }
        Some((Look { started: Instant::now(), has_place, ..look }, job))
    }

    /// Lets lookups of clients that wait for the same model on a server share the result of this one, which
    /// is about to begin.
    fn join(&mut self, look: &mut Look) {
        if look.remote.is_none() {
            return;
        }
        let joined = self.to_look.take_all(|(other, _)| other.may_join(look));
        if let Some(remote) = &mut look.remote {
            remote.joined.extend(joined.into_iter().map(|(other, _)| other.purpose));
        }
    }

    /// Takes the next load for which there is a place.
    fn next_load(&mut self) -> Option<(User, Job)> {
        let (loading, hung) = (&self.loading, &self.hung);
        let slow = || loading.values().filter(|load| !load.has_place).map(|load| load.user);
        let may_begin = |user| slow_has_room(slow(), user) && may_load(hung, user);
        self.to_load.begin_if(may_begin, |_| true)
    }

    /// Checks that a load may begin in the turn of this user.
    ///
    /// # Errors
    /// Too many loads that this user requested hang.
    pub(super) fn may_load(&self, user: User) -> longshore_load::Result<()> {
        may_load(&self.hung, user).then_some(()).ok_or_else(|| hung::too_many_loads(user))
    }

    /// Refuses the loads that may not begin in the turn of any of the users that want them.
    fn refuse_loads(&mut self) -> Vec<Done> {
        let hung = &self.hung;
        let next = || self.to_load.take_unless(|user| may_load(hung, user));
        let refused = |(user, job): (User, Job)| job.without_result()(hung::too_many_loads(user));
        std::iter::from_fn(next).map(refused).collect()
    }

    fn spawn(&mut self) {
        while let Some((mut look, job)) = self.next_look() {
            self.join(&mut look);
            if let Some(why) = look.refusal(&self.hung) {
                self.last_ticket += 1;
                let ticket = self.last_ticket;
                self.looking.insert(ticket, look);
                self.teller(ticket).tell(job.without_result()(why));
            } else {
                let ticket = self.run_job(job, ReadMode::Auto);
                self.looking.insert(ticket, look);
            }
        }
        while let Some((user, job)) = self.next_load() {
            let Job::Load { id, ref found, ref cancel } = job else { continue };
            let ticket = self.last_ticket + 1;
            let moved = Instant::now();
            let inodes = hung::inodes_of(found);
            let mode = self.read_mode(&inodes, moved);
            let loading = Loading {
                user,
                ticket,
                inodes,
                mode: *mode.as_ref().unwrap_or(&ReadMode::Auto),
                cancel: cancel.clone(),
                files: found.open_files(),
                len_bytes: found.len_bytes,
                done_bytes: 0,
                moved,
                moved_bytes: 0,
                has_place: true,
                pace: (moved + STALL_TIME, PACE_BYTES),
            };
            self.loading.insert(id, loading);
            match mode {
                Ok(mode) => _ = self.run_job(job, mode),
                Err(why) => {
                    self.last_ticket = ticket;
                    self.teller(ticket).tell(job.without_result()(why));
                }
            }
        }
    }

    fn run_job(&mut self, job: Job, mode: ReadMode) -> u64 {
        #[cfg(test)]
        if self.hangs_looks || job.model().is_some_and(|model| self.hanging.contains(&model)) {
            self.last_ticket += 1;
            return self.last_ticket;
        }
        let (served, how) = (Arc::clone(&self.served), self.how.clone());
        self.run(&job.without_result(), move |teller| job.run(&served, &how, mode, teller))
    }

    /// Starts a thread. Returns the ticket of its result.
    fn run(
        &mut self,
        without: &WithoutResult,
        job: impl FnOnce(&Teller) -> Done + Send + 'static,
    ) -> u64 {
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        let teller = self.teller(ticket);
        let promise = Promise { teller: teller.clone(), without: Some(Arc::clone(without)) };
        let work = move || {
            let done = job(&promise.teller);
            promise.keep(done);
        };
        let named = thread::Builder::new().name("longshore-job".to_owned());
        if let Err(source) = named.spawn(work) {
            let operation = "starting a thread";
            teller.tell(without(longshore_load::Error::Process { operation, source }));
        }
        ticket
    }

    fn teller(&self, ticket: u64) -> Teller {
        let (sender, event) = (self.sender.clone(), Arc::clone(&self.event));
        Teller { ticket, sender, event }
    }
}

impl AsFd for Jobs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
