//! Threads for all that may wait for a disk, beside the one that serves: they look for files, load
//! them, and look at those that are held to see whether they are still there.
//!
//! A look that does not come back in time is given up, and so is a load that makes no progress: its
//! clients are refused. The same time is given to a look at the files of a model that is held. Its thread cannot be ended and is not waited for, but it is counted until it
//! comes back, so that the number of such threads is bounded. What a load has of memory until then is
//! charged to its user.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use longshore_heap::{Heap, Sealing, SharedBuffer};
use longshore_load::plan::PlannedFile;
use longshore_load::{CancelToken, Loader, Progress};
use longshore_sys::{event_fd, memfd};

use super::open_files::{Of, of_hung_load, of_running_look};
use super::queue::{Bounds, Queue};
use super::users::User;
use crate::error::{Error, Result};
use crate::inodes::Inodes;
use crate::served::{Found, Freshness, Layout, Looked, Served, Shown};

/// How many files are looked up at once: of all users, and of one.
pub(super) const LOOKING: Bounds = Bounds { max: 16, limited_max: 4, unlimited_max: 4 };
/// How long a look for a client may take, the time that it waits for a thread included. Clients give
/// a server up after a minute.
const LOOK_TIME: Duration = Duration::from_secs(20);
/// How long a load may go on without a byte of progress. Users can make it wait for that long: on a
/// local file system, too, by a lock of the file that a page fault of theirs keeps.
const SILENT_TIME: Duration = Duration::from_secs(60);
/// With fewer bytes in that time, 16 MiB/s, a load loses its place to others. It goes on beside them.
const PACE_BYTES: u64 = 60 * (16 << 20);
/// How many looks and loads that were given up may keep their threads: of all users, and of one. With
/// that many no other is begun, since it would hang as well.
const HUNG_MAX: usize = 32;
const HUNG_PER_USER_MAX: usize = 8;
/// How many models that are held are looked at at once. A user's are looked at by its paths.
const SWEEPING: Bounds = Bounds { max: 8, limited_max: 2, unlimited_max: 2 };
/// How many of these looks may keep their threads after they were given up. They do not count for
/// [`HUNG_MAX`]: clients may ask for files in other file systems.
const HUNG_SWEEPS_MAX: usize = 16;
const HUNG_SWEEPS_PER_USER_MAX: usize = 2;
/// How many models are loaded at once: a disk has enough with one, and two may be on two.
pub(super) const LOADING_MAX: usize = 2;

/// For whom something is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    Client(u64),
    /// What the server is to hold from the start.
    Start(usize),
}

/// What a look is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    For(Asker),
    /// To find deleted files of all models that are held.
    FindDeleted,
    /// To see whether this model is still there.
    Sweep(u64),
}

/// A look at the files of a model that is held.
#[derive(Clone, Debug)]
pub(super) struct Sweep {
    pub(super) id: u64,
    /// The files, by the paths that are looked up.
    pub(super) found: Found,
    /// The user that gave these paths, and the paths if they are not the model's own.
    pub(super) name: (User, Option<Arc<Found>>),
    /// Other paths of the model, which are looked up if these do not lead to the files any more.
    pub(super) others: VecDeque<(User, Arc<Found>)>,
}

/// Something to be done.
#[derive(Debug)]
pub(super) enum Job {
    /// `shown` is what the client has shown; the server itself shows nothing.
    Look {
        asker: Asker,
        path: PathBuf,
        layout: Layout,
        shown: Option<Vec<Shown>>,
    },
    Load {
        id: u64,
        found: Found,
        cancel: CancelToken,
    },
    FindDeleted {
        models: Vec<(u64, Arc<Inodes>)>,
    },
    Sweep(Box<Sweep>),
}

