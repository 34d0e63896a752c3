//! The serving thread: it waits, accepts, and updates the state of the server.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_heap::SharedBuffer;
use longshore_load::CancelToken;
use longshore_sys::descriptors;
use longshore_sys::packet_socket;
use longshore_sys::readiness::{self, Ready, Watch};

use super::Options;
use super::asking::sent;
use super::closers::Closers;
use super::connection::{Came, Connection};
use super::events::{Event, ServerProblem};
use super::giving::BEAT_EVERY;
use super::jobs::{Asker, Done, How, Jobs};
use super::limits::Limits;
use super::lingering::{Gone, Lingering};
use super::names::Names;
use super::notify::notify;
use super::room::AwaitingRoom;
use super::stop::Stop;
use super::sweep::Sweeps;
use super::unread::Unread;
use super::users::{User, Users};
use crate::address::Listener;
use crate::error::{Error, Result};
use crate::fault::ClientFault;
use crate::model_cache::{Model, ModelCache};
use crate::peer::Peer;
use crate::protocol::Reply;
use crate::reason::Reason;
use crate::remote::RemoteServed;
use crate::served::Served;

/// The connections of one user beyond its attachments: for lists, and short ones.
const MORE_CONNECTIONS: usize = 16;
/// The most connections that are accepted before anything else is done.
const ACCEPTED_AT_ONCE: usize = 32;
/// The fewest descriptors that may wait to be closed before no client is accepted.
const CLOSING_MIN: usize = 32;
/// The time that the server waits at its end for loads that are cancelled.
const END_TIME: Duration = Duration::from_secs(10);

/// With so many descriptors for models, the connections of loads from servers are not limited further.
const MANY_OPEN_FILES: usize = 4096;

/// A model's memory, and the places of its files.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) buffer: Arc<SharedBuffer>,
    pub(super) ranges: Vec<Range<u64>>,
    /// The users that were given it.
    pub(super) users: BTreeSet<User>,
    /// The user by whose path it is known.
    pub(super) named_by: User,
    pub(super) names: Names,
}

/// A running load.
#[derive(Debug)]
pub(super) struct Load {
    /// The user that it is loaded for.
    pub(super) user: User,
    pub(super) cancel: CancelToken,
    pub(super) done_bytes: u64,
}

/// The state of the server.
#[derive(Debug)]
pub(super) struct Core {
    listener: Option<Listener>,
    pub(super) served: Arc<Served>,
    /// The models on servers.
    pub(super) remote: Option<Arc<RemoteServed>>,
    pub(super) options: Options,
    stop: Stop,
    pub(super) jobs: Jobs,
    pub(super) cache: ModelCache<Memory>,
    pub(super) sweeps: Sweeps,
    /// The most descriptors that all users to whom the limits apply may have for models.
    pub(super) open_files_max: usize,
    pub(super) loads: BTreeMap<u64, Load>,
    pub(super) connections: BTreeMap<u64, Connection>,
    last_connection: u64,
    /// Connections that have ended and still count.
    pub(super) unread: Unread,
    pub(super) closers: Arc<Closers>,
    pub(super) users: Users,
    pub(super) limits: Limits,
    pub(super) lingering: Lingering,
    pub(super) awaiting_room: AwaitingRoom,
    /// `true` if the closers left room for connections when the last turn began.
    may_accept: bool,
    /// A descriptor in reserve, to send clients an error when descriptors are exhausted.
    spare: Option<OwnedFd>,
    /// The next time at which clients that wait for a load that has not begun get a progress message.
    pub(super) next_beat: Instant,
    /// Files of the start that are still being looked up.
    pub(super) starting: BTreeMap<usize, PathBuf>,
    /// The end of the wait for slow files of the start; `None` once it is over.
    pub(super) start_ends: Option<Instant>,
    /// `true` once a file of the start was not found in time, or its load was given up.
    pub(super) serves_early: bool,
    /// `true` once a client of another user than the server's own was accepted.
    pub(super) has_served_others: bool,
    pub(super) is_ready: bool,
    /// The reason why the server cannot go on.
    pub(super) failed: Option<Error>,
    pub(super) events: Vec<Event>,
}

