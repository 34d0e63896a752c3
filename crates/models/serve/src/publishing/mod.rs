//! A server that manages the models that are published in a directory: it publishes models at its start
//! and when they change, and evicts those that are not used.
//!
//! ```text
//!   preload ──► source changed? ── publish ──► DIR/NAME ◄── mmap ── engines
//!                                                 │
//!                 open? read? (each few seconds) ─┤
//!                 unused for the time to keep  ───┼──► evict
//!                 memory is short              ───┘
//! ```
//!
//! The directory is the only state. Models that another process publishes there are managed, too, and
//! the models stay when the server ends, so that the next one adopts them.

mod events;
mod source;
mod uses;

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use longshore_load::{
    self as load, CancelToken, FoundModel, ManagerLock, Manifest, Outcome, Published,
    PublishedModel, PublishedModels, Publisher, SourceState,
};
use longshore_sys::memory;
use longshore_sys::memory_pressure::MemoryPressure;
use longshore_sys::readiness::{self, Watch};

use crate::error::{Error, Result};
use crate::model_cache::Keep;
use crate::server::{Stop, notify};
use source::{Attempt, Source};
use uses::Uses;

pub use events::{Eviction, PublishEvent, PublishTrouble};
pub use source::RemoteSource;

/// The time between two looks at the memory pressure.
const PERIOD: Duration = Duration::from_secs(1);
/// The longest time between two looks at the use of models.
const USE_PERIOD: Duration = Duration::from_secs(5);
/// The time after which the permissions of a source are read again although it has not changed: permissions of
/// a directory above it can change while they are read, and change back.
const CONFIRMATION_PERIOD: Duration = Duration::from_secs(10);
/// The time between two looks at the sources.
const SOURCE_PERIOD: Duration = Duration::from_secs(3);
/// The shortest time for which an unused model is kept. Engines close the configuration before they open
/// the weights.
const KEEP_MIN: Duration = Duration::from_secs(10);
/// Memory is short if at least one task has waited for it for a tenth of the time.
const PRESSURE_PART: u32 = 10;
/// The memory that publishing a model needs in addition to its content.
const SPARE_BYTES: u64 = 64 << 20;

/// The directory to manage, and the models to publish in it.
#[derive(Debug)]
#[non_exhaustive]
pub struct PublishOptions {
    /// The directory, which must fulfil the conditions of [`Publisher::new`].
    pub directory: PathBuf,
    /// The models to publish at the start, each under its default name. Their paths may contain no symbolic
    /// links, because a user who can change one could choose another source. A new version of one is
    /// published when its source changes. They are not evicted.
    pub preload: Vec<PathBuf>,
    /// Models on servers to publish at the start, each under its default name. Only the user of this process may read
    /// them, unless `mode` is set. A publication that fails is tried again, but a new version is not published.
    /// They are not evicted.
    pub preload_remote: Vec<Box<dyn RemoteSource>>,
    /// The time for which other models are kept after their last use. [`Keep::Attached`] keeps them for
    /// ten seconds, and models that were never used until their memory is needed.
    pub keep: Keep,
    /// The permission bits of the files, in place of those of the sources.
    pub mode: Option<u32>,
    /// The checksums of the files.
    pub manifest: Option<Manifest>,
    /// The files with the memory pressure, in the format of `/proc/pressure/memory`; `None` for those of
    /// the machine and of this process's control group.
    pub pressure: Option<Vec<PathBuf>>,
}

/// Manages the models of a directory.
#[derive(Debug)]
pub struct PublishManager {
    options: PublishOptions,
    models: PublishedModels,
    _lock: ManagerLock,
    sources: Vec<Source>,
    uses: Uses,
    pressure: MemoryPressure,
    stop: Stop,
}

impl PublishOptions {
    /// Makes options for a directory, which keep all models until memory is short.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            preload: Vec::new(),
            preload_remote: Vec::new(),
            keep: Keep::Always,
            mode: None,
            manifest: None,
            pressure: None,
        }
    }
}