/// The outcome of a job.
#[derive(Debug)]
pub(super) enum Done {
    Looked {
        asker: Asker,
        looked: Looked,
    },
    Progress {
        id: u64,
        progress: Progress,
    },
    Loaded {
        id: u64,
        outcome: longshore_load::Result<LoadedModel>,
    },
    /// Models of which a file is deleted.
    FoundDeleted {
        models: Vec<u64>,
    },
    /// What a look at a model has shown; nothing if it was given up.
    Swept {
        id: u64,
        swept: Option<(Box<Sweep>, Freshness)>,
    },
}

/// A model in memory, sealed.
#[derive(Debug)]
pub(super) struct LoadedModel {
    pub(super) memory: SharedBuffer,
    /// Where each file is in it.
    pub(super) ranges: Vec<Range<u64>>,
    pub(super) elapsed: Duration,
    pub(super) pages: String,
}

/// How models are loaded.
#[derive(Clone, Debug)]
pub(super) struct How {
    pub(super) heap: Heap,
    pub(super) memory_mode: u32,
}

/// The threads, what waits for one, and what they have to say.
#[derive(Debug)]
pub(super) struct Jobs {
    served: Arc<Served>,
    how: How,
    event: Arc<OwnedFd>,
    sender: Sender<Said>,
    receiver: Receiver<Said>,
    last_ticket: u64,
    /// Looks that go on, by their ticket.
    looking: BTreeMap<u64, Look>,
    /// Looks and loads that were given up and have not come back, by their ticket.
    hung: BTreeMap<u64, Hung>,
    /// Loads that go on, by the model.
    loading: BTreeMap<u64, Loading>,
    to_look: Queue<(Look, Job)>,
    to_load: Queue<Job>,
    to_sweep: Queue<(Look, Job)>,
    /// Loads of these models, and looks at them, begin without a thread, as if it hung.
    #[cfg(test)]
    pub(super) hanging: BTreeSet<u64>,
}

/// A look that was asked for.
#[derive(Clone, Copy, Debug)]
struct Look {
    user: User,
    purpose: Purpose,
    begun: Instant,
    /// How many files a client has shown for it.
    files: usize,
}

/// A load that goes on.
#[derive(Debug)]
struct Loading {
    /// The user that it counts for: one that wants it, if there is one.
    user: User,
    ticket: u64,
    files: usize,
    len_bytes: u64,
    done_bytes: u64,
    /// When it last had more bytes than before.
    moved: Instant,
    /// Whether it is one of the loads of which only so many go on at once.
    has_place: bool,
    /// When its pace is measured next, and how many bytes it must have by then to keep its place.
    pace: (Instant, u64),
}

impl Loading {
    /// When it is given up. Those of the server itself, and of users whom it trusts, have all the time
    /// there is.
    fn deadline(&self) -> Option<Instant> {
        self.user.is_limited().then(|| self.moved + SILENT_TIME)
    }

    /// When there is something to be done about it.
    fn next_deadline(&self) -> Option<Instant> {
        let pace = self.has_place.then_some(self.pace.0);
        self.deadline().into_iter().chain(pace).min()
    }

    /// Measures its pace, if it is time to. Returns whether it loses its place.
    fn loses_place(&mut self, now: Instant) -> bool {
        let (at, least_bytes) = self.pace;
        if !self.has_place || now < at {
            return false;
        }
        self.has_place = self.done_bytes >= least_bytes;
        self.pace = (now + SILENT_TIME, self.done_bytes.saturating_add(PACE_BYTES));
        !self.has_place
    }
}

/// A look or a load that was given up.
#[derive(Debug)]
struct Hung {
    user: User,
    /// The memory that it may have.
    len_bytes: u64,
    /// How many descriptors it may have.
    descriptors: usize,
    /// What it was for, if it was a look.
    purpose: Option<Purpose>,
}

impl Hung {
    fn is_sweep(&self) -> bool {
        self.purpose.is_some_and(Purpose::is_sweep)
    }
}

