//! Streams: tensors one after the other, in bounded memory.
//!
//! ```text
//!   Opened ─► Selection ─► picks ─► units ─► Reader: threads that fill memory of the stream
//!                                               │
//!        StreamedTensor ◄── next_tensor ◄── ready units
//!              │ drop
//!              └──────► the memory is free for the next unit
//! ```
//!
//! See [`Stream`].

mod copied;
mod core;
mod free_list;
mod options;
mod problem;
mod reader;
mod selection;
mod tensor;
mod unit;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use longshore_formats::QuotedName;
use longshore_heap::{Heap, PageReport};
use longshore_mem::Granule;

pub use options::{OnFull, Order, StreamOptions};
pub use problem::StreamProblem;
pub use selection::{Rows, RowsOfTensor, Selection};
pub use tensor::StreamedTensor;

use self::core::{Core, Place, State};
use crate::budget;
use crate::digest_kind::DigestKind;
use crate::error::{Error, Result};
use crate::fill::{KernelReads, Reads};
use crate::loader::Loader;
use crate::open::Opened;
use crate::reason::MemoryLimit;
use crate::report::{BytesByRoute, Engine};
use reader::Settings;
use selection::Pick;
use tensor::Data;
use unit::{LARGE_BYTES, Unit, units};

/// The least memory of a stream if none is set.
const MEMORY_DEFAULT_BYTES: u64 = 1 << 30;

/// The time for which dropping a stream waits for its threads. Reads of a disk that hangs end later.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// The tensors of a model, read one after the other into bounded memory. [`Loader::stream`] makes it.
///
/// While a consumer uses a tensor, the next ones are read. A tensor of 1 MiB or more is in memory of the
/// stream, which is free again when the tensor is dropped; a smaller one is a copy. Several threads may call
/// [`Stream::next_tensor`]: each tensor goes to one of them.
///
/// A child of `fork(2)` keeps a copy of the tensors that it has, and cannot get others. It keeps the memory
/// and the descriptors of the stream until it ends or executes another program.
///
/// ```no_run
/// use longshore_load::{FormatChoice, Loader, Selection, StreamOptions};
///
/// let opened = longshore_load::open(&["model.safetensors"], FormatChoice::Auto)?;
/// let selection = Selection::all().pattern("model.layers.*");
/// let stream = Loader::new().stream(opened, &selection, &StreamOptions::new())?;
/// while let Some(tensor) = stream.next_tensor()? {
///     println!("{}: {} bytes", tensor.name(), tensor.len());
/// }
/// # Ok::<(), longshore_load::Error>(())
/// ```
pub struct Stream {
    core: Arc<Core>,
    options: StreamOptions,
    thread: Option<JoinHandle<()>>,
}

/// The state of a stream: sizes, routes and times.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StreamReport {
    /// The number of tensors to yield.
    pub selected_tensors: u64,
    /// The number of their bytes.
    pub selected_bytes: u64,
    /// The number of tensors that consumers got.
    pub delivered_tensors: u64,
    /// The number of bytes that were read so far: those of the tensors, rounded out to whole blocks of the
    /// disk, and small gaps.
    pub read_bytes: u64,
    /// The memory of the stream, in bytes.
    pub memory_bytes: u64,
    /// The number of bytes beside it that were taken because it was full ([`OnFull::Grow`]).
    pub grown_bytes: u64,
    /// The number of bytes by route.
    pub by_route: BytesByRoute,
    /// The engine of the direct reads; `None` before the first.
    pub engine: Option<Engine>,
    /// The page sizes of the memory.
    pub pages: PageReport,
    /// The time since the stream was made.
    pub elapsed: Duration,
}

