//! Loading requested models, giving them to clients, and taking them back.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_heap::Unavailability;
use longshore_load::{CancelToken, MemoryLimit, Progress};
use longshore_mem::ByteSize;
use longshore_sys::descriptors;
use longshore_sys::file;
use longshore_sys::packet_socket;

use super::asking::{Refusal, Told, sent};
use super::connection::{Connection, Phase};
use super::core::{Core, Load, Memory};
use super::events::{Event, LoadFailure};
use super::jobs::{Job, LoadedModel};
use super::limits::{HUGETLB_PAGE, is_only_of};
use super::names::Names;
use super::open_files::OpenFiles;
use super::users::User;
use crate::model_cache::{Model, NoRoom};
use crate::peer::Peer;
use crate::protocol::Reply;
use crate::reason::Reason;
use crate::served::Found;

/// The interval at which clients get a message about a load that has not begun. They give up after a
/// minute.
pub(super) const BEAT_EVERY: Duration = Duration::from_secs(10);

impl Core {
    /// Gives a client a model whose files it has shown: at once, or when it is loaded.
    pub(super) fn give(&mut self, id: u64, found: Found, now: Instant) -> Told {
        self.give_until(id, found, None, now)
    }

    /// As [`Self::give`]. Until the deadline the client may wait for memory that is being freed.
    pub(super) fn give_until(
        &mut self,
        id: u64,
        found: Found,
        deadline: Option<Instant>,
        now: Instant,
    ) -> Told {
        let Some(user) = self.connections.get(&id).map(|connection| connection.user) else {
            return Ok(());
        };
        // Memory that was freed meanwhile no longer counts.
        self.say_freed();
        let given_up = self.lingering.given_up();
        if let Err(refusal) = self.may_hold(user, &found) {
            return self.refuse_or_wait(id, found, refusal, (given_up, deadline), now);
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.asked_for = Some(Arc::new(found.without_inodes()));
        }
        let model = match self.cache.find(&found) {
            Some(model) => {
                let may_share = self.may_share(user, model);
                let may_share = may_share.and_then(|()| self.may_hold_another(user, Some(model)));
                if let Err(refusal) = may_share {
                    return self.refuse(id, refusal, now);
                }
                self.name_as_pinned(model, &found);
                // The server has these versions again.
                if let Some(same) = self.cache.get_mut(model).filter(|it| it.found.is_remote()) {
                    same.is_stale = false;
                }
                model
            }
            None => match self.load(user, &found, now) {
                Ok(model) => model,
                Err(refusal) => {
                    return self.refuse_or_wait(id, found, refusal, (given_up, deadline), now);
                }
            },
        };
        if self.cache.get(model).is_some_and(|model| model.memory.is_some()) {
            return self.attach(id, model, now);
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.enter(Phase::Waiting(model), now);
        }
        self.set_users(model);
        Ok(())
    }

    /// Begins to load a model that is not in memory, in the turn of this user.
    pub(super) fn load(&mut self, user: User, found: &Found, now: Instant) -> Result<u64, Refusal> {
        let wanted_bytes = found.len_bytes;
        if wanted_bytes == 0 {
            let message = format!("{} is empty: there is nothing to share", found.path.display());
            return Err(Refusal::new(Reason::Unreadable, message));
        }
        // Otherwise the next clients that request the model would be refused because of this user.
        self.jobs.may_load(user).map_err(|error| Refusal::of(&error))?;
        // An older version in memory stays for the clients that have it, and is given to no others.
        let older: Vec<u64> = self
            .cache
            .iter()
            .filter(|(_, model)| model.found.is_as(found))
            .map(|(id, _)| id)
            .collect();
        for id in older {
            if let Some(model) = self.cache.get_mut(id) {
                lose_name(model);
            }
        }
        for memory in self.cache.memories_mut() {
            memory.names.forget(found);
        }
        self.may_hold_another(user, None)?;
        self.may_open(user, &OpenFiles::of_load(found))?;
        self.make_room(user, found)?;
        let path = found.path.clone();
        let id = self.cache.insert(found.clone(), now);
        let cancel = CancelToken::new();
        let load = Load { user, cancel: cancel.clone(), done_bytes: 0 };
        self.loads.insert(id, load);
        self.events.push(Event::Loading { id, uid: user.uid(), path, len_bytes: wanted_bytes });
        self.jobs.begin(user, Job::Load { id, found: found.clone(), cancel }, now);
        Ok(id)
    }