impl Purpose {
    /// Returns whether models are looked at that are held.
    fn is_sweep(self) -> bool {
        matches!(self, Self::FindDeleted | Self::Sweep(_))
    }

    /// The outcome of a look that did not come to an end.
    fn without_result(self, error: longshore_load::Error) -> Done {
        match self {
            Self::FindDeleted => Done::FoundDeleted { models: Vec::new() },
            Self::Sweep(id) => Done::Swept { id, swept: None },
            Self::For(asker) => Done::Looked { asker, looked: Looked::Failed(error) },
        }
    }
}

impl Look {
    /// When it is given up. What the server is to hold from the start has all the time there is.
    fn deadline(&self) -> Option<Instant> {
        (!matches!(self.purpose, Purpose::For(Asker::Start(_)))).then(|| self.begun + LOOK_TIME)
    }

    fn may_begin(&self, hung: &BTreeMap<u64, Hung>) -> bool {
        may_begin(hung, self.user, self.purpose.is_sweep())
    }

    fn is_late(&self, now: Instant) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= now)
    }
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
            to_load: Queue::new(Bounds {
                max: LOADING_MAX,
                limited_max: loads_per_user,
                unlimited_max: LOADING_MAX,
            }),
            to_sweep: Queue::new(SWEEPING),
            #[cfg(test)]
            hanging: BTreeSet::new(),
        })
    }

    /// Does it for this user, now or when a thread is free and it is the user's turn.
    pub(super) fn begin(&mut self, user: User, job: Job, now: Instant) {
        match job {
            Job::Load { .. } => self.to_load.push(user, job),
            Job::Look { asker, ref shown, .. } => {
                let files = shown.as_ref().map_or(1, Vec::len);
                let purpose = Purpose::For(asker);
                self.to_look.push(user, (Look { user, purpose, begun: now, files }, job));
            }
            Job::FindDeleted { .. } => {
                let look = Look { user, purpose: Purpose::FindDeleted, begun: now, files: 0 };
                self.to_sweep.push(user, (look, job));
            }
            Job::Sweep(ref sweep) => {
                let (purpose, files) = (Purpose::Sweep(sweep.id), sweep.found.open_files());
                self.to_sweep.push(user, (Look { user, purpose, begun: now, files }, job));
            }
        }
        self.spawn();
    }

    /// Returns whether a look at this model was given up and has not come back.
    pub(super) fn is_sweep_hung(&self, model: u64) -> bool {
        self.hung.values().any(|hung| hung.purpose == Some(Purpose::Sweep(model)))
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
    }

    /// Forgets a load that has not begun; whether it had not.
    pub(super) fn forget_load(&mut self, model: u64) -> bool {
        self.to_load.retain(|job| !matches!(job, Job::Load { id, .. } if *id == model)) > 0
    }

    /// Forgets what is to be looked for for a client that is gone.
    pub(super) fn forget_client(&mut self, gone: u64) {
        self.to_look.retain(|(look, _)| look.purpose != Purpose::For(Asker::Client(gone)));
    }

    /// How many models are being loaded.
    pub(super) fn loading(&self) -> usize {
        self.to_load.running()
    }

    /// Returns the memory that loads which were given up may still have: of this user, or of all.
    pub(super) fn hung_bytes(&self, of: Option<User>) -> u64 {
        let hung = self.hung.values().filter(|hung| of.is_none_or(|user| user == hung.user));
        hung.map(|hung| hung.len_bytes).fold(0, u64::saturating_add)
    }

    /// Returns how many descriptors looks and loads of these users may have that were given up.
    pub(super) fn hung_descriptors(&self, of: Of) -> usize {
        let hung = self.hung.values().filter(|hung| of.contains(hung.user));
        hung.map(|hung| hung.descriptors).sum()
    }

    /// Returns the number of files of each look for these users that goes on or waits for a thread.
    pub(super) fn looks(&self, of: Of) -> impl Iterator<Item = usize> {
        let waiting = self.to_look.waiting().map(|(look, _)| look);
        let looks = self.looking.values().chain(waiting).filter(|look| !look.purpose.is_sweep());
        looks.filter(move |look| of.contains(look.user)).map(|look| look.files)
    }

    /// Everything that was done since, and looks and loads that are given up now.
    pub(super) fn done(&mut self, now: Instant) -> Vec<Done> {
        // It is only a matter of being woken once more.
        let _ = event_fd::drain(&self.event);
        let mut done = Vec::new();
        while let Ok(Said { ticket, done: one }) = self.receiver.try_recv() {
            if self.hung.contains_key(&ticket) {
                // Its clients were refused already, and may have asked for something else.
                if !matches!(one, Done::Progress { .. }) {
                    self.hung.remove(&ticket);
                }
                continue;
            }
            match &one {
                Done::Looked { .. } | Done::FoundDeleted { .. } | Done::Swept { .. } => {
                    if let Some(look) = self.looking.remove(&ticket) {
                        self.end_look(look);
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
                    if let Some(loading) = self.loading.get_mut(id)
                        && loading.done_bytes < progress.done_bytes
                    {
                        (loading.done_bytes, loading.moved) = (progress.done_bytes, now);
                    }
                }
            }
            done.push(one);
        }
        done.extend(self.give_up(now));
        self.spawn();
        done
    }

    /// When the next look or load is given up.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let waiting = self.to_look.waiting().chain(self.to_sweep.waiting());
        let waiting = waiting.map(|(look, _)| look);
        let looks = self.looking.values().chain(waiting).filter_map(Look::deadline);
        looks.chain(self.loading.values().filter_map(Loading::next_deadline)).min()
    }

    /// Gives up looks and loads that are late, and those that wait for threads which do not come back.
    fn give_up(&mut self, now: Instant) -> Vec<Done> {
        let late: Vec<u64> =
            self.looking.iter().filter(|(_, look)| look.is_late(now)).map(|(id, _)| *id).collect();
        let mut purposes = Vec::new();
        for ticket in late {
            let Some(look) = self.looking.remove(&ticket) else { continue };
            let Look { user, purpose, files, .. } = look;
            let descriptors = of_running_look(files);
            let hung = Hung { user, len_bytes: 0, descriptors, purpose: Some(purpose) };
            self.hung.insert(ticket, hung);
            self.end_look(look);
            purposes.push(purpose);
        }
        let hung = &self.hung;
        let mut keeps = |(look, _): &(Look, Job)| {
            let is_late = look.is_late(now) || look.deadline().is_some() && !look.may_begin(hung);
            if is_late {
                purposes.push(look.purpose);
            }
            !is_late
        };
        self.to_look.retain(&mut keeps);
        self.to_sweep.retain(&mut keeps);
        let given_up = |purpose: Purpose| purpose.without_result(no_answer());
        let looks: Vec<Done> = purposes.into_iter().map(given_up).collect();
        looks.into_iter().chain(self.give_up_loads(now)).collect()
    }

    /// Ends a look that went on, so that another may begin.
    fn end_look(&mut self, look: Look) {
        match look.purpose.is_sweep() {
            true => self.to_sweep.end(look.user),
            false => self.to_look.end(look.user),
        }
    }

    fn give_up_loads(&mut self, now: Instant) -> Vec<Done> {
        let is_late =
            |loading: &Loading| loading.deadline().is_some_and(|deadline| deadline <= now);
        let late = self.loading.iter().filter(|(_, loading)| is_late(loading));
        let late: Vec<u64> = late.map(|(id, _)| *id).collect();
        let mut done = Vec::new();
        for id in late {
            let Some(loading) = self.loading.remove(&id) else { continue };
            let Loading { user, ticket, files, len_bytes, has_place, .. } = loading;
            if has_place {
                self.to_load.end(user);
            }
            let descriptors = of_hung_load(files);
            self.hung.insert(ticket, Hung { user, len_bytes, descriptors, purpose: None });
            done.push(Done::Loaded { id, outcome: Err(no_progress()) });
        }
        for loading in self.loading.values_mut() {
            if loading.loses_place(now) {
                self.to_load.end(loading.user);
            }
        }
        done
    }

    /// Whether a load of this user may begin beside those that hang, and beside slow ones without a
    /// place, which count as if they did.
    fn may_load(&self, user: User) -> bool {
        let slow = self.loading.values().filter(|loading| !loading.has_place);
        let slow = slow.map(|loading| loading.user).filter(|user| user.is_limited());
        let hung = self.hung.values().filter(|hung| !hung.is_sweep()).map(|hung| hung.user);
        let all: Vec<User> = hung.chain(slow).collect();
        let of_user = all.iter().filter(|of| **of == user).count();
        !user.is_limited() || all.len() < HUNG_MAX && of_user < HUNG_PER_USER_MAX
    }

    fn spawn(&mut self) {
        while let Some((_, (look, job))) = self.to_look.begin().or_else(|| self.to_sweep.begin()) {
            if look.deadline().is_none() || look.may_begin(&self.hung) {
                let ticket = self.run_job(job);
                self.looking.insert(ticket, look);
            } else {
                self.last_ticket += 1;
                let ticket = self.last_ticket;
                self.looking.insert(ticket, look);
                self.teller(ticket).tell(job.without_result()(no_answer()));
            }
        }
        while let Some((user, job)) = self.to_load.begin() {
            let Job::Load { id, ref found, .. } = job else { continue };
            let (files, len_bytes) = (found.open_files(), found.len_bytes);
            let without = job.without_result();
            let ticket = self.last_ticket + 1;
            let moved = Instant::now();
            let (has_place, pace) = (true, (moved + SILENT_TIME, PACE_BYTES));
            let loading =
                Loading { user, ticket, files, len_bytes, done_bytes: 0, moved, has_place, pace };
            let may_load = self.may_load(user);
            self.loading.insert(id, loading);
            if !may_load {
                self.last_ticket = ticket;
                self.teller(ticket).tell(without(no_progress()));
            } else {
                self.run_job(job);
            }
        }
    }

    fn run_job(&mut self, job: Job) -> u64 {
        #[cfg(test)]
        if job.model().is_some_and(|model| self.hanging.contains(&model)) {
            self.last_ticket += 1;
            return self.last_ticket;
        }
        let (served, how) = (Arc::clone(&self.served), self.how.clone());
        self.run(&job.without_result(), move |teller| job.run(&served, &how, teller))
    }

    /// Starts a thread. Returns the ticket that its outcome comes with.
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

    /// Tells of so many bytes of a load that goes on, as its thread would.
    #[cfg(test)]
    pub(super) fn trickle(&self, model: u64, done_bytes: u64) {
        let progress = Progress { done_bytes, total_bytes: 1000, elapsed: Duration::ZERO };
        let ticket = self.loading[&model].ticket;
        self.teller(ticket).tell(Done::Progress { id: model, progress });
    }
}

