//! The model cache: the models, their attachments, and which of them may be freed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::served::Found;

/// The time for which a model without attachments is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Keep {
    /// Not kept: its memory is freed after the last attachment.
    #[default]
    Attached,
    /// Kept for this time after the last attachment.
    Idle(Duration),
    /// Kept until its memory is needed.
    Always,
}

/// One model. `M` is its memory, once it is loaded.
#[derive(Debug)]
pub(crate) struct Model<M> {
    pub(crate) found: Found,
    pub(crate) memory: Option<M>,
    pub(crate) attachments: u32,
    /// Kept for as long as the server runs.
    pub(crate) is_pinned: bool,
    pub(crate) is_stale: bool,
    pub(crate) since: Instant,
    /// `true` if no client waits for it any more, but it is still being loaded.
    pub(crate) is_abandoned: bool,
    /// The time when it was last attached or released.
    used: Instant,
}

/// There is not enough memory for a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom {
    pub(crate) limit_bytes: u64,
    /// The bytes that are in use and cannot be freed.
    pub(crate) in_use_bytes: u64,
}

/// All models.
#[derive(Debug)]
pub(crate) struct ModelCache<M> {
    models: BTreeMap<u64, Model<M>>,
    last_id: u64,
    keep: Keep,
    memory_max_bytes: u64,
}

impl<M> ModelCache<M> {
    pub(crate) fn new(keep: Keep, memory_max_bytes: u64) -> Self {
        Self { models: BTreeMap::new(), last_id: 0, keep, memory_max_bytes }
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Model<M>> {
        self.models.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Model<M>> {
        self.models.get_mut(&id)
    }

    /// Returns the memory of each model that is loaded.
    pub(crate) fn memories_mut(&mut self) -> impl Iterator<Item = &mut M> {
        self.models.values_mut().filter_map(|model| model.memory.as_mut())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Model<M>)> {
        self.models.iter().map(|(id, model)| (*id, model))
    }

    pub(crate) fn len(&self) -> usize {
        self.models.len()
    }

    /// Returns the bytes of all models, including those that are being loaded.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.models.values().map(|model| model.found.len_bytes).sum()
    }

    /// Returns the model of these very files in this layout, loaded or being loaded.
    pub(crate) fn find(&self, wanted: &Found) -> Option<u64> {
        let same = |model: &&Model<M>| !model.is_abandoned && model.found.is_same(wanted);
        self.iter().find(|(_, model)| same(model)).map(|(id, _)| id)
    }

    /// Returns the number of descriptors that keep the inodes of all models in use.
    pub(crate) fn open_files(&self) -> usize {
        self.models.values().map(|model| model.found.open_files()).sum()
    }

    /// Makes room for `len_bytes`, as [`Self::take_idle`] does.
    pub(crate) fn make_room(
        &mut self,
        len_bytes: u64,
        goes_first: impl Fn(&Model<M>) -> bool,
    ) -> Result<Vec<(u64, Model<M>)>, NoRoom> {
        let (held_bytes, limit_bytes) = (self.held_bytes(), self.memory_max_bytes);
        let missing_bytes = held_bytes.saturating_add(len_bytes).saturating_sub(limit_bytes);
        self.take_idle(missing_bytes, 1, goes_first)
            .map_err(|idle_bytes| NoRoom { limit_bytes, in_use_bytes: held_bytes - idle_bytes })
    }

    /// Takes unused models until they have `bytes` or more, each rounded up to a multiple of `page_bytes`:
    /// those that go first, and then the least recently used. An error has the bytes of all of them, if they
    /// are too few: then all stay.
    pub(crate) fn take_idle(
        &mut self,
        bytes: u64,
        page_bytes: u64,
        goes_first: impl Fn(&Model<M>) -> bool,
    ) -> Result<Vec<(u64, Model<M>)>, u64> {
        let idle = self.iter().filter(|(_, model)| model.may_go());
        let rounded = |bytes: u64| bytes.div_ceil(page_bytes).saturating_mul(page_bytes);
        let mut idle: Vec<_> = idle
            .map(|(id, model)| {
                ((!goes_first(model), model.used, id), rounded(model.found.len_bytes))
            })
            .collect();
        idle.sort_unstable();
        let idle_bytes = idle.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
        if idle_bytes < bytes {
            return Err(idle_bytes);
        }
        let mut taken_bytes = 0;
        let mut gone = Vec::new();
        for ((_, _, id), model_bytes) in idle {
            if taken_bytes >= bytes {
                break;
            }
            taken_bytes = model_bytes.saturating_add(taken_bytes);
            gone.extend(self.remove(id).map(|model| (id, model)));
        }
        Ok(gone)
    }

    /// Takes one of the unused models for which `is_it` returns `true`: the least recently used of those
    /// that go first, if there are any, or else of all.
    pub(crate) fn take_least_used(
        &mut self,
        is_it: impl Fn(u64, &Model<M>) -> bool,
        goes_first: impl Fn(&Model<M>) -> bool,
    ) -> Option<(u64, Model<M>)> {
        let unused = self.iter().filter(|(id, model)| model.may_go() && is_it(*id, model));
        let (.., id) = unused.map(|(id, model)| (!goes_first(model), model.used, id)).min()?;
        Some((id, self.remove(id)?))
    }

    /// Takes the models that were not used for the time that they are kept, and stale models without
    /// attachments.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Vec<(u64, Model<M>)> {
        let keep = self.keep;
        self.take(|model| {
            let expired = match keep {
                Keep::Attached => true,
                Keep::Idle(time) => now.saturating_duration_since(model.used) >= time,
                Keep::Always => false,
            };
            model.may_go() && (expired || model.is_stale)
        })
    }

