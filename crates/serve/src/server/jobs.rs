//! What may wait for a disk is done by threads beside the one that serves: looking for files, loading
//! them, and asking whether they changed.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use longshore_heap::{Heap, Sealing, SharedBuffer};
use longshore_load::plan::PlannedFile;
use longshore_load::{CancelToken, Loader, Progress};
use longshore_sys::{event_fd, memfd};

use crate::error::{Error, Result};
use crate::served::{Found, Inode, Layout, Looked, Served};

/// How many files are looked for at once.
const LOOKING_MAX: usize = 8;
/// How many models are loaded at once: a disk has enough with one, and two may be on two.
const LOADING_MAX: usize = 2;

/// For whom something is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    Client(u64),
    /// What the server is to hold from the start.
    Start(usize),
}

/// Something to be done.
#[derive(Debug)]
pub(super) enum Job {
    /// `shown` is the file that the asker has shown; the server itself shows none.
    Look {
        asker: Asker,
        path: PathBuf,
        layout: Layout,
        shown: Option<Inode>,
    },
    Load {
        id: u64,
        found: Found,
        cancel: CancelToken,
    },
    Stale {
        client: u64,
        models: Vec<(u64, Found)>,
    },
}

/// What became of it.
#[derive(Debug)]
pub(super) enum Done {
    Looked { asker: Asker, looked: Looked },
    Progress { id: u64, progress: Progress },
    Loaded { id: u64, outcome: longshore_load::Result<LoadedModel> },
    Stale { client: u64, stale: Vec<u64> },
}

/// A model in memory, sealed.
#[derive(Debug)]
pub(super) struct LoadedModel {
    pub(super) memory: SharedBuffer,
    /// Where each file is in it.
    pub(super) ranges: Vec<Range<u64>>,
    pub(super) elapsed: Duration,
    pub(super) pages: String,
}

/// How models are loaded.
#[derive(Clone, Debug)]
pub(super) struct How {
    pub(super) heap: Heap,
    pub(super) memory_mode: u32,
}

/// The threads, what waits for one, and what they have to say.
#[derive(Debug)]
pub(super) struct Jobs {
    served: Arc<Served>,
    how: How,
    event: Arc<OwnedFd>,
    sender: Sender<Done>,
    receiver: Receiver<Done>,
    looking: usize,
    loading: usize,
    to_look: VecDeque<Job>,
    to_load: VecDeque<Job>,
}

impl Jobs {
    pub(super) fn new(served: Arc<Served>, how: How) -> Result<Self> {
        let event = event_fd::create().map_err(Error::kernel("making an event"))?;
        let (sender, receiver) = mpsc::channel();
        Ok(Self {
            served,
            how,
            event: Arc::new(event),
            sender,
            receiver,
            looking: 0,
            loading: 0,
            to_look: VecDeque::new(),
            to_load: VecDeque::new(),
        })
    }

    /// Does it, now or when a thread is free.
    pub(super) fn begin(&mut self, job: Job) {
        match job {
            Job::Load { .. } => self.to_load.push_back(job),
            Job::Look { .. } | Job::Stale { .. } => self.to_look.push_back(job),
        }
        self.spawn();
    }

    /// Forgets a load that has not begun; whether it had not.
    pub(super) fn forget_load(&mut self, model: u64) -> bool {
        let before = self.to_load.len();
        self.to_load.retain(|job| !matches!(job, Job::Load { id, .. } if *id == model));
        self.to_load.len() < before
    }

    /// Forgets what is to be looked for for a client that is gone.
    pub(super) fn forget_client(&mut self, gone: u64) {
        self.to_look.retain(|job| match job {
            Job::Look { asker, .. } => *asker != Asker::Client(gone),
            Job::Stale { client, .. } => *client != gone,
            Job::Load { .. } => true,
        });
    }

    /// How many models are being loaded.
    pub(super) fn loading(&self) -> usize {
        self.loading
    }

    /// Everything that was done since.
    pub(super) fn done(&mut self) -> Vec<Done> {
        // It is only a matter of being woken once more.
        let _ = event_fd::drain(&self.event);
        let done: Vec<Done> = self.receiver.try_iter().collect();
        for one in &done {
            match one {
                Done::Looked { .. } | Done::Stale { .. } => self.looking -= 1,
                Done::Loaded { .. } => self.loading -= 1,
                Done::Progress { .. } => {}
            }
        }
        self.spawn();
        done
    }

    fn spawn(&mut self) {
        while self.looking < LOOKING_MAX {
            let Some(job) = self.to_look.pop_front() else { break };
            self.looking += 1;
            self.run(job);
        }
        while self.loading < LOADING_MAX {
            let Some(job) = self.to_load.pop_front() else { break };
            self.loading += 1;
            self.run(job);
        }
    }

