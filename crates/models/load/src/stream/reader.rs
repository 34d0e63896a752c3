//! The threads of a stream.
//!
//! ```text
//!   units, in the order of the files
//!     │ planner: waits for room, takes memory, splits the unit into pieces, prefaults
//!     ├──────────────► direct pieces ─► ring (io_uring)
//!     └──────────────► other pieces ──► workers (page cache)
//!                                          │ a unit is complete
//!                    checksums ◄───────────┤
//!                        └────────► ready ─┴─► Stream::next_tensor ─► a tensor, whose drop makes room
//! ```
#![expect(unsafe_code, reason = "reads complete units for checksums")]

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use super::core::{Core, GLANCE, Memory, Place, Reading};
use crate::budget::Claim;
use crate::digest_kind::DigestKind;
use crate::error::Result;
use crate::fill::{
    self, Connections, Fed, Feed, FileRange, FileRouter, Piece, Reads, Route, Routed, TICK, Target,
    Tuning,
};
use crate::report::Engine;
use crate::verify::{FileHasher, Manifest};

/// The number of bytes that are hashed between two looks whether the stream is stopped.
const STEP_BYTES: u64 = 1 << 20;

/// The settings of the threads.
pub(super) struct Settings {
    pub(super) tuning: Tuning,
    pub(super) digests: Vec<DigestKind>,
    pub(super) manifest: Option<Manifest>,
    /// The selected files that have no tensors. Only their checksums are computed.
    pub(super) empty_files: Vec<usize>,
}

/// Reads all units, and returns when that is done or the stream is stopped.
pub(super) fn run(
    core: &Arc<Core>,
    settings: &Settings,
    mut claim: Claim<'static>,
    reads: &dyn Reads,
) {
    let is_hashed = !settings.digests.is_empty();
    let completed = |offset, len_bytes| core.complete(offset, len_bytes, is_hashed);
    let total_bytes = core.units.iter().map(|unit| unit.read.end - unit.read.start).sum();
    let (plan, reservation) = (&core.opened.plan, &core.memory.reservation);
    let target = Target::of_stream(plan, reservation, total_bytes, &core.stop, &completed);
    match routers(core, &settings.tuning) {
        Ok(routers) => {
            let engine = fill::choose_engine(&settings.tuning, reads, total_bytes > 0);
            core.state().engine = Some(engine.clone());
            let threads = Threads {
                core,
                target: &target,
                settings,
                reads,
                feeds: Feeds::new(&target, &routers, settings.tuning.populate_ahead_bytes),
                routers: &routers,
            };
            threads.run(&engine, || threads.observe(&mut claim));
            threads.observe(&mut claim);
        }
        Err(error) => core.fail(error),
    }
    if let Err(error) = target.tracker.outcome() {
        core.fail(error);
    }
    core.state().ended = true;
    core.notify();
}

/// Returns the routers of the files that are read.
fn routers<'a>(core: &'a Core, tuning: &Tuning) -> Result<Vec<Option<FileRouter<'a>>>> {
    // They are sorted by file.
    let is_read = |index: usize| core.units.binary_search_by_key(&index, |unit| unit.file).is_ok();
    let files = core.opened.plan.files().iter().enumerate();
    files
        .map(|(index, file)| {
            is_read(index).then(|| FileRouter::of_stream(file, tuning)).transpose()
        })
        .collect()
}

struct Threads<'a> {
    core: &'a Arc<Core>,
    target: &'a Target<'a>,
    settings: &'a Settings,
    reads: &'a dyn Reads,
    feeds: Feeds<'a>,
    routers: &'a [Option<FileRouter<'a>>],
}

