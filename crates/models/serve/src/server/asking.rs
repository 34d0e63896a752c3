//! The requests of clients, step by step, until the model to attach is known.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use longshore_load::{CancelToken, FormatChoice};
use longshore_mem::Granule;
use longshore_sys::beneath;
use longshore_sys::descriptors;

use super::connection::{Asked, Connection, Phase, ShownFile};
use super::core::Core;
use super::events::Event;
use super::jobs::{Asker, Job};
use super::open_files::OpenFiles;
use super::users::User;
use crate::error::with_causes;
use crate::fault::ClientFault;
use crate::held::{Held, HeldState};
use crate::protocol::{Reply, Request, Target, VERSION};
use crate::reason::Reason;
use crate::remote::name::{is_remote_or_hub, without_secrets};
use crate::served::{Found, Layout, Looked, is_same_path};

/// The largest alignment; no device needs more.
const ALIGN_BYTES_MAX: u64 = 1 << 30;

/// `Err` if a client is disconnected; without a reason if the client disconnected itself.
pub(super) type Told = Result<(), Option<ClientFault>>;

/// The refusal of a request. The client may ask for something else.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub(super) reason: Reason,
    pub(super) message: String,
    /// More text for the log, which the client must not see.
    pub(super) for_log: Option<String>,
}

/// The number of unread bytes from which a user is sent no more lists. A list of the most models has up
/// to 4 MiB.
const UNSENT_BYTES_MAX: usize = 4 << 20;

impl Core {
    pub(super) fn on_request(
        &mut self,
        id: u64,
        request: Request,
        mut descriptors: Vec<OwnedFd>,
        now: Instant,
    ) -> Told {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let (peer, user) = (connection.peer, connection.user);
        // The kernel limits how many descriptors all processes of the server's user have in flight. So a
        // connection has one at most.
        if matches!(request, Request::Attach { .. }) && connection.has_unread_memory() {
            self.closers.close(user, descriptors);
            return Err(Some(ClientFault::AsksBeforeReading));
        }
        match (request, &mut connection.phase) {
            (Request::Hello { version }, Phase::Greeting) => {
                if version != VERSION {
                    let message = format!(
                        "the client speaks version {version} of the protocol, the server \
                         {VERSION}: use the same longshore for both"
                    );
                    let reply = Reply::Refused { reason: Reason::Version, message };
                    let _ = connection.send(&reply, now);
                    return Err(Some(ClientFault::OtherVersion { version }));
                }
                connection.enter(Phase::Idle, now);
                let pid = std::process::id();
                sent(connection.send(&Reply::Welcome { version, pid }, now))
            }
            (Request::Attach { target, format, align_bytes }, Phase::Idle)
                if target.is_remote() =>
            {
                match self.begin_to_attach_remote(id, target, (&format, align_bytes), now) {
                    Ok(()) => Ok(()),
                    Err(refusal) => self.refuse(id, refusal, now),
                }
            }
            (Request::Attach { target, format, align_bytes }, Phase::Idle) => {
                let Some(file) = descriptors.pop() else { return Ok(()) };
                match self.begin_to_attach(id, target, (&format, align_bytes), file, now) {
                    Ok(()) => Ok(()),
                    Err((refusal, file)) => {
                        self.closers.close(user, vec![file]);
                        self.refuse(id, refusal, now)
                    }
                }
            }
            (Request::Proof, Phase::Proving { to_show, .. }) => {
                let (Some(file), Some(path)) = (descriptors.pop(), to_show.pop()) else {
                    return Ok(());
                };
                self.on_proof(id, path, file, now)
            }
            (Request::Release, Phase::Attached(model)) => {
                let model = *model;
                connection.enter(Phase::Idle, now);
                let told = sent(connection.send(&Reply::Released, now));
                self.release(model, peer, now);
                told
            }
            (Request::List, Phase::Idle | Phase::Attached(_)) => {
                let attached = connection.attached();
                connection.enter(Phase::Listing { attached }, now);
                self.list_after_sweep(id, now);
                Ok(())
            }
            (request, _) => {
                self.closers.close(user, descriptors);
                Err(Some(ClientFault::OutOfTurn { request: name(&request) }))
            }
        }
    }

