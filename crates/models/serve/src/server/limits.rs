//! The limits of one user, which leave resources for other users.

use std::collections::BTreeSet;

use longshore_heap::Heap;
use longshore_mem::{ByteSize, Granule};
use longshore_sys::{huge_pages, memory};

use super::Options;
use super::asking::Refusal;
use super::connection::Connection;
use super::core::{Core, Memory};
use super::jobs::LOADING_MAX;
use super::users::User;
use crate::model_cache::Model;
use crate::reason::Reason;
use crate::served::Found;

/// The page size of the hugetlb pool.
pub(super) const HUGETLB_PAGE: Granule = Granule::SIZE_2M;
/// The most models that are in memory at once.
const MODELS_MAX: usize = 1024;
/// The number of these that only root and the server's own user can have.
const MODELS_RESERVED: usize = 16;

/// The limits of one user: half of each resource, and of memory half of what others do not have, unless
/// the options say otherwise. Root and the server's own user are not limited.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Connections.
    pub(super) clients: usize,
    /// Models that are being loaded at once.
    pub(super) loads: usize,
    /// Models of all users together.
    pub(super) models: usize,
    /// Bytes of models.
    pub(super) memory_bytes: u64,
    /// The memory of which each user leaves a part to others; `None` if the options limit the memory of
    /// a user.
    shared_bytes: Option<u64>,
    /// The page size to which the length of each model is rounded up.
    page_bytes: u64,
}

impl Limits {
    pub(super) fn of(options: &Options) -> Self {
        let is_pool = options.heap == Heap::Hugetlb;
        Self::with_pool(options, is_pool.then(pool_bytes).flatten())
    }

    /// As [`Self::of`], with this many bytes in the hugetlb pool; `None` if the pool is no limit.
    fn with_pool(options: &Options, pool_bytes: Option<u64>) -> Self {
        let (memory_bytes, shared_bytes) = match options.memory_per_user {
            Some(bytes) => (bytes, None),
            None => {
                let given = options.memory_max.into_iter().chain(pool_bytes).min();
                let all_bytes = given.unwrap_or_else(available_bytes);
                (all_bytes / 2, Some(all_bytes))
            }
        };
        Self {
            clients: options.clients_per_user.unwrap_or((options.clients_max / 2).max(1)),
            loads: options.loads_per_user.unwrap_or(LOADING_MAX / 2).clamp(1, LOADING_MAX),
            models: MODELS_MAX,
            memory_bytes,
            shared_bytes,
            page_bytes: if options.heap == Heap::Hugetlb { HUGETLB_PAGE.bytes() } else { 4096 },
        }
    }

    fn charge(&self, len_bytes: u64) -> u64 {
        len_bytes.div_ceil(self.page_bytes).saturating_mul(self.page_bytes)
    }

    /// Returns the bytes that one user may have while others have `others_bytes`: as much as it leaves
    /// free.
    fn share_bytes(&self, others_bytes: u64) -> u64 {
        let left = |all: u64| all.saturating_sub(others_bytes) / 2;
        self.shared_bytes.map_or(self.memory_bytes, |all| self.memory_bytes.min(left(all)))
    }
}

