//! The channel by which the back-end asks for translations.
//!
//! ```text
//!   ring's thread                         front-end                    thread of the server
//!   ─────────────                         ─────────                    ────────────────────
//!   IOTLB_MSG miss, NEED_REPLY ─────────► translates
//!                                         IOTLB_MSG update ──────────► maps, acknowledges
//!   goes on ◄──────────────────────────── reply
//! ```
//!
//! The front-end has a duplicate of the socket, and can have every call that receives from it wait for
//! as long as it likes, by a call of its own that receives into memory which it serves itself (FUSE). So
//! a thread of the channel receives, and no other thread waits for that one.
//!
//! A ring's thread that is to stop does not wait for the reply either: the front-end may be waiting for
//! that thread. The reply may come later, and is passed over then.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use longshore_mem::Iova;
use longshore_sys::closing::Disposable;

use crate::channel::{self, Message, Receiver};
use crate::stop::Stop;
use crate::wire::{self, Header, number};

/// How long a front-end may take to translate. QEMU needs its main thread for it, which may be busy.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// How often a thread that waits for its turn or for a reply looks whether it is to stop.
const TURN: Duration = Duration::from_millis(5);
/// How many threads of channels there may be, those of former front-ends that wait included.
const READERS_MAX: usize = 16;

/// How many threads of channels have not ended.
static READERS: AtomicUsize = AtomicUsize::new(0);

/// Why a translation was not had.
#[derive(Debug)]
pub(crate) enum NoTranslation {
    /// The front-end has none.
    Refused,
    /// The asking thread is to stop.
    Stopped,
    /// The channel cannot be used any more.
    ChannelLost,
}

/// The channel. Threads take turns. When it is dropped, its thread ends without being waited for.
#[derive(Debug)]
pub(crate) struct Misses(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    socket: Disposable<UnixStream>,
    /// Ends the thread that receives.
    stop: Stop,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// `true` while a thread asks.
    is_taken: bool,
    /// Replies to come, for threads that are gone, too.
    owed: u32,
    /// What the last reply says.
    outcome: u64,
    is_lost: bool,
}

impl Misses {
    /// Starts the thread that receives.
    ///
    /// # Errors
    /// Those of starting a thread; `ResourceBusy` if too many threads of former channels wait.
    pub(crate) fn new(socket: Disposable<UnixStream>) -> io::Result<Self> {
        let reader = Reader::new()?;
        let (stop, state) = (Stop::new()?, Mutex::default());
        let shared = Arc::new(Shared { socket, stop, state, changed: Condvar::new() });
        let of_thread = Arc::clone(&shared);
        let receive = move || {
            of_thread.receive_all();
            drop((of_thread, reader));
        };
        thread::Builder::new().name("translations".to_owned()).spawn(receive)?;
        Ok(Self(shared))
    }

    /// Asks for the translation of `iova`, and returns when the front-end says that it was given.
    pub(crate) fn ask(&self, iova: Iova, is_write: bool, stop: &Stop) -> Result<(), NoTranslation> {
        let shared = &*self.0;
        let turn = Deadline { stop, at: None };
        let mut state = shared.wait(shared.lock(), &turn, |state| !state.is_taken)?;
        state.is_taken = true;
        state.owed += 1;
        drop(state);
        let payload = wire::miss(iova, is_write);
        let header = Header::new(number::BACKEND_IOTLB_MSG, false, true, payload.len());
        let sent = channel::send(&shared.socket, header, &payload, stop);
        let mut state = shared.lock();
        // A part of it may be sent: nothing can follow that.
        state.is_lost |= sent.is_err();
        let reply = Deadline { stop, at: Some(Instant::now() + ANSWER_TIMEOUT) };
        let waited = shared.wait(state, &reply, |state| state.owed == 0);
        let answer = waited.and_then(|state| match state.outcome {
            0 => Ok(()),
            _ => Err(NoTranslation::Refused),
        });
        let mut state = shared.lock();
        state.is_taken = false;
        state.is_lost |= matches!(answer, Err(NoTranslation::ChannelLost));
        drop(state);
        shared.changed.notify_all();
        answer
    }
}

/// When a wait ends.
struct Deadline<'s> {
    stop: &'s Stop,
    at: Option<Instant>,
}

impl Shared {
    fn wait<'s>(
        &'s self,
        mut state: MutexGuard<'s, State>,
        deadline: &Deadline<'_>,
        is_ready: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'s, State>, NoTranslation> {
        loop {
            if state.is_lost || deadline.at.is_some_and(|at| at <= Instant::now()) {
                return Err(NoTranslation::ChannelLost);
            }
            if deadline.stop.is_stopped() {
                return Err(NoTranslation::Stopped);
            }
            if is_ready(&state) {
                return Ok(state);
            }
            let waited = self.changed.wait_timeout(state, TURN);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes replies until the channel is of no use.
    fn receive_all(&self) {
        let mut receiver = Receiver::new(self.socket.user());
        while let Ok(message) = receiver.receive(&self.socket, &self.stop, None) {
            let mut state = self.lock();
            match outcome(&message) {
                Some(outcome) if state.owed > 0 => {
                    state.owed -= 1;
                    state.outcome = outcome;
                }
                _ => break,
            }
            drop(state);
            self.changed.notify_all();
        }
        self.lock().is_lost = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a reply says; `None` if it is none.
fn outcome(message: &Message) -> Option<u64> {
    let is_answer = message.header.is_reply && message.header.request == number::BACKEND_IOTLB_MSG;
    let outcome = <[u8; 8]>::try_from(&*message.payload).ok()?;
    is_answer.then_some(u64::from_ne_bytes(outcome))
}

impl Drop for Misses {
    fn drop(&mut self) {
        self.0.stop.stop();
        // It may be closed already.
        let _ = self.0.socket.shutdown(Shutdown::Both);
    }
}

/// A thread that receives, counted until it ends.
#[derive(Debug)]
struct Reader;

impl Reader {
    fn new() -> io::Result<Self> {
        let count = READERS.fetch_add(1, Ordering::Relaxed);
        let reader = Self;
        if count >= READERS_MAX {
            return Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                "the threads of former channels wait for the front-ends that they served",
            ));
        }
        Ok(reader)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        READERS.fetch_sub(1, Ordering::Relaxed);
    }
}
