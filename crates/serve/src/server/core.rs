//! The thread that serves: it waits, accepts, and keeps the books.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_heap::SharedBuffer;
use longshore_load::CancelToken;
use longshore_sys::packet_socket::{self, Peer};
use longshore_sys::readiness::{self, Ready, Watch};

use super::Options;
use super::closers::Closers;
use super::connection::{Came, Connection};
use super::events::Event;
use super::giving::BEAT_EVERY;
use super::jobs::{Asker, Done, How, Job, Jobs};
use super::notify::notify;
use super::stop::Stop;
use crate::address::Listener;
use crate::error::{Error, Result};
use crate::protocol::{Reason, Reply};
use crate::served::{Layout, Served};
use crate::shelf::{Model, Shelf};

/// Connections of one user beyond its attachments: for lists, and those that come and go.
const MORE_CONNECTIONS: usize = 16;
/// Connections that are accepted before anybody else has a turn.
const ACCEPTED_AT_ONCE: usize = 32;
/// How long loads that are no longer wanted are waited for in the end.
const END_TIME: Duration = Duration::from_secs(10);

/// A model's memory, and where its files are in it.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) buffer: Arc<SharedBuffer>,
    pub(super) ranges: Vec<Range<u64>>,
}

/// A load that goes on.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) cancel: CancelToken,
    pub(super) done_bytes: u64,
}

/// All that the server has.
#[derive(Debug)]
pub(super) struct Core {
    listener: Option<Listener>,
    pub(super) served: Arc<Served>,
    pub(super) options: Options,
    stop: Stop,
    pub(super) jobs: Jobs,
    pub(super) shelf: Shelf<Memory>,
    pub(super) loads: BTreeMap<u64, Load>,
    pub(super) connections: BTreeMap<u64, Connection>,
    last_connection: u64,
    pub(super) closers: Closers,
    /// Descriptors may be exhausted, and still clients must be told.
    spare: Option<OwnedFd>,
    /// When those who wait for a load that has not begun are told so.
    pub(super) next_beat: Instant,
    /// Files of the start that are still looked for, and models of theirs that are being loaded.
    pub(super) starting: BTreeMap<usize, PathBuf>,
    pub(super) start_models: BTreeSet<u64>,
    is_ready: bool,
    /// Why the server cannot go on.
    pub(super) failed: Option<Error>,
    pub(super) events: Vec<Event>,
}

impl Core {
    pub(super) fn new(
        listener: Listener,
        served: Arc<Served>,
        options: Options,
        stop: Stop,
    ) -> Result<Self> {
        let how = How { heap: options.heap.clone(), memory_mode: options.memory_mode };
        let jobs = Jobs::new(Arc::clone(&served), how)?;
        let shelf = Shelf::new(options.keep, options.memory_max.unwrap_or(u64::MAX));
        Ok(Self {
            listener: Some(listener),
            served,
            options,
            stop,
            jobs,
            shelf,
            loads: BTreeMap::new(),
            connections: BTreeMap::new(),
            last_connection: 0,
            closers: Closers::default(),
            spare: Some(spare()?),
            starting: BTreeMap::new(),
            start_models: BTreeSet::new(),
            next_beat: Instant::now() + BEAT_EVERY,
            is_ready: false,
            failed: None,
            events: Vec::new(),
        })
    }

    pub(super) fn run(mut self, mut observe: impl FnMut(&Event)) -> Result<()> {
        for (number, path) in self.options.files.clone().into_iter().enumerate() {
            self.starting.insert(number, path.clone());
            let layout = Layout { format: self.options.format, align: self.options.align };
            self.jobs.begin(Job::Look { asker: Asker::Start(number), path, layout, shown: None });
        }
        while !self.stop.is_stopped() && self.failed.is_none() {
            self.tell_ready();
            self.events.drain(..).for_each(|event| observe(&event));
            self.turn()?;
        }
        self.events.push(Event::Stopping);
        notify("STOPPING=1");
        self.events.drain(..).for_each(|event| observe(&event));
        self.end();
        self.events.drain(..).for_each(|event| observe(&event));
        self.failed.map_or(Ok(()), Err)
    }

    fn tell_ready(&mut self) {
        if !self.is_ready && self.starting.is_empty() && self.start_models.is_empty() {
            self.is_ready = true;
            let path = self.listener.as_ref().and_then(Listener::path);
            self.events.push(Event::Ready { socket: path.map(ToOwned::to_owned) });
            notify("READY=1");
        }
    }

