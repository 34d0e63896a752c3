//! Messages that arrived over a connection and wait for the thread that takes them.
//!
//! A waiting thread reads the socket if no other thread does, sorts the messages, and wakes the others.
//! So a reply arrives while the server's thread executes a command, and a command is not lost while that
//! thread itself waits for a reply.
//!
//! There is no socket in this module: `tests/loom_mailbox.rs` runs it with a model of one.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::Instant;

use longshore_sync::primitives::{Condvar, Mutex, MutexGuard, PoisonError};

/// The most commands of the client that are queued while the server waits for a reply.
const QUEUED_REQUESTS_MAX: usize = 64;
/// The most descriptors of those commands.
const QUEUED_DESCRIPTORS_MAX: usize = 64;
/// The most commands of this end without a reply, including those for which no thread waits any more.
const PENDING_MAX: usize = 1024;

/// A message.
pub(crate) trait Letter {
    /// Returns the id of the command that it answers, if it is a reply.
    fn reply_to(&self) -> Option<u16>;
    /// Returns roughly how many bytes of memory it holds.
    fn held_bytes(&self) -> usize;
    /// Returns the number of descriptors that it holds.
    fn held_descriptors(&self) -> usize;
}

/// The result of reading the socket.
#[derive(Debug)]
pub(crate) enum Came<M, E> {
    /// A message.
    Message(M),
    /// No message: an event or the deadline came first.
    Nothing,
    /// The end of the connection, and its reason.
    End(E),
}

/// A command that was sent to the client.
#[derive(Debug)]
pub(crate) enum Pending<M> {
    /// Sent, about this range, and not answered.
    Asked(Range<u64>),
    /// Answered by this message.
    Answered(M),
    /// Cancelled, and the thread that waits for the reply has not yet seen it.
    Cancelled {
        /// `true` if the reply has arrived, so that the id can be used again at once.
        is_answered: bool,
    },
    /// No thread waits for the reply; the id can be used again when it arrives.
    Abandoned,
}

/// The reason why a wait ended without a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NothingCame {
    /// The deadline passed.
    TimedOut,
    /// The connection ended.
    Ended,
    /// The queue of commands is full, and only the waiting thread itself takes commands from it.
    Flooded,
}

/// A queue of messages, and the threads that wait for them or read the socket.
#[derive(Debug)]
pub(crate) struct Mailbox<M, E> {
    inbox: Mutex<Inbox<M, E>>,
    arrived: Condvar,
}

/// The state of a mailbox.
#[derive(Debug)]
pub(crate) struct Inbox<M, E> {
    is_read: bool,
    requests: VecDeque<M>,
    requests_held_bytes: usize,
    requests_held_descriptors: usize,
    requests_bytes_max: usize,
    pending: HashMap<u16, Pending<M>>,
    next_id: u16,
    /// The largest transfer in one message; 0 before the client has negotiated it.
    pub(crate) transfer_bytes_max: u32,
    /// The number of replies that matched no command.
    pub(crate) stray_replies_count: u64,
    /// The reason why the connection ended, if it did.
    pub(crate) ended: Option<E>,
}

impl<M: Letter, E> Mailbox<M, E> {
    /// Makes a mailbox whose queued commands hold at most about `requests_bytes_max`.
    pub(crate) fn new(requests_bytes_max: usize) -> Self {
        let inbox = Inbox {
            is_read: false,
            requests: VecDeque::new(),
            requests_held_bytes: 0,
            requests_held_descriptors: 0,
            requests_bytes_max,
            pending: HashMap::new(),
            next_id: 0,
            transfer_bytes_max: 0,
            stray_replies_count: 0,
            ended: None,
        };
        Self { inbox: Mutex::new(inbox), arrived: Condvar::new() }
    }

    /// Locks the state.
    pub(crate) fn inbox(&self) -> MutexGuard<'_, Inbox<M, E>> {
        // No code here panics between two changes that belong together.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the threads that wait without reading the socket. The thread that reads it must be woken by
    /// an event.
    pub(crate) fn notify(&self) {
        self.arrived.notify_all();
    }

    /// Waits for the reply to the command with this `id`; returns `None` if it was cancelled. Otherwise
    /// as [`pump`](Self::pump).
    ///
    /// # Errors
    /// [`NothingCame`]; the command is then abandoned.
    pub(crate) fn answer(
        &self,
        id: u16,
        deadline: Option<Instant>,
        makes_room: bool,
        read: impl FnMut() -> Came<M, E>,
    ) -> Result<Option<M>, NothingCame> {
        let waited = self.pump(deadline, makes_room, read, |inbox| match inbox.pending.get(&id) {
            Some(Pending::Asked(_)) => None,
            Some(Pending::Cancelled { .. }) => Some(inbox.abandon(id)),
            _ => Some(inbox.pending.remove(&id)),
        });
        match waited {
            Ok(Some(Pending::Answered(reply))) => Ok(Some(reply)),
            Ok(_) => Ok(None),
            Err(why) => {
                self.inbox().abandon(id);
                Err(why)
            }
        }
    }

    /// Waits for the next command, in the order of arrival.
    ///
    /// # Errors
    /// [`NothingCame::Ended`].
    pub(crate) fn request(&self, read: impl FnMut() -> Came<M, E>) -> Result<M, NothingCame> {
        let request = self.pump(None, true, read, |inbox| {
            let request = inbox.requests.pop_front()?;
            inbox.requests_held_bytes -= request.held_bytes();
            inbox.requests_held_descriptors -= request.held_descriptors();
            Some(request)
        })?;
        // Other threads may read the socket again, now that the queue has room.
        self.notify();
        Ok(request)
    }