impl Core {
    pub(super) fn new(
        listener: Listener,
        (served, remote): (Arc<Served>, Option<Arc<RemoteServed>>),
        options: Options,
        open_files_max: usize,
        stop: Stop,
    ) -> Result<Self> {
        let (heap, memory_mode) = (options.heap.clone(), options.memory_mode);
        let connections = connections_of_load(open_files_max);
        let how = How { heap, memory_mode, remote: remote.clone(), connections };
        let limits = Limits::of(&options);
        let jobs = Jobs::new(Arc::clone(&served), how, limits.loads)?;
        let cache = ModelCache::new(options.keep, options.memory_max.unwrap_or(u64::MAX));
        // The clients and the models have three quarters of all descriptors.
        let closers = Closers::new((open_files_max / 2).max(CLOSING_MIN));
        Ok(Self {
            listener: Some(listener),
            served,
            remote,
            options,
            stop,
            jobs,
            cache,
            sweeps: Sweeps::new(Instant::now()),
            open_files_max,
            loads: BTreeMap::new(),
            connections: BTreeMap::new(),
            last_connection: 0,
            unread: Unread::new(),
            closers: Arc::new(closers),
            users: Users::of_system(),
            limits,
            lingering: Lingering::new(),
            awaiting_room: AwaitingRoom::default(),
            may_accept: true,
            spare: Some(spare()?),
            starting: BTreeMap::new(),
            start_ends: None,
            serves_early: false,
            has_served_others: false,
            next_beat: Instant::now() + BEAT_EVERY,
            is_ready: false,
            failed: None,
            events: Vec::new(),
        })
    }

    pub(super) fn run(mut self, mut observe: impl FnMut(&Event)) -> Result<()> {
        self.listener.as_ref().map_or(Ok(()), Listener::check_process)?;
        self.report_remote_roots();
        self.begin_start(Instant::now());
        while !self.stop.is_stopped() && self.failed.is_none() {
            self.tell_ready();
            self.events.drain(..).for_each(|event| observe(&event));
            self.turn()?;
        }
        // A server that could not start reports no stop.
        if self.is_ready || self.failed.is_none() {
            self.events.push(Event::Stopping);
        }
        notify("STOPPING=1");
        self.events.drain(..).for_each(|event| observe(&event));
        self.end();
        self.events.drain(..).for_each(|event| observe(&event));
        self.failed.map_or(Ok(()), Err)
    }

    fn tell_ready(&mut self) {
        if !self.is_ready && self.has_started() {
            self.is_ready = true;
            self.report_slow_start();
            let path = self.listener.as_ref().and_then(Listener::path);
            self.events.push(Event::Ready { socket: path.map(ToOwned::to_owned) });
            notify("READY=1");
        }
    }

    /// Waits for an event, and handles it.
    fn turn(&mut self) -> Result<()> {
        // Connections of users that have used up their time are left out.
        let begin = Instant::now();
        let has_time =
            |connection: &Connection| !self.closers.budget.is_used_up(connection.user, begin);
        let (ids, connections): (Vec<u64>, Vec<&Connection>) =
            self.connections.iter().filter(|(_, connection)| has_time(connection)).unzip();
        let mut watches = vec![
            Watch { fd: self.stop.as_fd(), read: true, write: false },
            Watch { fd: self.jobs.as_fd(), read: true, write: false },
        ];
        let has_closers = self.closers.retry();
        // Without a spare descriptor, no error can be sent to a client. Connections that cannot be
        // closed would take all descriptors, so clients then wait to be accepted.
        let may_accept = self.closers.may_accept();
        if !may_accept && self.may_accept {
            self.events.push(Event::Trouble { problem: ServerProblem::TooManyToClose });
        }
        self.may_accept = may_accept;
        let accepting = self.spare.is_some() && may_accept;
        if let Some(listener) = &self.listener {
            let read = accepting && !self.is_starting();
            watches.push(Watch { fd: listener.as_fd(), read, write: false });
        }
        let own = watches.len();
        // Nothing is received from a user whose descriptors cannot be closed yet.
        let mut has_all = has_closers;
        for connection in &connections {
            let mut watch = connection.watch();
            if watch.read && !self.closers.may_send(connection.user) {
                (watch.read, has_all) = (false, false);
            }
            watches.push(watch);
        }
        if let Some(references) = self.lingering.references() {
            watches.push(Watch { fd: references.as_fd(), read: true, write: false });
        }
        let deadlines = connections.iter().filter_map(|connection| connection.deadline());
        let retry = (!accepting || !has_all).then(|| Instant::now() + Duration::from_millis(100));
        let beat = (!self.loads.is_empty()).then_some(self.next_beat);
        let jobs = self.jobs.next_deadline().into_iter().chain(self.next_sweep());
        let jobs = jobs
            .chain(self.lingering.next_time())
            .chain(self.awaiting_room.next_time())
            .chain(self.unread.next_time())
            .chain(self.closers.budget.next_time(begin));
        let deadlines = deadlines.chain(self.cache.next_expiry()).chain(jobs);
        let deadline = deadlines.chain(retry).chain(beat).chain(self.start_ends).min();
        let ready =
            readiness::wait(&watches, deadline).map_err(Error::kernel("waiting for clients"))?;

        let now = Instant::now();
        if ready[1].read || self.jobs.next_deadline().is_some_and(|deadline| deadline <= now) {
            for done in self.jobs.done(now) {
                self.on_done(done, now);
            }
        }
        for (id, ready) in ids.iter().zip(&ready[own..]) {
            if *ready != Ready::default() {
                self.on_ready(*id, *ready, now);
            }
        }
        self.end_start(now);
        self.disconnect_late(&ids, now);
        if self.unread.next_time().is_some_and(|time| time <= now) {
            self.unread.end_read(&self.closers, now);
            self.unread.empty(&self.closers);
        }
        if ready.get(2).is_some_and(|listener| listener.read) {
            self.accept(now);
        }
        if self.spare.is_none() {
            self.spare = spare().ok();
        }
        self.beat(now);
        self.sweep(now);
        self.free_expired(now);
        self.lingering.watch_again(now);
        self.end_waits_for_room(now);
        self.say_freed();
        self.say_kept(Some(now));
        Ok(())
    }