impl Threads<'_> {
    /// Runs all threads until they end, and calls `observe` meanwhile.
    fn run(&self, engine: &Engine, mut observe: impl FnMut()) {
        let (target, tuning) = (self.target, &self.settings.tuning);
        let (direct, other) = (Direct(&self.feeds), Other(&self.feeds));
        thread::scope(|scope| {
            let _guard = target.tracker.stop_on_panic();
            let mut started = vec![fill::start(scope, target, || self.plan())];
            if *engine == Engine::Uring {
                let run = || fill::run_ring(&direct, target, tuning.depth);
                started.push(fill::start(scope, target, run));
            } else {
                for _ in 0..tuning.depth {
                    let run = || fill::run_worker(&direct, target, self.reads);
                    started.push(fill::start(scope, target, run));
                }
            }
            let plan = &self.core.opened.plan;
            let mut connections = Connections::new(plan, tuning.workers, tuning.connections);
            let read_other = || fill::run_worker(&other, target, self.reads);
            for _ in 0..connections.count() {
                started.push(fill::start(scope, target, read_other));
            }
            if !self.settings.digests.is_empty() {
                started.push(fill::start(scope, target, || self.hash()));
            }
            while !target.tracker.wait_idle(TICK) {
                observe();
                for _ in 0..connections.more(Instant::now(), target.tracker.arrived_bytes()) {
                    started.push(fill::start(scope, target, read_other));
                }
            }
            for thread in started.into_iter().flatten() {
                if thread.join().is_err() {
                    target.tracker.fail(fill::panicked("a thread of a stream"));
                }
            }
        });
    }

    /// Passes on a cancellation, a failure and the number of bytes read. A read that hangs does not delay
    /// that.
    fn observe(&self, claim: &mut Claim<'_>) {
        let (core, tracker) = (self.core, &self.target.tracker);
        let reservation = &core.memory.reservation;
        if core.cancel.is_cancelled() {
            core.stop.cancel();
        }
        if tracker.should_stop()
            && let Some(error) = tracker.take_failure()
        {
            core.fail(error);
        }
        let left_bytes = match tracker.takes_no_more() {
            true => 0,
            false => core.memory.len_bytes.saturating_sub(reservation.page_report().total_bytes()),
        };
        claim.lower_to(left_bytes);
        let mut state = core.state();
        state.read_bytes = tracker.done_bytes();
        state.by_route = tracker.by_route();
    }

    /// Takes memory for each unit, and feeds its pieces to the threads that read.
    fn plan(&self) {
        for (index, unit) in self.core.units.iter().enumerate() {
            let Some(place) = self.place(index) else { return };
            if unit.read.is_empty() {
                let mut state = self.core.state();
                state.complete(index, place, !self.settings.digests.is_empty());
                drop(state);
                self.core.notify();
                continue;
            }
            let Some(router) = &self.routers[unit.file] else { return };
            let range = FileRange {
                file: unit.file,
                file_offset: unit.read.start,
                buffer_offset: place.start + unit.skip_bytes(),
                len_bytes: unit.read.end - unit.read.start,
            };
            let mut routed = Routed::default();
            router.push(range, &mut routed, &|| self.target.tracker.should_stop());
            for piece in routed.pieces {
                if !self.feeds.push_planned(piece) {
                    return;
                }
            }
        }
        self.feeds.end_planning();
    }

    /// Takes memory for a unit, and waits until there is room. Returns `None` if the stream is stopped.
    fn place(&self, index: usize) -> Option<Place> {
        let unit = &self.core.units[index];
        let mut state = self.core.state();
        loop {
            if self.target.tracker.should_stop() {
                return None;
            }
            if unit.read.is_empty() {
                state.underway += 1;
                return Some(Place { start: 0, len_bytes: 0 });
            }
            if let Some(place) = Memory::take_place(&mut state, unit) {
                state.is_full = false;
                state.underway += 1;
                let left_bytes = unit.read.end - unit.read.start;
                state.reading.insert(place.start, Reading { unit: index, left_bytes, place });
                return Some(place);
            }
            state.is_full = true;
            state = self.core.wait(state);
        }
    }

    /// Computes the checksums of the files, and passes each unit on when it is hashed: a consumer may change
    /// its memory.
    fn hash(&self) {
        let core = self.core;
        let new =
            |file: usize| FileHasher::new(&self.settings.digests, &core.opened.plan.files()[file]);
        let (mut hasher, mut reached) = (None, 0);
        for (index, unit) in core.units.iter().enumerate() {
            let Some(place) = self.hashable(index) else { return };
            let file = &core.opened.plan.files()[unit.file];
            let mut of_file = hasher.take().unwrap_or_else(|| new(unit.file));
            let mut hash = |bytes: &[u8]| of_file.update(bytes);
            let tracker = &self.target.tracker;
            if !unit.read.is_empty() {
                let before = reached..unit.read.start.max(reached);
                if !fill::hash_aside(file, before, tracker, &mut hash) {
                    return;
                }
                // Units share the blocks at their ends. Each is hashed as far as its last tensor, so that
                // all bytes of a tensor are hashed where the consumer gets them.
                let end = core.picks[unit.members.clone()].iter().map(|pick| pick.data.end).max();
                let end = end.unwrap_or(unit.read.end);
                let mut at = unit.read.start.max(reached);
                while at < end {
                    let upto = end.min(at + STEP_BYTES);
                    if tracker.should_stop() {
                        return;
                    }
                    // SAFETY: only this thread has the unit, which is complete, until it is ready.
                    match unsafe { core.bytes(index, place, &(at..upto)) } {
                        Ok(bytes) => hash(bytes),
                        Err(error) => return tracker.fail(error),
                    }
                    at = upto;
                }
                reached = reached.max(end);
            }
            if core.units.get(index + 1).is_none_or(|next| next.file != unit.file) {
                let end = file.source().len();
                if !fill::hash_aside(file, reached..end.max(reached), tracker, &mut hash)
                    || !self.finish(unit.file, of_file)
                {
                    return;
                }
                reached = 0;
            } else {
                hasher = Some(of_file);
            }
            core.state().be_ready(index, place);
            core.notify();
        }
        for &index in &self.settings.empty_files {
            let (file, mut hasher) = (&core.opened.plan.files()[index], new(index));
            let mut hash = |bytes: &[u8]| hasher.update(bytes);
            let is_read =
                fill::hash_aside(file, 0..file.source().len(), &self.target.tracker, &mut hash);
            if !is_read || !self.finish(index, hasher) {
                return;
            }
        }
    }

    /// Compares the checksums of a file with the manifest, and keeps them. Returns `false` if they differ.
    fn finish(&self, file: usize, hasher: FileHasher<'_>) -> bool {
        let digests = match hasher.finish() {
            Ok(digests) => digests,
            Err(error) => {
                self.target.tracker.fail(error);
                return false;
            }
        };
        let digests: Vec<_> = self.settings.digests.iter().copied().zip(digests).collect();
        let path = self.core.opened.plan.files()[file].source().path();
        if let Some(manifest) = &self.settings.manifest
            && let Err(error) = manifest.check(path, &digests)
        {
            self.target.tracker.fail(error);
            return false;
        }
        self.core.state().digests.insert(file, digests);
        true
    }

    /// Waits for a complete unit. Returns `None` if the stream is stopped.
    fn hashable(&self, index: usize) -> Option<Place> {
        let mut state = self.core.state();
        loop {
            if let Some(place) = state.to_hash.remove(&index) {
                return Some(place);
            }
            if self.target.tracker.should_stop() {
                return None;
            }
            state = self.core.wait(state);
        }
    }
}

