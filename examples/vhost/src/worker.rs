//! The thread of a ring: a session of its own, and one request after the other.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use longshore_access::Space;
use longshore_sys::event_fd::{self, SharedEvent};
use longshore_sys::unix_socket::{self, Interest, Ready};

use crate::block::{self, BOUNCE_BYTES};
use crate::disk::Disk;
use crate::dma::Dma;
use crate::misses::Misses;
use crate::ring::{Chain, Ring, RingError};
use crate::stop::Stop;
use crate::trace::Counts;

/// All that a ring's thread needs.
pub(crate) struct Work {
    pub(crate) index: usize,
    pub(crate) ring: Ring,
    pub(crate) space: Space,
    pub(crate) disk: Arc<Disk>,
    pub(crate) counts: Counts,
    pub(crate) misses: Option<Arc<Misses>>,
    /// The driver has made something available.
    pub(crate) kick: Arc<OwnedFd>,
    /// The driver's interrupt; it may want none.
    pub(crate) call: Option<SharedEvent>,
    /// The ring is broken.
    pub(crate) error: Option<SharedEvent>,
}

/// Where a thread has stopped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopped {
    /// Entries that are done, modulo 2^16.
    pub(crate) next: u16,
    pub(crate) is_broken: bool,
}

/// A ring's thread. It is stopped when this is dropped.
#[derive(Debug)]
pub(crate) struct Worker {
    stop: Stop,
    thread: Option<JoinHandle<Stopped>>,
    next: u16,
}

impl Worker {
    pub(crate) fn start(work: Work) -> io::Result<Self> {
        let stop = Stop::new()?;
        let (for_thread, next) = (stop.clone(), work.ring.next);
        let thread = thread::Builder::new().name(format!("ring {}", work.index));
        let thread = thread.spawn(move || work.run(&for_thread))?;
        Ok(Self { stop, thread: Some(thread), next })
    }

    /// Stops it. What was begun is done, or is not begun: when this returns, memory is left alone.
    pub(crate) fn stop(mut self) -> Stopped {
        self.join()
    }

    fn join(&mut self) -> Stopped {
        self.stop.stop();
        let lost = Stopped { next: self.next, is_broken: true };
        // It has said why, if it panicked.
        self.thread.take().map_or(lost, |thread| thread.join().unwrap_or(lost))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.join();
    }
}

impl Work {
    fn run(mut self, stop: &Stop) -> Stopped {
        let outcome = self.serve(stop);
        let is_broken = match outcome {
            Ok(()) | Err(RingError::Stopped) => false,
            Err(error) => {
                self.counts.ring_error(self.index, &error);
                if let Some(event) = &self.error {
                    // Nobody may listen.
                    let _ = event.signal();
                }
                true
            }
        };
        Stopped { next: self.ring.next, is_broken }
    }

    fn serve(&mut self, stop: &Stop) -> Result<(), RingError> {
        let misses = self.misses.as_deref();
        let dma = Dma { session: self.space.session(), misses, stop, counts: &self.counts };
        let (mut chain, mut bounce) = (Chain::default(), vec![0; BOUNCE_BYTES]);
        let unlogged = self.space.counters().unlogged;
        loop {
            let mut wants_call = false;
            let served = loop {
                if stop.is_stopped() {
                    break Err(RingError::Stopped);
                }
                match serve_next(&mut self.ring, &dma, &self.disk, &mut chain, &mut bounce) {
                    Ok(Some(wants)) => wants_call |= wants,
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                }
                if self.space.counters().unlogged != unlogged {
                    break Err(RingError::LogLost);
                }
            };
            if let Some(call) = self.call.as_ref().filter(|_| wants_call) {
                // A driver that is gone needs none.
                let _ = call.signal();
            }
            served?;
            // So that unmapping meanwhile does not have to wait for this thread.
            dma.session.park();
            let event =
                unix_socket::wait(self.kick.as_fd(), Interest::Receive, &[stop.as_fd()], None);
            match event {
                Ok(Ready::Socket) => {
                    let _ = event_fd::drain(&*self.kick);
                }
                Ok(_) | Err(_) => return Err(RingError::Stopped),
            }
        }
    }
}

/// Serves one request; whether the driver wants to be told. `None` where there is none.
fn serve_next(
    ring: &mut Ring,
    dma: &Dma<'_>,
    disk: &Disk,
    chain: &mut Chain,
    bounce: &mut [u8],
) -> Result<Option<bool>, RingError> {
    if !ring.is_available(dma)? {
        return Ok(None);
    }
    ring.chain(dma, chain)?;
    let written = block::serve(dma, disk, dma.counts, chain, bounce)?;
    ring.complete(dma, chain.head, written.unwrap_or(0)).map(Some)
}