    fn begin_to_attach(
        &mut self,
        id: u64,
        target: Target,
        (format, align_bytes): (&str, u64),
        file: OwnedFd,
        now: Instant,
    ) -> Result<(), (Refusal, OwnedFd)> {
        let refusal = Refusal::new;
        let Some(user) = self.connections.get(&id).map(|connection| connection.user) else {
            return Ok(());
        };
        let may_attach = self.may_attach(user);
        if let Err(too_many) = may_attach.and_then(|()| self.may_open(user, &OpenFiles::of_look(1)))
        {
            return Err((too_many, file));
        }
        let layout = match layout(format, align_bytes) {
            Ok(layout) => layout,
            Err(refusal) => return Err((refusal, file)),
        };
        let Ok(handed) = beneath::examine(&file) else {
            let message = "the file that was sent cannot be looked at".to_owned();
            return Err((refusal(Reason::NotServed, message), file));
        };
        let (path, wanted_id, layout) = match target {
            // Normalised, so that paths are compared by their bytes (`is_same_path`).
            Target::Path(path) => (path.components().collect(), None, layout),
            Target::Id(wanted) => match self.cache.get(wanted) {
                Some(model) => (model.found.path.clone(), Some(wanted), model.found.layout),
                None => return Err((not_held(wanted), file)),
            },
            // The request has no file.
            Target::Remote(_) | Target::RemoteId(_) => return Ok(()),
        };
        // A descriptor that cannot be read proves nothing.
        if !handed.is_readable {
            return Err((not_served(&path), file));
        }
        let shown = ShownFile::new(path.clone(), handed.identity, file);
        let asked = Asked { path, layout, wanted_id };
        self.begin_to_look(id, asked, vec![shown], now);
        Ok(())
    }

    /// Begins to look up a model on a server. A name that is beneath no root is refused, and no server is
    /// asked.
    fn begin_to_attach_remote(
        &mut self,
        id: u64,
        target: Target,
        (format, align_bytes): (&str, u64),
        now: Instant,
    ) -> Result<(), Refusal> {
        let Some(user) = self.connections.get(&id).map(|connection| connection.user) else {
            return Ok(());
        };
        self.may_attach(user)?;
        self.may_open(user, &OpenFiles::of_look(1))?;
        let (name, wanted_id, layout) = match target {
            Target::Remote(name) => (name, None, layout(format, align_bytes)?),
            Target::RemoteId(wanted) => {
                // For a file of this machine, the client must show that it may read it.
                let held = self.cache.get(wanted).filter(|model| model.found.is_remote());
                let found = &held.ok_or_else(|| not_held(wanted))?.found;
                (found.path.to_string_lossy().into_owned(), Some(wanted), found.layout)
            }
            // These are other requests.
            Target::Path(_) | Target::Id(_) => return Ok(()),
        };
        let path = match &self.remote {
            Some(remote) => remote.permitted_name(&name),
            None => Err("this server has no models of other servers".to_owned()),
        };
        let path = path.map_err(|why| {
            let message = format!("the name is not served: {why}");
            let for_log = Some(format!("{} was asked for: {why}", without_secrets(&name)));
            Refusal { for_log, ..Refusal::new(Reason::NotServed, message) }
        })?;
        let is_it = |found: &Found| found.layout == layout && is_same_path(&found.path, &path);
        let mut held = self.cache.iter().filter(|(_, model)| model.memory.is_some());
        let known = held.find(|(_, model)| !model.is_stale && is_it(&model.found));
        let known = known.and_then(|(_, model)| model.found.remote.clone());
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let asked = Asked { path: path.clone(), layout, wanted_id };
        connection.enter(Phase::Opening { asked, shown: Vec::new() }, now);
        let (asker, cancel) = (Asker::Client(id), CancelToken::new());
        self.jobs.begin(user, Job::LookRemote { asker, path, layout, known, cancel }, now);
        Ok(())
    }