    /// Waits for something to happen, and sees to it.
    fn turn(&mut self) -> Result<()> {
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        let mut watches = vec![
            Watch { fd: self.stop.as_fd(), read: true, write: false },
            Watch { fd: self.jobs.as_fd(), read: true, write: false },
        ];
        // Without a spare descriptor nobody can be told that there is none.
        let accepting = self.spare.is_some();
        if let Some(listener) = &self.listener {
            watches.push(Watch { fd: listener.as_fd(), read: accepting, write: false });
        }
        let own = watches.len();
        watches.extend(self.connections.values().map(Connection::watch));
        let deadlines = self.connections.values().filter_map(Connection::deadline);
        let retry = (!accepting).then(|| Instant::now() + Duration::from_millis(100));
        let beat = (!self.loads.is_empty()).then_some(self.next_beat);
        let deadline = deadlines.chain(self.shelf.next_expiry()).chain(retry).chain(beat).min();
        let ready =
            readiness::wait(&watches, deadline).map_err(Error::kernel("waiting for clients"))?;

        let now = Instant::now();
        if ready[1].read {
            for done in self.jobs.done() {
                self.on_done(done, now);
            }
        }
        for (id, ready) in ids.iter().zip(&ready[own..]) {
            if *ready != Ready::default() {
                self.on_ready(*id, *ready, now);
            }
        }
        self.disconnect_late(&ids, now);
        if ready.get(2).is_some_and(|listener| listener.read) {
            self.accept(now);
        }
        if self.spare.is_none() {
            self.spare = spare().ok();
        }
        self.beat(now);
        self.free_expired(now);
        Ok(())
    }

    fn on_done(&mut self, done: Done, now: Instant) {
        match done {
            Done::Looked { asker, looked } => self.on_looked(asker, looked, now),
            Done::Progress { id, progress } => self.on_progress(id, progress, now),
            Done::Loaded { id, outcome } => self.on_loaded(id, outcome, now),
            Done::Stale { client, stale } => self.on_stale(client, &stale, now),
        }
    }