impl PublishManager {
    /// Opens the directory. It publishes nothing yet.
    ///
    /// # Errors
    /// [`Error::Load`] if the directory cannot be used, or if another server manages it;
    /// [`Error::CannotServe`] if two sources have the same name.
    pub fn new(mut options: PublishOptions, stop: Stop) -> Result<Self> {
        let models = PublishedModels::open(&options.directory)?;
        let lock = models.lock()?;
        let pressure = match &options.pressure {
            Some(paths) => MemoryPressure::from_files(paths.iter().map(PathBuf::as_path)),
            None => MemoryPressure::of_this_process(),
        };
        let mut sources: Vec<Source> = Vec::new();
        let local = options.preload.iter().map(|path| {
            let absolute = std::path::absolute(path);
            Source::local(absolute.map_err(|error| Error::cannot_serve(path, error))?, &models)
        });
        let remote = std::mem::take(&mut options.preload_remote).into_iter();
        for source in local.chain(remote.map(|source| Source::remote(source, &models))) {
            let source = source?;
            if let Some(other) = sources.iter().find(|other| other.name == source.name) {
                let message =
                    format!("{} has the same name, {}", other.path.display(), source.name);
                let error = io::Error::new(io::ErrorKind::InvalidInput, message);
                return Err(Error::cannot_serve(&source.path, error));
            }
            sources.push(source);
        }
        Ok(Self { options, models, _lock: lock, sources, uses: Uses::default(), pressure, stop })
    }

    /// Publishes the models of the start, and manages the directory until it is stopped. Calls `observe`
    /// with each event, on this thread. The models stay.
    ///
    /// # Errors
    /// [`Error::Load`] if a model of the start cannot be published, unless an older version of it is
    /// published already; [`Error::CannotServe`] if the path leads to another directory by now.
    pub fn run(mut self, mut observe: impl FnMut(&PublishEvent)) -> Result<()> {
        let observe: &mut dyn FnMut(&PublishEvent) = &mut observe;
        self.models.remove_leftovers();
        self.adopt(observe)?;
        for index in 0..self.sources.len() {
            match self.publish(index, observe) {
                Err(load::Error::Cancelled { .. }) if self.stop.is_stopped() => return Ok(()),
                Err(error) if self.models.find(&self.sources[index].name).is_err() => {
                    return Err(error.into());
                }
                Err(error) => {
                    let source = self.sources[index].path.clone();
                    observe(&PublishEvent::Failed { source, error });
                }
                Ok(()) => {}
            }
        }
        if !self.pressure.is_known() {
            let path = self.models.path().to_owned();
            observe(&PublishEvent::Trouble { path, problem: PublishTrouble::NoPressure });
        }
        let models = self.models.list()?.len();
        observe(&PublishEvent::Ready { directory: self.models.path().to_owned(), models });
        notify("READY=1");
        self.manage(observe)?;
        observe(&PublishEvent::Stopping);
        Ok(())
    }

    fn adopt(&mut self, observe: &mut dyn FnMut(&PublishEvent)) -> Result<()> {
        for model in self.models.list()? {
            if !model.is_complete {
                let (path, problem) = (model.directory, PublishTrouble::Incomplete);
                observe(&PublishEvent::Trouble { path, problem });
                continue;
            }
            let PublishedModel { name, content_bytes, is_pinned, .. } = model;
            observe(&PublishEvent::Adopted { name, content_bytes, is_pinned });
        }
        Ok(())
    }

