//! The jobs of threads: looking files up, loading them, and checking the files of models in memory.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use longshore_heap::{Heap, PageReport, Sealing, SharedBuffer};
use longshore_load::PlannedFile;
use longshore_load::{CancelToken, Loader, Progress, ReadMode};
use longshore_sys::memfd;

use super::teller::Teller;
use crate::inodes::Inodes;
use crate::remote::RemoteServed;
use crate::remote::files::RemoteFiles;
use crate::served::{Found, Freshness, Layout, Looked, Served, Shown};
use crate::server::users::User;

/// The requester of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Asker {
    Client(u64),
    /// A file of the start.
    Start(usize),
}

/// The purpose of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    For(Asker),
    /// To find deleted files of all models in memory.
    FindDeleted,
    /// To check if the files of this model have changed.
    Sweep(u64),
}

/// A check of the files of a model in memory.
#[derive(Clone, Debug)]
pub(in crate::server) struct Sweep {
    pub(in crate::server) id: u64,
    /// The files, by the paths that are looked up.
    pub(in crate::server) found: Found,
    /// The user that gave these paths, and the paths if they are not the model's own.
    pub(in crate::server) name: (User, Option<Arc<Found>>),
    /// Other paths of the model, which are looked up if these do not lead to the files any more.
    pub(in crate::server) others: VecDeque<(User, Arc<Found>)>,
    /// The first of these names, if one was looked up, that leads to the files and whose index is gone.
    pub(in crate::server) without_index: Option<(User, Option<Arc<Found>>)>,
}

/// A job.
#[derive(Debug)]
pub(in crate::server) enum Job {
    /// `shown` is what the client has shown; the server itself shows nothing. `known` is a model that is
    /// held under the same path in the same layout.
    Look {
        asker: Asker,
        path: PathBuf,
        layout: Layout,
        shown: Option<Vec<Shown>>,
        known: Option<Found>,
    },
    /// The model of this name on a server, which is beneath a root.
    LookRemote {
        asker: Asker,
        path: PathBuf,
        layout: Layout,
        known: Option<Arc<RemoteFiles>>,
        cancel: CancelToken,
    },
    Load {
        id: u64,
        found: Found,
        cancel: CancelToken,
    },
    FindDeleted {
        models: Vec<(u64, Arc<Inodes>)>,
    },
    Sweep(Box<Sweep>),
}

/// The result of a job.
#[derive(Debug)]
pub(in crate::server) enum Done {
    Looked {
        asker: Asker,
        looked: Looked,
    },
    Progress {
        id: u64,
        progress: Progress,
    },
    Loaded {
        id: u64,
        outcome: longshore_load::Result<LoadedModel>,
    },
    /// Models of which a file is deleted.
    FoundDeleted {
        models: Vec<u64>,
    },
    /// The result of a check of a model; `None` if it was given up.
    Swept {
        id: u64,
        swept: Option<(Box<Sweep>, Freshness)>,
    },
}

/// A model in memory, sealed.
#[derive(Debug)]
pub(in crate::server) struct LoadedModel {
    pub(in crate::server) memory: SharedBuffer,
    /// The places of the files in it.
    pub(in crate::server) ranges: Vec<Range<u64>>,
    pub(in crate::server) elapsed: Duration,
    pub(in crate::server) pages: PageReport,
}

/// How models are loaded.
#[derive(Clone, Debug)]
pub(in crate::server) struct How {
    pub(in crate::server) heap: Heap,
    pub(in crate::server) memory_mode: u32,
    /// The models on servers.
    pub(in crate::server) remote: Option<Arc<RemoteServed>>,
    /// The number of connections of a load from servers; `None` to let it grow.
    pub(in crate::server) connections: Option<usize>,
}

/// The end of a job that had no result.
pub(super) type WithoutResult = Arc<dyn Fn(longshore_load::Error) -> Done + Send + Sync>;

impl Purpose {
    /// Returns `true` if this was a check of models in memory.
    pub(super) fn is_sweep(self) -> bool {
        matches!(self, Self::FindDeleted | Self::Sweep(_))
    }