    fn on_ready(&mut self, id: u64, ready: Ready, now: Instant) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if ready.write {
            if connection.flush(now).is_err() {
                self.disconnect(id, None, now);
            }
            return;
        }
        if !connection.watch().read {
            if ready.gone {
                self.disconnect(id, None, now);
            }
            return;
        }
        let peer = connection.peer;
        if !self.closers.may_send(peer.uid) {
            let why = "this user has sent descriptors that cannot be closed".to_owned();
            return self.disconnect(id, Some(why), now);
        }
        match connection.receive() {
            Came::Nothing => {}
            Came::End => self.disconnect(id, None, now),
            Came::Nonsense(why, descriptors) => {
                self.closers.close(peer.uid, descriptors);
                self.disconnect(id, Some(why), now);
            }
            Came::Request(request, descriptors) => {
                let asked = self.on_request(id, request, descriptors, now);
                if let Err(why) = asked {
                    self.disconnect(id, why, now);
                }
            }
        }
    }

    fn disconnect_late(&mut self, ids: &[u64], now: Instant) {
        for id in ids {
            let late = self
                .connections
                .get(id)
                .filter(|connection| connection.deadline().is_some_and(|deadline| deadline <= now));
            if let Some(why) = late.map(|connection| connection.too_late().to_owned()) {
                self.disconnect(*id, Some(why), now);
            }
        }
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTED_AT_ONCE {
            let Some(listener) = &self.listener else { return };
            match packet_socket::accept(listener) {
                Ok(socket) => self.welcome(socket, now),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if is_exhausted(&error) => {
                    // With the spare one the client can be accepted, and told.
                    self.spare = None;
                    let Some(listener) = &self.listener else { return };
                    if let Ok(socket) = packet_socket::accept(listener) {
                        let message = "the server has no descriptors left; try again later";
                        self.turn_away(&socket, message.to_owned());
                    }
                    self.spare = spare().ok();
                    if self.spare.is_none() {
                        let message = "descriptors are exhausted (ulimit -n)".to_owned();
                        self.events.push(Event::Trouble { message });
                        return;
                    }
                }
                // A client that was gone before it was accepted.
                Err(_) => return,
            }
        }
    }

    fn welcome(&mut self, socket: OwnedFd, now: Instant) {
        let Ok(peer) = packet_socket::peer(&socket) else { return };
        let same = self.connections.values().filter(|other| other.peer.uid == peer.uid).count();
        let refusal = if self.connections.len() >= self.options.clients_max {
            let max = self.options.clients_max;
            Some(format!("{max} clients are connected, and no more can be (--max-clients)"))
        } else if same >= self.options.attachments_max.saturating_add(MORE_CONNECTIONS) {
            Some(format!("user {} has {same} connections, and can have no more", peer.uid))
        } else if !self.closers.may_send(peer.uid) {
            Some("this user has sent descriptors that cannot be closed".to_owned())
        } else {
            None
        };
        if let Some(message) = refusal {
            return self.turn_away(&socket, message);
        }
        self.last_connection += 1;
        self.connections.insert(self.last_connection, Connection::new(socket, peer, now));
    }

    fn turn_away(&mut self, socket: &OwnedFd, message: String) {
        let reply = Reply::Refused { reason: Reason::TooMany, message: message.clone() };
        // Nothing was sent on it before: there is room, or the client is gone.
        let _ = packet_socket::send(socket, &reply.encode(), None);
        let peer = packet_socket::peer(socket).unwrap_or(Peer { pid: 0, uid: 0, gid: 0 });
        self.events.push(Event::Refused { peer, message });
    }

    /// Ends a connection; with a reason where it was not the client that ended it.
    pub(super) fn disconnect(&mut self, id: u64, why: Option<String>, now: Instant) {
        let Some(mut connection) = self.connections.remove(&id) else { return };
        let peer = connection.peer;
        if let Some(why) = why {
            let message = format!("you are disconnected: {why}");
            let reply = Reply::Refused { reason: Reason::Misbehaved, message };
            // If it can be told.
            let _ = connection.send(&reply, now);
            self.events.push(Event::Disconnected { peer, why });
        }
        self.jobs.forget_client(id);
        self.let_go(connection, now);
    }

    /// Frees what is no longer kept.
    pub(super) fn free_expired(&mut self, now: Instant) {
        let gone = self.shelf.take_expired(now);
        self.freed(gone);
    }

    /// Gives memory back. That takes some 30 ms for each GiB in base pages, less in larger ones.
    pub(super) fn freed(&mut self, gone: Vec<(u64, Model<Memory>)>) {
        for (id, model) in gone {
            let (path, len_bytes) = (model.found.path.clone(), model.found.len_bytes);
            drop(model);
            self.events.push(Event::Freed { id, path, len_bytes });
        }
    }

    /// Ends everything, in the order in which nobody is left in the dark.
    fn end(&mut self) {
        let now = Instant::now();
        // From here on a client finds no server, rather than one that ends.
        self.listener = None;
        for load in self.loads.values() {
            load.cancel.cancel();
        }
        for connection in self.connections.values_mut() {
            let _ = connection.send_if_idle(&Reply::Closing, now);
        }
        for connection in std::mem::take(&mut self.connections).into_values() {
            self.closers.close(connection.peer.uid, connection.end());
        }
        let waiting: Vec<u64> = self.loads.keys().copied().collect();
        waiting.into_iter().for_each(|id| _ = self.jobs.forget_load(id));
        let deadline = now + END_TIME;
        while self.jobs.loading() > 0 && Instant::now() < deadline {
            let watch = Watch { fd: self.jobs.as_fd(), read: true, write: false };
            if readiness::wait(&[watch], Some(deadline)).is_err() {
                break;
            }
            // What was loaded nevertheless is dropped.
            drop(self.jobs.done());
        }
        let ids: Vec<u64> = self.shelf.iter().map(|(id, _)| id).collect();
        let gone = ids.into_iter().filter_map(|id| Some((id, self.shelf.remove(id)?))).collect();
        self.freed(gone);
    }
}

#[cfg(test)]
mod tests;

fn spare() -> Result<OwnedFd> {
    longshore_sys::event_fd::create().map_err(Error::kernel("keeping a descriptor in reserve"))
}

fn is_exhausted(error: &io::Error) -> bool {
    // EMFILE and ENFILE.
    matches!(error.raw_os_error(), Some(24 | 23))
}