/// Whether a look or a load of this user may begin beside those that hang.
fn may_begin(hung: &BTreeMap<u64, Hung>, user: User, is_sweep: bool) -> bool {
    let (max, of_user_max) = match is_sweep {
        true => (HUNG_SWEEPS_MAX, HUNG_SWEEPS_PER_USER_MAX),
        false => (HUNG_MAX, HUNG_PER_USER_MAX),
    };
    let alike = hung.values().filter(|hung| hung.is_sweep() == is_sweep);
    let of_user = alike.clone().filter(|hung| hung.user == user).count();
    alike.count() < max && of_user < of_user_max
}

fn no_progress() -> longshore_load::Error {
    let reason = format!("the file system gave no byte in {} s", SILENT_TIME.as_secs());
    let source = io::Error::new(io::ErrorKind::TimedOut, reason);
    longshore_load::Error::Process { operation: "loading the model", source }
}

fn no_answer() -> longshore_load::Error {
    let reason = format!("the file system did not answer in {} s", LOOK_TIME.as_secs());
    let source = io::Error::new(io::ErrorKind::TimedOut, reason);
    longshore_load::Error::Process { operation: "looking for the file", source }
}

impl AsFd for Jobs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// What a job reports.
#[derive(Debug)]
struct Said {
    ticket: u64,
    done: Done,
}