    fn manage(&mut self, observe: &mut dyn FnMut(&PublishEvent)) -> Result<()> {
        let mut last_pressure = Instant::now();
        let mut next_use = Instant::now();
        let mut next_sources = Instant::now() + SOURCE_PERIOD;
        loop {
            let deadline = Instant::now() + PERIOD;
            let watch = Watch { fd: self.stop.as_fd(), read: true, write: false };
            if readiness::wait(&[watch], Some(deadline)).is_err() {
                // The system call cannot fail for one descriptor, except by lack of memory.
                std::thread::sleep(PERIOD);
            }
            if self.stop.is_stopped() {
                return Ok(());
            }
            if !self.models.has_path() {
                let error = io::Error::other("it was unmounted, renamed or removed");
                return Err(Error::cannot_serve(self.models.path(), error));
            }
            let now = Instant::now();
            let stalled = self.pressure.stalled();
            if stalled * PRESSURE_PART >= now - last_pressure {
                self.evict_least_used(Eviction::Pressure, observe);
            }
            last_pressure = now;
            if now >= next_use {
                self.evict_unused(now, observe);
                next_use = Instant::now() + self.use_period();
            }
            if now >= next_sources {
                self.follow_sources(observe);
                next_sources = Instant::now() + SOURCE_PERIOD;
            }
        }
    }

    /// Returns the time between two looks at the use of models.
    fn use_period(&self) -> Duration {
        match self.options.keep {
            Keep::Idle(time) => (time / 4).clamp(PERIOD, USE_PERIOD),
            Keep::Attached => PERIOD,
            Keep::Always => USE_PERIOD,
        }
    }

    /// Returns the models that may be evicted when they are not used.
    fn evictable(&self, observe: &mut dyn FnMut(&PublishEvent)) -> Vec<PublishedModel> {
        let mut models = match self.models.list() {
            Ok(models) => models,
            Err(error) => {
                let path = self.models.path().to_owned();
                let problem = PublishTrouble::Failed(error);
                observe(&PublishEvent::Trouble { path, problem });
                Vec::new()
            }
        };
        let is_preloaded = |name: &str| self.sources.iter().any(|source| source.name == name);
        models.retain(|model| !model.is_pinned && !is_preloaded(&model.name));
        models
    }

    /// Evicts the models that were not used for the time that they are kept.
    fn evict_unused(&mut self, now: Instant, observe: &mut dyn FnMut(&PublishEvent)) {
        if self.options.keep == Keep::Always {
            // The order for lack of memory is that of the last accesses, which the kernel keeps.
            return;
        }
        let models = self.evictable(observe);
        self.uses.retain(&models);
        for model in models {
            let used = self.uses.update(&model, now, unknown(&model, observe));
            let kept = match self.options.keep {
                Keep::Idle(time) => Some(time.max(KEEP_MIN)),
                Keep::Attached => used.was_used.then_some(KEEP_MIN),
                Keep::Always => None,
            };
            let idle = used.idle(now);
            if kept.is_some_and(|kept| idle >= kept) {
                self.evict(&model, Eviction::Unused(idle), observe);
            }
        }
    }

    /// Evicts the model that was not used for longest, if a model is not in use. Returns `false` if none
    /// was evicted.
    fn evict_least_used(&mut self, why: Eviction, observe: &mut dyn FnMut(&PublishEvent)) -> bool {
        let now = Instant::now();
        let mut unused = Vec::new();
        for model in self.evictable(observe) {
            let used = self.uses.update(&model, now, unknown(&model, observe));
            if !used.is_open {
                unused.push((used.idle(now), model));
            }
        }
        unused.sort_by_key(|(idle, _)| std::cmp::Reverse(*idle));
        unused.iter().any(|(_, model)| self.evict(model, why, observe))
    }

    /// Evicts a model unless a program uses it by now.
    fn evict(
        &self,
        model: &PublishedModel,
        why: Eviction,
        observe: &mut dyn FnMut(&PublishEvent),
    ) -> bool {
        use load::PublishProblem::{InUse, NotPublished, Pinned};
        match self.models.evict(model, false) {
            Ok(()) => {
                let (name, content_bytes) = (model.name.clone(), model.content_bytes);
                observe(&PublishEvent::Evicted { name, content_bytes, why });
                true
            }
            Err(load::Error::Publish { reason: InUse | Pinned | NotPublished, .. }) => false,
            Err(error) => {
                let (path, problem) = (model.directory.clone(), PublishTrouble::Failed(error));
                observe(&PublishEvent::Trouble { path, problem });
                false
            }
        }
    }

