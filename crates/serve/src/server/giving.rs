//! Loading what is wanted, handing it out, and taking it back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_load::{CancelToken, Progress};
use longshore_sys::packet_socket::Peer;

use super::asking::{Asked, Refusal, sent};
use super::connection::{Connection, Phase};
use super::core::{Core, Load, Memory};
use super::events::Event;
use super::jobs::{Job, LoadedModel};
use crate::protocol::{Reason, Reply};
use crate::served::{Found, Looked};
use crate::shelf::NoRoom;

/// How often clients hear of a load that has not begun. They give a server up after a minute.
pub(super) const BEAT_EVERY: Duration = Duration::from_secs(10);
/// The most models that are held at once.
const MODELS_MAX: usize = 1024;

impl Core {
    /// Gives a client what it has shown that it may read: at once, or when it is loaded.
    pub(super) fn give(&mut self, id: u64, found: Found, now: Instant) -> Asked {
        let model = match self.shelf.find(&found) {
            Some(model) => model,
            None => match self.load(found, now) {
                Ok(model) => model,
                Err(refusal) => return self.refuse(id, refusal, now),
            },
        };
        if self.shelf.get(model).is_some_and(|model| model.memory.is_some()) {
            return self.attach(id, model, now);
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.enter(Phase::Waiting(model), now);
        }
        Ok(())
    }

    /// Begins to load a model that is not held.
    fn load(&mut self, found: Found, now: Instant) -> Result<u64, Refusal> {
        let wanted_bytes = found.len_bytes;
        if wanted_bytes == 0 {
            let message = format!("{} is empty: there is nothing to share", found.path.display());
            return Err(Refusal { reason: Reason::Unreadable, message });
        }
        // Another version of it that is held serves those who have it, and nobody else.
        let older: Vec<u64> = self
            .shelf
            .iter()
            .filter(|(_, model)| model.found.is_as(&found))
            .map(|(id, _)| id)
            .collect();
        for id in older {
            if let Some(model) = self.shelf.get_mut(id) {
                model.is_stale = true;
            }
        }
        if self.shelf.len() >= MODELS_MAX {
            let longest_unused = self.shelf.take_idle(1).unwrap_or_default();
            self.freed(longest_unused);
        }
        if self.shelf.len() >= MODELS_MAX {
            let message = format!("{MODELS_MAX} models are held, and no more can be");
            return Err(Refusal { reason: Reason::TooMany, message });
        }
        let gone = self.shelf.make_room(wanted_bytes).map_err(|no_room| {
            let NoRoom { limit_bytes, in_use_bytes } = no_room;
            let message = format!(
                "{wanted_bytes} bytes are needed for {}, but of the {limit_bytes} that the server \
                 may hold (--memory-max) {in_use_bytes} are in use",
                found.path.display()
            );
            Refusal { reason: Reason::NoMemory, message }
        })?;
        self.freed(gone);
        let path = found.path.clone();
        let id = self.shelf.insert(found.clone(), now);
        let cancel = CancelToken::new();
        let load = Load { cancel: cancel.clone(), done_bytes: 0 };
        self.loads.insert(id, load);
        self.events.push(Event::Loading { id, path, len_bytes: wanted_bytes });
        self.jobs.begin(Job::Load { id, found, cancel });
        Ok(id)
    }

