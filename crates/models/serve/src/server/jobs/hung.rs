//! Lookups and loads that are given up, and the threads that they keep.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::time::{Duration, Instant};

use longshore_heap::Heap;
use longshore_load::{CancelToken, POPULATE_AHEAD_DEFAULT_BYTES, ReadMode};

use super::Jobs;
use super::job::{Asker, Done, Job, Purpose};
use crate::remote::{LOOK_TIME as REMOTE_LOOK_TIME, copied};
use crate::served::{Found, Layout};
use crate::server::open_files::{of_hung_load, of_reading, of_running_look};
use crate::server::users::Of;
use crate::server::users::User;

/// The time for a lookup for a client, including the wait for a thread. Clients give a server up after a
/// minute.
pub(super) const LOOK_TIME: Duration = Duration::from_secs(20);
/// The time that a lookup may wait for a thread, beside the time of its requests.
const WAIT_TIME: Duration = Duration::from_secs(15);
/// The time that a load may go on without [`PROGRESS_BYTES`] of progress. Users can make it wait that
/// long, on a local file system, too, by a lock of the file that a page fault of theirs keeps.
pub(super) const SILENT_TIME: Duration = Duration::from_secs(60);
/// With fewer bytes in [`SILENT_TIME`], 51 KiB/s, a load makes no progress. A user can release the lock of
/// a file now and then, so that a load of it gets some bytes and never ends.
pub(super) const PROGRESS_BYTES: u64 = 3 << 20;
/// A load that gets fewer than [`PACE_BYTES`] in this time loses its place to others, and so does a look
/// that goes on for so long. They go on beside the others. Otherwise two users could keep all others
/// waiting for a minute each time.
pub(super) const STALL_TIME: Duration = Duration::from_secs(3);
/// With fewer bytes in [`STALL_TIME`], 16 MiB/s, a load loses its place. Disks give several times as much,
/// also to two loads at once.
pub(super) const PACE_BYTES: u64 = 3 * (16 << 20);
/// The most lookups, and the most loads, that go on without a place. Further ones wait for these.
const SLOW: Budget = Budget { max: 16, reserved: 4 };
/// The bytes of memory that a load can have beyond those that it has read: the prefaulted pages, and as
/// much again for reads in progress, eight of 8 MiB each, and four more beside them.
const AHEAD_BYTES: u64 = 2 * POPULATE_AHEAD_DEFAULT_BYTES;
/// The most lookups, and the most loads, that were given up and may keep their threads.
pub(super) const HUNG: Budget = Budget { max: 64, reserved: 4 };
/// The most checks of models in memory that were given up and may keep their threads. They do not count
/// for [`HUNG`]: clients may request files in other file systems.
const HUNG_SWEEPS_MAX: usize = 16;
const HUNG_SWEEPS_PER_USER_MAX: usize = 2;

/// How many of something all users may have, and which part of it one of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// A user never has more than are still free for others.
    pub(super) max: usize,
    /// The number that each user may have, whatever others have.
    pub(super) reserved: usize,
}

impl Budget {
    /// Returns `true` if a user may have one more beside those of these users. The budget does not apply
    /// to users whom the server trusts.
    fn has_room(self, users: impl Iterator<Item = User>, user: User) -> bool {
        let (mut all, mut own) = (0usize, 0usize);
        for other in users.filter(|user| user.is_limited()) {
            all += 1;
            own += usize::from(other == user);
        }
        !user.is_limited() || own < self.max.saturating_sub(all).max(self.reserved)
    }
}

/// Returns `true` if a lookup or a load of a user may begin beside those of these users that have no
/// place.
pub(super) fn slow_has_room(slow: impl Iterator<Item = User>, user: User) -> bool {
    SLOW.has_room(slow, user)
}

/// The device, number and time of birth of an inode. They are compared while it is in use.
pub(super) type Inode = ((u32, u32), u64, Option<(i64, u32)>);

/// The files that a look or a load asks a file system for. If one hangs, others of the same target would, too.
///
/// A load is taken for the same as another only if it has the same files: which of several files hangs is
/// not known, and a user can name the files of others beside one that hangs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The layout comes first, because it is compared first. The path is compared by its bytes: as paths,
    /// two of 4 KiB take 90 us, and the looks that wait are compared with all that go on.
    Look(Layout, OsString),
    Load(Vec<Inode>, ReadMode),
}

pub(super) const LOOKING: &str = "looking for the file";
const LOADING: &str = "loading the model";