impl Loader<'_> {
    /// Begins to read the selected tensors of `opened`, in bounded memory.
    ///
    /// Checksums are computed, and compared with a manifest, if whole files are selected. The last tensors of a
    /// file are yielded only if its checksums are right; the others are yielded before. Of the settings of the
    /// loader, [`Loader::memory_max`] limits the memory of the stream, the heap must be [`Heap::Auto`], and the
    /// function of [`Loader::observe`] is not called: see [`Stream::report`].
    ///
    /// # Errors
    /// [`Error::Stream`] if the selection does not fit the model, [`Error::NotEnoughMemory`] if the memory of
    /// the stream cannot hold the largest tensor, or is not available; [`Error::NoTensors`],
    /// [`Error::OutOfFile`], [`Error::Heap`], [`Error::Process`]. Then nothing has been read.
    pub fn stream(
        self,
        opened: Opened,
        selection: &Selection,
        options: &StreamOptions,
    ) -> Result<Stream> {
        self.stream_by(opened, selection, options, KernelReads)
    }

    fn stream_by(
        self,
        opened: Opened,
        selection: &Selection,
        options: &StreamOptions,
        reads: impl Reads + Send + 'static,
    ) -> Result<Stream> {
        if !matches!(self.heap, Heap::Auto | Heap::Anonymous) {
            return Err(StreamProblem::Heap { heap: self.heap }.into());
        }
        let picks = selection.picks(&opened)?;
        if !self.digests.is_empty() {
            check_whole(&picks, &opened)?;
        }
        let units = units(&picks, &opened.plan, options.memory_bytes.unwrap_or(u64::MAX));
        let memory_bytes = self.stream_memory_bytes(options, &units, &picks)?;
        let grown_bytes = match options.on_full {
            OnFull::Grow => sum_bytes(&units),
            OnFull::Fail => 0,
        };
        let mut claim = budget::check(memory_bytes, &Heap::Anonymous, None)?;
        let reservation = Heap::Anonymous.reserve(memory_bytes.saturating_add(grown_bytes))?;
        budget::check_pages(&mut claim, memory_bytes, &Heap::Anonymous)?;
        let settings = Settings {
            tuning: self.tuning(),
            digests: self.digests.clone(),
            manifest: self.manifest.cloned(),
            empty_files: selection.empty_files(&opened)?,
        };
        let core = Core::new(opened, picks, units, reservation, memory_bytes, self.cancel.clone());
        let mut stream = Stream { core: Arc::clone(&core), options: options.clone(), thread: None };
        let run = move || {
            let ended = EndOnPanic(&core);
            reader::run(&core, &settings, claim, &reads);
            std::mem::forget(ended);
        };
        match thread::Builder::new().name("longshore-load".to_owned()).spawn(run) {
            Ok(thread) => stream.thread = Some(thread),
            Err(source) => {
                stream.core.state().ended = true;
                return Err(Error::Process { operation: "starting a thread", source });
            }
        }
        Ok(stream)
    }

    /// Returns the length of the memory for tensors.
    fn stream_memory_bytes(
        &self,
        options: &StreamOptions,
        units: &[Unit],
        picks: &[Pick],
    ) -> Result<u64> {
        let Some(largest) = units.iter().max_by_key(|unit| unit.memory_bytes()) else {
            return Ok(0);
        };
        let (needed_bytes, sum_bytes) = (largest.memory_bytes(), sum_bytes(units));
        let default = || {
            let twice = needed_bytes.saturating_mul(2).saturating_add(self.populate_ahead_bytes);
            twice.max(MEMORY_DEFAULT_BYTES)
        };
        let wanted = options.memory_bytes.unwrap_or_else(default);
        let limit_bytes = self.memory_max.unwrap_or(u64::MAX).min(wanted);
        if limit_bytes < needed_bytes {
            let tensor = QuotedName::new(&picks[largest.members.start].name);
            let limit = MemoryLimit::Stream { tensor };
            return Err(Error::NotEnoughMemory { needed_bytes, limit_bytes, limit });
        }
        // With different alignments, a unit may not begin where the one before it ends.
        let spare_bytes = 2 * Granule::SIZE_2M.bytes();
        Ok(Granule::SIZE_4K.round_down(limit_bytes).min(sum_bytes.saturating_add(spare_bytes)))
    }
}

/// Returns the memory of all units. Tensors of a header whose fields were changed may overlap, so the sum can be
/// larger than any address space.
fn sum_bytes(units: &[Unit]) -> u64 {
    units.iter().map(Unit::memory_bytes).fold(0, u64::saturating_add)
}

/// Checks that all tensors of each selected file are selected, whole.
fn check_whole(picks: &[Pick], opened: &Opened) -> Result<()> {
    for of_file in &opened.tensors {
        let tensors = of_file.header.tensors().filter(|tensor| !tensor.is_padding()).count();
        // They are sorted by file.
        let before = |file| picks.partition_point(|pick| pick.file < file);
        let of_picks = &picks[before(of_file.file_index)..before(of_file.file_index + 1)];
        let (count, all) = (of_picks.len(), of_picks.iter().all(|pick| pick.rows.is_none()));
        if count > 0 && (count < tensors || !all) {
            let path = opened.plan.files()[of_file.file_index].source().path().to_owned();
            return Err(StreamProblem::NotWhole { path }.into());
        }
    }
    Ok(())
}

