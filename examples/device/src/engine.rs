//! The device's own thread, which takes descriptors from the ring one after the other.
//!
//! ```text
//!   thread of the server                     thread of the engine
//!   ────────────────────                     ────────────────────
//!   start, ring, stop  ──► State ◄────────── takes a job; is busy; reports how it ended
//!   stop waits until it is not busy          Session: descriptor ─► work ─► completion
//! ```

use std::io;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use longshore::access::{Fault, Session, Space};
use longshore::mem::Iova;
use longshore::vfio_user::Link;
use longshore::vfio_user::pci::MSIX_IRQ;

use crate::layout::{Completion, Descriptor, ENTRIES_MAX, ENTRY_BYTES, SEQUENCE_AT, status};
use crate::trace::Counts;
use crate::work::Worker;

/// The driver's rings: their addresses and length, and `interrupts`, which is `true` if it wants any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ring {
    pub(crate) descriptors: u64,
    pub(crate) completions: u64,
    pub(crate) entries: u32,
    pub(crate) interrupts: bool,
}

impl Ring {
    fn is_valid(&self) -> bool {
        let len_bytes = u64::from(self.entries) * ENTRY_BYTES;
        let is_placed =
            |at: u64| at.is_multiple_of(ENTRY_BYTES) && at.checked_add(len_bytes).is_some();
        self.entries.is_power_of_two()
            && self.entries <= ENTRIES_MAX
            && is_placed(self.descriptors)
            && is_placed(self.completions)
    }

    fn slot(&self, index: u32) -> u64 {
        u64::from(index & (self.entries - 1)) * ENTRY_BYTES
    }
}

/// The engine. Its thread ends when it is dropped.
pub(crate) struct Engine {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Notified when there may be a descriptor, or the engine is dropped.
    wake: Condvar,
    /// Notified when the thread is not busy any more.
    idle: Condvar,
    /// `true` if the thread must cancel the current descriptor.
    is_cancelled: AtomicBool,
    counts: Counts,
}

#[derive(Default)]
struct State {
    ring: Ring,
    status: u32,
    /// The number of completed descriptors.
    head: u32,
    /// The number of submitted descriptors.
    tail: u32,
    is_busy: bool,
    is_over: bool,
    link: Option<Link>,
}

impl Engine {
    /// Starts the thread, which reaches memory through a session of `space`.
    pub(crate) fn new(space: Space, counts: Counts) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            wake: Condvar::new(),
            idle: Condvar::new(),
            is_cancelled: AtomicBool::new(false),
            counts,
        });
        let for_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("copy engine".to_owned());
        let thread = Some(thread.spawn(move || for_thread.run(&space))?);
        Ok(Self { shared, thread })
    }

    /// Starts at the first entries of `ring`.
    pub(crate) fn start(&self, ring: Ring) {
        self.stop();
        let mut state = self.shared.lock();
        let status = if ring.is_valid() { status::RUNNING } else { status::BAD_REGISTERS };
        (state.ring, state.status, state.head, state.tail) = (ring, status, 0, 0);
    }

    /// Sets the number of descriptors that the driver has submitted.
    pub(crate) fn ring(&self, tail: u32) {
        let mut state = self.shared.lock();
        if state.status != status::RUNNING {
            return;
        }
        if tail.wrapping_sub(state.head) > state.ring.entries {
            state.status = status::BAD_REGISTERS;
        } else {
            state.tail = tail;
            self.shared.wake.notify_one();
        }
    }

    /// Stops the engine. The current descriptor is cancelled or completed. When this returns, the thread
    /// accesses no memory.
    pub(crate) fn stop(&self) {
        let mut state = self.shared.lock();
        state.status = status::OFF;
        self.shared.is_cancelled.store(true, Ordering::Relaxed);
        while state.is_busy {
            // The thread may be waiting for the client, and the client for this call.
            if let Some(link) = &state.link {
                link.cancel(&(0..u64::MAX));
            }
            let waited = self.shared.idle.wait_timeout(state, Duration::from_millis(1));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.shared.is_cancelled.store(false, Ordering::Relaxed);
    }

    /// Sets the link by which interrupts are raised from now on.
    pub(crate) fn connect(&self, link: Option<Link>) {
        self.shared.lock().link = link;
    }

    /// Returns the status, the number of submitted descriptors, and the number of completed ones.
    pub(crate) fn progress(&self) -> (u32, u32, u32) {
        let state = self.shared.lock();
        (state.status, state.tail, state.head)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
        self.shared.lock().is_over = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic was already reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// The end of a job.
enum Ended {
    Completed(Completion),
    /// A ring could not be accessed.
    RingFault(Fault),
    Cancelled,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, space: &Space) {
        let session = space.session();
        let mut worker = Worker::new(&session, &self.is_cancelled);
        while let Some((ring, head)) = self.next(&session) {
            let ended = do_one(&mut worker, &ring, head);
            self.end(&ring, head, &ended);
        }
    }

    /// Waits for a descriptor. Returns `None` when the engine is dropped.
    fn next(&self, session: &Session) -> Option<(Ring, u32)> {
        let mut state = self.lock();
        loop {
            if state.is_over {
                return None;
            }
            if state.status == status::RUNNING && state.head != state.tail {
                state.is_busy = true;
                return Some((state.ring, state.head));
            }
            // An unmapping thread does not have to wait for a parked session.
            session.park();
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn end(&self, ring: &Ring, head: u32, ended: &Ended) {
        let mut state = self.lock();
        state.is_busy = false;
        self.idle.notify_all();
        match ended {
            Ended::Cancelled => return,
            Ended::RingFault(fault) => {
                // If the engine was stopped meanwhile, the status stays.
                if state.status == status::RUNNING {
                    state.status = status::RING_FAULT;
                    self.counts.ring_fault(fault);
                }
                return;
            }
            Ended::Completed(completion) => self.counts.completion(completion),
        }
        state.head = head.wrapping_add(1);
        if let (true, Some(link)) = (ring.interrupts, &state.link) {
            // This fails if the driver has not set the interrupt up, which is no error of the device.
            let _ = link.interrupts().raise(MSIX_IRQ, 0);
        }
    }
}

fn do_one(worker: &mut Worker<'_>, ring: &Ring, head: u32) -> Ended {
    let at = Iova::new(ring.descriptors + ring.slot(head));
    let descriptor = match worker.session.read_obj::<[u64; 4]>(at) {
        Ok(words) => Descriptor::of(words),
        Err(fault) => return Ended::RingFault(fault),
    };
    let sequence = head.wrapping_add(1);
    let Some(completion) = worker.run(&descriptor, sequence) else { return Ended::Cancelled };
    let at = ring.completions + ring.slot(head);
    match complete(worker.session, at, &completion) {
        Ok(()) => Ended::Completed(completion),
        Err(fault) => Ended::RingFault(fault),
    }
}

/// Writes the completion, and after it the sequence number, by which the driver notices it.
fn complete(session: &Session, at: u64, completion: &Completion) -> Result<(), Fault> {
    let bytes = completion.words().map(u64::to_ne_bytes);
    session.write(Iova::new(at), &bytes.as_flattened()[..SEQUENCE_AT as usize])?;
    // The copied bytes must be visible before the sequence number, too.
    fence(Ordering::Release);
    session.write_obj(Iova::new(at + SEQUENCE_AT), completion.sequence.to_le())
}