    pub(super) fn on_progress(&mut self, id: u64, progress: Progress, now: Instant) {
        let Progress { done_bytes, total_bytes, elapsed } = progress;
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
        if self.loads.remove(&id).is_none() {
            return;
        }
        let Some(model) = self.shelf.get_mut(id) else { return };
        let (path, len_bytes) = (model.found.path.clone(), model.found.len_bytes);
        if model.is_abandoned {
            self.shelf.remove(id);
            let message = "nobody wants it any longer".to_owned();
            self.events.push(Event::LoadFailed { id, path, message });
            return;
        }
        let loaded = match outcome {
            Ok(loaded) => loaded,
            Err(error) => return self.on_load_failed(id, error, now),
        };
        let LoadedModel { memory, ranges, elapsed, pages } = loaded;
        model.memory = Some(Memory { buffer: Arc::new(memory), ranges });
        model.since = now;
        self.events.push(Event::Loaded { id, path, len_bytes, elapsed, pages });
        if self.start_models.remove(&id) {
            model.is_pinned = true;
        }
        self.move_pin(id);
        // All have it before one of them is found to be gone, with which it would go.
        let waiting = self.waiting_for(id);
        let attach = |client| Some((client, self.attach(client, id, now).err()?));
        let gone: Vec<_> = waiting.into_iter().filter_map(attach).collect();
        for (client, why) in gone {
            self.disconnect(client, why, now);
        }
    }

    fn on_load_failed(&mut self, id: u64, error: longshore_load::Error, now: Instant) {
        // Once more, where others can go for it: fewer each time.
        if let longshore_load::Error::NotEnoughMemory { needed_bytes, limit_bytes, .. } = error
            && let Ok(gone) = self.shelf.take_idle(needed_bytes.saturating_sub(limit_bytes).max(1))
            && let Some(found) = self.shelf.get(id).map(|model| model.found.clone())
        {
            self.freed(gone);
            let cancel = CancelToken::new();
            self.loads.insert(id, Load { cancel: cancel.clone(), done_bytes: 0 });
            return self.jobs.begin(Job::Load { id, found, cancel });
        }
        let refusal = Refusal::of(&error);
        if let Some(model) = self.shelf.remove(id) {
            let (path, message) = (model.found.path, refusal.message.clone());
            self.events.push(Event::LoadFailed { id, path, message });
        }
        for client in self.waiting_for(id) {
            let Refusal { reason, ref message } = refusal;
            let told = self.refuse(client, Refusal { reason, message: message.clone() }, now);
            if let Err(why) = told {
                self.disconnect(client, why, now);
            }
        }
        if self.start_models.remove(&id) {
            self.failed.get_or_insert(error.into());
        }
    }

    /// Tells those who wait for a load that has to wait itself that the server is there.
    pub(super) fn beat(&mut self, now: Instant) {
        if now < self.next_beat {
            return;
        }
        self.next_beat = now + BEAT_EVERY;
        let queued: Vec<u64> =
            self.loads.iter().filter(|(_, load)| load.done_bytes == 0).map(|(id, _)| *id).collect();
        for id in queued {
            let total_bytes = self.shelf.get(id).map_or(0, |model| model.found.len_bytes);
            let progress = Progress { done_bytes: 0, total_bytes, elapsed: Duration::ZERO };
            self.on_progress(id, progress, now);
        }
    }

    /// What is kept for as long as the server runs is the newest version of a file.
    fn move_pin(&mut self, newest: u64) {
        let Some(model) = self.shelf.get(newest) else { return };
        let older: Vec<u64> = self
            .shelf
            .iter()
            .filter(|(id, older)| {
                *id < newest && older.is_pinned && older.found.is_as(&model.found)
            })
            .map(|(id, _)| id)
            .collect();
        for id in &older {
            if let Some(model) = self.shelf.get_mut(*id) {
                model.is_pinned = false;
                model.is_stale = true;
            }
        }
        if let Some(model) = self.shelf.get_mut(newest).filter(|_| !older.is_empty()) {
            model.is_pinned = true;
        }
    }