#[derive(Clone)]
struct Teller {
    ticket: u64,
    sender: Sender<Said>,
    event: Arc<OwnedFd>,
}

/// That what became of a job is told, also where its thread panics: somebody waits for it.
struct Promise {
    teller: Teller,
    without: Option<WithoutResult>,
}

/// What became of a job that had no result.
type WithoutResult = Arc<dyn Fn(longshore_load::Error) -> Done + Send + Sync>;

impl Teller {
    fn tell(&self, done: Done) {
        // A server that has ended does not listen.
        if self.sender.send(Said { ticket: self.ticket, done }).is_ok() {
            let _ = event_fd::signal(&self.event);
        }
    }
}

impl Promise {
    fn keep(mut self, done: Done) {
        self.without = None;
        self.teller.tell(done);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        // Without a thread there is no panic either: that is told by who wanted to start it.
        if let Some(without) = self.without.take().filter(|_| thread::panicking()) {
            let source = io::Error::other("it panicked");
            let operation = "a thread of the server";
            self.teller.tell(without(longshore_load::Error::Process { operation, source }));
        }
    }
}

impl Job {
    /// Returns the model that it loads or looks at.
    #[cfg(test)]
    fn model(&self) -> Option<u64> {
        match self {
            Self::Load { id, .. } => Some(*id),
            Self::Sweep(sweep) => Some(sweep.id),
            Self::Look { .. } | Self::FindDeleted { .. } => None,
        }
    }

