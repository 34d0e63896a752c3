//! Connections that have ended, and whose clients have not received the memory that they were sent.
//!
//! The kernel limits how many descriptors all processes of the server's user have in flight: sent, and
//! not received. A descriptor stays in flight until the client receives it or closes its end, also if
//! the server closes its own. So such a connection takes one of the connections of its user until then:
//! descriptors in flight are never more than connections.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use longshore_sys::packet_socket;

use super::closers::{Closers, Pace, Queue};
use super::users::User;

/// How often the connections are looked at. The kernel reports nothing when a client closes its end of
/// one that is shut down.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The connections.
#[derive(Debug)]
pub(super) struct Unread {
    connections: Vec<Ended>,
    next_look: Option<Instant>,
}

/// A connection that was shut down.
#[derive(Debug)]
struct Ended {
    user: User,
    socket: OwnedFd,
    queue: Queue,
}

impl Ended {
    fn empty(&mut self, closers: &Closers) {
        if self.queue == Queue::Full {
            self.queue = closers.empty(self.user, &self.socket);
        }
    }

    fn close(self, closers: &Closers) {
        match self.queue {
            Queue::BeingEmptied => closers.dispose(self.user, self.socket),
            _ => closers.end(self.user, self.socket),
        }
    }
}

impl Unread {
    pub(super) fn new() -> Self {
        Self { connections: Vec::new(), next_look: None }
    }

    /// Shuts a connection of this user down, and counts it from now on.
    pub(super) fn end(&mut self, user: User, connection: OwnedFd, closers: &Closers, now: Instant) {
        let pace = closers.budget.spend(user, || closers.shut_down(&connection));
        let mut ended = Ended { user, socket: connection, queue: Queue::Full };
        if pace == Pace::Usual {
            ended.empty(closers);
        }
        self.connections.push(ended);
        self.next_look.get_or_insert(now + LOOK_EVERY);
    }

    /// Returns how many there are.
    pub(super) fn count(&self) -> usize {
        self.connections.len()
    }

    /// Returns how many there are of this user.
    pub(super) fn count_of(&self, user: User) -> usize {
        self.connections.iter().filter(|ended| ended.user == user).count()
    }

    /// Returns when they are to be looked at, if there are any.
    pub(super) fn next_time(&self) -> Option<Instant> {
        self.next_look
    }

    /// Closes the connections whose clients have received everything or have closed their ends.
    pub(super) fn end_read(&mut self, closers: &Closers, now: Instant) {
        let is_read = |ended: &mut Ended| !packet_socket::has_unreceived(&ended.socket);
        self.connections.extract_if(.., is_read).for_each(|ended| ended.close(closers));
        self.next_look = (!self.connections.is_empty()).then(|| now + LOOK_EVERY);
    }

    /// Closes the descriptors that are queued on the connections, as far as there was no thread for it before.
    pub(super) fn empty(&mut self, closers: &Closers) {
        self.connections.iter_mut().for_each(|ended| ended.empty(closers));
    }

    /// Closes all of them.
    pub(super) fn end_all(&mut self, closers: &Closers) {
        self.connections.drain(..).for_each(|ended| ended.close(closers));
        self.next_look = None;
    }
}
