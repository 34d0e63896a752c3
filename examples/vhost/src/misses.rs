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
//! A thread that is to stop does not wait for the reply: the front-end may be waiting for the thread.
//! So it may come later, and is passed over then.

use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use longshore_mem::Iova;

use crate::channel::{self, NoMessage, Receiver};
use crate::stop::Stop;
use crate::wire::{self, Header, number};

/// How long a front-end may take to translate. QEMU needs its main thread for it, which may be busy.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// How often a thread that waits for its turn looks whether it is to stop.
const TURN: Duration = Duration::from_millis(5);

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

/// The channel. Threads take turns.
#[derive(Debug)]
pub(crate) struct Misses {
    socket: UnixStream,
    state: Mutex<State>,
    free: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// `None` while a thread has it, and when nothing can be told apart any more.
    receiver: Option<Receiver>,
    /// Replies to come that nobody waits for.
    owed: u32,
    is_lost: bool,
}

impl Misses {
    pub(crate) fn new(socket: UnixStream) -> Self {
        let state = State { receiver: Some(Receiver::default()), ..State::default() };
        Self { socket, state: Mutex::new(state), free: Condvar::new() }
    }

    /// Asks for the translation of `iova`, and returns when the front-end says that it was given.
    pub(crate) fn ask(&self, iova: Iova, is_write: bool, stop: &Stop) -> Result<(), NoTranslation> {
        let (mut receiver, mut owed) = self.turn(stop)?;
        let answer = self.exchange(iova, is_write, stop, &mut receiver, &mut owed);
        let mut state = self.lock();
        state.owed = owed;
        match &answer {
            Err(NoTranslation::ChannelLost) => state.is_lost = true,
            _ => state.receiver = Some(receiver),
        }
        self.free.notify_one();
        answer
    }

    fn turn(&self, stop: &Stop) -> Result<(Receiver, u32), NoTranslation> {
        let mut state = self.lock();
        loop {
            if state.is_lost {
                return Err(NoTranslation::ChannelLost);
            }
            if stop.is_stopped() {
                return Err(NoTranslation::Stopped);
            }
            if let Some(receiver) = state.receiver.take() {
                return Ok((receiver, state.owed));
            }
            let waited = self.free.wait_timeout(state, TURN);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn exchange(
        &self,
        iova: Iova,
        is_write: bool,
        stop: &Stop,
        receiver: &mut Receiver,
        owed: &mut u32,
    ) -> Result<(), NoTranslation> {
        let payload = wire::miss(iova, is_write);
        let header = Header::new(number::BACKEND_IOTLB_MSG, false, true, payload.len());
        // A part of it may be sent: nothing can follow that.
        channel::send(&self.socket, header, &payload, stop)
            .map_err(|_| NoTranslation::ChannelLost)?;
        *owed += 1;
        let deadline = Some(Instant::now() + ANSWER_TIMEOUT);
        loop {
            let message =
                receiver.receive(&self.socket, stop, deadline).map_err(|why| match why {
                    NoMessage::Stopped => NoTranslation::Stopped,
                    _ => NoTranslation::ChannelLost,
                })?;
            let header = message.header;
            let outcome = <[u8; 8]>::try_from(&*message.payload).map(u64::from_ne_bytes);
            let is_answer = header.is_reply && header.request == number::BACKEND_IOTLB_MSG;
            let Some(outcome) = outcome.ok().filter(|_| is_answer) else {
                return Err(NoTranslation::ChannelLost);
            };
            *owed -= 1;
            if *owed == 0 {
                return if outcome == 0 { Ok(()) } else { Err(NoTranslation::Refused) };
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