/// A requested lookup.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub(super) user: User,
    pub(super) purpose: Purpose,
    pub(super) begun: Instant,
    /// The files that it looks for; `None` if it looks at models that are held.
    pub(super) target: Option<Target>,
    /// The number of files that a client has shown for it.
    pub(super) files: usize,
    /// The time when it got a thread.
    pub(super) started: Instant,
    /// `true` if it has one of the places for lookups.
    pub(super) has_place: bool,
    /// Set if it asks a server.
    pub(super) remote: Option<OnServer>,
}

/// The part of a lookup that only models on servers have.
#[derive(Clone, Debug)]
pub(super) struct OnServer {
    pub(super) cancel: CancelToken,
    /// The other clients that get the result.
    pub(super) joined: Vec<Purpose>,
}

impl OnServer {
    pub(super) fn new(cancel: CancelToken) -> Self {
        Self { cancel, joined: Vec::new() }
    }
}

/// A running load.
#[derive(Debug)]
pub(super) struct Loading {
    /// The user to whom it is charged: one that wants it, if there is one.
    pub(super) user: User,
    pub(super) ticket: u64,
    pub(super) inodes: Vec<Inode>,
    pub(super) mode: ReadMode,
    pub(super) cancel: CancelToken,
    pub(super) files: usize,
    pub(super) len_bytes: u64,
    pub(super) done_bytes: u64,
    /// The last time when it had [`PROGRESS_BYTES`] more than before, and its bytes at that time.
    pub(super) moved: Instant,
    pub(super) moved_bytes: u64,
    /// `true` if it has one of the places for loads.
    pub(super) has_place: bool,
    /// The time when its pace is measured next, and the bytes that it needs by then to keep its place.
    pub(super) pace: (Instant, u64),
}

/// A lookup or a load that was given up.
#[derive(Debug)]
pub(super) struct Hung {
    pub(super) user: User,
    /// The memory that it may have.
    pub(super) held_bytes: u64,
    /// The number of descriptors that it may have.
    pub(super) descriptors: usize,
    /// The purpose of a look.
    pub(super) purpose: Option<Purpose>,
    pub(super) target: Option<Target>,
}

impl Look {
    pub(super) fn new(user: User, purpose: Purpose, now: Instant, files: usize) -> Self {
        let (target, remote) = (None, None);
        Self { user, purpose, begun: now, target, files, started: now, has_place: true, remote }
    }

    /// Returns `true` if it looks up a file of the start.
    pub(super) fn is_of_start(&self) -> bool {
        matches!(self.purpose, Purpose::For(Asker::Start(_)))
    }

    /// Returns whether both ask the file system for the same. Looks at models that are held do not count.
    pub(super) fn is_as(&self, other: &Self) -> bool {
        self.target.is_some() && self.target == other.target
    }

    /// Returns the time when it loses its place. Checks of models in memory, and lookups of files of the
    /// start, keep theirs.
    fn place_ends(&self) -> Option<Instant> {
        let may_lose = matches!(self.purpose, Purpose::For(Asker::Client(_)));
        (may_lose && self.has_place).then(|| self.started + STALL_TIME)
    }

    /// Returns `true` if it loses its place now.
    fn loses_place(&mut self, now: Instant) -> bool {
        let loses = self.place_ends().is_some_and(|end| end <= now);
        self.has_place &= !loses;
        loses
    }

    /// Returns the time when it is given up. Lookups of files of the start have no limit.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.is_of_start()).then(|| self.begun + self.time())
    }

    /// Returns the reason why it does not begin beside those that hang, if there is one.
    pub(super) fn refusal(&self, hung: &BTreeMap<u64, Hung>) -> Option<longshore_load::Error> {
        if self.purpose.is_sweep() {
            return (!may_sweep(hung, self.user)).then(|| too_many_hang(LOOKING, self.user));
        }
        // Files of the start are looked up in any case.
        self.deadline()?;
        if self.target.is_some() && hung.values().any(|hung| hung.target == self.target) {
            return Some(still_hangs(LOOKING));
        }
        let looks = hung.values().filter(|hung| matches!(hung.target, Some(Target::Look(..))));
        let has_room = HUNG.has_room(looks.map(|hung| hung.user), self.user);
        (!has_room).then(|| too_many_hang(LOOKING, self.user))
    }

    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= now)
    }
}

impl Look {
    /// Returns the time for the lookup of a client, including the wait for a thread.
    pub(super) fn time(&self) -> Duration {
        if self.remote.is_some() { REMOTE_LOOK_TIME + WAIT_TIME } else { LOOK_TIME }
    }

