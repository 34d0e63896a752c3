//! What clients ask for, step by step, until it is known what they are to be given.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use longshore_load::FormatChoice;
use longshore_mem::Granule;
use longshore_sys::beneath;
use longshore_sys::file::Version;

use super::connection::{Connection, Phase};
use super::core::Core;
use super::events::Event;
use super::jobs::{Asker, Job};
use crate::protocol::{Held, HeldState, Reason, Reply, Request, Target, VERSION};
use crate::served::{Found, Layout, Looked};

/// No device asks for more.
const ALIGN_BYTES_MAX: u64 = 1 << 30;

/// Why a client is disconnected; without a reason where it is gone itself.
pub(super) type Asked = Result<(), Option<String>>;

/// A client that is to be told no, and may ask for something else.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) reason: Reason,
    pub(super) message: String,
}

impl Core {
    pub(super) fn on_request(
        &mut self,
        id: u64,
        request: Request,
        mut descriptors: Vec<OwnedFd>,
        now: Instant,
    ) -> Asked {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let peer = connection.peer;
        match (request, &mut connection.phase) {
            (Request::Hello { version }, Phase::Greeting) => {
                if version != VERSION {
                    let message = format!(
                        "the client speaks version {version} of the protocol, the server \
                         {VERSION}: use the same longshore for both"
                    );
                    let reply = Reply::Refused { reason: Reason::Version, message };
                    let _ = connection.send(&reply, now);
                    return Err(Some(format!("it speaks version {version}")));
                }
                connection.enter(Phase::Idle, now);
                let pid = std::process::id();
                sent(connection.send(&Reply::Welcome { version, pid }, now))
            }
            (Request::Attach { target, format, align_bytes }, Phase::Idle) => {
                let Some(file) = descriptors.pop() else { return Ok(()) };
                match self.begin_to_attach(id, target, (&format, align_bytes), file, now) {
                    Ok(()) => Ok(()),
                    Err((refusal, file)) => {
                        self.closers.close(peer.uid, vec![file]);
                        self.refuse(id, refusal, now)
                    }
                }
            }
            (Request::Proof, Phase::Proving { found, to_show }) => {
                let (Some(file), Some((path, version))) = (descriptors.pop(), to_show.pop()) else {
                    return Ok(());
                };
                if !shows(&file, version.inode()) {
                    self.closers.close(peer.uid, vec![file]);
                    return self.refuse(id, not_served(&path), now);
                }
                if to_show.is_empty() {
                    let found = found.clone();
                    connection.enter(Phase::Idle, now);
                    return self.give(id, found, now);
                }
                Ok(())
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
                let models =
                    self.shelf.iter().map(|(id, model)| (id, model.found.clone())).collect();
                self.jobs.begin(Job::Stale { client: id, models });
                Ok(())
            }
            (request, _) => {
                self.closers.close(peer.uid, descriptors);
                Err(Some(format!("it asks for {} out of turn", name(&request))))
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
        let refusal = |reason, message: String| Refusal { reason, message };
        let Some(peer) = self.connections.get(&id).map(|connection| connection.peer) else {
            return Ok(());
        };
        if let Err(too_many) = self.may_attach(peer.uid) {
            return Err((too_many, file));
        }
        let Ok(format) = format.parse::<FormatChoice>() else {
            let message = format!("the server knows no format '{format}'");
            return Err((refusal(Reason::Unreadable, message), file));
        };
        let align = Granule::new(align_bytes).ok();
        if align_bytes > ALIGN_BYTES_MAX || align.is_none() && align_bytes > 0 {
            let message = format!("{align_bytes} is no power of two up to {ALIGN_BYTES_MAX}");
            return Err((refusal(Reason::Unreadable, message), file));
        }
        let Ok(handed) = beneath::examine(&file) else {
            let message = "the file that was sent cannot be looked at".to_owned();
            return Err((refusal(Reason::NotServed, message), file));
        };
        let (path, wanted_id, layout) = match target {
            Target::Path(path) => (path, None, Layout { format, align }),
            Target::Id(wanted) => match self.shelf.get(wanted) {
                Some(model) => (model.found.path.clone(), Some(wanted), model.found.layout),
                None => {
                    let message =
                        format!("nothing is held as {wanted}; 'longshore ls' shows what is");
                    return Err((refusal(Reason::NotHeld, message), file));
                }
            },
        };
        // A descriptor that cannot read shows nothing.
        if !handed.is_readable {
            return Err((not_served(&path), file));
        }
        let inode = handed.inode;
        if let Some(connection) = self.connections.get_mut(&id) {
            let path = path.clone();
            connection.enter(Phase::Opening { shown: file, path, wanted_id }, now);
        }
        let shown = Some(inode);
        self.jobs.begin(Job::Look { asker: Asker::Client(id), path, layout, shown });
        Ok(())
    }

    /// Whether a user may have another attachment. Those that are on their way count.
    fn may_attach(&self, uid: u32) -> Result<(), Refusal> {
        let has = |connection: &&Connection| {
            connection.peer.uid == uid && connection.has_or_awaits_model()
        };
        let (count, max) =
            (self.connections.values().filter(has).count(), self.options.attachments_max);
        if count < max {
            return Ok(());
        }
        let message = format!(
            "user {uid} has, or waits for, {count} attachments, and can have no more \
             (--max-attachments)"
        );
        Err(Refusal { reason: Reason::TooMany, message })
    }

    pub(super) fn on_looked(&mut self, asker: Asker, looked: Looked, now: Instant) {
        let id = match asker {
            Asker::Client(id) => id,
            Asker::Start(number) => return self.on_start_looked(number, looked, now),
        };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let peer = connection.peer;
        let phase = std::mem::replace(&mut connection.phase, Phase::Idle);
        let Phase::Opening { shown, path, wanted_id } = phase else {
            connection.phase = phase;
            return;
        };
        connection.enter(Phase::Idle, now);
        let asked = match looked {
            Looked::Found(found) => {
                // It is a file of a file system that is served, and so closing it does not wait.
                drop(shown);
                match found {
                    Ok(found) => self.on_found(id, found, wanted_id, now),
                    Err(error) => self.refuse(id, Refusal::of(&error), now),
                }
            }
            Looked::Refused => {
                self.closers.close(peer.uid, vec![shown]);
                self.refuse(id, not_served(&path), now)
            }
            Looked::Failed(error) => {
                self.closers.close(peer.uid, vec![shown]);
                self.refuse(id, Refusal::of(&error), now)
            }
        };
        if let Err(why) = asked {
            self.disconnect(id, why, now);
        }
    }

    fn on_found(&mut self, id: u64, found: Found, wanted_id: Option<u64>, now: Instant) -> Asked {
        if let Some(wanted) = wanted_id
            && self.shelf.find(&found) != Some(wanted)
        {
            let message = format!(
                "{wanted} is no longer what is on disk; attach {} to have it loaded anew",
                found.path.display()
            );
            return self.refuse(id, Refusal { reason: Reason::NotHeld, message }, now);
        }
        // The named file was shown.
        let others = found.files.iter().filter(|(path, _)| *path != found.path).cloned();
        let to_show: Vec<(PathBuf, Version)> = others.rev().collect();
        if to_show.is_empty() {
            return self.give(id, found, now);
        }
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        for (path, _) in to_show.iter().rev() {
            sent(connection.send(&Reply::Prove { path: path.clone() }, now))?;
        }
        connection.enter(Phase::Proving { found, to_show }, now);
        Ok(())
    }

    /// Tells a client no. It may ask for something else.
    pub(super) fn refuse(&mut self, id: u64, refusal: Refusal, now: Instant) -> Asked {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let Refusal { reason, message } = refusal;
        self.events.push(Event::Refused { peer: connection.peer, message: message.clone() });
        connection.enter(Phase::Idle, now);
        sent(connection.send(&Reply::Refused { reason, message }, now))
    }

    pub(super) fn on_stale(&mut self, client: u64, stale: &[u64], now: Instant) {
        for id in stale {
            if let Some(model) = self.shelf.get_mut(*id) {
                model.is_stale = true;
            }
        }
        let replies: Vec<Reply> = self
            .served
            .roots()
            .map(|path| Reply::Root { path })
            .chain(self.shelf.iter().filter(|(_, model)| !model.is_abandoned).map(|(id, model)| {
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
            .collect();
        let Some(connection) = self.connections.get_mut(&client) else { return };
        let Phase::Listing { attached } = connection.phase else { return };
        connection.enter(attached.map_or(Phase::Idle, Phase::Attached), now);
        if replies.iter().any(|reply| connection.send(reply, now).is_err()) {
            self.disconnect(client, None, now);
        }
    }
}

impl Refusal {
    /// What a client is told of a load that failed. It may read the file.
    pub(super) fn of(error: &longshore_load::Error) -> Self {
        use longshore_load::Error;
        let reason = match error {
            Error::Truncated { .. } | Error::Changed { .. } => Reason::Changed,
            Error::NotEnoughMemory { .. } | Error::Heap(_) => Reason::NoMemory,
            Error::Open { .. }
            | Error::NotRegular { .. }
            | Error::Read { .. }
            | Error::Format { .. } => Reason::Unreadable,
            _ => Reason::Other,
        };
        let mut message = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(next) = cause {
            let said = next.to_string();
            if !message.ends_with(&said) {
                message = format!("{message}: {said}");
            }
            cause = next.source();
        }
        Self { reason, message }
    }
}

/// The same words whether there is such a file or not: a client learns nothing of files that it may
/// not read.
fn not_served(path: &Path) -> Refusal {
    let message = format!(
        "{} is not served, or not to you: it must be beneath a directory that is served, with no \
         symbolic link leading out, be readable by the server, and be the file that you sent; \
         'longshore ls' shows what is served",
        path.display()
    );
    Refusal { reason: Reason::NotServed, message }
}

/// Whether a descriptor shows that its sender may read the file with this inode.
fn shows(file: &OwnedFd, inode: ((u32, u32), u64)) -> bool {
    beneath::examine(file).is_ok_and(|handed| handed.is_readable && handed.inode == inode)
}

/// A client whose socket fails is gone.
pub(super) fn sent(outcome: std::io::Result<()>) -> Asked {
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