impl Core {
    /// Checks that a user may have this model, too, and frees unused models of this user, or of
    /// others, if that is enough for it.
    ///
    /// A user is charged with the whole length of each model that it has or waits for, also if others
    /// share the model. A client can keep a descriptor after it released the model. So a model that no
    /// client has attached, and whose memory is not free, is charged to every user that was given it.
    /// While another user has it attached, that user is charged, and those that released it are not.
    /// A model that the server holds anyway is free of charge.
    ///
    /// Which of several users keeps the memory of a model cannot be seen. So that a user who closed
    /// everything can attach a model again, the largest model that others may keep as well is not
    /// charged. It counts as memory of others.
    ///
    /// A user may have no more than it leaves free, unless the options say what one user may have. This
    /// limit also applies to a model that is loaded already: otherwise users who work together could
    /// fill the memory, one with loads and another that takes them over. But a user may always share
    /// one model, if it has nothing else.
    ///
    /// A user that has a model attached had room for it, and remains charged if it is the last one to
    /// release it. So for each model there is a user that had room for it and is charged with it, except
    /// for one model of each two users. There is another exception: users can keep models beyond their
    /// shares that root or the server's own user had attached at the same time.
    pub(super) fn may_hold(&mut self, user: User, found: &Found) -> Result<(), Refusal> {
        if !user.is_limited() {
            return Ok(());
        }
        let (kept, kept_max) = self.lingering.kept_by(user);
        if kept >= kept_max {
            let message = format!(
                "programs of {user} have descriptors of {kept} models that were released, and can have no                  more; close them"
            );
            return Err(Refusal::new(Reason::TooMany, message));
        }
        let wanted_bytes = self.limits.charge(found.len_bytes);
        loop {
            let Charged { ids, in_use_bytes, released_bytes, unused_bytes } = self.charged(user);
            let existing = self.cache.find(found);
            let is_pinned = |id| self.cache.get(id).is_some_and(|model| model.is_pinned);
            if existing.is_some_and(|id| ids.contains(&id) || is_pinned(id)) {
                return Ok(());
            }
            let held_bytes = in_use_bytes.saturating_add(released_bytes);
            let needed_bytes = held_bytes.saturating_add(wanted_bytes);
            // A model that is loaded already takes no more memory.
            let own_bytes = if existing.is_some() { needed_bytes } else { held_bytes };
            let others_bytes = self.all_bytes().saturating_sub(own_bytes);
            let limit_bytes = match existing.is_some() && held_bytes == 0 {
                true => self.limits.memory_bytes,
                false => self.limits.share_bytes(others_bytes),
            };
            if needed_bytes <= limit_bytes {
                return Ok(());
            }
            let least_bytes = needed_bytes - unused_bytes;
            let is_unused_by_others = |id: u64, model: &Model<Memory>| {
                model.may_go() && !ids.contains(&id) && existing != Some(id)
            };
            let unused_by_others =
                self.cache.iter().filter(|(id, it)| is_unused_by_others(*id, it));
            let unused_by_others: u64 =
                unused_by_others.map(|(_, model)| self.limits.charge(model.found.len_bytes)).sum();
            // If a client keeps the memory, this frees none, and it remains charged.
            let gone = if least_bytes <= limit_bytes {
                let goes_first = |model: &Model<Memory>| is_only_of(model, user);
                self.cache.take_least_used(|_, model| was_given(model, user), goes_first)
            } else if least_bytes
                <= self.limits.share_bytes(others_bytes.saturating_sub(unused_by_others))
            {
                self.cache.take_least_used(|id, model| is_unused_by_others(id, model), |_| false)
            } else {
                None
            };
            if let Some(gone) = gone {
                self.freed(vec![gone]);
                self.check_dropped()?;
                continue;
            }
            let mut message = format!(
                "{} are needed for {}, but {user} has {} of the {} that one user may have",
                ByteSize(wanted_bytes),
                found.path.display(),
                ByteSize(held_bytes),
                ByteSize(limit_bytes)
            );
            if limit_bytes < self.limits.memory_bytes {
                let others = format!(
                    " while others have {}, since as much is left free for more users",
                    ByteSize(others_bytes)
                );
                message.push_str(&others);
            }
            message.push_str(" (--memory-max-per-user)");
            if released_bytes > 0 {
                let released = format!(
                    ", {} of them in memory that was released and is not free: a program of a user \
                     that had it still has a descriptor of it, or a load has not ended",
                    ByteSize(released_bytes)
                );
                message.push_str(&released);
            }
            return Err(Refusal::new(Reason::TooMany, message));
        }
    }

    /// Checks that a user may have one model more: `existing`, which is in memory, or another one. Frees
    /// unused models if that is enough for it, those of this user first.
    ///
    /// A user may have no more models than it leaves free. It is charged as with memory, also for models
    /// that are in memory already, and may always share one if it has nothing else.
    pub(super) fn may_hold_another(
        &mut self,
        user: User,
        existing: Option<u64>,
    ) -> Result<(), Refusal> {
        let max = self.limits.models;
        loop {
            let ids = self.charged(user).ids;
            let is_free_of_charge = |id: u64| {
                let is_pinned = self.cache.get(id).is_some_and(|model| model.is_pinned);
                !user.is_limited() || is_pinned || ids.is_empty() || ids.contains(&id)
            };
            if existing.is_some_and(is_free_of_charge) {
                return Ok(());
            }
            let (own, reserved) = match user.is_limited() {
                true => (ids.len(), max / MODELS_RESERVED),
                false => (0, 0),
            };
            let free = max.saturating_sub(self.cache.len() + reserved);
            if own < free {
                return Ok(());
            }
            let may_go = |id, model: &Model<Memory>| model.may_go() && existing != Some(id);
            let unused = self.cache.iter().filter(|(id, model)| may_go(*id, model));
            let unused: Vec<u64> = unused.map(|(id, _)| id).collect();
            let own_unused = unused.iter().filter(|id| ids.contains(id)).count();
            let gone = if own.saturating_sub(own_unused) < free + unused.len() {
                self.cache.take_least_used(may_go, |model| is_only_of(model, user))
            } else {
                None
            };
            let Some(gone) = gone else {
                let message = match free {
                    0 if own == 0 => format!("{max} models are held, and no more can be"),
                    _ => format!(
                        "{user} has {own} models, and the last {} of {max} are for other users",
                        free + reserved
                    ),
                };
                return Err(Refusal::new(Reason::TooMany, message));
            };
            self.freed(vec![gone]);
        }
    }