    /// Publishes new versions of the sources.
    fn follow_sources(&mut self, observe: &mut dyn FnMut(&PublishEvent)) {
        for index in 0..self.sources.len() {
            let source = &mut self.sources[index];
            if source.remote.is_some() {
                self.follow_remote(index, observe);
                continue;
            }
            let state = match SourceState::of(&source.path) {
                Ok(state) => state,
                Err(error) => {
                    source.seen = None;
                    if !std::mem::replace(&mut source.is_reported, true) {
                        let source = source.path.clone();
                        observe(&PublishEvent::Failed { source, error });
                    }
                    continue;
                }
            };
            source.is_reported = false;
            let is_done = source.done.as_ref().is_some_and(|done| done.is_same(&state));
            let is_there = self.models.has_model(&source.name);
            // A source that is being written changes from one look to the next.
            let is_stable = source.seen.as_ref().is_some_and(|seen| seen.is_same(&state));
            source.seen = Some(state);
            let is_settled = match source.result {
                Attempt::Published => is_done && is_there,
                Attempt::Failed => is_done,
                Attempt::RetryAt(time) => is_done && Instant::now() < time,
            };
            let was_changing = std::mem::replace(&mut source.is_changing, !is_stable);
            let has_failed = !matches!(source.result, Attempt::Published);
            if is_settled || !is_stable {
                // Permissions are followed also if another user changes something all the time, or has kept
                // the source from being published. An error is reported when it is published.
                let is_due = is_settled && is_stable && Instant::now() >= source.confirm_at;
                if was_changing && !is_stable || is_settled && has_failed || is_due {
                    // The next look confirms it if it is not stable.
                    let wait = if is_stable { CONFIRMATION_PERIOD } else { Duration::ZERO };
                    source.confirm_at = Instant::now() + wait;
                    let (path, name) = (source.path.clone(), source.name.clone());
                    let _ = self.publisher(&name).update_access(&path);
                }
                continue;
            }
            self.publish_again(index, observe);
        }
    }

    /// Publishes a source on servers again if that failed, or if the model was evicted by hand.
    fn follow_remote(&mut self, index: usize, observe: &mut dyn FnMut(&PublishEvent)) {
        let source = &self.sources[index];
        let is_due = match source.result {
            Attempt::Published => !self.models.has_model(&source.name),
            Attempt::Failed => false,
            Attempt::RetryAt(time) => Instant::now() >= time,
        };
        if is_due {
            self.publish_again(index, observe);
        }
    }

    fn publish_again(&mut self, index: usize, observe: &mut dyn FnMut(&PublishEvent)) {
        match self.publish(index, observe) {
            Err(error) if !self.stop.is_stopped() => {
                let source = self.sources[index].path.clone();
                observe(&PublishEvent::Failed { source, error });
            }
            _ => {}
        }
    }

    /// Publishes a source, and evicts unused models if it needs their memory.
    fn publish(
        &mut self,
        index: usize,
        observe: &mut dyn FnMut(&PublishEvent),
    ) -> load::Result<()> {
        let published = self.try_publish(index, observe);
        self.sources[index].confirm_at = Instant::now();
        self.sources[index].result = Attempt::of(&published);
        published
    }

