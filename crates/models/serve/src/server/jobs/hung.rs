//! Looks and loads that are given up, and the threads that they keep.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use super::Jobs;
use super::job::{Asker, Done, Job, Purpose};
use crate::server::open_files::{of_hung_load, of_reading, of_running_look};
use crate::server::users::Of;
use crate::server::users::User;

/// How long a look for a client may take, the time that it waits for a thread included. Clients give
/// a server up after a minute.
pub(super) const LOOK_TIME: Duration = Duration::from_secs(20);
/// How long a load may go on without a byte of progress. Users can make it wait for that long: on a
/// local file system, too, by a lock of the file that a page fault of theirs keeps.
pub(super) const SILENT_TIME: Duration = Duration::from_secs(60);
/// After this time without a byte a load loses its place to others, and a look that goes on for so long.
/// They go on beside the others. Otherwise two users could keep all others waiting for a minute each time.
pub(super) const STALL_TIME: Duration = Duration::from_secs(3);
/// How many looks, and how many loads, go on without a place. More of them wait for these.
const SLOW: Budget = Budget { max: 16, reserved: 4 };
/// With fewer bytes in [`SILENT_TIME`], 16 MiB/s, a load loses its place, too.
pub(super) const PACE_BYTES: u64 = 60 * (16 << 20);
/// How many looks and loads that were given up may keep their threads: of all users, and of one. With
/// that many no other is begun, since it would hang as well.
pub(super) const HUNG_MAX: usize = 32;
pub(super) const HUNG_PER_USER_MAX: usize = 8;
/// How many looks at models that are held may keep their threads after they were given up. They do not
/// count for [`HUNG_MAX`]: clients may ask for files in other file systems.
const HUNG_SWEEPS_MAX: usize = 16;
const HUNG_SWEEPS_PER_USER_MAX: usize = 2;

/// How many of something all users may have, and which part of it one of them.
#[derive(Clone, Copy, Debug)]
struct Budget {
    /// One user has never more than are still free for others.
    max: usize,
    /// Each user may have so many whatever others have.
    reserved: usize,
}

impl Budget {
    /// Returns whether a user may have one more beside those of these users. The budget does not apply to
    /// users whom the server trusts.
    fn has_room(self, users: impl Iterator<Item = User>, user: User) -> bool {
        let (mut all, mut own) = (0usize, 0usize);
        for other in users.filter(|user| user.is_limited()) {
            all += 1;
            own += usize::from(other == user);
        }
        !user.is_limited() || own < self.max.saturating_sub(all).max(self.reserved)
    }
}

/// Returns whether a look or a load of a user may begin beside those of these users that have no place.
pub(super) fn slow_has_room(slow: impl Iterator<Item = User>, user: User) -> bool {
    SLOW.has_room(slow, user)
}

/// A look that was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) user: User,
    pub(super) purpose: Purpose,
    pub(super) begun: Instant,
    /// How many files a client has shown for it.
    pub(super) files: usize,
    /// When it got a thread.
    pub(super) started: Instant,
    /// Whether it is one of the looks of which only so many go on at once.
    pub(super) has_place: bool,
}

/// A load that goes on.
#[derive(Debug)]
pub(super) struct Loading {
    /// The user that it counts for: one that wants it, if there is one.
    pub(super) user: User,
    pub(super) ticket: u64,
    pub(super) files: usize,
    pub(super) len_bytes: u64,
    pub(super) done_bytes: u64,
    /// When it last had more bytes than before.
    pub(super) moved: Instant,
    /// Whether it is one of the loads of which only so many go on at once.
    pub(super) has_place: bool,
    /// When its pace is measured next, and how many bytes it must have by then to keep its place.
    pub(super) pace: (Instant, u64),
}

/// A look or a load that was given up.
#[derive(Debug)]
pub(super) struct Hung {
    pub(super) user: User,
    /// The memory that it may have.
    pub(super) len_bytes: u64,
    /// How many descriptors it may have.
    pub(super) descriptors: usize,
    /// What it was for, if it was a look.
    pub(super) purpose: Option<Purpose>,
}

impl Look {
    pub(super) fn new(user: User, purpose: Purpose, now: Instant, files: usize) -> Self {
        Self { user, purpose, begun: now, files, started: now, has_place: true }
    }

