//! The limits on the descriptors that the server keeps open for one user, so that others can be served.
//!
//! This counts all descriptors that requests for models cause: files that clients show, also while they
//! wait to be closed, files that are looked up or loaded, inodes that are kept in use, and memory.
//! Connections have limits of their own.

use std::collections::BTreeSet;

use super::asking::Refusal;
use super::connection::Connection;
use super::core::Core;
use super::jobs::{LOADING_MAX, LOOKING};
use super::limits::is_only_of;
use super::users::{Of, User};
use crate::reason::Reason;
use crate::served::Found;

/// The number of descriptors of a file of a model while it is loaded, beside the one that keeps its
/// inode in use: one for reads through the page cache, and one for direct reads.
const PER_READ_FILE: usize = 2;
/// Each user may have this part of what all users may have, whatever others have.
const RESERVED: usize = 16;
/// The number of descriptors that a lookup or a load has for a moment: `/proc`, rings, a file that is
/// compared.
const MORE: usize = 4;

/// Descriptors that are open, or will be.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenFiles {
    /// Those that stay open for as long as a client likes.
    kept: usize,
    /// The number of files of each lookup that goes on or will begin.
    looks: Vec<usize>,
    /// The number of files of each load that goes on or will begin.
    loads: Vec<usize>,
}

impl OpenFiles {
    /// A client shows this many files, which are then looked up.
    pub(super) fn of_look(files: usize) -> Self {
        Self { kept: files, looks: vec![files], loads: Vec::new() }
    }

    /// Memory is sent to a client, by a descriptor that is open until it has been sent.
    pub(super) fn of_sending() -> Self {
        Self { kept: 1, ..Self::default() }
    }

    /// A model in memory: its inodes and its memory; and its files while it is loaded.
    fn of_model(found: &Found, is_loaded: bool) -> Self {
        let files = found.open_files();
        let loads = if is_loaded { Vec::new() } else { vec![files] };
        Self { kept: files + 1, looks: Vec::new(), loads }
    }

    /// A model that is about to be loaded, and then sent.
    pub(super) fn of_load(found: &Found) -> Self {
        Self::of_model(found, false).and(Self::of_sending())
    }

    fn and(mut self, mut other: Self) -> Self {
        self.kept += other.kept;
        self.looks.append(&mut other.looks);
        self.loads.append(&mut other.loads);
        self
    }

    /// Returns the most descriptors at once, if no more lookups and loads go on at once than these.
    fn count(mut self, looks_max: usize, loads_max: usize) -> usize {
        let largest = |counts: &mut Vec<usize>, max, of: fn(usize) -> usize| -> usize {
            counts.sort_unstable_by(|a, b| b.cmp(a));
            counts.iter().take(max).copied().map(of).sum()
        };
        self.kept
            + largest(&mut self.looks, looks_max, of_running_look)
            + largest(&mut self.loads, loads_max, of_reading)
    }
}

/// Returns the number of descriptors that a load may have, beside those of its model.
pub(super) fn of_reading(files: usize) -> usize {
    PER_READ_FILE * files + MORE
}

/// Returns the number of descriptors that a lookup of this many files may have, beside those that the
/// client sent.
pub(super) fn of_running_look(files: usize) -> usize {
    files + of_reading(files)
}

/// Returns the number of descriptors that a load which was given up may have: its inodes, memory, and
/// files.
pub(super) fn of_hung_load(files: usize) -> usize {
    files + 1 + of_reading(files)
}