    /// Uses this path for a model if a pinned model has the same path and is an older version, so that
    /// the pin moves to the newer one, even if that was first asked for by another path.
    fn name_as_pinned(&mut self, id: u64, found: &Found) {
        let is_older = |(older, model): (u64, &Model<Memory>)| {
            older < id && model.is_pinned && model.found.is_as(found)
        };
        if self.cache.iter().any(is_older)
            && let Some(model) = self.cache.get_mut(id)
        {
            let is_loaded = model.memory.is_some();
            model.found = found.clone();
            if is_loaded {
                self.move_pin(id);
            }
        }
    }

    /// Gives up unused models until there is room, those of this user first. Memory that clients keep takes room, too.
    fn make_room(&mut self, user: User, found: &Found) -> Result<(), Refusal> {
        loop {
            let kept_bytes = self.kept_bytes();
            let needed_bytes = found.len_bytes.saturating_add(kept_bytes);
            match self.cache.make_room(needed_bytes, |model| is_only_of(model, user)) {
                Ok(gone) if gone.is_empty() => return Ok(()),
                // If clients keep the memory, this made no room.
                Ok(gone) => {
                    self.freed(gone);
                    self.check_dropped()?;
                }
                Err(NoRoom { limit_bytes, in_use_bytes }) => {
                    let message = format!(
                        "{} are needed for {}, but of the {} that the server may hold (--memory-max) \
                         {} are in use",
                        ByteSize(found.len_bytes),
                        found.path.display(),
                        ByteSize(limit_bytes),
                        ByteSize(in_use_bytes.saturating_add(kept_bytes))
                    );
                    return Err(Refusal::new(Reason::NoMemory, message));
                }
            }
        }
    }

    pub(super) fn on_progress(&mut self, id: u64, progress: Progress, now: Instant) {
        let Progress { done_bytes, total_bytes, elapsed, .. } = progress;
        let Some(load) = self.loads.get_mut(&id) else { return };
        load.done_bytes = done_bytes;
        let elapsed_ms = elapsed.as_millis() as u64;
        let reply = Reply::Progress { done_bytes, total_bytes, elapsed_ms };
        for client in self.waiting_for(id) {
            let told = self.connections.get_mut(&client).map(|it| it.send_if_idle(&reply, now));
            if let Some(Err(_)) = told {
                self.disconnect(client, None, now);
            }
        }
    }

    pub(super) fn on_loaded(
        &mut self,
        id: u64,
        outcome: longshore_load::Result<LoadedModel>,
        now: Instant,
    ) {
        let Some(load) = self.loads.remove(&id) else { return self.lingering.free_later(outcome) };
        let Some(model) = self.cache.get_mut(id) else { return self.lingering.free_later(outcome) };
        let (path, len_bytes) = (model.found.path.clone(), model.found.len_bytes);
        let uid = load.user.uid();
        if model.is_abandoned {
            self.cache.remove(id);
            self.lingering.free_later(outcome);
            self.events.push(Event::LoadFailed { id, uid, path, why: LoadFailure::Unwanted });
            return;
        }
        let loaded = match outcome {
            Ok(loaded) => loaded,
            Err(error) => return self.on_load_failed(id, load.user, error, now),
        };
        let LoadedModel { memory, ranges, elapsed, pages } = loaded;
        model.memory = Some(Memory {
            buffer: Arc::new(memory),
            ranges,
            users: BTreeSet::new(),
            named_by: load.user,
            names: Names::default(),
        });
        model.since = now;
        self.events.push(Event::Loaded { id, uid, path, len_bytes, elapsed, pages });
        if self.jobs.start_models.remove(&id) {
            model.is_pinned = true;
        }
        self.move_pin(id);
        // Attach it for all before one of them is found to be gone, which could free it.
        let waiting = self.waiting_for(id);
        let attach = |client| Some((client, self.attach(client, id, now).err()?));
        let gone: Vec<_> = waiting.into_iter().filter_map(attach).collect();
        // Its own path may have changed during the load, but not those of the other clients.
        if let Some(model) = self.cache.get_mut(id)
            && model.is_stale
            && model.found.inodes.is_some()
        {
            model.is_stale = false;
            lose_name(model);
        }
        for (client, why) in gone {
            self.disconnect(client, why, now);
        }
    }

