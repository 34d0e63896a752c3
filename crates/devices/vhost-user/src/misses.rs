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
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use longshore_access::client::Stop;
use longshore_mem::Iova;
use longshore_sys::account::{Account, Limits, Permit};
use longshore_sys::closing::Disposable;
use longshore_sys::disposal::Disposals;
use longshore_sys::unix_socket::{self, Interest, Ready};
use longshore_sys::{kept_descriptors, packet_socket};

use crate::channel::{self, Message, Receiver};
use crate::wire::{self, MessageHeader, number};

/// How long a front-end may take to translate. QEMU needs its main thread for it, which may be busy.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// How often a thread that waits for its turn or for a reply looks whether it is to stop.
const TURN: Duration = Duration::from_millis(5);
/// How often a thread looks whether the one that empties its channel has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How many threads of former channels may wait before there are no more channels.
const FORMER_MAX: Limits = Limits { per_user: 16, all_users: 256 };

/// The threads of former channels that have not ended. Beside them there is one for each front-end.
static FORMER: Account = Account::new("threads that wait for front-ends that are gone");

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
pub(crate) struct MissChannel(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    socket: Disposable<UnixStream>,
    /// Ends the thread that receives.
    stop: Stop,
    state: Mutex<State>,
    changed: Condvar,
    /// Counts the thread from the moment at which the channel is given up.
    former: OnceLock<Permit>,
    /// Counts the descriptors of the socket and of the stop.
    _descriptors: Permit,
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

impl MissChannel {
    /// Starts the thread that receives.
    ///
    /// # Errors
    /// Those of starting a thread; `QuotaExceeded` if the user has too many descriptors, or too many threads
    /// of former channels wait.
    pub(crate) fn new(socket: Disposable<UnixStream>) -> io::Result<Self> {
        drop(FORMER.take(socket.user(), 1, FORMER_MAX)?);
        let shared = Arc::new(Shared {
            _descriptors: kept_descriptors::keep(socket.user(), 2)?,
            socket,
            stop: Stop::new()?,
            state: Mutex::default(),
            changed: Condvar::new(),
            former: OnceLock::new(),
        });
        let of_thread = Arc::clone(&shared);
        let receive = move || of_thread.receive_all();
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
        let payload = wire::iotlb_miss(iova, is_write);
        let header = MessageHeader::new(number::BACKEND_IOTLB_MSG, false, true, payload.len());
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
        self.discard_all();
    }

    /// Receives everything and closes the descriptors that come, until the other end is closed or the channel
    /// is given up: the front-end's own end of its connection can be one of them, and would keep the
    /// connection open in a queue that nobody reads.
    fn discard_all(&self) {
        let (mut bytes, mut descriptors) = ([0; 512], Vec::new());
        let mut disposals = Disposals::default();
        self.discard_until_closed(&mut bytes, &mut descriptors, &mut disposals);
        // A thread that hangs is counted as long as this one is.
        while !disposals.have_ended() {
            thread::sleep(LOOK_EVERY);
        }
    }

    fn discard_until_closed(
        &self,
        bytes: &mut [u8],
        descriptors: &mut Vec<OwnedFd>,
        disposals: &mut Disposals,
    ) {
        loop {
            let user = self.socket.user();
            let received = unix_socket::receive(&self.socket, user, bytes, descriptors, None);
            descriptors.clear();
            match received {
                Ok(received) if received.len_bytes == 0 => return,
                Ok(_) => {}
                // Descriptors that are not passed on were closed.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let stop = [self.stop.as_fd()];
                    let socket = self.socket.as_fd();
                    match unix_socket::wait(socket, Interest::Receive, &stop, None) {
                        Ok(Ready::Socket) => {}
                        _ => return,
                    }
                }
                // For want of descriptors or threads. They may be wanting because of what is in the queue,
                // so an exiting thread receives it.
                Err(error) if error.kind() != io::ErrorKind::ConnectionReset => {
                    let _ = self.socket.shutdown(Shutdown::Both);
                    if packet_socket::drain(&*self.socket) {
                        return;
                    }
                    if disposals.have_ended()
                        && let Ok(copy) = self.socket.as_fd().try_clone_to_owned()
                    {
                        disposals.empty(&copy);
                    }
                    let later = Instant::now() + TURN;
                    let waited =
                        unix_socket::wait(self.stop.as_fd(), Interest::Receive, &[], Some(later));
                    if !matches!(waited, Ok(Ready::TimedOut)) {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
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

impl Drop for MissChannel {
    fn drop(&mut self) {
        let _is_first = self.0.former.set(FORMER.count(self.0.socket.user(), 1));
        self.0.stop.stop();
        // It may be closed already.
        let _ = self.0.socket.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use longshore_sys::closing::{self, User};
    use longshore_sys::disposal;

    use super::*;

    fn channel_of(user: User) -> io::Result<(MissChannel, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((MissChannel::new(Disposable::of_user(ours, user))?, theirs))
    }

    /// What the threads that close wait for can be in the queue.
    #[test]
    fn a_lost_channel_is_emptied_also_if_no_more_may_be_received_from_its_user() {
        let user = User::from_uid(4_000_000_011);
        assert!(disposal::prepare(), "the kernel refuses close_range(2)");
        closing::exhaust(user);
        assert!(!closing::may_receive(user));
        let (channel, theirs) = channel_of(user).unwrap();
        let (queued, mut peer) = UnixStream::pair().unwrap();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
        let rights = [queued.as_fd()];
        assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&rights)));
        let junk = [io::IoSlice::new(b"junk")];
        rustix::net::sendmsg(&theirs, &junk, &mut control, rustix::net::SendFlags::empty())
            .unwrap();
        drop((queued, theirs));
        peer.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(io::Read::read(&mut peer, &mut [0]).unwrap(), 0, "it is closed");
        drop(channel);
    }

    #[test]
    fn threads_of_former_channels_keep_only_their_user_from_having_another() {
        let [hostile, other] = [4_000_000_001, 4_000_000_002].map(User::from_uid);
        let waiting = FORMER.count(hostile, FORMER_MAX.per_user);
        let refused = channel_of(hostile).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::QuotaExceeded);
        let said = "user 4000000001 has 16 threads that wait for front-ends that are gone";
        assert!(refused.to_string().starts_with(said), "{refused}");
        channel_of(other).unwrap();
        drop(waiting);
        channel_of(hostile).unwrap();
    }

    #[test]
    fn threads_that_end_are_not_counted() {
        let user = User::from_uid(4_000_000_003);
        let begin = Instant::now();
        for _ in 0..4 * FORMER_MAX.per_user {
            // The threads end soon after their channels are dropped.
            while channel_of(user).is_err() {
                assert!(begin.elapsed() < Duration::from_secs(60), "a thread does not end");
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