    fn on_done(&mut self, done: Done, now: Instant) {
        let closers = Arc::clone(&self.closers);
        match self.asker_of(&done) {
            Some(user) => closers.budget.spend(user, || self.take_done(done, now)),
            None => self.take_done(done, now),
        }
    }

    /// Returns the user for whom a job was done, if it was done for only one.
    fn asker_of(&self, done: &Done) -> Option<User> {
        match done {
            Done::Looked { asker: Asker::Client(id), .. } => {
                self.connections.get(id).map(|connection| connection.user)
            }
            // The user that gave the path.
            Done::Swept { swept: Some((sweep, _)), .. } => Some(sweep.name.0),
            Done::FoundDeleted { .. } | Done::Swept { .. } => self.sweeps.asked_by(),
            Done::Looked { .. } | Done::Progress { .. } | Done::Loaded { .. } => None,
        }
    }

    fn take_done(&mut self, done: Done, now: Instant) {
        match done {
            Done::Looked { asker, looked } => self.on_looked(asker, looked, now),
            Done::Progress { id, progress } => self.on_progress(id, progress, now),
            Done::Loaded { id, outcome } => self.on_loaded(id, outcome, now),
            Done::FoundDeleted { models } => self.on_deleted(models, now),
            Done::Swept { id, swept } => self.on_swept(id, swept, now),
        }
    }

