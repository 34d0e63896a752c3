//! The files of the start, which are kept for as long as the server runs.
//!
//! They are found before a client is served, so that no client takes the room that they need, and each of
//! their loads is the server's own. But every user who can read a directory can make look-ups in it hang,
//! and every user who can read a file can make its load hang. So clients wait for a bounded time only, and
//! the server is ready then if no load keeps its pace: a service manager would end it, and start it again in
//! vain. From then on, a file of the start that cannot be loaded is logged and does not end the server:
//! others are served by then. The same applies earlier, once a client of another user has been accepted: it
//! can take the memory, the descriptors and whatever else such a load needs.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_load::CancelToken;

use super::asking::Refusal;
use super::core::Core;
use super::events::{Event, ServerProblem};
use super::jobs::{Asker, Job, is_hang};
use crate::error::Error;
use crate::reason::Reason;
use crate::served::{Found, Layout, Looked};

/// The time that clients wait until all files of the start are found, and that the server waits for
/// loads of them that hang.
const START_TIME: Duration = Duration::from_secs(10);

impl Core {
    /// Begins to look up the files of the start.
    pub(super) fn begin_start(&mut self, now: Instant) {
        self.start_ends = Some(now + START_TIME);
        let files = self.options.files.iter().cloned().map(|path| (path, false));
        let models = self.remote.iter().flat_map(|remote| remote.models());
        let all: Vec<_> = files.chain(models.map(|path| (path, true))).collect();
        for (number, (path, is_remote)) in all.into_iter().enumerate() {
            self.starting.insert(number, path.clone());
            let layout = Layout { format: self.options.format, align: self.options.align };
            let asker = Asker::Start(number);
            let job = match is_remote {
                true => {
                    let cancel = CancelToken::new();
                    Job::LookRemote { asker, path, layout, known: None, cancel }
                }
                false => Job::Look { asker, path, layout, shown: None, known: None },
            };
            self.jobs.begin(self.users.own(), job, now);
        }
    }

    /// Reports the roots on servers, because no file protects the models beneath them.
    pub(super) fn report_remote_roots(&mut self) {
        let roots: Vec<PathBuf> = self.remote.iter().flat_map(|remote| remote.roots()).collect();
        if !roots.is_empty() {
            self.events.push(Event::RemoteRoots { roots });
        }
    }

    /// Returns `true` if clients wait until the files of the start are found.
    pub(super) fn is_starting(&self) -> bool {
        !self.starting.is_empty() && !self.serves_early
    }

    /// Returns `true` if clients can connect, and the files of the start are loaded or too slow.
    pub(super) fn has_started(&self) -> bool {
        let is_over = self.start_ends.is_none();
        let is_awaited = |id: &u64| !is_over || self.jobs.keeps_pace(*id);
        !self.is_starting() && !self.jobs.start_models.iter().any(is_awaited)
    }

    /// Serves clients from now on if the lookups of files of the start take too long.
    pub(super) fn end_start(&mut self, now: Instant) {
        if self.start_ends.is_none_or(|end| now < end) {
            return;
        }
        self.start_ends = None;
        if !self.is_starting() {
            return;
        }
        self.serves_early = true;
        self.jobs.free_start_places();
        let waited = START_TIME;
        let slow = self.starting.values().cloned();
        let slow = slow.map(|path| ServerProblem::StartFileHangs { path, waited });
        self.events.extend(slow.map(|problem| Event::Trouble { problem }));
    }

    /// Reports the files of the start that are not loaded when the server is ready.
    pub(super) fn report_slow_start(&mut self) {
        let slow = self.jobs.start_models.iter().filter_map(|id| self.cache.get(*id));
        let slow = slow.map(|model| model.found.path.clone());
        let slow = slow.map(|path| ServerProblem::StartLoadSlow { path });
        self.events.extend(slow.map(|problem| Event::Trouble { problem }));
    }

    /// Ends the server because a file of the start cannot be loaded, unless it is to serve clients without
    /// the file, or a client can have brought the failure about.
    fn fail_start(&mut self, path: PathBuf, error: Error) {
        if self.serves_early || self.has_served_others || self.is_ready {
            let problem = ServerProblem::StartFileFailed { path, error: Arc::new(error) };
            self.events.push(Event::Trouble { problem });
        } else {
            self.failed.get_or_insert(error);
        }
    }

    /// A file of the start.
    pub(super) fn on_start_looked(&mut self, number: usize, looked: Looked, now: Instant) {
        let Some(path) = self.starting.remove(&number) else { return };
        let found = match looked {
            Looked::Found(Ok(found)) => found,
            Looked::Found(Err(error)) | Looked::Failed(error) => {
                return self.fail_start(path, error.into());
            }
            Looked::Refused { path: refused, why: source } => {
                let error = longshore_load::Error::Open { path: refused, source };
                return self.fail_start(path, error.into());
            }
            // The server itself has nothing to show.
            Looked::Unshown(_) => return,
        };
        if found.remote.as_ref().is_some_and(|files| !files.has_versions()) {
            let text =
                "the server sends no version of it (a strong ETag), so no client could share it";
            let error = Error::cannot_serve(&path, std::io::Error::other(text));
            return self.fail_start(path, error);
        }
        self.hold_from_start(found, now);
    }

    /// Loads a file of the start once more, if its load was given up and the next one reads it in another
    /// way.
    pub(super) fn on_start_load_failed(
        &mut self,
        found: Found,
        error: longshore_load::Error,
        now: Instant,
    ) {
        if is_hang(&error) {
            self.serves_early = true;
            if self.jobs.reads_buffered(&found, now) {
                return self.hold_from_start(found, now);
            }
        }
        self.fail_start(found.path, error.into());
    }

    fn hold_from_start(&mut self, found: Found, now: Instant) {
        let id = match self.cache.find(&found) {
            Some(id) => {
                // It may be known by another path.
                if let Some(model) = self.cache.get_mut(id) {
                    model.found = found;
                }
                id
            }
            None => match self.load(self.users.own(), &found, now) {
                Ok(id) => id,
                Err(refusal) => {
                    let error = cannot_serve(&found.path, refusal);
                    return self.fail_start(found.path, error);
                }
            },
        };
        match self.cache.get_mut(id) {
            Some(model) if model.memory.is_some() => model.is_pinned = true,
            _ => {
                self.jobs.start_models.insert(id);
                self.set_users(id);
            }
        }
    }
}

fn cannot_serve(path: &Path, refusal: Refusal) -> Error {
    let kind = match refusal.reason {
        Reason::NoMemory => ErrorKind::OutOfMemory,
        Reason::Unreadable | Reason::Malformed => ErrorKind::InvalidData,
        _ => ErrorKind::Other,
    };
    Error::cannot_serve(path, std::io::Error::new(kind, refusal.message))
}