    /// What becomes of it where there is no thread to do it, or that thread does not end as it should.
    fn without_result(&self) -> WithoutResult {
        match self {
            Self::Look { asker, .. } => {
                let purpose = Purpose::For(*asker);
                Arc::new(move |error| purpose.without_result(error))
            }
            Self::FindDeleted { .. } => {
                Arc::new(|error| Purpose::FindDeleted.without_result(error))
            }
            Self::Sweep(sweep) => {
                let purpose = Purpose::Sweep(sweep.id);
                Arc::new(move |error| purpose.without_result(error))
            }
            Self::Load { id, .. } => {
                let id = *id;
                Arc::new(move |error| Done::Loaded { id, outcome: Err(error) })
            }
        }
    }

    fn run(self, served: &Served, how: &How, teller: &Teller) -> Done {
        match self {
            Self::Look { asker, path, layout, shown } => {
                Done::Looked { asker, looked: served.look(&path, layout, shown.as_deref()) }
            }
            Self::FindDeleted { models } => {
                let deleted = models.iter().filter(|(_, inodes)| inodes.is_any_known_unlinked());
                Done::FoundDeleted { models: deleted.map(|(id, _)| *id).collect() }
            }
            Self::Sweep(sweep) => {
                let freshness = served.freshness(&sweep.found);
                Done::Swept { id: sweep.id, swept: Some((sweep, freshness)) }
            }
            Self::Load { id, found, cancel } => {
                let tell = |progress| teller.tell(Done::Progress { id, progress });
                Done::Loaded { id, outcome: load(how, &found, &cancel, tell) }
            }
        }
    }
}

