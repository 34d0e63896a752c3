//! Messages that came over a connection and were not yet taken by the thread that waits for them.
//!
//! A waiting thread reads the socket if no other thread does, sorts the messages, and wakes the
//! others. So a reply comes through while the server's thread is busy with a command, and a command
//! is not lost while that thread itself waits for a reply.
//!
//! There is no socket in here: `tests/loom_mailbox.rs` runs it with one of its own.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::Instant;

use longshore_sync::primitives::{Condvar, Mutex, MutexGuard, PoisonError};

/// Commands of the other side that wait while a reply is waited for.
const QUEUED_REQUESTS_MAX: usize = 64;
/// Descriptors of those commands.
const QUEUED_DESCRIPTORS_MAX: usize = 64;
/// What this end asked and has not been answered, also what nobody waits for any more.
const PENDING_MAX: usize = 1024;

/// What comes.
pub(crate) trait Letter {
    /// The id of what it answers, if it is an answer.
    fn reply_to(&self) -> Option<u16>;
    /// How much memory it holds, roughly.
    fn held_bytes(&self) -> usize;
    /// How many descriptors it holds.
    fn held_descriptors(&self) -> usize;
}

/// What reading the socket ended with.
#[derive(Debug)]
pub(crate) enum Came<M, E> {
    /// A message.
    Message(M),
    /// Nothing: an event or the time.
    Nothing,
    /// The end of the connection, and why.
    End(E),
}

/// Something asked of the other side.
#[derive(Debug)]
pub(crate) enum Pending<M> {
    /// About this range.
    Asked(Range<u64>),
    /// This is the answer.
    Answered(M),
    /// Who asked is told that it may not wait any longer.
    Cancelled {
        /// Whether the id is free at once.
        is_answered: bool,
    },
    /// Nobody waits any more; the id is free when the reply comes.
    Abandoned,
}

/// Why what was waited for did not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NothingCame {
    /// Not in time.
    TimedOut,
    /// The connection ended.
    Ended,
    /// Only the thread that waits could make room for what comes before.
    Flooded,
}

/// What came, and who reads the socket.
#[derive(Debug)]
pub(crate) struct Mailbox<M, E> {
    inbox: Mutex<Inbox<M, E>>,
    arrived: Condvar,
}

/// What came.
#[derive(Debug)]
pub(crate) struct Inbox<M, E> {
    is_read: bool,
    requests: VecDeque<M>,
    requests_held_bytes: usize,
    requests_held_descriptors: usize,
    requests_bytes_max: usize,
    pending: HashMap<u16, Pending<M>>,
    next_id: u16,
    /// How much the other side takes in one message; nothing before it said so.
    pub(crate) transfer_bytes_max: u32,
    /// Answers to nothing that was asked.
    pub(crate) stray_replies_count: u64,
    /// Why the connection ended, if it did.
    pub(crate) ended: Option<E>,
}

impl<M: Letter, E> Mailbox<M, E> {
    /// Where commands that wait hold no more than about `requests_bytes_max`.
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

    /// What came, to look at.
    pub(crate) fn inbox(&self) -> MutexGuard<'_, Inbox<M, E>> {
        // Nothing here panics between two changes that belong together.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has those look again who wait and do not read the socket. Who does must be woken by an event.
    pub(crate) fn notify(&self) {
        self.arrived.notify_all();
    }

    /// Waits for the answer to what was entered as `id`: `None` where it was cancelled. Otherwise as
    /// [`pump`](Self::pump).
    ///
    /// # Errors
    /// [`NothingCame`]; nobody waits for it any more then.
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

    /// Waits for a command, in the order in which they came.
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
        // There is room for another one now.
        self.notify();
        Ok(request)
    }

    /// Waits until `check` finds what it looks for, and calls `read` to read the socket as long as
    /// nobody does. Only the thread that `makes_room` takes commands.
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

    /// Drops the commands that wait, at the end of the connection.
    pub(crate) fn forget_requests(&mut self) {
        self.requests.clear();
        self.requests_held_bytes = 0;
        self.requests_held_descriptors = 0;
    }

    /// Enters that something is asked about `range`, under an id that nothing else has; `None` where
    /// too much is asked already.
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

    /// Forgets what was entered and not sent.
    pub(crate) fn forget(&mut self, id: u16) {
        self.pending.remove(&id);
    }

    /// Tells those who wait for an answer about any of `range` that they may not; how many they are.
    /// They must be woken.
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

    /// Nobody waits for `id` any longer; what is known of it. It is not used again before the
    /// other side has answered.
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
                    // Who was cancelled takes the entry away itself.
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
        // Each one that is taken makes room for another.
        drop(mailbox.request(flood).unwrap());
        assert_eq!(mailbox.inbox().requests_held_descriptors, QUEUED_DESCRIPTORS_MAX - 16);
        mailbox.inbox().forget_requests();
        assert_eq!(Rc::strong_count(&alive), 1);
        assert!(!mailbox.inbox().is_full());
    }
}