    /// When it loses its place. Looks at models that are held, and those of the start, keep theirs.
    fn place_ends(&self) -> Option<Instant> {
        let may_lose = matches!(self.purpose, Purpose::For(Asker::Client(_)));
        (may_lose && self.has_place).then(|| self.started + STALL_TIME)
    }

    /// Returns whether it loses its place now.
    fn loses_place(&mut self, now: Instant) -> bool {
        let loses = self.place_ends().is_some_and(|end| end <= now);
        self.has_place &= !loses;
        loses
    }

    /// When it is given up. What the server is to hold from the start has all the time there is.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (!matches!(self.purpose, Purpose::For(Asker::Start(_)))).then(|| self.begun + LOOK_TIME)
    }

    pub(super) fn may_begin(&self, hung: &BTreeMap<u64, Hung>) -> bool {
        may_begin(hung, self.user, self.purpose.is_sweep())
    }

    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= now)
    }
}

impl Loading {
    /// When it is given up. Those of the server itself, and of users whom it trusts, have all the time
    /// there is.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.user.is_limited().then(|| self.moved + SILENT_TIME)
    }

    /// When there is something to be done about it.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let pace = self.has_place.then(|| self.pace.0.min(self.moved + STALL_TIME));
        self.deadline().into_iter().chain(pace).min()
    }

    /// Measures its pace, if it is time to. Returns whether it loses its place.
    pub(super) fn loses_place(&mut self, now: Instant) -> bool {
        if !self.has_place {
            return false;
        }
        self.has_place = now < self.moved + STALL_TIME;
        let (at, least_bytes) = self.pace;
        if at <= now {
            self.has_place &= self.done_bytes >= least_bytes;
            self.pace = (now + SILENT_TIME, self.done_bytes.saturating_add(PACE_BYTES));
        }
        !self.has_place
    }
}

impl Hung {
    fn is_sweep(&self) -> bool {
        self.purpose.is_some_and(Purpose::is_sweep)
    }
}

impl Jobs {
    /// Returns whether a look at this model was given up and has not come back.
    pub(in crate::server) fn is_sweep_hung(&self, model: u64) -> bool {
        self.hung.values().any(|hung| hung.purpose == Some(Purpose::Sweep(model)))
    }

    /// Returns the memory that loads which were given up may still have: of this user, or of all.
    pub(in crate::server) fn hung_bytes(&self, of: Option<User>) -> u64 {
        let hung = self.hung.values().filter(|hung| of.is_none_or(|user| user == hung.user));
        hung.map(|hung| hung.len_bytes).fold(0, u64::saturating_add)
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

    /// When the next look or load is given up.
    pub(in crate::server) fn next_deadline(&self) -> Option<Instant> {
        let waiting = self.to_look.waiting().chain(self.to_sweep.waiting());
        let waiting = waiting.map(|(look, _)| look);
        let looks = self.looking.values().chain(waiting).filter_map(Look::deadline);
        let places = self.looking.values().filter_map(Look::place_ends);
        let loads = self.loading.values().filter_map(Loading::next_deadline);
        looks.chain(places).chain(loads).min()
    }

    /// Gives up looks and loads that are late, and those that wait for threads which do not come back.
    pub(super) fn give_up(&mut self, now: Instant) -> Vec<Done> {
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
        for look in self.looking.values_mut() {
            if look.loses_place(now) {
                self.to_look.end(look.user);
            }
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

    /// Whether a load of this user may begin beside those that hang.
    pub(super) fn may_load(&self, user: User) -> bool {
        let hung = self.hung.values().filter(|hung| !hung.is_sweep()).map(|hung| hung.user);
        let all: Vec<User> = hung.collect();
        let of_user = all.iter().filter(|of| **of == user).count();
        !user.is_limited() || all.len() < HUNG_MAX && of_user < HUNG_PER_USER_MAX
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

pub(super) fn no_progress() -> longshore_load::Error {
    let reason = format!("the file system gave no byte in {} s", SILENT_TIME.as_secs());
    let source = io::Error::new(io::ErrorKind::TimedOut, reason);
    longshore_load::Error::Process { operation: "loading the model", source }
}

pub(super) fn no_answer() -> longshore_load::Error {
    let reason = format!("the file system did not answer in {} s", LOOK_TIME.as_secs());
    let source = io::Error::new(io::ErrorKind::TimedOut, reason);
    longshore_load::Error::Process { operation: "looking for the file", source }
}