    /// Begins to look up the files that a client wants, with those that it has shown so far.
    fn begin_to_look(&mut self, id: u64, asked: Asked, shown: Vec<ShownFile>, now: Instant) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let user = connection.user;
        let (path, layout) = (asked.path.clone(), asked.layout);
        let inodes = shown.iter().map(|file| file.shown.clone()).collect();
        // The connection keeps their descriptors open for as long as the lookup lasts.
        connection.enter(Phase::Opening { asked, shown }, now);
        // Only a model in one file is looked up again (`Served::look_again`). The paths of others would
        // take memory for each lookup that waits.
        let is_it = |found: &Found| {
            found.files.len() == 1 && found.layout == layout && is_same_path(&found.path, &path)
        };
        let mut held = self.cache.iter().filter(|(_, model)| model.memory.is_some());
        let known = held.find(|(_, model)| !model.is_stale && is_it(&model.found));
        let known = known.map(|(_, model)| model.found.clone());
        let (asker, shown) = (Asker::Client(id), Some(inodes));
        self.jobs.begin(user, Job::Look { asker, path, layout, shown, known }, now);
    }

    /// Takes the next file that a client shows. After the last one, the files are looked up.
    fn on_proof(&mut self, id: u64, path: PathBuf, file: OwnedFd, now: Instant) -> Told {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let user = connection.user;
        let phase = std::mem::replace(&mut connection.phase, Phase::Idle);
        let Phase::Proving { asked, mut shown, to_show } = phase else {
            connection.phase = phase;
            return Ok(());
        };
        let Some(handed) = beneath::examine(&file).ok().filter(|handed| handed.is_readable) else {
            self.closers.close(user, vec![file]);
            self.close_shown(user, shown);
            return self.refuse(id, not_served(&path), now);
        };
        shown.push(ShownFile::new(path, handed.identity, file));
        if to_show.is_empty() {
            self.begin_to_look(id, asked, shown, now);
        } else {
            // The time for all files is the same as for the first.
            connection.phase = Phase::Proving { asked, shown, to_show };
        }
        Ok(())
    }

    /// Closes files that a client has shown.
    pub(super) fn close_shown(&mut self, user: User, shown: Vec<ShownFile>) {
        // A lookup that was given up can have one for a moment, and closes it then.
        let files = shown.into_iter().filter_map(|shown| Arc::into_inner(shown.file));
        self.closers.close(user, files.collect());
    }

    /// Checks if a user may have another attachment. Those that are being made count.
    fn may_attach(&self, user: User) -> Result<(), Refusal> {
        let has =
            |connection: &&Connection| connection.user == user && connection.has_or_awaits_model();
        let (count, max) =
            (self.connections.values().filter(has).count(), self.options.attachments_max);
        if count < max {
            return Ok(());
        }
        let message = format!(
            "{user} has, or waits for, {count} attachments, and can have no more \
             (--max-attachments)"
        );
        Err(Refusal::new(Reason::TooMany, message))
    }

    pub(super) fn on_looked(&mut self, asker: Asker, looked: Looked, now: Instant) {
        let id = match asker {
            Asker::Client(id) => id,
            Asker::Start(number) => return self.on_start_looked(number, looked, now),
        };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let user = connection.user;
        let phase = std::mem::replace(&mut connection.phase, Phase::Idle);
        let Phase::Opening { asked, shown } = phase else {
            connection.phase = phase;
            return;
        };
        connection.enter(Phase::Idle, now);
        let told = match looked {
            Looked::Unshown(others) => self.ask_to_show(id, asked, shown, others, now),
            looked => {
                self.close_shown(user, shown);
                match looked {
                    Looked::Found(Ok(found)) => self.on_found(id, found, asked.wanted_id, now),
                    Looked::Found(Err(error)) | Looked::Failed(error)
                        if is_remote_or_hub(&asked.path) =>
                    {
                        let refusal = Refusal::of_remote(&error);
                        if refusal.reason == Reason::NoSuchFile {
                            self.lose_remote(&asked);
                        }
                        self.refuse(id, refusal, now)
                    }
                    Looked::Found(Err(error)) => self.refuse(id, Refusal::of(&error), now),
                    Looked::Refused { path, why } => {
                        let for_log = Some(format!("{} was asked for: {why}", path.display()));
                        self.refuse(id, Refusal { for_log, ..not_served(&path) }, now)
                    }
                    Looked::Failed(error) => {
                        let refusal = Refusal::of(&error);
                        let for_log =
                            Some(format!("{}: {}", asked.path.display(), refusal.message));
                        self.refuse(id, Refusal { for_log, ..refusal }, now)
                    }
                    Looked::Unshown(_) => Ok(()),
                }
            }
        };
        if let Err(why) = told {
            self.disconnect(id, why, now);
        }
    }

    /// Marks the models of a name as stale, because the server has no such files any more.
    fn lose_remote(&mut self, asked: &Asked) {
        let is_it = |found: &Found| {
            found.is_remote()
                && found.layout == asked.layout
                && is_same_path(&found.path, &asked.path)
        };
        let lost: Vec<u64> =
            self.cache.iter().filter(|(_, model)| is_it(&model.found)).map(|(id, _)| id).collect();
        for id in lost {
            if let Some(model) = self.cache.get_mut(id).filter(|model| model.memory.is_some()) {
                model.is_stale = true;
            }
        }
    }

    /// Asks a client for the other files of the model that it named. Asks for all of them, even if they
    /// do not exist: none is looked up before it is shown.
    fn ask_to_show(
        &mut self,
        id: u64,
        asked: Asked,
        shown: Vec<ShownFile>,
        others: Vec<PathBuf>,
        now: Instant,
    ) -> Told {
        let Some(connection) = self.connections.get(&id) else { return Ok(()) };
        let user = connection.user;
        let files = OpenFiles::of_look(shown.len() + others.len());
        if let Err(too_many) = self.may_open(user, &files) {
            self.close_shown(user, shown);
            return self.refuse(id, too_many, now);
        }
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let sent_all = others
            .iter()
            .try_for_each(|path| connection.send(&Reply::Prove { path: path.clone() }, now));
        let to_show = others.into_iter().rev().collect();
        connection.enter(Phase::Proving { asked, shown, to_show }, now);
        sent(sent_all)
    }

    fn on_found(&mut self, id: u64, found: Found, wanted_id: Option<u64>, now: Instant) -> Told {
        if let Some(wanted) = wanted_id
            && self.cache.find(&found) != Some(wanted)
        {
            let message = format!(
                "the files of {wanted} have changed since it was loaded; attach {} to have it loaded anew",
                found.path.display()
            );
            return self.refuse(id, Refusal::new(Reason::NotHeld, message), now);
        }
        self.give(id, found, now)
    }

    /// Refuses a request of a client, which may then send another one.
    pub(super) fn refuse(&mut self, id: u64, refusal: Refusal, now: Instant) -> Told {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let Refusal { reason, message, for_log } = refusal;
        let logged = for_log.unwrap_or_else(|| message.clone());
        let peer = connection.peer;
        self.events.push(Event::Refused { peer, reason, message: logged });
        connection.enter(Phase::Idle, now);
        sent(connection.send(&Reply::Refused { reason, message }, now))
    }

    /// Sends a client the list of served files and models, unless its user leaves other lists unread.
    pub(super) fn list(&mut self, client: u64, now: Instant) {
        let Some(connection) = self.connections.get(&client) else { return };
        let user = connection.user;
        let of_user = self.connections.values().filter(|connection| connection.user == user);
        let unsent_bytes: usize = of_user.map(Connection::unsent_bytes).sum();
        let replies = if unsent_bytes > UNSENT_BYTES_MAX {
            let message = format!(
                "programs of {user} have not read {unsent_bytes} bytes that were sent to them; try again \
                 when they have"
            );
            vec![Reply::Refused { reason: Reason::TooMany, message }]
        } else {
            self.closers.budget.spend(user, || self.listed(now))
        };
        let Some(connection) = self.connections.get_mut(&client) else { return };
        let Phase::Listing { attached } = connection.phase else { return };
        connection.enter(attached.map_or(Phase::Idle, Phase::Attached), now);
        if replies.iter().any(|reply| connection.send(reply, now).is_err()) {
            self.disconnect(client, None, now);
        }
    }

    /// Returns the list of served files and models.
    fn listed(&self, now: Instant) -> Vec<Reply> {
        self.served
            .roots()
            .chain(self.remote.iter().flat_map(|remote| remote.roots()))
            .map(|path| Reply::Root { path })
            .chain(self.cache.iter().filter(|(_, model)| !model.is_abandoned).map(|(id, model)| {
                let is_ready = model.memory.is_some();
                let done_bytes = self.loads.get(&id).map(|load| load.done_bytes);
                Reply::Held(Held {
                    id,
                    path: model.found.path.clone(),
                    format: model.found.layout.format.to_string(),
                    align_bytes: model.found.layout.align.map_or(0, Granule::bytes),
                    len_bytes: model.found.len_bytes,
                    done_bytes: done_bytes.unwrap_or(model.found.len_bytes),
                    attachments: model.attachments,
                    state: if is_ready { HeldState::Ready } else { HeldState::Loading },
                    is_stale: model.is_stale,
                    is_pinned: model.is_pinned,
                    age_ms: now.saturating_duration_since(model.since).as_millis() as u64,
                })
            }))
            .chain([Reply::End])
            .collect()
    }
}