    fn on_ready(&mut self, id: u64, ready: Ready, now: Instant) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if self.closers.budget.is_used_up(connection.user, now) {
            return;
        }
        if ready.write {
            let told = match connection.flush(now) {
                Err(error) if packet_socket::has_too_many_in_flight(&error) => {
                    self.refuse_in_flight(id, now)
                }
                flushed => sent(flushed),
            };
            if let Err(why) = told {
                self.disconnect(id, why, now);
            }
            return;
        }
        let user = connection.user;
        if !connection.watch().read || !self.closers.may_send(user) {
            if ready.gone {
                self.disconnect(id, None, now);
            }
            return;
        }
        match connection.receive() {
            Came::Nothing => {}
            Came::NoRoom => self.disconnect_without_descriptors(id, now),
            Came::End => self.disconnect(id, None, now),
            Came::Nonsense(why, descriptors) => {
                self.closers.close(user, descriptors);
                self.disconnect(id, Some(why), now);
            }
            Came::Request(request, descriptors) => {
                let closers = Arc::clone(&self.closers);
                let asked =
                    closers.budget.spend(user, || self.on_request(id, request, descriptors, now));
                if let Err(why) = asked {
                    self.disconnect(id, why, now);
                }
            }
        }
    }

    fn disconnect_late(&mut self, ids: &[u64], now: Instant) {
        for id in ids {
            let is_late = |connection: &&Connection| {
                connection.deadline().is_some_and(|deadline| deadline <= now)
                    && !self.closers.budget.is_used_up(connection.user, now)
            };
            let late = self.connections.get(id).filter(is_late);
            if let Some(why) = late.map(Connection::too_late) {
                self.disconnect(*id, Some(why), now);
            }
        }
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTED_AT_ONCE {
            let Some(listener) = self.listener.as_ref().filter(|_| self.closers.may_accept())
            else {
                return;
            };
            match packet_socket::accept(listener) {
                Ok(socket) => self.welcome(socket, now),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if descriptors::is_exhausted(&error) => {
                    // The spare descriptor is given up, so that the client can be accepted and get the
                    // error.
                    self.spare = None;
                    let Some(listener) = &self.listener else { return };
                    if let Ok(socket) = packet_socket::accept(listener) {
                        let nobody = Peer { pid: 0, uid: 0, gid: 0 };
                        let peer = Peer::from_socket(&socket).unwrap_or(nobody);
                        let message = "the server has no descriptors left; try again later";
                        self.turn_away(socket, peer, message.to_owned());
                    }
                    self.spare = spare().ok();
                    if self.spare.is_none() {
                        self.events.push(Event::Trouble { problem: ServerProblem::NoDescriptors });
                        return;
                    }
                }
                // The client disconnected before it was accepted.
                Err(_) => return,
            }
        }
    }

    fn welcome(&mut self, socket: OwnedFd, now: Instant) {
        match Peer::from_socket(&socket) {
            Ok(peer) => self.admit(socket, peer, now),
            Err(_) => self.closers.end(self.users.own(), socket),
        }
    }

    fn admit(&mut self, socket: OwnedFd, peer: Peer, now: Instant) {
        let user = self.users.of(peer.uid);
        self.has_served_others |= user != self.users.own();
        self.unread.end_read(&self.closers, now);
        let unread = self.unread.count_of(user);
        let same = self.connections.values().filter(|other| other.user == user).count() + unread;
        let max = self.options.clients_max;
        let free = max.saturating_sub(self.connections.len() + self.unread.count());
        let has = match unread {
            0 => format!("{user} has {same} connections"),
            _ => format!(
                "{user} has {same} connections ({unread} have ended, but their clients have neither \
                 read the memory that they were sent nor closed them)"
            ),
        };
        let refusal = if free == 0 {
            Some(format!("{max} clients are connected, and no more can be (--max-clients)"))
        } else if user.is_limited() && same >= self.limits.clients {
            let option = "--max-clients-per-user";
            Some(format!("{has}, and can have no more ({option})"))
        } else if user.is_limited() && same >= free {
            // Also leaves connections for other users if a client can use many ids.
            Some(format!("{has}, and the last {free} of {max} (--max-clients) are for other users"))
        } else if same >= self.options.attachments_max.saturating_add(MORE_CONNECTIONS) {
            let option = "--max-attachments";
            Some(format!("{has}, and can have no more ({option})"))
        } else {
            None
        };
        if let Some(message) = refusal {
            return self.turn_away(socket, peer, message);
        }
        self.last_connection += 1;
        let connection = Connection::new(socket, peer, user, Arc::clone(&self.closers), now);
        self.connections.insert(self.last_connection, connection);
    }

    fn turn_away(&mut self, socket: OwnedFd, peer: Peer, message: String) {
        let reason = Reason::TooMany;
        let reply = Reply::Refused { reason, message: message.clone() };
        let user = self.users.of(peer.uid);
        self.has_served_others |= user != self.users.own();
        if !self.closers.budget.is_used_up(user, Instant::now()) {
            // Nothing was sent on this socket before: there is room, or the client has disconnected.
            let send = || packet_socket::send(&socket, &reply.encode(), None);
            let _ = self.closers.budget.spend(user, send);
        }
        self.events.push(Event::Refused { peer, reason, message });
        self.closers.end(user, socket);
    }

    /// Ends a connection that sent a message for whose descriptor there is no room.
    fn disconnect_without_descriptors(&mut self, id: u64, now: Instant) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let message = "the server has no descriptors left; try again later".to_owned();
        let (peer, reason) = (connection.peer, Reason::TooMany);
        let reply = Reply::Refused { reason, message: message.clone() };
        // Best effort: the client may not be receiving.
        let _ = connection.send(&reply, now);
        self.events.push(Event::Refused { peer, reason, message });
        self.disconnect(id, None, now);
    }

    /// Ends a connection; `why` is the reason if the client did not end it.
    pub(super) fn disconnect(&mut self, id: u64, why: Option<ClientFault>, now: Instant) {
        let Some(mut connection) = self.connections.remove(&id) else { return };
        let peer = connection.peer;
        // Before anything else is sent.
        let has_unread_memory = connection.has_unread_memory();
        if let Some(why) = why {
            let message = format!("you are disconnected: {why}");
            let reply = Reply::Refused { reason: Reason::Misbehaved, message };
            // Best effort: the client may not be receiving.
            let _ = connection.send(&reply, now);
            self.events.push(Event::Disconnected { peer, why });
        }
        self.jobs.forget_client(id);
        self.sweeps.forget_client(id);
        self.let_go(connection, has_unread_memory, now);
    }

    /// Frees the models that are no longer kept.
    pub(super) fn free_expired(&mut self, now: Instant) {
        let gone = self.cache.take_expired(now);
        self.freed(gone);
    }

    /// Frees the memory of models.
    pub(super) fn freed(&mut self, gone: Vec<(u64, Model<Memory>)>) {
        let now = Instant::now();
        for (id, Model { found, memory, .. }) in gone {
            let (path, len_bytes) = (found.path, found.len_bytes);
            let Some(Memory { buffer, users, named_by, .. }) = memory else { continue };
            let gone = Gone { id, path: path.clone(), len_bytes, users, named_by };
            if let Err(error) = self.lingering.give_up(buffer, gone, now) {
                let problem = ServerProblem::CannotWatch { path, error: Arc::new(error) };
                self.events.push(Event::Trouble { problem });
            }
        }
        self.say_freed();
    }

    /// Reports memory that no client keeps any longer.
    pub(super) fn say_freed(&mut self) {
        let free = self.lingering.take_free().into_iter();
        self.events.extend(free.map(|Gone { id, path, len_bytes, named_by, .. }| Event::Freed {
            id,
            uid: named_by.uid(),
            path,
            len_bytes,
        }));
    }

    /// Reports memory that clients keep: that which is due, or all of it without `now`.
    fn say_kept(&mut self, now: Option<Instant>) {
        let kept = self.lingering.take_unreported(now).into_iter();
        self.events.extend(kept.map(|Gone { id, path, len_bytes, named_by, .. }| {
            Event::KeptByClients { id, uid: named_by.uid(), path, len_bytes }
        }));
    }

    /// Ends everything, in an order in which every client gets a message.
    fn end(&mut self) {
        let now = Instant::now();
        // From here on a new client finds no server, instead of one that ends.
        if let Some(listener) = self.listener.take() {
            // Closing it closes the connections that were not accepted, with all that is queued.
            self.closers.close(self.users.own(), vec![listener.end()]);
        }
        for load in self.loads.values() {
            load.cancel.cancel();
        }
        self.jobs.cancel_looks();
        for connection in self.connections.values_mut() {
            let _ = connection.send_if_idle(&Reply::Closing, now);
        }
        for connection in std::mem::take(&mut self.connections).into_values() {
            // From here on nothing is counted.
            self.close_connection(connection, false, now);
        }
        self.unread.end_all(&self.closers);
        let waiting: Vec<u64> = self.loads.keys().copied().collect();
        waiting.into_iter().for_each(|id| _ = self.jobs.forget_load(id));
        let deadline = now + END_TIME;
        while self.jobs.loading() > 0 && Instant::now() < deadline {
            let watch = Watch { fd: self.jobs.as_fd(), read: true, write: false };
            if readiness::wait(&[watch], Some(deadline)).is_err() {
                break;
            }
            // Drops models that were loaded nevertheless.
            drop(self.jobs.done(Instant::now()));
        }
        let ids: Vec<u64> = self.cache.iter().map(|(id, _)| id).collect();
        let gone = ids.into_iter().filter_map(|id| Some((id, self.cache.remove(id)?))).collect();
        self.freed(gone);
        self.lingering.wait_until_dropped();
        self.say_freed();
        self.say_kept(None);
    }
}

/// Returns the number of connections that a load from servers may have. Few descriptors are needed for other
/// purposes than models and clients, but not none.
fn connections_of_load(open_files_max: usize) -> Option<usize> {
    (open_files_max < MANY_OPEN_FILES).then(|| (open_files_max / 32).max(1))
}

#[cfg(test)]
mod tests;

fn spare() -> Result<OwnedFd> {
    longshore_sys::event_fd::create().map_err(Error::kernel("keeping a descriptor in reserve"))
}