    fn run(&self, job: Job) {
        let (served, how) = (Arc::clone(&self.served), self.how.clone());
        let teller = Teller { sender: self.sender.clone(), event: Arc::clone(&self.event) };
        let without = job.without_result();
        let promise = Promise { teller: teller.clone(), without: Some(job.without_result()) };
        let work = move || {
            let done = job.run(&served, &how, &promise.teller);
            promise.keep(done);
        };
        let named = thread::Builder::new().name("longshore-job".to_owned());
        if let Err(source) = named.spawn(work) {
            let operation = "starting a thread";
            teller.tell(without(longshore_load::Error::Process { operation, source }));
        }
    }
}

impl AsFd for Jobs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[derive(Clone)]
struct Teller {
    sender: Sender<Done>,
    event: Arc<OwnedFd>,
}

/// That what became of a job is told, also where its thread panics: somebody waits for it.
struct Promise {
    teller: Teller,
    without: Option<WithoutResult>,
}

/// What became of a job that had no result.
type WithoutResult = Box<dyn FnOnce(longshore_load::Error) -> Done + Send>;

impl Teller {
    fn tell(&self, done: Done) {
        // A server that has ended does not listen.
        if self.sender.send(done).is_ok() {
            let _ = event_fd::signal(&self.event);
        }
    }
}

impl Promise {
    fn keep(mut self, done: Done) {
        self.without = None;
        self.teller.tell(done);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        // Without a thread there is no panic either: that is told by who wanted to start it.
        if let Some(without) = self.without.take().filter(|_| thread::panicking()) {
            let source = io::Error::other("it panicked");
            let operation = "a thread of the server";
            self.teller.tell(without(longshore_load::Error::Process { operation, source }));
        }
    }
}

impl Job {
    /// What becomes of it where there is no thread to do it, or that thread does not end as it should.
    fn without_result(&self) -> WithoutResult {
        match self {
            Self::Look { asker, .. } => {
                let asker = *asker;
                Box::new(move |error| Done::Looked { asker, looked: Looked::Failed(error) })
            }
            Self::Load { id, .. } => {
                let id = *id;
                Box::new(move |error| Done::Loaded { id, outcome: Err(error) })
            }
            Self::Stale { client, .. } => {
                let client = *client;
                Box::new(move |_| Done::Stale { client, stale: Vec::new() })
            }
        }
    }

    fn run(self, served: &Served, how: &How, teller: &Teller) -> Done {
        match self {
            Self::Look { asker, path, layout, shown } => {
                Done::Looked { asker, looked: served.look(&path, layout, shown) }
            }
            Self::Load { id, found, cancel } => {
                let tell = |progress| teller.tell(Done::Progress { id, progress });
                Done::Loaded { id, outcome: load(served, how, &found, &cancel, tell) }
            }
            Self::Stale { client, models } => {
                let stale = models
                    .iter()
                    .filter(|(_, found)| served.is_stale(found))
                    .map(|(id, _)| *id)
                    .collect();
                Done::Stale { client, stale }
            }
        }
    }
}

fn load(
    served: &Served,
    how: &How,
    found: &Found,
    cancel: &CancelToken,
    tell: impl FnMut(Progress),
) -> longshore_load::Result<LoadedModel> {
    let plan = served.plan(found)?;
    let loader = Loader::new().heap(how.heap.clone()).cancel(cancel).observe(tell);
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
        pages: loaded.report.pages.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_whose_thread_panics_is_over() {
        let (sender, receiver) = mpsc::channel();
        let teller = Teller { sender, event: Arc::new(event_fd::create().unwrap()) };
        let job = Job::Stale { client: 7, models: Vec::new() };
        let promise = Promise { teller: teller.clone(), without: Some(job.without_result()) };
        let work = move || {
            let _promise = promise;
            panic!("as a job of a test does");
        };
        assert!(thread::spawn(work).join().is_err());
        let told = receiver.try_recv().unwrap();
        assert!(matches!(told, Done::Stale { client: 7, .. }), "{told:?}");
        assert!(event_fd::drain(&teller.event).is_ok(), "the server is woken for it");
        let kept = Promise { teller, without: Some(job.without_result()) };
        kept.keep(Done::Stale { client: 8, stale: Vec::new() });
        assert!(matches!(receiver.try_recv(), Ok(Done::Stale { client: 8, .. })));
        assert!(receiver.try_recv().is_err(), "nothing is told twice");
    }
}
