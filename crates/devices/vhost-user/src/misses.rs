//! The channel over which the back-end requests translations.
//!
//! ```text
//!   ring's thread                         front-end                    thread of the server
//!   ─────────────                         ─────────                    ────────────────────
//!   IOTLB_MSG miss, NEED_REPLY ─────────► translates
//!                                         IOTLB_MSG update ──────────► maps, acknowledges
//!   goes on ◄──────────────────────────── reply
//! ```
//!
//! The front-end has a duplicate of the socket. It can block every call that receives from the socket
//! for as long as it likes, by a call of its own that receives into memory which it serves itself
//! (FUSE). So a thread of the channel receives, and no other thread waits for that one.
//!
//! A queue's thread that is to stop does not wait for the reply, either: the front-end may be waiting
//! for that thread. The reply may arrive later, and is then ignored.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::thread;
use std::time::{Duration, Instant};

use longshore_access::client::Stop;
use longshore_mem::Iova;
use longshore_sys::account::{Account, Limits, Permit};
use longshore_sys::closing::{self, Disposable, User};
use longshore_sys::{disposal, kept_descriptors};

use crate::channel::{self, Message, Receiver};
use crate::wire::{self, MessageHeader, number};

/// The time for a front-end to translate. QEMU does that on its main thread, which may be busy.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// The interval at which a thread that waits for its turn or for a reply checks if it is to stop.
const TURN: Duration = Duration::from_millis(5);
/// The interval at which a thread checks if the thread that closes its channel has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The most threads of former channels that may wait before new channels are refused.
const FORMER_MAX: Limits = Limits { per_user: 16, all_users: 256 };

/// The threads of former channels that have not ended. In addition each front-end has one for its
/// channel.
static FORMER: Account = Account::new("threads that wait for front-ends that are gone");

/// The reason why a translation was not received.
#[derive(Debug)]
pub(crate) enum NoTranslation {
    /// The front-end has none.
    Refused,
    /// The requesting thread is to stop.
    Stopped,
    /// The channel cannot be used any more.
    ChannelLost,
}

/// A channel. Threads take turns. Dropping it ends its thread without waiting for it.
#[derive(Debug)]
pub(crate) struct MissChannel(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    user: User,
    /// `None` when the channel is closed. Threads share the lock while they use the socket, and the
    /// receiving thread takes the socket out when it ends.
    socket: RwLock<Option<Disposable<UnixStream>>>,
    /// Ends the receiving thread.
    stop: Stop,
    state: Mutex<State>,
    changed: Condvar,
    /// Counts the thread from the moment at which the channel is dropped.
    former: OnceLock<Permit>,
    /// Counts the descriptors of `socket` and `stop`.
    _descriptors: Permit,
}

#[derive(Debug, Default)]
struct State {
    /// `true` while a thread has its turn.
    is_taken: bool,
    /// The number of replies to come, including those for threads that no longer wait.
    owed: u32,
    /// The result in the last reply.
    outcome: u64,
    is_lost: bool,
}