    /// Returns `true` if this lookup of a client can get the result of another one that is about to begin.
    pub(super) fn may_join(&self, other: &Self) -> bool {
        let is_of_client = |look: &Self| matches!(look.purpose, Purpose::For(Asker::Client(_)));
        self.remote.is_some() && is_of_client(self) && is_of_client(other) && self.is_as(other)
    }

    /// Forgets a client that has disconnected. If no other one waits for a model on a server, the requests
    /// end.
    pub(super) fn forget_client(&mut self, gone: u64) {
        let gone = Purpose::For(Asker::Client(gone));
        let Some(remote) = &mut self.remote else { return };
        remote.joined.retain(|purpose| *purpose != gone);
        if self.purpose == gone {
            match remote.joined.pop() {
                Some(next) => self.purpose = next,
                None => remote.cancel.cancel(),
            }
        }
    }

    /// Returns the result for each client that waits for it.
    pub(super) fn shared(self, done: Done) -> Vec<Done> {
        let (Done::Looked { looked, .. }, Some(remote)) = (&done, &self.remote) else {
            return vec![done];
        };
        let all = remote.joined.iter().chain([&self.purpose]);
        let shared = |purpose: &Purpose| match purpose {
            Purpose::For(asker) => {
                Some(Done::Looked { asker: *asker, looked: copied::copy(looked) })
            }
            Purpose::FindDeleted | Purpose::Sweep(_) => None,
        };
        match self.purpose {
            // The errors of files of the start end the server, and are kept as they are.
            Purpose::For(Asker::Start(_)) => vec![done],
            _ => all.filter_map(shared).collect(),
        }
    }

    /// Ends a lookup that is given up, and returns the results for the clients that wait for it.
    pub(super) fn given_up(self, why: longshore_load::Error) -> Vec<Done> {
        if let Some(remote) = &self.remote {
            remote.cancel.cancel();
        }
        let done = self.purpose.without_result(why);
        self.shared(done)
    }

    /// Returns the error for a lookup that was given up.
    pub(super) fn no_answer(&self) -> longshore_load::Error {
        let who = if self.remote.is_some() { "server" } else { "file system" };
        let reason = format!("the {who} did not answer in {} s", self.time().as_secs());
        let source = io::Error::new(io::ErrorKind::TimedOut, reason);
        longshore_load::Error::Process { operation: LOOKING, source }
    }
}

impl Loading {
    /// Records its progress.
    pub(super) fn on_progress(&mut self, done_bytes: u64, now: Instant) {
        self.done_bytes = self.done_bytes.max(done_bytes);
        if self.done_bytes - self.moved_bytes >= PROGRESS_BYTES {
            (self.moved, self.moved_bytes) = (now, self.done_bytes);
        }
    }

    /// Returns the memory that it may have. It gets no more once it is cancelled.
    fn held_bytes(&self, heap: &Heap) -> u64 {
        // All pages of the hugetlb pool are reserved when the load begins.
        let is_whole = match heap {
            Heap::MemfdBasePages => false,
            Heap::Memfd => self.len_bytes.is_multiple_of(2 << 20),
            _ => true,
        };
        let ahead_bytes = self.done_bytes.saturating_add(AHEAD_BYTES);
        if is_whole { self.len_bytes } else { self.len_bytes.min(ahead_bytes) }
    }

    /// Measures its pace, if it is time to. Returns `true` if it loses its place.
    pub(super) fn loses_place(&mut self, now: Instant) -> bool {
        let (at, least_bytes) = self.pace;
        if !self.has_place || now < at {
            return false;
        }
        self.has_place = self.done_bytes >= least_bytes;
        self.pace = (now + STALL_TIME, self.done_bytes.saturating_add(PACE_BYTES));
        !self.has_place
    }
}

impl Hung {
    fn is_sweep(&self) -> bool {
        self.purpose.is_some_and(Purpose::is_sweep)
    }
}

impl Jobs {
    /// Returns `true` if a check of this model was given up and has not ended.
    pub(in crate::server) fn is_sweep_hung(&self, model: u64) -> bool {
        self.hung.values().any(|hung| hung.purpose == Some(Purpose::Sweep(model)))
    }

    /// Returns the memory that loads which were given up may still have: of this user, or of all.
    pub(in crate::server) fn hung_bytes(&self, of: Option<User>) -> u64 {
        let hung = self.hung.values().filter(|hung| of.is_none_or(|user| user == hung.user));
        hung.map(|hung| hung.held_bytes).fold(0, u64::saturating_add)
    }