    /// Hands a model out.
    fn attach(&mut self, client: u64, id: u64, now: Instant) -> Asked {
        let Some(model) = self.shelf.get(id) else {
            let message = "the memory went meanwhile; attach it again".to_owned();
            return self.refuse(client, Refusal { reason: Reason::Other, message }, now);
        };
        let Some(connection) = self.connections.get_mut(&client) else { return Ok(()) };
        let Some(memory) = &model.memory else { return Ok(()) };
        let files = &model.found.files;
        let attached =
            Reply::Attached { id, len_bytes: memory.buffer.len_bytes(), files: files.len() as u32 };
        let parts: Vec<Reply> = files
            .iter()
            .zip(&memory.ranges)
            .map(|((path, _), range)| Reply::File {
                buffer_offset: range.start,
                len_bytes: range.end - range.start,
                path: path.clone(),
            })
            .collect();
        let buffer = Arc::clone(&memory.buffer);
        // Booked before it is sent, so that a client that is gone by then gives it back.
        let attachments = self.shelf.attach(id, now).unwrap_or(0);
        self.events.push(Event::Attached { id, peer: connection.peer, attachments });
        connection.enter(Phase::Attached(id), now);
        sent(connection.send_with(&attached, Some(buffer), now))?;
        for part in parts {
            sent(connection.send(&part, now))?;
        }
        Ok(())
    }

    /// Books the end of an attachment, and frees what nobody has any longer.
    pub(super) fn release(&mut self, id: u64, peer: Peer, now: Instant) {
        let attachments = self.shelf.detach(id, now).unwrap_or(0);
        self.events.push(Event::Released { id, peer, attachments });
        self.free_expired(now);
    }

    /// Takes back what a client that is gone had or waited for.
    pub(super) fn let_go(&mut self, connection: Connection, now: Instant) {
        let peer = connection.peer;
        self.closers.close(peer.uid, connection.end());
        if let Some(id) = connection.attached() {
            drop(connection);
            return self.release(id, peer, now);
        }
        match connection.phase {
            Phase::Opening { shown, .. } => self.closers.close(peer.uid, vec![shown]),
            Phase::Waiting(id) => self.abandon_if_unwanted(id),
            _ => {}
        }
    }

    fn abandon_if_unwanted(&mut self, id: u64) {
        if !self.waiting_for(id).is_empty() || self.start_models.contains(&id) {
            return;
        }
        let Some(load) = self.loads.get(&id) else { return };
        load.cancel.cancel();
        if self.jobs.forget_load(id) {
            self.loads.remove(&id);
            if let Some(model) = self.shelf.remove(id) {
                let (path, message) = (model.found.path, "nobody wants it any longer".to_owned());
                self.events.push(Event::LoadFailed { id, path, message });
            }
        } else if let Some(model) = self.shelf.get_mut(id) {
            model.is_abandoned = true;
        }
    }

    fn waiting_for(&self, id: u64) -> Vec<u64> {
        let waits = |connection: &Connection| matches!(connection.phase, Phase::Waiting(for_id) if for_id == id);
        self.connections.iter().filter(|(_, it)| waits(it)).map(|(id, _)| *id).collect()
    }

    /// A file that is to be held from the start.
    pub(super) fn on_start_looked(&mut self, number: usize, looked: Looked, now: Instant) {
        let Some(path) = self.starting.remove(&number) else { return };
        let found = match looked {
            Looked::Found(Ok(found)) => found,
            Looked::Found(Err(error)) | Looked::Failed(error) => {
                self.failed.get_or_insert(error.into());
                return;
            }
            Looked::Refused => {
                let source = std::io::ErrorKind::NotFound.into();
                let error = longshore_load::Error::Open { path, source };
                self.failed.get_or_insert(error.into());
                return;
            }
        };
        let id = match self.shelf.find(&found) {
            Some(id) => id,
            None => match self.load(found.clone(), now) {
                Ok(id) => id,
                Err(Refusal { message, .. }) => {
                    let path = found.path;
                    let failed = crate::Error::CannotServe { path, reason: message };
                    self.failed.get_or_insert(failed);
                    return;
                }
            },
        };
        match self.shelf.get_mut(id) {
            Some(model) if model.memory.is_some() => model.is_pinned = true,
            _ => _ = self.start_models.insert(id),
        }
    }
}