    /// Returns the next time at which [`Self::take_expired`] has something to do.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        let Keep::Idle(time) = self.keep else { return None };
        let idle = self.models.values().filter(|model| model.may_go());
        idle.filter_map(|model| model.used.checked_add(time)).min()
    }

    pub(crate) fn insert(&mut self, found: Found, now: Instant) -> u64 {
        self.last_id += 1;
        let model = Model {
            found,
            memory: None,
            attachments: 0,
            is_pinned: false,
            is_stale: false,
            since: now,
            is_abandoned: false,
            used: now,
        };
        self.models.insert(self.last_id, model);
        self.last_id
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<Model<M>> {
        self.models.remove(&id)
    }

    /// Counts an attachment; returns their new number.
    pub(crate) fn attach(&mut self, id: u64, now: Instant) -> Option<u32> {
        let model = self.models.get_mut(&id)?;
        model.attachments += 1;
        model.used = now;
        Some(model.attachments)
    }

    /// Counts the end of an attachment; returns their new number.
    pub(crate) fn detach(&mut self, id: u64, now: Instant) -> Option<u32> {
        let model = self.models.get_mut(&id)?;
        model.attachments = model.attachments.saturating_sub(1);
        model.used = now;
        Some(model.attachments)
    }

    fn take(&mut self, goes: impl Fn(&Model<M>) -> bool) -> Vec<(u64, Model<M>)> {
        let ids: Vec<u64> =
            self.iter().filter(|(_, model)| goes(model)).map(|(id, _)| id).collect();
        ids.into_iter().filter_map(|id| Some((id, self.remove(id)?))).collect()
    }
}

