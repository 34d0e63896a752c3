//! The overlapped reader, which fills a reservation from the files of a plan.
//!
//! ```text
//!             pieces (8 MiB, each with its route)
//!                 │
//!     ┌───────────┴────────────┐
//!     ▼ resident, buffered,    ▼ direct
//!  workers                  ahead ──────frontier───────► ring (io_uring)
//!  prefault a piece,        prefaults pages, at most      keeps `depth` reads
//!  read it at once,         populate_ahead bytes          in flight into
//!  while it is in cache     ahead of the reads            prefaulted pages
//!     └───────────┬────────────┘
//!                 ▼
//!             tracker: bytes done, first failure, complete ranges
//!                 ├──► the caller's thread: progress, cancellation
//!                 └──► digest: checksums, behind the reads
//! ```
//!
//! If io_uring is not available, workers read the direct pieces, too, and prefault each before they read
//! it. Bytes of an aligned layout whose places do not suit direct I/O are staged (`staged.rs`).

mod ahead;
mod connections;
mod digest;
mod piece;
mod ring;
mod route;
mod staged;
mod target;
mod tracker;
mod tuning;
mod workers;

#[cfg(test)]
mod tests;

use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use longshore_heap::Reservation;
use longshore_iov::{Cursor, Dest, copy};
use longshore_sys::uring;

use crate::digest_kind::DigestKind;
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::progress::{CancelToken, Progress};
use crate::report::{BytesByRoute, Engine};

use ahead::Frontier;
pub(crate) use ahead::{Fed, Feed};
pub(crate) use connections::Connections;
pub(crate) use digest::hash_aside;
pub(crate) use piece::{FileRange, Piece, Route};
pub(crate) use ring::run as run_ring;
pub(crate) use route::{FileRouter, Routed, place_alignment};
pub(crate) use staged::STAGING_MAX_BYTES;
use staged::{Places, SPANS_IN_FLIGHT_MAX, Span, Spans};
pub(crate) use target::Target;
pub(crate) use tuning::Tuning;
use workers::Queue;
pub(crate) use workers::{KernelReads, Reads, run as run_worker};

/// The interval of progress reports, and the longest time until a cancellation is noticed.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// The result of a fill.
#[derive(Debug)]
pub(crate) struct Filled {
    pub(crate) by_route: BytesByRoute,
    pub(crate) engine: Engine,
    /// The time spent on prefaulting, summed over all threads.
    pub(crate) populating: Duration,
    /// The part of their time that the threads that prefault pages spent on it, from 0 to 1.
    pub(crate) prefault_share: f64,
    /// The digests of each file of the plan, in the order of the requested kinds.
    pub(crate) digests: Vec<Vec<String>>,
}

/// Fills `reservation` with every file of `plan`. `observe` gets the progress, and the number of bytes
/// of memory that the fill can still take. Once the fill is stopped, that is 0, even while it waits for
/// reads that hang.
pub(crate) fn fill(
    plan: &Plan,
    reservation: &Reservation,
    tuning: &Tuning,
    digests: &[DigestKind],
    cancel: &CancelToken,
    reads: &dyn Reads,
    mut observe: impl FnMut(Progress, u64),
) -> Result<Filled> {
    let filling = reservation.begin_filling()?;
    let target = Target::new(plan, reservation, cancel, !digests.is_empty());
    place_heads(plan, reservation)?;
    let Routed { pieces, spans } =
        route::route(plan, reservation, tuning, || target.tracker.should_stop())?;
    let (direct, others): (Vec<Piece>, Vec<Piece>) =
        pieces.into_iter().partition(|piece| piece.route == Route::Direct);
    let engine = choose_engine(tuning, reads, !direct.is_empty());
    let digests = thread::scope(|scope| {
        let _guard = target.tracker.stop_on_panic();
        let hashing = (!digests.is_empty()).then(|| {
            let follower = target.tracker.enter_follower();
            let tracker = &target.tracker;
            scope.spawn(move || {
                let _at_work = follower;
                digest::follow(plan, reservation, tracker, digests)
            })
        });
        let workers = Workers { target: &target, tuning, reads };
        workers.run(&direct, &others, &spans, engine == Engine::Uring, &mut observe);
        // Read pieces from the disk that workers found to be no longer resident.
        let returned = route::from_disk(plan, reservation, tuning, &target.tracker.take_returned());
        workers.run(&[], &returned.pieces, &returned.spans, false, &mut observe);
        target.tracker.close();
        // The checksums may be far behind the reads.
        while !target.tracker.wait_followed(TICK) {
            target.report(&mut observe);
        }
        hashing.map_or(Ok(Vec::new()), ScopedJoinHandle::join)
    });
    drop(filling);
    target.tracker.outcome()?;
    observe(target.tracker.progress(), 0);
    Ok(Filled {
        by_route: target.tracker.by_route(),
        engine,
        populating: target.tracker.populating(),
        prefault_share: target.tracker.prefault_share(),
        digests: digests.map_err(|_| panicked("the checksumming thread"))?,
    })
}