impl Core {
    /// Returns the descriptors that these users cause.
    fn open_files(&self, of: Of) -> OpenFiles {
        let of_users = self.connections.values().filter(|connection| of.contains(connection.user));
        let ids: BTreeSet<u64> = of_users.clone().filter_map(Connection::model).collect();
        let has = |id: u64, is_pinned: bool, is_abandoned: bool| match of {
            Of::All => true,
            // The load was cancelled, and has its files until it ends.
            _ if is_abandoned => self.loads.get(&id).is_some_and(|load| of.contains(load.user)),
            _ => ids.contains(&id) && !is_pinned,
        };
        let models = self.cache.iter();
        let models = models.filter(|(id, model)| has(*id, model.is_pinned, model.is_abandoned));
        let models =
            models.map(|(_, model)| OpenFiles::of_model(&model.found, model.memory.is_some()));
        let hung = self.jobs.hung_descriptors(of)
            + self.lingering.descriptors(of)
            + self.closers.files(of);
        let kept = hung + of_users.clone().map(Connection::kept_descriptors).sum::<usize>();
        let proving = of_users.filter_map(Connection::files_to_prove);
        let looks = self.jobs.looks(of).chain(proving).collect();
        models.fold(OpenFiles { kept, looks, loads: Vec::new() }, OpenFiles::and)
    }

    /// Checks that this many more descriptors may be open for this user, and frees unused models if that
    /// is enough for it, those of this user first.
    ///
    /// All users to whom the limits apply may have [`Self::open_files_max`], and one of them half of
    /// that. If others have all of it, a user may have a [part](RESERVED) beyond it. Together with root and the server's own user they may have three times as many, a quarter
    /// less than the process may have.
    pub(super) fn may_open(&mut self, user: User, more: &OpenFiles) -> Result<(), Refusal> {
        self.may_have_open(user, more)?;
        let max = self.open_files_max;
        let (count, needed) = self.count_with(Of::Limited, more);
        let is_reserved = || self.count_with(Of::One(user), more).1 <= max / RESERVED;
        if user.is_limited() && needed > max && !is_reserved() {
            return Err(too_many(needed - count, "all users", count, max));
        }
        loop {
            let (count, needed) = self.count_with(Of::All, more);
            if needed <= 3 * max {
                return Ok(());
            }
            match self.cache.take_idle(1, 1, |model| is_only_of(model, user)) {
                Ok(gone) if !gone.is_empty() => self.freed(gone),
                _ => return Err(too_many(needed - count, "the server", count, 3 * max)),
            }
        }
    }

    /// Checks that a user may attach this model, which is held for others.
    pub(super) fn may_share(&self, user: User, id: u64) -> Result<(), Refusal> {
        let mut of_user = self.connections.values().filter(|connection| connection.user == user);
        match self.cache.get(id).filter(|model| !model.is_pinned) {
            Some(model) if !of_user.any(|connection| connection.model() == Some(id)) => {
                let more = OpenFiles::of_model(&model.found, model.memory.is_some());
                self.may_have_open(user, &more)
            }
            _ => Ok(()),
        }
    }

    /// Checks that this many more may be open for this user, whatever others have.
    fn may_have_open(&self, user: User, more: &OpenFiles) -> Result<(), Refusal> {
        let max = self.open_files_max / 2;
        match self.count_with(Of::One(user), more) {
            (count, needed) if user.is_limited() && needed > max => {
                Err(too_many(needed - count, &user.to_string(), count, max))
            }
            _ => Ok(()),
        }
    }

    /// Returns the number of descriptors that these users cause, and the number with this many more.
    fn count_with(&self, of: Of, more: &OpenFiles) -> (usize, usize) {
        let (looks_max, loads_max) = match of {
            Of::One(user) if user.is_limited() => (LOOKING.limited_max, self.limits.loads),
            _ => (LOOKING.max, LOADING_MAX),
        };
        let open = self.open_files(of);
        let needed = open.clone().and(more.clone()).count(looks_max, loads_max);
        (open.count(looks_max, loads_max), needed)
    }
}

fn too_many(more: usize, who: &str, count: usize, max: usize) -> Refusal {
    let message = format!(
        "{more} more descriptors are needed, but {who} may have {max} for models and has {count}; \
         release models, try again later, or raise the server's 'ulimit -n' (LimitNOFILE= in its \
         unit)"
    );
    Refusal::new(Reason::TooMany, message)
}