/// The pieces that are ready to be read.
struct Feeds<'a> {
    target: &'a Target<'a>,
    routers: &'a [Option<FileRouter<'a>>],
    ahead_bytes: u64,
    state: Mutex<Pieces>,
    moved: Condvar,
}

#[derive(Default)]
struct Pieces {
    direct: VecDeque<Piece>,
    other: VecDeque<Piece>,
    /// The number of other pieces that threads are reading. The rest of one may become a direct piece.
    other_underway: usize,
    /// The number of bytes of direct pieces that are not read.
    direct_bytes: u64,
    is_planned: bool,
}

impl Pieces {
    fn push(&mut self, piece: Piece) {
        if piece.route == Route::Direct {
            self.direct_bytes += piece.read_bytes;
            self.direct.push_back(piece);
        } else {
            self.other.push_back(piece);
        }
    }

    /// Returns `true` if no piece is left that is not direct, and none will come.
    fn has_no_other(&self) -> bool {
        self.is_planned && self.other.is_empty() && self.other_underway == 0
    }
}

impl<'a> Feeds<'a> {
    fn new(
        target: &'a Target<'a>,
        routers: &'a [Option<FileRouter<'a>>],
        ahead_bytes: u64,
    ) -> Self {
        let (state, moved) = (Mutex::default(), Condvar::new());
        Self { target, routers, ahead_bytes, state, moved }
    }

    fn state(&self) -> MutexGuard<'_, Pieces> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, Pieces>) -> MutexGuard<'s, Pieces> {
        self.moved.wait_timeout(state, GLANCE).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Prefaults the pages of a piece if it is a direct one, within the prefault window, and passes the piece
    /// on. Returns `false` if that fails or the stream is stopped.
    fn push_planned(&self, piece: Piece) -> bool {
        if piece.route == Route::Direct {
            let mut state = self.state();
            while state.direct_bytes > 0 && state.direct_bytes + piece.read_bytes > self.ahead_bytes
            {
                if self.target.tracker.should_stop() {
                    return false;
                }
                state = self.wait(state);
            }
            drop(state);
            if !self.target.populate(&piece) {
                return false;
            }
        }
        if self.target.tracker.should_stop() {
            return false;
        }
        self.state().push(piece);
        self.moved.notify_all();
        true
    }

    fn end_planning(&self) {
        self.state().is_planned = true;
        self.moved.notify_all();
    }

    /// Passes on the rests of pieces that could not be read by their route.
    fn push_returned(&self, state: &mut Pieces) {
        for range in self.target.tracker.take_returned() {
            let mut routed = Routed::default();
            if let Some(router) = &self.routers[range.file] {
                router.push_from_disk(range, &mut routed);
            }
            routed.pieces.into_iter().for_each(|piece| state.push(piece));
        }
    }
}