fn load(
    how: &How,
    found: &Found,
    cancel: &CancelToken,
    tell: impl FnMut(Progress),
) -> longshore_load::Result<LoadedModel> {
    let plan = Served::plan(found)?;
    let loader = Loader::new().heap(how.heap.clone()).cancel(cancel).observe(tell);
    let loaded = loader.load(&plan)?;
    let memory = loaded.buffer.share(Sealing::Content)?;
    if let Some(memfd) = memory.memfd() {
        memfd::set_permissions(memfd, how.memory_mode).map_err(|source| {
            longshore_load::Error::Process { operation: "setting the memory's permissions", source }
        })?;
    }
    Ok(LoadedModel {
        memory,
        ranges: plan.files().iter().map(PlannedFile::buffer_range).collect(),
        elapsed: loaded.report.elapsed,
        pages: loaded.report.pages.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use longshore_load::FormatChoice;
    use longshore_sys::readiness::{self, Watch};

    use super::*;

    fn jobs(root: &Path) -> Jobs {
        let served = Arc::new(Served::new(&[root.to_owned()], &[]).unwrap());
        Jobs::new(served, How { heap: Heap::Memfd, memory_mode: 0o400 }, 1).unwrap()
    }

    fn look(asker: Asker) -> Job {
        let layout = Layout { format: FormatChoice::Raw, align: None };
        Job::Look { asker, path: "/absent".into(), layout, shown: Some(Vec::new()) }
    }

    #[test]
    fn a_job_whose_thread_panics_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let mut jobs = jobs(dir.path());
        let without: WithoutResult = Arc::new(|_| Done::FoundDeleted { models: vec![2] });
        let panics = |_: &Teller| panic!("as a job of a test does");
        let ticket = jobs.run(&without, panics);
        let told = jobs.receiver.recv().unwrap();
        assert_eq!(told.ticket, ticket);
        assert!(matches!(&told.done, Done::FoundDeleted { models } if *models == [2]), "{told:?}");
        assert!(event_fd::drain(&jobs.event).is_ok(), "the server is woken for it");
        let find = Job::FindDeleted { models: Vec::new() };
        jobs.begin(User::limited(5), find, Instant::now());
        assert!(matches!(jobs.receiver.recv().unwrap().done, Done::FoundDeleted { .. }));
        assert!(jobs.receiver.try_recv().is_err(), "nothing is reported twice");
    }

    /// A look whose thread hangs, as far as can be seen from here.
    fn hang(jobs: &mut Jobs, user: User, begun: Instant) -> u64 {
        jobs.last_ticket += 1;
        let (ticket, asker) = (jobs.last_ticket, Asker::Client(1000 + jobs.last_ticket));
        let look_for = Look { user, purpose: Purpose::For(asker), begun, files: 1 };
        jobs.to_look.push(user, (look_for, look(asker)));
        assert!(jobs.to_look.begin().is_some());
        jobs.looking.insert(ticket, look_for);
        ticket
    }

    /// What comes until a look is over for that client.
    fn looked_for(jobs: &mut Jobs, wanted: u64, now: Instant) -> Looked {
        loop {
            for one in jobs.done(now) {
                match one {
                    Done::Looked { asker, looked } if asker == Asker::Client(wanted) => {
                        return looked;
                    }
                    _ => {}
                }
            }
            let watch = Watch { fd: jobs.as_fd(), read: true, write: false };
            readiness::wait(&[watch], None).unwrap();
        }
    }

    fn is_no_answer(looked: &Looked) -> bool {
        let Looked::Failed(error) = looked else { return false };
        let source = std::error::Error::source(error).unwrap().to_string();
        source.contains("did not answer in 20 s")
    }

    #[test]
    fn looks_that_do_not_come_back_are_given_up_and_do_not_keep_others_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let mut jobs = jobs(dir.path());
        let (begun, alice) = (Instant::now(), User::limited(1));
        let late = begun + LOOK_TIME;
        let hung = [(); 4].map(|()| hang(&mut jobs, alice, begun));
        jobs.begin(alice, look(Asker::Client(7)), begun + Duration::from_secs(1));
        assert_eq!(jobs.to_look.waiting().count(), 1, "a user has no more threads");
        assert_eq!(jobs.next_deadline(), Some(late));
        assert!(jobs.done(late - Duration::from_secs(1)).is_empty());
        let given_up = jobs.done(late);
        assert_eq!(given_up.len(), hung.len());
        for one in &given_up {
            let Done::Looked { looked, .. } = one else { panic!("{one:?}") };
            assert!(is_no_answer(looked), "{looked:?}");
        }
        // With them out of the way it is looked for.
        assert!(matches!(looked_for(&mut jobs, 7, late), Looked::Refused { .. }));
        // One that comes back after all says nothing, and its thread is no longer counted.
        let asker = Asker::Client(1000 + hung[0]);
        jobs.teller(hung[0]).tell(Done::Looked { asker, looked: Looked::Unshown(Vec::new()) });
        assert!(jobs.done(late).is_empty());
        assert_eq!(jobs.hung.len(), hung.len() - 1);
        assert_eq!((jobs.looking.len(), jobs.to_look.running()), (0, 0));
    }

    #[test]
    fn looks_at_held_models_that_hang_leave_room_for_clients() {
        let dir = tempfile::tempdir().unwrap();
        let mut jobs = jobs(dir.path());
        let (begun, alice) = (Instant::now(), User::limited(1));
        for ticket in 0..HUNG_MAX as u64 {
            let purpose = Some(Purpose::Sweep(ticket));
            jobs.hung.insert(ticket, Hung { user: alice, len_bytes: 0, descriptors: 0, purpose });
        }
        assert!(jobs.is_sweep_hung(0) && !jobs.is_sweep_hung(1000));
        jobs.last_ticket = 1000;
        jobs.begin(alice, Job::FindDeleted { models: Vec::new() }, begun);
        jobs.begin(alice, look(Asker::Client(7)), begun);
        assert!(matches!(looked_for(&mut jobs, 7, begun), Looked::Refused { .. }));
        assert_eq!((jobs.looking.len(), jobs.to_sweep.waiting().count()), (0, 0));
    }

    #[test]
    fn threads_that_do_not_come_back_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let mut jobs = jobs(dir.path());
        let begun = Instant::now();
        let late = begun + LOOK_TIME;
        let (alice, bob) = (User::limited(1), User::limited(2));
        for _ in 0..2 {
            (0..4).for_each(|_| _ = hang(&mut jobs, alice, begun));
            assert_eq!(jobs.done(late).len(), 4);
        }
        assert_eq!(jobs.hung.len(), HUNG_PER_USER_MAX);
        jobs.begin(alice, look(Asker::Client(7)), late);
        assert!(is_no_answer(&looked_for(&mut jobs, 7, late)), "it would hang as well");
        jobs.begin(bob, look(Asker::Client(8)), late);
        assert!(matches!(looked_for(&mut jobs, 8, late), Looked::Refused { .. }));
        for user in 10..16 {
            (0..4).for_each(|_| _ = hang(&mut jobs, User::limited(user), begun));
            jobs.done(late);
        }
        assert_eq!(jobs.hung.len(), HUNG_MAX);
        jobs.begin(bob, look(Asker::Client(9)), late);
        assert!(is_no_answer(&looked_for(&mut jobs, 9, late)));
        // Models that are held are looked at, and files of the server's start are looked for.
        jobs.begin(bob, Job::FindDeleted { models: Vec::new() }, late);
        assert_eq!(jobs.looking.len(), 1);
        while !jobs.done(late).iter().any(|done| matches!(done, Done::FoundDeleted { .. })) {
            let watch = Watch { fd: jobs.as_fd(), read: true, write: false };
            readiness::wait(&[watch], None).unwrap();
        }
        jobs.begin(bob, look(Asker::Start(0)), late);
        assert_eq!(jobs.looking.len(), 1);
        assert_eq!(jobs.next_deadline(), None);
    }
}