    fn try_publish(
        &mut self,
        index: usize,
        observe: &mut dyn FnMut(&PublishEvent),
    ) -> load::Result<()> {
        let source = &mut self.sources[index];
        let (path, name) = (source.path.clone(), source.name.clone());
        let (found, needed_bytes) = match &source.remote {
            Some(remote) => {
                let found = source.found.take().map_or_else(|| remote.find(), Ok)?;
                let needed_bytes = content_bytes(&found)?;
                (found, needed_bytes)
            }
            None => {
                let state = SourceState::of(&path)?;
                let needed_bytes = state.content_bytes();
                source.done = Some(state);
                (FoundModel::Local(path.clone()), needed_bytes)
            }
        };
        let published = match self.publish_now(&found, &name) {
            // Its own room is not needed if it is published already.
            Err(error) if is_for_lack_of_memory(&error) => {
                self.make_room(needed_bytes, observe);
                self.publish_now(&found, &name)?
            }
            published => published?,
        };
        let source = &self.sources[index];
        let is_at_start = source.remote.is_some() || source.seen.is_none();
        if is_at_start || published.outcome != Outcome::AlreadyPublished {
            observe(&PublishEvent::Published { name, source: path, published });
        }
        Ok(())
    }

    fn publish_now(&self, found: &FoundModel, name: &str) -> load::Result<Published> {
        let (cancel, stop) = (CancelToken::new(), self.stop.clone());
        let observed = cancel.clone();
        let mut publisher = self.publisher(name).cancel(&cancel).observe(move |_| {
            if stop.is_stopped() {
                observed.cancel();
            }
        });
        if let Some(manifest) = &self.options.manifest {
            publisher = publisher.manifest(manifest);
        }
        publisher.publish_found(found)
    }

    fn publisher(&self, name: &str) -> Publisher<'static> {
        let publisher =
            Publisher::new(&self.options.directory).name(name).replace(true).refuse_links();
        match self.options.mode {
            Some(mode) => publisher.mode(mode),
            None => publisher,
        }
    }

    /// Evicts unused models until there is room, if evicting all of them makes enough.
    fn make_room(&mut self, needed_bytes: u64, observe: &mut dyn FnMut(&PublishEvent)) {
        let unused = self.evictable(observe).into_iter();
        let unused = unused.filter(|model| matches!(model.usage().is_open, Ok(false)));
        // Their owners can change the records.
        let unused_bytes =
            unused.fold(0_u64, |sum, model| sum.saturating_add(model.allocated_bytes()));
        if !self.has_room(needed_bytes.saturating_sub(unused_bytes)) {
            return;
        }
        while !self.has_room(needed_bytes) && self.evict_least_used(Eviction::Room, observe) {}
    }

    fn has_room(&self, needed_bytes: u64) -> bool {
        let needed_bytes = needed_bytes.saturating_add(SPARE_BYTES);
        let available = memory::available();
        let group_bytes = available.control_group.map(|(bytes, _)| bytes);
        let free_bytes = self.models.free_bytes().ok().flatten();
        let all = available.machine_bytes.into_iter().chain(group_bytes).chain(free_bytes);
        all.min().is_none_or(|bytes| bytes >= needed_bytes)
    }
}

/// Returns a function that reports that the use of a model is not known.
fn unknown<'a>(
    model: &PublishedModel,
    observe: &'a mut dyn FnMut(&PublishEvent),
) -> impl FnOnce(io::Error) + 'a {
    let path = model.directory.clone();
    move |error| {
        let problem = PublishTrouble::UseUnknown(error);
        observe(&PublishEvent::Trouble { path, problem });
    }
}

/// Returns the number of bytes of the files of a model.
fn content_bytes(model: &FoundModel) -> load::Result<u64> {
    match model {
        FoundModel::Local(path) => Ok(SourceState::of(path)?.content_bytes()),
        FoundModel::Remote(model) => Ok(model.content_bytes()),
    }
}

fn is_for_lack_of_memory(error: &load::Error) -> bool {
    matches!(
        error,
        load::Error::NotEnoughMemory { .. }
            | load::Error::Publish { reason: load::PublishProblem::NoRoom { .. }, .. }
            | load::Error::Heap(longshore_heap::Error::TmpfsFull { .. })
    )
}