/// The direct pieces.
struct Direct<'a>(&'a Feeds<'a>);

/// The pieces that are read through the page cache.
struct Other<'a>(&'a Feeds<'a>);

impl Feed for Direct<'_> {
    fn next(&self, patience: bool) -> Fed {
        let mut state = self.0.state();
        if patience && state.direct.is_empty() && !state.has_no_other() {
            state = self.0.wait(state);
        }
        match state.direct.pop_front() {
            Some(piece) => Fed::Piece(piece),
            None if state.has_no_other() => Fed::End,
            None => Fed::NotYet,
        }
    }

    fn used(&self, piece: &Piece) {
        self.0.state().direct_bytes -= piece.read_bytes;
        self.0.moved.notify_all();
    }
}

impl Feed for Other<'_> {
    fn next(&self, patience: bool) -> Fed {
        let mut state = self.0.state();
        if patience && state.other.is_empty() && !state.has_no_other() {
            state = self.0.wait(state);
        }
        match state.other.pop_front() {
            Some(piece) => {
                state.other_underway += 1;
                Fed::Piece(piece)
            }
            None if state.has_no_other() => Fed::End,
            None => Fed::NotYet,
        }
    }

    fn used(&self, _piece: &Piece) {
        let mut state = self.0.state();
        self.0.push_returned(&mut state);
        state.other_underway -= 1;
        drop(state);
        self.0.moved.notify_all();
    }
}