/// Returns the layout that a client wants.
fn layout(format: &str, align_bytes: u64) -> Result<Layout, Refusal> {
    let Ok(format) = format.parse::<FormatChoice>() else {
        let message = format!("the server knows no format '{format}'");
        return Err(Refusal::new(Reason::Unreadable, message));
    };
    let align = Granule::new(align_bytes).ok();
    if align_bytes > ALIGN_BYTES_MAX || align.is_none() && align_bytes > 0 {
        let message = format!("{align_bytes} is no power of two up to {ALIGN_BYTES_MAX}");
        return Err(Refusal::new(Reason::Unreadable, message));
    }
    Ok(Layout { format, align })
}

fn not_held(id: u64) -> Refusal {
    let message = format!("nothing is held as {id}; 'longshore ls' shows what is");
    Refusal::new(Reason::NotHeld, message)
}

impl Refusal {
    pub(super) fn new(reason: Reason, message: String) -> Self {
        Self { reason, message, for_log: None }
    }

    /// Returns the refusal after a load that failed. The client may read the files.
    pub(super) fn of(error: &longshore_load::Error) -> Self {
        use longshore_load::Error;
        let reason = match error {
            Error::Open { source, .. } if descriptors::is_exhausted(source) => Reason::TooMany,
            Error::Truncated { .. } | Error::Changed { .. } => Reason::Changed,
            Error::NotEnoughMemory { .. } | Error::Heap(_) => Reason::NoMemory,
            Error::Open { .. } | Error::NotRegular { .. } | Error::Read { .. } => {
                Reason::Unreadable
            }
            Error::Format { .. } | Error::NoTensors { .. } | Error::Refused { .. } => {
                Reason::Malformed
            }
            _ => Reason::Other,
        };
        Self::new(reason, with_causes(error))
    }