    fn on_load_failed(&mut self, id: u64, user: User, error: longshore_load::Error, now: Instant) {
        // Try again if other models can be freed for it: fewer each time.
        if let Some((bytes, page_bytes)) = missing_bytes(&error)
            && let Ok(gone) =
                self.cache.take_idle(bytes, page_bytes, |model| is_only_of(model, user))
            && self.cache.get(id).is_some()
        {
            self.freed(gone);
            self.loads.insert(id, Load { user, cancel: CancelToken::new(), done_bytes: 0 });
            return self.load_after_freeing(id, user, now);
        }
        let is_remote = self.cache.get(id).is_some_and(|model| model.found.is_remote());
        let refusal = if is_remote { Refusal::of_remote(&error) } else { Refusal::of(&error) };
        if let Some(model) = self.cache.remove(id) {
            let Refusal { reason, message, for_log } = refusal.clone();
            let message = for_log.unwrap_or(message);
            let (found, why) = (model.found, LoadFailure::Failed { reason, message });
            let (uid, path) = (user.uid(), found.path.clone());
            self.events.push(Event::LoadFailed { id, uid, path, why });
            if self.jobs.start_models.remove(&id) {
                self.on_start_load_failed(found, error, now);
            }
        }
        for client in self.waiting_for(id) {
            let told = self.refuse(client, refusal.clone(), now);
            if let Err(why) = told {
                self.disconnect(client, why, now);
            }
        }
    }

    /// Sends a message to clients whose load has not begun, so that they do not take the server for
    /// dead.
    pub(super) fn beat(&mut self, now: Instant) {
        if now < self.next_beat {
            return;
        }
        self.next_beat = now + BEAT_EVERY;
        let queued: Vec<u64> =
            self.loads.iter().filter(|(_, load)| load.done_bytes == 0).map(|(id, _)| *id).collect();
        for id in queued {
            let total_bytes = self.cache.get(id).map_or(0, |model| model.found.len_bytes);
            let progress = Progress::new(0, total_bytes, Duration::ZERO);
            self.on_progress(id, progress, now);
        }
    }

    /// Moves the pin to the newest version of a file.
    fn move_pin(&mut self, newest: u64) {
        let Some(model) = self.cache.get(newest) else { return };
        let older: Vec<u64> = self
            .cache
            .iter()
            .filter(|(id, older)| {
                *id < newest && older.is_pinned && older.found.is_as(&model.found)
            })
            .map(|(id, _)| id)
            .collect();
        for id in &older {
            if let Some(model) = self.cache.get_mut(*id) {
                model.is_pinned = false;
                model.is_stale = true;
            }
        }
        if let Some(model) = self.cache.get_mut(newest).filter(|_| !older.is_empty()) {
            model.is_pinned = true;
        }
    }