    /// Waits until `check` returns something, and calls `read` to read the socket while no other thread
    /// does. Set `makes_room` for the one thread that takes commands.
    fn pump<T>(
        &self,
        deadline: Option<Instant>,
        makes_room: bool,
        mut read: impl FnMut() -> Came<M, E>,
        mut check: impl FnMut(&mut Inbox<M, E>) -> Option<T>,
    ) -> Result<T, NothingCame> {
        let mut inbox = self.inbox();
        loop {
            if let Some(found) = check(&mut inbox) {
                return Ok(found);
            }
            if inbox.ended.is_some() {
                return Err(NothingCame::Ended);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(NothingCame::TimedOut);
            }
            if inbox.is_full() && makes_room {
                return Err(NothingCame::Flooded);
            }
            if inbox.is_read || inbox.is_full() {
                let arrived = &self.arrived;
                inbox = match left {
                    None => arrived.wait(inbox).unwrap_or_else(PoisonError::into_inner),
                    Some(left) => {
                        let waited = arrived.wait_timeout(inbox, left);
                        waited.unwrap_or_else(PoisonError::into_inner).0
                    }
                };
                continue;
            }
            inbox.is_read = true;
            drop(inbox);
            let came = read();
            inbox = self.inbox();
            inbox.is_read = false;
            inbox.file(came);
            self.notify();
        }
    }
}

impl<M: Letter, E> Inbox<M, E> {
    fn is_full(&self) -> bool {
        self.requests.len() >= QUEUED_REQUESTS_MAX
            || self.requests_held_bytes >= self.requests_bytes_max
            || self.requests_held_descriptors >= QUEUED_DESCRIPTORS_MAX
    }

    /// Drops the queued commands, at the end of the connection.
    pub(crate) fn forget_requests(&mut self) {
        self.requests.clear();
        self.requests_held_bytes = 0;
        self.requests_held_descriptors = 0;
    }

    /// Enters a command about `range` under an unused id, and returns the id, or `None` if there are too
    /// many commands without a reply.
    pub(crate) fn enter(&mut self, range: Range<u64>) -> Option<u16> {
        if self.pending.len() >= PENDING_MAX {
            return None;
        }
        while self.pending.contains_key(&self.next_id) {
            self.next_id = self.next_id.wrapping_add(1);
        }
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        self.pending.insert(id, Pending::Asked(range));
        Some(id)
    }

    /// Removes a command that was entered and not sent.
    pub(crate) fn forget(&mut self, id: u16) {
        self.pending.remove(&id);
    }

    /// Cancels the commands about any part of `range`, and returns their number. The caller must wake
    /// the threads that wait for them.
    pub(crate) fn cancel(&mut self, range: &Range<u64>) -> usize {
        let mut cancelled = 0;
        for pending in self.pending.values_mut() {
            if let Pending::Asked(asked) = pending
                && asked.start < range.end
                && range.start < asked.end
            {
                *pending = Pending::Cancelled { is_answered: false };
                cancelled += 1;
            }
        }
        cancelled
    }

    /// Ends the wait for `id`, and returns its state. The id is not used again before the client has
    /// answered.
    fn abandon(&mut self, id: u16) -> Option<Pending<M>> {
        let pending = self.pending.remove(&id);
        if let Some(Pending::Asked(_) | Pending::Cancelled { is_answered: false }) = pending {
            self.pending.insert(id, Pending::Abandoned);
        }
        pending
    }

    fn file(&mut self, came: Came<M, E>) {
        match came {
            Came::Message(message) => match message.reply_to() {
                Some(id) => match self.pending.get_mut(&id) {
                    Some(pending @ Pending::Asked(_)) => *pending = Pending::Answered(message),
                    // The thread that waited removes the entry itself.
                    Some(Pending::Cancelled { is_answered }) if !*is_answered => {
                        *is_answered = true;
                    }
                    Some(Pending::Abandoned) => drop(self.pending.remove(&id)),
                    Some(_) | None => self.stray_replies_count += 1,
                },
                None => {
                    self.requests_held_bytes += message.held_bytes();
                    self.requests_held_descriptors += message.held_descriptors();
                    self.requests.push_back(message);
                }
            },
            Came::Nothing => {}
            Came::End(why) => {
                self.ended.get_or_insert(why);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::rc::Rc;

    use super::*;

    /// A command with 16 descriptors.
    struct Command(#[expect(dead_code, reason = "counted, not looked at")] Rc<()>);

    impl Letter for Command {
        fn reply_to(&self) -> Option<u16> {
            None
        }

        fn held_bytes(&self) -> usize {
            1
        }

        fn held_descriptors(&self) -> usize {
            16
        }
    }

    #[test]
    fn few_descriptors_wait_and_none_after_the_end() {
        let mailbox: Mailbox<Command, ()> = Mailbox::new(usize::MAX);
        let alive = Rc::new(());
        let id = mailbox.inbox().enter(0..1).unwrap();
        let flood = || Came::Message(Command(Rc::clone(&alive)));
        let waited = mailbox.answer(id, None, true, flood);
        assert_eq!(waited.err(), Some(NothingCame::Flooded));
        assert_eq!(Rc::strong_count(&alive), 1 + QUEUED_DESCRIPTORS_MAX / 16);
        // Each command that is taken makes room for another.
        drop(mailbox.request(flood).unwrap());
        assert_eq!(mailbox.inbox().requests_held_descriptors, QUEUED_DESCRIPTORS_MAX - 16);
        mailbox.inbox().forget_requests();
        assert_eq!(Rc::strong_count(&alive), 1);
        assert!(!mailbox.inbox().is_full());
    }
}