    /// Returns how many descriptors looks and loads of these users may have that were given up or have no
    /// place.
    pub(in crate::server) fn hung_descriptors(&self, of: Of) -> usize {
        let hung = self.hung.values().filter(|hung| of.contains(hung.user));
        let looks = self.looking.values().filter(|look| !look.has_place && of.contains(look.user));
        let loads = self.loading.values().filter(|load| !load.has_place && of.contains(load.user));
        hung.map(|hung| hung.descriptors).sum::<usize>()
            + looks.map(|look| of_running_look(look.files)).sum::<usize>()
            + loads.map(|load| of_reading(load.files)).sum::<usize>()
    }

    /// Returns the time when the next lookup or load is given up.
    pub(in crate::server) fn next_deadline(&self) -> Option<Instant> {
        let waiting = self.to_look.waiting().chain(self.to_sweep.waiting());
        let waiting = waiting.map(|(look, _)| look);
        let looks = self.looking.values().chain(waiting).filter_map(Look::deadline);
        let places = self.looking.values().filter_map(Look::place_ends);
        let loads = self.loading.iter().filter_map(|(id, load)| self.load_deadline(*id, load));
        let paces = self.loading.values().filter(|load| load.has_place).map(|load| load.pace.0);
        looks.chain(places).chain(loads).chain(paces).min()
    }

    /// When a load is given up. Those of users whom the server trusts have all the time there is,
    /// except files of the start, which clients want, too.
    fn load_deadline(&self, model: u64, loading: &Loading) -> Option<Instant> {
        let is_bounded = loading.user.is_limited() || self.start_models.contains(&model);
        is_bounded.then(|| loading.moved + SILENT_TIME)
    }

    /// Returns `true` if a load goes on and has kept its pace so far.
    pub(in crate::server) fn keeps_pace(&self, model: u64) -> bool {
        self.loading.get(&model).is_some_and(|loading| loading.has_place)
    }

    /// Gives up lookups and loads that are late, and those that wait for threads which do not end.
    pub(super) fn give_up(&mut self, now: Instant) -> Vec<Done> {
        let late: Vec<u64> =
            self.looking.iter().filter(|(_, look)| look.is_late(now)).map(|(id, _)| *id).collect();
        let mut given_up = Vec::new();
        for ticket in late {
            let Some(look) = self.looking.remove(&ticket) else { continue };
            self.end_look(&look);
            let Look { user, purpose, ref target, files, .. } = look;
            let (descriptors, target) = (of_running_look(files), target.clone());
            let hung = Hung { user, held_bytes: 0, descriptors, purpose: Some(purpose), target };
            self.hung.insert(ticket, hung);
            let why = look.no_answer();
            given_up.extend(look.given_up(why));
        }
        for look in self.looking.values_mut() {
            if look.loses_place(now) {
                self.to_look.end(look.user);
            }
        }
        let hung = &self.hung;
        let mut keeps = |(look, _): &(Look, Job)| {
            let why = look.refusal(hung).or_else(|| look.is_late(now).then(|| no_thread(look)));
            let keeps = why.is_none();
            given_up.extend(why.map(|why| look.purpose.without_result(why)));
            keeps
        };
        self.to_look.retain(&mut keeps);
        self.to_sweep.retain(&mut keeps);
        given_up.extend(self.give_up_loads(now));
        given_up
    }

    fn give_up_loads(&mut self, now: Instant) -> Vec<Done> {
        let is_late = |(id, loading): &(&u64, &Loading)| {
            self.load_deadline(**id, loading).is_some_and(|deadline| deadline <= now)
        };
        let late: Vec<u64> = self.loading.iter().filter(is_late).map(|(id, _)| *id).collect();
        let mut done = Vec::new();
        for id in late {
            let Some(loading) = self.loading.remove(&id) else { continue };
            // Its result is dropped, so it ends as soon as the file system answers.
            loading.cancel.cancel();
            let held_bytes = loading.held_bytes(&self.how.heap);
            let Loading { user, ticket, inodes, mode, files, has_place, .. } = loading;
            if has_place {
                self.to_load.end(user);
            }
            let descriptors = of_hung_load(files);
            let target = Some(Target::Load(inodes, mode));
            let hung = Hung { user, held_bytes, descriptors, purpose: None, target };
            self.hung.insert(ticket, hung);
            done.push(Done::Loaded { id, outcome: Err(no_progress()) });
        }
        for loading in self.loading.values_mut() {
            if loading.loses_place(now) {
                self.to_load.end(loading.user);
            }
        }
        done
    }