    /// Gives a model to a client.
    fn attach(&mut self, client: u64, id: u64, now: Instant) -> Told {
        let user = self.connections.get(&client).map(|connection| connection.user);
        let may_open = user.map_or(Ok(()), |user| self.may_open(user, &OpenFiles::of_sending()));
        if let Err(refusal) = may_open {
            return self.refuse(client, refusal, now);
        }
        let Some(model) = self.cache.get_mut(id) else {
            let message = "the memory went meanwhile; attach it again".to_owned();
            return self.refuse(client, Refusal::new(Reason::Other, message), now);
        };
        let Some(connection) = self.connections.get_mut(&client) else { return Ok(()) };
        let Some(memory) = &mut model.memory else { return Ok(()) };
        // Opened again, so that each client has a file position of its own.
        let own = match memory.buffer.memfd().map(file::reopen_read_only).transpose() {
            Ok(own) => own,
            Err(error) => {
                let reason = match descriptors::is_exhausted(&error) {
                    true => Reason::TooMany,
                    false => Reason::Other,
                };
                let message = format!("the memory cannot be opened for another client: {error}");
                return self.refuse(client, Refusal::new(reason, message), now);
            }
        };
        memory.users.insert(connection.user);
        // The reply has the paths that the client used.
        let asked_for = connection.asked_for.take();
        let found = asked_for.unwrap_or_else(|| Arc::new(model.found.without_inodes()));
        let files = &found.files;
        let attached =
            Reply::Attached { id, len_bytes: memory.buffer.len(), files: files.len() as u32 };
        let parts: Vec<Reply> = files
            .iter()
            .zip(&memory.ranges)
            .map(|((path, _), range)| Reply::File {
                buffer_offset: range.start,
                len_bytes: range.end - range.start,
                path: path.clone(),
            })
            .collect();
        memory.names.remember(connection.user, found);
        // Counted before it is sent, so that a client that is gone by then releases it.
        let attachments = self.cache.attach(id, now).unwrap_or(0);
        self.events.push(Event::Attached { id, peer: connection.peer, attachments });
        connection.enter(Phase::Attached(id), now);
        match connection.send_with(&attached, own, now) {
            Err(error) if packet_socket::has_too_many_in_flight(&error) => {
                return self.refuse_in_flight(client, now);
            }
            told => sent(told)?,
        }
        for part in parts {
            sent(connection.send(&part, now))?;
        }
        Ok(())
    }

    /// Refuses a client whose memory cannot be sent, because too many descriptors are in flight.
    pub(super) fn refuse_in_flight(&mut self, client: u64, now: Instant) -> Told {
        let Some(connection) = self.connections.get_mut(&client) else { return Ok(()) };
        connection.drop_unsent();
        if let Some(id) = connection.attached() {
            let peer = connection.peer;
            // The memory is freed at the end of the turn: other clients may be about to get it.
            let attachments = self.cache.detach(id, now).unwrap_or(0);
            self.events.push(Event::Released { id, peer, attachments });
        }
        let message = "the memory cannot be sent, because other clients have not read what they were \
                       sent; try again later, or raise the server's 'ulimit -n' (LimitNOFILE= in its \
                       unit)";
        self.refuse(client, Refusal::new(Reason::TooMany, message.to_owned()), now)
    }

    /// Counts the end of an attachment, and frees models that no client has any longer.
    pub(super) fn release(&mut self, id: u64, peer: Peer, now: Instant) {
        let attachments = self.cache.detach(id, now).unwrap_or(0);
        self.events.push(Event::Released { id, peer, attachments });
        self.free_expired(now);
    }

    /// Takes back the model that a disconnected client had or waited for. With `has_unread_memory`, its
    /// connection counts until it has read everything or closes its end.
    pub(super) fn let_go(&mut self, connection: Connection, has_unread_memory: bool, now: Instant) {
        let peer = connection.peer;
        let (attached, waits_for) = (connection.attached(), connection.model());
        self.close_connection(connection, has_unread_memory, now);
        match (attached, waits_for) {
            (Some(id), _) => self.release(id, peer, now),
            (None, Some(id)) => self.abandon_if_unwanted(id),
            (None, None) => {}
        }
    }