/// Ends a stream whose thread panics, so that no consumer waits for ever.
struct EndOnPanic<'a>(&'a Core);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        self.0.fail(crate::fill::panicked("the thread of a stream"));
        self.0.state().ended = true;
        self.0.notify();
    }
}

impl Stream {
    /// Returns the next tensor, in the [`Order`] of the options; `None` after the last.
    ///
    /// If the memory is full of tensors that consumers hold, it waits until one is dropped, but no longer than
    /// [`StreamOptions::wait`].
    ///
    /// # Errors
    /// [`Error::StreamFull`], after which the stream can go on; any other error ends it:
    /// [`Error::Read`], [`Error::Truncated`], [`Error::Changed`] for the file of the tensor,
    /// [`Error::Mismatch`], [`Error::Cancelled`], [`Error::Heap`], [`Error::Stream`] in a forked process, or if
    /// another call has returned the error.
    pub fn next_tensor(&self) -> Result<Option<StreamedTensor>> {
        self.next_while(|| true)
    }

    /// Returns the next tensor, as [`Stream::next_tensor`] does, but only while `waits` returns `true`. While
    /// this waits, it is called at least every 20 ms.
    ///
    /// # Errors
    /// Those of [`Stream::next_tensor`]; [`Error::Cancelled`] if `waits` returned `false`, after which the
    /// stream can go on.
    pub fn next_while(&self, mut waits: impl FnMut() -> bool) -> Result<Option<StreamedTensor>> {
        let core = &self.core;
        if core.memory.is_forked() {
            return Err(StreamProblem::Forked.into());
        }
        let mut state = core.state();
        let (mut since, mut releases) = (Instant::now(), state.releases);
        loop {
            if core.cancel.is_cancelled() || core.stopped.is_cancelled() {
                core.stop.cancel();
                return Err(core.cancelled(&state));
            }
            if let Some((index, copied)) = state.copies.pop_front() {
                state.delivered += 1;
                return Ok(Some(StreamedTensor::new(&core.picks[index], Data::Copied(copied))));
            }
            if let Some((unit, place)) = state.take_ready(self.options.order) {
                return self.hand_out(state, unit, place).map(Some);
            }
            if let Some(error) = core.failure(&mut state) {
                return Err(error);
            }
            if state.taken == core.units.len() && state.copying == 0 && state.ended {
                return Ok(None);
            }
            if state.releases != releases {
                (since, releases) = (Instant::now(), state.releases);
            }
            if state.is_full && state.underway == 0 && state.copying == 0 {
                match self.options.on_full {
                    OnFull::Grow => state.may_grow = true,
                    OnFull::Fail if since.elapsed() >= self.options.wait => {
                        return Err(core.full(&state, since.elapsed()));
                    }
                    OnFull::Fail => {}
                }
            }
            state = core.wait(state);
            drop(state);
            let is_waiting = waits();
            // It may have forked, and return here in the child.
            if core.memory.is_forked() {
                return Err(StreamProblem::Forked.into());
            }
            state = core.state();
            if !is_waiting {
                return Err(core.cancelled(&state));
            }
        }
    }

    /// Hands out the tensors of a unit: returns the first, and keeps copies of the others.
    #[expect(unsafe_code, reason = "takes the memory of a unit")]
    fn hand_out(
        &self,
        mut state: MutexGuard<'_, State>,
        unit: usize,
        place: Place,
    ) -> Result<StreamedTensor> {
        let core = &self.core;
        let members = core.units[unit].members.clone();
        let first = &core.picks[members.start];
        if members.len() == 1 && first.data.end - first.data.start >= LARGE_BYTES {
            // SAFETY: the unit was ready, and was taken from there only now.
            let extent = unsafe { core.extent(&mut state, unit, place) }?;
            state.delivered += 1;
            drop(state);
            self.check(unit)?;
            return Ok(StreamedTensor::new(first, Data::Extent(extent)));
        }
        state.copying += 1;
        drop(state);
        // SAFETY: as above.
        let copies = unsafe { core.copies(unit, place) };
        let checked = self.check(unit);
        let mut state = core.state();
        state.copying -= 1;
        checked?;
        let mut copies = copies?;
        let first = copies.pop_front();
        state.copies.extend(copies);
        state.delivered += 1;
        drop(state);
        core.notify();
        let (index, copied) = first.ok_or_else(inconsistent)?;
        Ok(StreamedTensor::new(&core.picks[index], Data::Copied(copied)))
    }