/// Chooses the engine for direct reads.
pub(crate) fn choose_engine(tuning: &Tuning, reads: &dyn Reads, has_direct: bool) -> Engine {
    if !has_direct || !tuning.use_uring || !reads.through_ring() {
        return Engine::Threads { ring_refused: None };
    }
    match uring::probe(tuning.depth) {
        Ok(()) => Engine::Uring,
        Err(error) => Engine::Threads { ring_refused: Some(error.to_string()) },
    }
}

/// Writes the heads of aligned layouts, which are generated and not read from a file.
#[expect(unsafe_code, reason = "writes to the ranges of the heads")]
fn place_heads(plan: &Plan, reservation: &Reservation) -> Result<()> {
    for file in plan.files().iter().filter(|file| file.is_image()) {
        let start = file.buffer_offset();
        let range = start..start + file.head().len() as u64;
        reservation.populate(range.clone())?;
        // SAFETY: no part of a layout overlaps its head, and no read has begun.
        let window = unsafe { reservation.window(range) }?;
        copy::write(&mut Cursor::<Dest>::foreign_buf(window), file.head()).map_err(|error| {
            Error::Process { operation: "writing a header", source: std::io::Error::other(error) }
        })?;
    }
    Ok(())
}

/// The threads of a fill.
struct Workers<'a> {
    target: &'a Target<'a>,
    tuning: &'a Tuning,
    reads: &'a dyn Reads,
}

impl Workers<'_> {
    /// Reads all pieces, the `direct` ones by io_uring if `use_ring`, and returns when all threads have
    /// ended.
    fn run(
        &self,
        direct: &[Piece],
        others: &[Piece],
        spans: &[Span],
        use_ring: bool,
        observe: &mut dyn FnMut(Progress, u64),
    ) {
        let target = self.target;
        let frontier = Frontier::new(direct, self.tuning.populate_ahead_bytes);
        let direct_queue = Queue::new(if use_ring { &[] } else { direct });
        let other_queue = Queue::new(others);
        let places = Places::of(spans, target.plan);
        let staged_frontier = Frontier::new(&places.pieces, self.tuning.populate_ahead_bytes);
        let staged = Spans::new(spans, &places, &staged_frontier);
        let direct_threads = (self.tuning.depth as usize).min(direct_queue.len());
        let mut connections =
            Connections::new(target.plan, self.tuning.workers, self.tuning.connections);
        let mut other_threads = connections.count().min(other_queue.len());
        let began = Instant::now();
        thread::scope(|scope| {
            let _guard = target.tracker.stop_on_panic();
            let mut started = Vec::new();
            if use_ring && !direct.is_empty() {
                started.push(start(scope, target, || frontier.run(target)));
                started
                    .push(start(scope, target, || ring::run(&frontier, target, self.tuning.depth)));
            }
            for _ in 0..direct_threads {
                started
                    .push(start(scope, target, || workers::run(&direct_queue, target, self.reads)));
            }
            for _ in 0..other_threads {
                started
                    .push(start(scope, target, || workers::run(&other_queue, target, self.reads)));
            }
            if staged.len() > 0 {
                started.push(start(scope, target, || staged_frontier.run(target)));
            }
            for _ in 0..SPANS_IN_FLIGHT_MAX.min(self.tuning.depth as usize).min(staged.len()) {
                started.push(start(scope, target, || staged.run(target, self.reads)));
            }
            while !target.tracker.wait_idle(TICK) {
                // This also checks for a cancellation, for threads that wait for each other.
                target.report(observe);
                let more = connections.more(Instant::now(), target.tracker.arrived_bytes());
                for _ in 0..more.min(other_queue.left()) {
                    other_threads += 1;
                    started.push(start(scope, target, || {
                        workers::run(&other_queue, target, self.reads);
                    }));
                }
            }
            for thread in started.into_iter().flatten() {
                if thread.join().is_err() {
                    target.tracker.fail(panicked("a reading thread"));
                }
            }
        });
        // A ring and the staged reads have a thread each that prefaults for them.
        let ahead = usize::from(use_ring && !direct.is_empty()) + usize::from(staged.len() > 0);
        target.tracker.may_prefault(ahead + direct_threads + other_threads, began.elapsed());
    }
}

/// Starts a thread of the fill. If that fails, the fill fails and stops.
pub(crate) fn start<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    target: &'scope Target<'_>,
    run: impl FnOnce() + Send + 'scope,
) -> Option<ScopedJoinHandle<'scope, ()>> {
    let guard = target.tracker.enter();
    let started =
        thread::Builder::new().name("longshore-load".to_owned()).spawn_scoped(scope, move || {
            let _at_work = guard;
            run();
        });
    started
        .map_err(|source| {
            target.tracker.fail(Error::Process { operation: "starting a thread", source });
        })
        .ok()
}

pub(crate) fn panicked(operation: &'static str) -> Error {
    Error::Process { operation, source: std::io::Error::other("the thread panicked") }
}