    /// Returns whether a load of these files would read them through the page cache, since another one that
    /// hangs does not.
    pub(in crate::server) fn reads_buffered(&self, found: &Found, now: Instant) -> bool {
        matches!(self.read_mode(&inodes_of(found), now), Ok(ReadMode::Buffered))
    }

    /// Returns how a load of these files reads them, beside those that hang. If one of the same files
    /// gets no byte, page cache reads may do better: direct reads take the lock of the inode, which every
    /// user who can read the file can make others wait for.
    ///
    /// # Errors
    /// The reason why it does not begin.
    pub(super) fn read_mode(
        &self,
        inodes: &[Inode],
        now: Instant,
    ) -> longshore_load::Result<ReadMode> {
        let hung = self.hung.values().filter_map(|hung| match &hung.target {
            Some(Target::Load(inodes, mode)) => Some((inodes, *mode)),
            _ => None,
        });
        // Those of users whom the server trusts are not given up.
        let silent = |time| {
            let silent = self.loading.values().filter(move |load| load.moved + time <= now);
            silent.map(|load| (&load.inodes, load.mode))
        };
        let is_buffered = |(others, mode): (&Vec<Inode>, ReadMode)| {
            others == inodes && mode == ReadMode::Buffered
        };
        if hung.clone().chain(silent(SILENT_TIME)).any(is_buffered) {
            return Err(still_hangs(LOADING));
        }
        let is_same = |(others, _): (&Vec<Inode>, ReadMode)| others == inodes;
        match hung.chain(silent(STALL_TIME)).any(is_same) {
            true => Ok(ReadMode::Buffered),
            false => Ok(ReadMode::Auto),
        }
    }
}

/// Returns `true` if the load may begin in the turn of this user, beside those that hang.
pub(super) fn may_load(hung: &BTreeMap<u64, Hung>, user: User) -> bool {
    let loads = hung.values().filter(|hung| matches!(hung.target, Some(Target::Load(..))));
    HUNG.has_room(loads.map(|hung| hung.user), user)
}

/// Returns the error for a user whose load may begin in no turn.
pub(super) fn too_many_loads(user: User) -> longshore_load::Error {
    too_many_hang(LOADING, user)
}

/// Returns `true` if a check of a model in memory may begin beside those that hang.
fn may_sweep(hung: &BTreeMap<u64, Hung>, user: User) -> bool {
    let sweeps = hung.values().filter(|hung| hung.is_sweep());
    let of_user = sweeps.clone().filter(|hung| hung.user == user).count();
    sweeps.count() < HUNG_SWEEPS_MAX && of_user < HUNG_SWEEPS_PER_USER_MAX
}

/// Returns the inodes that a load reads. For files on servers, a number stands for their names and versions.
pub(super) fn inodes_of(found: &Found) -> Vec<Inode> {
    if let Some(remote) = &found.remote {
        let mut hasher = DefaultHasher::new();
        remote.to_string().hash(&mut hasher);
        return vec![((u32::MAX, u32::MAX), hasher.finish(), None)];
    }
    found.files.iter().map(|(_, file)| (file.device, file.inode, file.born)).collect()
}

/// Returns `true` if a load failed because it hangs, or an earlier one of the same files.
pub(in crate::server) fn is_hang(error: &longshore_load::Error) -> bool {
    use longshore_load::Error::Process;
    matches!(error, Process { operation: LOADING, source } if source.kind() == io::ErrorKind::TimedOut)
}

fn no_progress() -> longshore_load::Error {
    failed(
        LOADING,
        format!(
            "the file system or the server gave less than {PROGRESS_BYTES} bytes in {} s",
            SILENT_TIME.as_secs()
        ),
    )
}

fn no_thread(look: &Look) -> longshore_load::Error {
    let seconds = look.time().as_secs();
    failed(LOOKING, format!("it waited {seconds} s for other look-ups, which have not ended"))
}

fn still_hangs(operation: &'static str) -> longshore_load::Error {
    let reason = "an earlier attempt still waits for the file system or server, which does not answer; \
                  try again when it does";
    failed(operation, reason.to_owned())
}

fn too_many_hang(operation: &'static str, user: User) -> longshore_load::Error {
    let reason = format!(
        "too many other files that {user} asked for are in file systems that do not answer; try again \
         when they do"
    );
    failed(operation, reason)
}

fn failed(operation: &'static str, reason: String) -> longshore_load::Error {
    let source = io::Error::new(io::ErrorKind::TimedOut, reason);
    longshore_load::Error::Process { operation, source }
}