    /// The result of a lookup that did not end.
    pub(super) fn without_result(self, error: longshore_load::Error) -> Done {
        match self {
            Self::FindDeleted => Done::FoundDeleted { models: Vec::new() },
            Self::Sweep(id) => Done::Swept { id, swept: None },
            Self::For(asker) => Done::Looked { asker, looked: Looked::Failed(error) },
        }
    }
}

impl Job {
    /// Returns the model that it loads or checks.
    #[cfg(test)]
    pub(super) fn model(&self) -> Option<u64> {
        match self {
            Self::Load { id, .. } => Some(*id),
            Self::Sweep(sweep) => Some(sweep.id),
            Self::Look { .. } | Self::LookRemote { .. } | Self::FindDeleted { .. } => None,
        }
    }

    /// Returns the result if there is no thread for the job, or the thread does not end as it should.
    pub(super) fn without_result(&self) -> WithoutResult {
        match self {
            Self::Look { asker, .. } | Self::LookRemote { asker, .. } => {
                let purpose = Purpose::For(*asker);
                Arc::new(move |error| purpose.without_result(error))
            }
            Self::FindDeleted { .. } => {
                Arc::new(|error| Purpose::FindDeleted.without_result(error))
            }
            Self::Sweep(sweep) => {
                let purpose = Purpose::Sweep(sweep.id);
                Arc::new(move |error| purpose.without_result(error))
            }
            Self::Load { id, .. } => {
                let id = *id;
                Arc::new(move |error| Done::Loaded { id, outcome: Err(error) })
            }
        }
    }

    /// Runs the job on this thread. A load reads its files by `mode`.
    pub(super) fn run(self, served: &Served, how: &How, mode: ReadMode, teller: &Teller) -> Done {
        match self {
            Self::Look { asker, path, layout, shown, known } => {
                let again = known.as_ref().zip(shown.as_deref());
                let again = again.and_then(|(known, shown)| served.look_again(known, shown));
                let looked = match again {
                    Some(found) => Looked::Found(Ok(found)),
                    None => served.look(&path, layout, shown.as_deref()),
                };
                Done::Looked { asker, looked }
            }
            Self::LookRemote { asker, path, layout, known, cancel } => {
                let looked = match &how.remote {
                    Some(remote) => remote.look(&path, layout, known.as_ref(), &cancel),
                    None => Looked::Unshown(Vec::new()),
                };
                Done::Looked { asker, looked }
            }
            Self::FindDeleted { models } => {
                let deleted = models.iter().filter(|(_, inodes)| inodes.is_any_known_unlinked());
                Done::FoundDeleted { models: deleted.map(|(id, _)| *id).collect() }
            }
            Self::Sweep(sweep) => {
                let freshness = served.freshness(&sweep.found);
                Done::Swept { id: sweep.id, swept: Some((sweep, freshness)) }
            }
            Self::Load { id, found, cancel } => {
                let tell = |progress| teller.tell(Done::Progress { id, progress });
                Done::Loaded { id, outcome: load(how, &found, mode, &cancel, tell) }
            }
        }
    }
}

fn load(
    how: &How,
    found: &Found,
    mode: ReadMode,
    cancel: &CancelToken,
    tell: impl FnMut(Progress),
) -> longshore_load::Result<LoadedModel> {
    let plan = match how.remote.as_ref().filter(|_| found.is_remote()) {
        Some(remote) => remote.plan(found, cancel)?,
        None => Served::plan(found)?,
    };
    let mut loader = Loader::new().heap(how.heap.clone()).mode(mode).cancel(cancel).observe(tell);
    if let Some(connections) = how.connections {
        loader = loader.connections(connections);
    }
    let loaded = loader.load(&plan)?;
    let memory = loaded.buffer.share(Sealing::Content)?;
    if let Some(memfd) = memory.memfd() {
        memfd::set_permissions(memfd, how.memory_mode).map_err(|source| {
            longshore_load::Error::Process { operation: "setting the memory's permissions", source }
        })?;
    }
    Ok(LoadedModel {
        memory,
        ranges: plan.files().iter().map(PlannedFile::buffer_range).collect(),
        elapsed: loaded.report.elapsed,
        pages: loaded.report.pages,
    })
}