impl MissChannel {
    /// Starts the receiving thread.
    ///
    /// # Errors
    /// Those of starting a thread; `QuotaExceeded` if the user has too many descriptors, or too many threads
    /// of former channels wait.
    pub(crate) fn new(socket: Disposable<UnixStream>) -> io::Result<Self> {
        let user = socket.user();
        drop(FORMER.take(user, 1, FORMER_MAX)?);
        let shared = Arc::new(Shared {
            user,
            _descriptors: kept_descriptors::keep(user, 2)?,
            socket: RwLock::new(Some(socket)),
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

    /// Requests the translation of `iova`, and returns when the front-end has replied that it sent it.
    pub(crate) fn ask(&self, iova: Iova, is_write: bool, stop: &Stop) -> Result<(), NoTranslation> {
        let shared = &*self.0;
        let turn = Deadline { stop, at: None };
        let mut state = shared.wait(shared.lock(), &turn, |state| !state.is_taken)?;
        state.is_taken = true;
        state.owed += 1;
        drop(state);
        let payload = wire::iotlb_miss(iova, is_write);
        let header = MessageHeader::new(number::BACKEND_IOTLB_MSG, false, true, payload.len());
        let is_sent = match &*shared.socket() {
            Some(socket) => channel::send(socket, header, &payload, stop).is_ok(),
            None => false,
        };
        let mut state = shared.lock();
        // A part of the request may have been sent, and nothing can be sent after that.
        state.is_lost |= !is_sent;
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

/// The conditions that end a wait.
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

    /// Receives replies until the channel is lost, and closes it.
    fn receive_all(&self) {
        self.receive_replies();
        self.lock().is_lost = true;
        self.changed.notify_all();
        self.close();
    }

    fn receive_replies(&self) {
        let socket = self.socket();
        let Some(socket) = &*socket else { return };
        let mut receiver = Receiver::of_shared(self.user);
        while let Ok(message) = receiver.receive(socket, &self.stop, None) {
            let mut state = self.lock();
            match outcome(&message) {
                Some(outcome) if state.owed > 0 => {
                    state.owed -= 1;
                    state.outcome = outcome;
                }
                _ => return,
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Closes the socket, on a thread that exits, even if the channel is not dropped yet: the
    /// front-end's own end of its connection can be in the queue, and would keep that connection open.
    fn close(&self) {
        // Release the threads that are sending.
        self.shut_down();
        let socket = self.socket.write().unwrap_or_else(PoisonError::into_inner).take();
        let mut sockets = socket.map(|it| it.into_inner().into()).into_iter().collect();
        let disposals = disposal::dispose(&mut sockets);
        closing::close_without_waiting(self.user, sockets);
        // A closing thread that hangs is counted as long as this thread waits for it.
        while !disposals.iter().all(disposal::Disposal::has_ended) {
            thread::sleep(LOOK_EVERY);
        }
    }

    fn shut_down(&self) {
        if let Some(socket) = &*self.socket() {
            // The other end may be closed.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    fn socket(&self) -> RwLockReadGuard<'_, Option<Disposable<UnixStream>>> {
        self.socket.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the result in a reply, or `None` if the message is not a valid reply.
fn outcome(message: &Message) -> Option<u64> {
    let is_answer = message.header.is_reply && message.header.request == number::BACKEND_IOTLB_MSG;
    let outcome = <[u8; 8]>::try_from(&*message.payload).ok()?;
    is_answer.then_some(u64::from_ne_bytes(outcome))
}

impl Drop for MissChannel {
    fn drop(&mut self) {
        let _is_first = self.0.former.set(FORMER.count(self.0.user, 1));
        self.0.stop.stop();
        self.0.shut_down();
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::os::fd::{AsFd, AsRawFd};

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

    use super::*;

    fn channel_of(user: User) -> io::Result<(MissChannel, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((MissChannel::new(Disposable::of_user(ours, user))?, theirs))
    }

    /// Sends a descriptor, and invalid bytes after it that end the channel.
    fn leave_in_queue(theirs: &UnixStream, queued: impl AsFd, flags: SendFlags) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let rights = [queued.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&rights)));
        rustix::net::sendmsg(theirs, &[io::IoSlice::new(b"j")], &mut control, flags)?;
        // The channel may be lost by then.
        let _ = rustix::net::send(theirs, b"unk, which is no header", SendFlags::NOSIGNAL);
        Ok(())
    }

    /// Waits until the queued socket is closed, of which `peer` is the other end.
    fn expect_closed(mut peer: UnixStream) {
        peer.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(io::Read::read(&mut peer, &mut [0]).unwrap(), 0, "it is closed");
    }

    /// The threads that close can hang because of something in the queue.
    #[test]
    fn a_lost_channel_is_closed_even_if_no_more_may_be_received_from_its_user() {
        let user = User::from_uid(4_000_000_011);
        assert!(disposal::prepare().unwrap(), "the kernel refuses close_range(2)");
        closing::exhaust(user);
        assert!(!closing::may_receive(user));
        for flags in [SendFlags::empty(), SendFlags::OOB] {
            let (channel, theirs) = channel_of(user).unwrap();
            let (queued, peer) = UnixStream::pair().unwrap();
            if let Err(error) = leave_in_queue(&theirs, &queued, flags) {
                println!("SKIPPED: no bytes out of band on Unix sockets: {error}");
                continue;
            }
            drop(queued);
            expect_closed(peer);
            drop((channel, theirs));
        }
    }

    /// The front-end can set options of the socket, because it has a duplicate.
    #[test]
    #[expect(unsafe_code, reason = "sets an option for which there is no safe function")]
    fn a_front_end_that_hides_its_queue_from_a_peek_loses_the_channel() {
        let user = User::from_uid(4_000_000_012);
        closing::exhaust(user);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let duplicate = ours.try_clone().unwrap();
        let offset: libc::c_int = 1 << 20;
        // SAFETY: the option is an int, to which this is a valid pointer.
        let set = unsafe {
            libc::setsockopt(
                duplicate.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEEK_OFF,
                (&raw const offset).cast(),
                size_of_val(&offset) as libc::socklen_t,
            )
        };
        assert_eq!(set, 0);
        drop(duplicate);
        let channel = MissChannel::new(Disposable::of_user(ours, user)).unwrap();
        let (queued, peer) = UnixStream::pair().unwrap();
        leave_in_queue(&theirs, &queued, SendFlags::empty()).unwrap();
        drop(queued);
        expect_closed(peer);
        drop((channel, theirs));
    }

    #[test]
    fn threads_of_former_channels_prevent_new_channels_of_their_user_only() {
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