    /// Returns the refusal after a failure of a model on a server.
    pub(super) fn of_remote(error: &longshore_load::Error) -> Self {
        use longshore_load::Error;
        let text = || with_causes(error);
        match error {
            Error::Open { source, .. } if descriptors::is_exhausted(source) => Self::of(error),
            Error::Open { path, source } => match source.kind() {
                ErrorKind::NotFound => Self::new(Reason::NoSuchFile, text()),
                // The text can name files of the server's user.
                kind @ (ErrorKind::PermissionDenied | ErrorKind::InvalidInput) => {
                    let (reason, what) = match kind {
                        ErrorKind::InvalidInput => (
                            Reason::RemoteFailed,
                            "the name or a setting of the server is not valid",
                        ),
                        _ => {
                            let what = "access is denied, or the server has no credentials for it";
                            (Reason::Denied, what)
                        }
                    };
                    let shown = path.display();
                    let message = format!("{shown}: {what}; the log of the server has the reason");
                    Self { for_log: Some(text()), ..Self::new(reason, message) }
                }
                _ => Self::new(Reason::RemoteFailed, text()),
            },
            Error::Read { .. } | Error::Process { .. } => Self::new(Reason::RemoteFailed, text()),
            Error::Directory { reason, .. } => {
                use longshore_formats::directory::DirectoryProblem::{
                    File, Incomplete, NoComponent, Separate, Several, TwoVariants,
                };
                let reason = match reason {
                    Several { .. } | Separate { .. } | File | TwoVariants => Reason::SeveralModels,
                    Incomplete { .. } | NoComponent { .. } => Reason::Malformed,
                    _ => Reason::NoModel,
                };
                Self::new(reason, text())
            }
            error => Self::of(error),
        }
    }
}

/// Returns the same message if the file exists and if it does not: a client learns nothing about files
/// that it may not read.
fn not_served(path: &Path) -> Refusal {
    let message = format!(
        "{} is not served, or not to you: it must be beneath a directory that is served, with no \
         symbolic link leading out, be readable by the server, and be the file that you sent; \
         'longshore ls' shows what is served",
        path.display()
    );
    Refusal::new(Reason::NotServed, message)
}

/// Treats a client whose socket fails as disconnected.
pub(super) fn sent(outcome: std::io::Result<()>) -> Told {
    outcome.map_err(|_| None)
}

fn name(request: &Request) -> &'static str {
    match request {
        Request::Hello { .. } => "Hello",
        Request::Attach { .. } => "Attach",
        Request::Proof => "Proof",
        Request::Release => "Release",
        Request::List => "List",
    }
}