    /// Closes a connection, and the files that the client has shown on it.
    pub(super) fn close_connection(
        &mut self,
        connection: Connection,
        has_unread_memory: bool,
        now: Instant,
    ) {
        let Connection { socket, user, phase, .. } = connection;
        match has_unread_memory {
            true => self.unread.end(user, socket, &self.closers, now),
            false => self.closers.end(user, socket),
        }
        if let Phase::Opening { shown, .. } | Phase::Proving { shown, .. } = phase {
            self.close_shown(user, shown);
        }
    }

    /// Sets the users in whose turns a load may begin: those whose clients wait for it.
    pub(super) fn set_users(&mut self, id: u64) {
        let waiting = self.waiting_for(id).into_iter().filter_map(|it| self.connections.get(&it));
        let mut users: BTreeSet<User> = waiting.map(|connection| connection.user).collect();
        // The server ends if such a load fails. So it never begins in the turn of a client, whose limits
        // could make it fail.
        if self.jobs.start_models.contains(&id) {
            users = BTreeSet::from([self.users.own()]);
        }
        self.jobs.set_users(id, &users);
    }

    fn abandon_if_unwanted(&mut self, id: u64) {
        if !self.waiting_for(id).is_empty() || self.jobs.start_models.contains(&id) {
            return self.set_users(id);
        }
        let Some(load) = self.loads.get(&id) else { return };
        let uid = load.user.uid();
        load.cancel.cancel();
        if self.jobs.forget_load(id) {
            self.loads.remove(&id);
            if let Some(model) = self.cache.remove(id) {
                let (path, why) = (model.found.path, LoadFailure::Unwanted);
                self.events.push(Event::LoadFailed { id, uid, path, why });
            }
        } else if let Some(model) = self.cache.get_mut(id) {
            model.is_abandoned = true;
        }
    }

    fn waiting_for(&self, id: u64) -> Vec<u64> {
        let waits = |connection: &Connection| matches!(connection.phase, Phase::Waiting(for_id) if for_id == id);
        self.connections.iter().filter(|(_, it)| waits(it)).map(|(id, _)| *id).collect()
    }
}

/// Returns the bytes of memory to free for a load that failed for a lack of memory, and the page size to
/// which each model is rounded up. Memory that the loads beside it will take, and that is not available,
/// must be freed, too.
fn missing_bytes(error: &longshore_load::Error) -> Option<(u64, u64)> {
    use longshore_load::Error;
    if let Error::Heap(longshore_heap::Error::Unavailable {
        reason: Unavailability::HugetlbPool { needed_pages, available_pages },
        ..
    }) = error
    {
        let missing_pages = needed_pages.saturating_sub(*available_pages).max(1);
        let page_bytes = HUGETLB_PAGE.bytes();
        return Some((missing_pages.saturating_mul(page_bytes), page_bytes));
    }
    let Error::NotEnoughMemory { needed_bytes, limit_bytes, limit } = error else {
        return None;
    };
    let of_others = match limit {
        MemoryLimit::ControlGroup { available_bytes, others_bytes, .. }
        | MemoryLimit::Machine { available_bytes, others_bytes } => {
            others_bytes.saturating_sub(*available_bytes)
        }
        _ => 0,
    };
    Some((needed_bytes.saturating_sub(*limit_bytes).saturating_add(of_others).max(1), 1))
}

/// Gives a model the next path by which it was requested, because its own leads to another version of
/// the file. If there is none, or the model is kept for its path, it is stale.
fn lose_name(model: &mut Model<Memory>) {
    // The versions of its files are no longer those of the server.
    if model.found.is_remote() {
        model.is_stale = true;
        return;
    }
    let memory = model.memory.as_mut().filter(|_| !model.is_pinned);
    let own = &model.found;
    let next = memory.and_then(|memory| {
        memory.names.forget(own);
        let (user, next) = memory.names.take_first()?;
        memory.named_by = user;
        Some(next)
    });
    match next {
        Some(next) => model.found.rename(&next),
        None => model.is_stale = true,
    }
}