    /// Returns the memory that is charged to a user.
    fn charged(&self, user: User) -> Charged {
        let of_user = self.connections.values().filter(|connection| connection.user == user);
        let ids: BTreeSet<u64> = of_user.filter_map(Connection::model).collect();
        let mut released_bytes = self.jobs.hung_bytes(Some(user));
        let mut free_of_charge = 0;
        for gone in self.lingering.iter().filter(|gone| gone.users.contains(&user)) {
            let len_bytes = self.limits.charge(gone.len_bytes);
            released_bytes = released_bytes.saturating_add(len_bytes);
            if gone.users.len() > 1 {
                free_of_charge = len_bytes.max(free_of_charge);
            }
        }
        released_bytes = released_bytes.saturating_sub(free_of_charge);
        let mut charged = Charged { ids, in_use_bytes: 0, released_bytes, unused_bytes: 0 };
        for (id, model) in self.cache.iter().filter(|(_, model)| !model.is_pinned) {
            let len_bytes = self.limits.charge(model.found.len_bytes);
            let add = |bytes: &mut u64| *bytes = bytes.saturating_add(len_bytes);
            if charged.ids.contains(&id) {
                add(&mut charged.in_use_bytes);
            } else if model.attachments == 0 && was_given(model, user)
                || self.is_loaded_for_nobody(id, model, user)
            {
                charged.ids.insert(id);
                add(&mut charged.released_bytes);
                if model.may_go() {
                    add(&mut charged.unused_bytes);
                }
            }
        }
        charged
    }

    /// Returns `true` if this user began to load the model, and no client wants it any more. The load
    /// was cancelled, and has its memory until it ends.
    fn is_loaded_for_nobody(&self, id: u64, model: &Model<Memory>, user: User) -> bool {
        model.is_abandoned && self.loads.get(&id).is_some_and(|load| load.user == user)
    }

    /// Returns the memory of all models, as charged to users: including models that clients keep, and
    /// loads that hang.
    fn all_bytes(&self) -> u64 {
        let held = self.cache.iter().map(|(_, model)| model.found.len_bytes);
        let all = held.chain(self.lingering.iter().map(|gone| gone.len_bytes));
        let hung_bytes = self.jobs.hung_bytes(None);
        all.map(|bytes| self.limits.charge(bytes)).fold(hung_bytes, u64::saturating_add)
    }

    /// Returns the bytes of models that the server gave up and clients keep, and of loads that hang.
    pub(super) fn kept_bytes(&self) -> u64 {
        let gone = self.lingering.iter().map(|gone| gone.len_bytes);
        gone.fold(self.jobs.hung_bytes(None), u64::saturating_add)
    }
}

/// The memory that is charged to a user.
#[derive(Debug)]
struct Charged {
    /// The models in memory.
    ids: BTreeSet<u64>,
    /// The bytes of models that it has or waits for.
    in_use_bytes: u64,
    /// The bytes of other models that it was given and whose memory is not free again.
    released_bytes: u64,
    /// The bytes of these whose models no client has attached.
    unused_bytes: u64,
}

/// Returns `true` if no other user was given the memory of a model.
pub(super) fn is_only_of(model: &Model<Memory>, user: User) -> bool {
    model.memory.as_ref().is_some_and(|memory| memory.users.iter().all(|given| *given == user))
}

/// Returns `true` if a user was given the memory of a model.
fn was_given(model: &Model<Memory>, user: User) -> bool {
    model.memory.as_ref().is_some_and(|memory| memory.users.contains(&user))
}

/// Returns the memory that the machine and the control groups have for this process as it starts.
fn available_bytes() -> u64 {
    let available = memory::available();
    let group_bytes = available.control_group.map(|(bytes, _)| bytes);
    available.machine_bytes.into_iter().chain(group_bytes).min().unwrap_or(u64::MAX)
}

/// Returns the free memory of the hugetlb pool as this process starts, or `None` for an empty pool:
/// pages may be added to it later.
fn pool_bytes() -> Option<u64> {
    let pool = huge_pages::pool_2m().ok()?;
    let bytes = |pages: u64| pages.saturating_mul(HUGETLB_PAGE.bytes());
    // Overcommitted pages come from ordinary memory.
    let more_bytes = bytes(pool.overcommit_pages).min(available_bytes());
    Some(bytes(pool.available_pages).saturating_add(more_bytes)).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hugetlb_pool_is_divided_if_it_is_smaller_than_the_memory_limit() {
        let options = Options::new().heap(Heap::Hugetlb);
        for (memory_max, pool_bytes, all_bytes) in [
            (None, Some(400 << 20), 400 << 20),
            (Some(1 << 40), Some(400 << 20), 400 << 20),
            (Some(100 << 20), Some(400 << 20), 100 << 20),
            (Some(100 << 20), None, 100 << 20),
        ] {
            let limits = Limits::with_pool(&options.clone().memory_max(memory_max), pool_bytes);
            assert_eq!(limits.memory_bytes, all_bytes / 2, "{memory_max:?}, {pool_bytes:?}");
            assert_eq!(limits.share_bytes(100 << 20), (all_bytes - (100 << 20)) / 2);
        }
        let options = options.memory_per_user(1 << 40);
        let limits = Limits::with_pool(&options, Some(400 << 20));
        assert_eq!(limits.share_bytes(1 << 40), 1 << 40, "the option alone decides");
    }
}