    /// Checks that the file of a unit has not changed. If it has, the stream has failed.
    fn check(&self, unit: usize) -> Result<()> {
        let file = &self.core.opened.plan.files()[self.core.units[unit].file];
        file.source().check_unchanged().map_err(|error| {
            self.core.fail(error);
            let mut state = self.core.state();
            self.core.failure(&mut state).unwrap_or_else(inconsistent)
        })
    }

    /// Returns an iterator over the tensors that no consumer has yet.
    pub fn tensors(&self) -> Tensors<'_> {
        Tensors { stream: self, has_failed: false }
    }

    /// Stops the reads. Calls that wait for a tensor, and later ones, fail with [`Error::Cancelled`].
    pub fn stop(&self) {
        self.core.stopped.cancel();
        if !self.core.memory.is_forked() {
            self.core.stop.cancel();
            self.core.notify();
        }
    }

    /// Returns the opened files.
    pub fn opened(&self) -> &Opened {
        &self.core.opened
    }

    /// Returns the state of the stream. The number of bytes read is exact after the last tensor.
    pub fn report(&self) -> StreamReport {
        let core = &self.core;
        let selected_bytes = core.picks.iter().map(|pick| pick.data.end - pick.data.start).sum();
        let mut report = StreamReport {
            selected_tensors: core.picks.len() as u64,
            selected_bytes,
            delivered_tensors: 0,
            read_bytes: 0,
            memory_bytes: core.memory.len_bytes,
            grown_bytes: 0,
            by_route: BytesByRoute::default(),
            engine: None,
            pages: core.memory.reservation.page_report(),
            elapsed: core.began.elapsed(),
        };
        if !core.memory.is_forked() {
            let state = core.state();
            report.delivered_tensors = state.delivered;
            report.read_bytes = state.read_bytes;
            report.grown_bytes = state.grown_bytes;
            report.by_route = state.by_route;
            report.engine = state.engine.clone();
        }
        report
    }

    /// Returns the requested checksums of the files that are complete, with their paths.
    pub fn digests(&self) -> Vec<(PathBuf, Vec<(DigestKind, String)>)> {
        if self.core.memory.is_forked() {
            return Vec::new();
        }
        let path = |file: usize| -> &Path { self.core.opened.plan.files()[file].source().path() };
        let state = self.core.state();
        state.digests.iter().map(|(file, it)| (path(*file).to_owned(), it.clone())).collect()
    }
}

/// Returns the error for an internal inconsistency. It is not a panic, so that other consumers go on.
fn inconsistent() -> Error {
    let source = std::io::Error::other("its state is inconsistent");
    Error::Process { operation: "a stream", source }
}

/// An iterator over the tensors of a stream: [`Stream::tensors`]. It ends after an error that ends the stream.
#[derive(Debug)]
pub struct Tensors<'a> {
    stream: &'a Stream,
    has_failed: bool,
}

impl Iterator for Tensors<'_> {
    type Item = Result<StreamedTensor>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let next = self.stream.next_tensor();
        self.has_failed =
            next.as_ref().is_err_and(|error| !matches!(error, Error::StreamFull { .. }));
        next.transpose()
    }
}

impl<'a> IntoIterator for &'a Stream {
    type Item = Result<StreamedTensor>;
    type IntoIter = Tensors<'a>;

    fn into_iter(self) -> Tensors<'a> {
        self.tensors()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let core = &self.core;
        if core.memory.is_forked() {
            // The thread does not exist here, so its handle must not be detached.
            std::mem::forget(self.thread.take());
            return;
        }
        core.stop.cancel();
        core.notify();
        let until = Instant::now() + END_PATIENCE;
        let mut state = core.state();
        while !state.ended && Instant::now() < until {
            state = core.wait(state);
        }
        let has_ended = state.ended;
        drop(state);
        if let Some(thread) = self.thread.take().filter(|_| has_ended) {
            // A panic of the thread was an error of the stream.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("report", &self.report()).finish_non_exhaustive()
    }
}
