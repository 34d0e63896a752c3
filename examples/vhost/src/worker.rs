//! The thread of a ring. It has its own session, and executes one request after the other.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use longshore::vhost_user::{Queue, QueueMemory, QueueState, RunningQueue, Stop};

use crate::block::{self, BOUNCE_BYTES};
use crate::disk::Disk;
use crate::ring::{Chain, Ring, RingError};
use crate::trace::Counts;

/// The thread of a ring. It is stopped when this is dropped.
#[derive(Debug)]
pub(crate) struct Worker {
    stop: Stop,
    thread: Option<JoinHandle<QueueState>>,
    /// The index at which the thread began.
    next: u16,
}

impl Worker {
    pub(crate) fn start(queue: Queue, disk: Arc<Disk>, counts: Counts) -> io::Result<Self> {
        let (stop, next) = (queue.stop_handle(), queue.next);
        let thread = thread::Builder::new().name(format!("ring {}", queue.index));
        let thread = thread.spawn(move || run(&queue, &disk, &counts))?;
        Ok(Self { stop, thread: Some(thread), next })
    }

    fn join(&mut self) -> QueueState {
        self.stop.stop();
        let lost = QueueState { next: self.next, is_broken: true };
        // A panic has been reported by its hook.
        self.thread.take().map_or(lost, |thread| thread.join().unwrap_or(lost))
    }
}

impl RunningQueue for Worker {
    fn stop(mut self: Box<Self>) -> QueueState {
        self.join()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.join();
    }
}

fn run(queue: &Queue, disk: &Disk, counts: &Counts) -> QueueState {
    let mut ring = Ring::new(queue);
    let is_broken = match serve(queue, &mut ring, disk, counts) {
        Ok(()) | Err(RingError::Stopped) => false,
        Err(error) => {
            counts.ring_error(queue.index, &error);
            queue.report_error();
            true
        }
    };
    QueueState { next: ring.next, is_broken }
}

fn serve(
    queue: &Queue,
    ring: &mut Ring<'_>,
    disk: &Disk,
    counts: &Counts,
) -> Result<(), RingError> {
    let memory = queue.memory(|iova, is_write| counts.miss(iova, is_write));
    let (mut chain, mut bounce) = (Chain::default(), vec![0; BOUNCE_BYTES]);
    let unlogged = queue.space.counters().unlogged;
    loop {
        let mut wants_call = false;
        let served = loop {
            if queue.is_stopped() {
                break Err(RingError::Stopped);
            }
            match serve_next(ring, &memory, disk, counts, &mut chain, &mut bounce) {
                Ok(Some(wants)) => wants_call |= wants,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
            if queue.space.counters().unlogged != unlogged {
                break Err(RingError::LogLost);
            }
        };
        if wants_call {
            queue.call();
        }
        served?;
        // An unmapping thread does not have to wait for a parked session.
        memory.session().park();
        if !queue.wait() {
            return Err(RingError::Stopped);
        }
    }
}

/// Serves one request. Returns `Some(true)` if the driver wants an interrupt, and `None` if there is no
/// request.
fn serve_next(
    ring: &mut Ring<'_>,
    memory: &QueueMemory<'_>,
    disk: &Disk,
    counts: &Counts,
    chain: &mut Chain,
    bounce: &mut [u8],
) -> Result<Option<bool>, RingError> {
    if !ring.is_available(memory)? {
        return Ok(None);
    }
    ring.chain(memory, chain)?;
    let written = block::serve(memory, disk, counts, chain, bounce)?;
    ring.complete(memory, chain.head, written.unwrap_or(0)).map(Some)
}