impl<M> Model<M> {
    /// Returns `true` if no client has it and the server may free it.
    pub(crate) fn may_go(&self) -> bool {
        self.memory.is_some() && self.attachments == 0 && !self.is_pinned
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use longshore_load::FormatChoice;

    use super::*;
    use crate::served::{Layout, Looked, Served};

    /// Returns files of 1000 bytes each.
    fn files(dir: &Path, count: usize) -> Vec<Found> {
        let names: Vec<_> = (0..count).map(|number| dir.join(number.to_string())).collect();
        for name in &names {
            fs::write(name, [0; 1000]).unwrap();
        }
        let served = Served::new(&[dir.to_owned()], &[]).unwrap();
        let layout = Layout { format: FormatChoice::Raw, align: None };
        let found = |name: &PathBuf| match served.look(name, layout, None) {
            Looked::Found(found) => found.unwrap(),
            other => panic!("{other:?}"),
        };
        names.iter().map(found).collect()
    }

    fn ids<M>(gone: &[(u64, Model<M>)]) -> Vec<u64> {
        gone.iter().map(|(id, _)| *id).collect()
    }

    #[test]
    fn room_is_made_by_the_least_recently_used_models_without_attachments() {
        let dir = tempfile::tempdir().unwrap();
        let dir = fs::canonicalize(dir.path()).unwrap();
        let found = files(&dir, 4);
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut cache = ModelCache::new(Keep::Always, 3500);
        for (number, found) in found.iter().take(3).enumerate() {
            assert!(cache.make_room(1000, |_| false).unwrap().is_empty());
            let id = cache.insert(found.clone(), at(number as u64));
            // A model that is being loaded is not freed.
            assert!(cache.make_room(3000, |_| false).is_err());
            cache.get_mut(id).unwrap().memory = Some(());
        }
        assert_eq!(cache.find(&found[1]), Some(2));
        assert_eq!(cache.find(&found[3]), None);
        // The first is attached, and the second used last.
        assert_eq!(cache.attach(1, at(10)), Some(1));
        cache.attach(2, at(11));
        assert_eq!(cache.detach(2, at(12)), Some(0));
        assert_eq!(
            cache.make_room(2501, |_| false).err(),
            Some(NoRoom { limit_bytes: 3500, in_use_bytes: 1000 })
        );
        assert_eq!(cache.len(), 3, "no model is freed in vain");
        assert_eq!(ids(&cache.make_room(1000, |_| false).unwrap()), [3]);
        assert_eq!(ids(&cache.make_room(2500, |_| false).unwrap()), [2]);
        assert_eq!(cache.held_bytes(), 1000);
    }

    #[test]
    fn models_without_attachments_go_at_once_or_after_a_time_or_when_stale() {
        let dir = tempfile::tempdir().unwrap();
        let dir = fs::canonicalize(dir.path()).unwrap();
        let found = files(&dir, 1).remove(0);
        let begin = Instant::now();
        let kept = |keep| {
            let mut cache = ModelCache::new(keep, u64::MAX);
            let id = cache.insert(found.clone(), begin);
            cache.get_mut(id).unwrap().memory = Some(());
            cache.attach(id, begin);
            assert!(cache.take_expired(begin + Duration::from_secs(100)).is_empty());
            assert_eq!(cache.next_expiry(), None);
            cache.detach(id, begin);
            cache
        };
        assert_eq!(kept(Keep::Attached).take_expired(begin).len(), 1);
        let mut idle = kept(Keep::Idle(Duration::from_secs(5)));
        assert_eq!(idle.next_expiry(), Some(begin + Duration::from_secs(5)));
        assert!(idle.take_expired(begin + Duration::from_secs(4)).is_empty());
        assert_eq!(idle.take_expired(begin + Duration::from_secs(5)).len(), 1);
        let mut always = kept(Keep::Always);
        assert!(always.take_expired(begin + Duration::from_secs(1 << 20)).is_empty());
        always.get_mut(1).unwrap().is_stale = true;
        assert_eq!(always.take_expired(begin).len(), 1);
        let mut pinned = kept(Keep::Attached);
        pinned.get_mut(1).unwrap().is_pinned = true;
        assert!(pinned.take_expired(begin).is_empty());
        assert_eq!(pinned.take_idle(1, 1, |_| false).err(), Some(0));
    }
}
