//! Connections to which descriptors are sent, with limits for each user.
//!
//! The kernel counts descriptors in flight (sent and not received) for the user of the sending process,
//! in all its processes, and refuses more than `RLIMIT_NOFILE`. They stay in flight until the peer
//! receives them or closes its end, even if this process closes its own end first. So a peer that does
//! not read could use up the descriptors of all others.
//!
//! A [`Stream`] sends a descriptor only if the peer has received everything before it, so each connection
//! has at most one message with descriptors in flight. A connection counts from the first descriptor
//! until the peer has received everything, also after the connection has ended:
//!
//! ```text
//!   all users        one user
//!   less than 64     16 connections
//!   64 to 255        1
//!   256              none: no descriptors are sent
//! ```
//!
//! An ended connection stays open while it counts, because only its socket shows that the peer has
//! received everything. An exiting thread empties its queue ([`crate::disposal`]): the peer's own end can
//! be in it, which would stay open as long as this one.

use std::io;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::account::Permit;
use crate::closing::{self, Disposable, User};
use crate::{kept_descriptors, packet_socket, unix_socket};

/// The maximum number of connections of one user that count.
const PER_USER_MAX: usize = 16;
/// The number of connections of all users from which each user may have at most one.
const SHARED_MAX: usize = 64;
/// The maximum number of connections of all users.
const MAX: usize = 256;

static CONNECTIONS: Mutex<Vec<Connection>> = Mutex::new(Vec::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// A connection that counts.
#[derive(Debug)]
struct Connection {
    id: u64,
    user: User,
    socket: Arc<Disposable<UnixStream>>,
    /// `true` while a thread sends a descriptor.
    is_sending: bool,
    ended: Option<Ended>,
}

#[derive(Debug)]
struct Ended {
    queue: Queue,
    /// Counts the socket.
    _permit: Permit,
}

/// The messages that the peer sent, and that this process did not receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    Full,
    Empty,
    /// An exiting thread receives them, and no other thread may.
    BeingEmptied,
}

/// A connection over which descriptors can be sent. Dropping it shuts the connection down, and closes it
/// as soon as it does not count any more.
#[derive(Debug)]
pub struct Stream {
    // This is dropped first.
    socket: Arc<Disposable<UnixStream>>,
    end: End,
}

/// Ends the connection with this identifier on drop.
#[derive(Debug)]
struct End(u64);

impl Stream {
    /// Takes a connection, which counts for the user at the other end.
    pub fn new(socket: Disposable<UnixStream>) -> Self {
        look();
        let end = End(NEXT_ID.fetch_add(1, Ordering::Relaxed));
        Self { socket: Arc::new(socket), end }
    }

    /// Sends bytes with descriptors, like [`unix_socket::send`].
    ///
    /// # Errors
    /// `WouldBlock` also if the peer has not received everything before; `ResourceBusy` if too many
    /// connections count; `ETOOMANYREFS` ([`packet_socket::has_too_many_in_flight`]); those of
    /// [`unix_socket::send`].
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
        if packet_socket::has_unreceived(&*self.socket) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let _sending = self.enter()?;
        unix_socket::send(&*self.socket, bytes, descriptors)
    }

    /// Counts this connection, while the returned value exists at least.
    fn enter(&self) -> io::Result<Sending> {
        let user = self.socket.user();
        let mut connections = lock();
        let received = take_received(&mut connections);
        let position = connections.iter().position(|connection| connection.id == self.end.0);
        let is_entered = match position {
            Some(at) => {
                connections[at].is_sending = true;
                true
            }
            None if has_room(connections.iter().map(|connection| connection.user), user) => {
                let (id, socket) = (self.end.0, Arc::clone(&self.socket));
                connections.push(Connection { id, user, socket, is_sending: true, ended: None });
                true
            }
            None => false,
        };
        drop(connections);
        close(received);
        if is_entered {
            return Ok(Sending(self.end.0));
        }
        Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            "too many connections have not received the descriptors that they were sent",
        ))
    }
}

impl Deref for Stream {
    type Target = Disposable<UnixStream>;

    fn deref(&self) -> &Disposable<UnixStream> {
        &self.socket
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        packet_socket::shut_down(&**self.socket);
    }
}

/// A descriptor that is being sent over the connection with this identifier.
struct Sending(u64);

impl Drop for Sending {
    fn drop(&mut self) {
        change(self.0, |connection| connection.is_sending = false);
    }
}

impl Drop for End {
    fn drop(&mut self) {
        change(self.0, |connection| {
            let _permit = kept_descriptors::keep_anyway(connection.user, 1);
            connection.ended = Some(Ended { queue: Queue::Full, _permit });
        });
        look();
    }
}

fn change(id: u64, change: impl FnOnce(&mut Connection)) {
    let mut connections = lock();
    connections.iter_mut().find(|connection| connection.id == id).map(change);
}

/// Closes the ended connections whose peers have received everything, and empties the queues of the
/// others. The kernel reports nothing when a peer receives, so call this from time to time.
pub fn look() {
    let mut connections = lock();
    let received = take_received(&mut connections);
    let mut full = Vec::new();
    for connection in &mut *connections {
        if let Some(ended) = &mut connection.ended
            && ended.queue == Queue::Full
        {
            // No other thread may empty it, too.
            ended.queue = Queue::BeingEmptied;
            full.push((connection.id, connection.user, Arc::clone(&connection.socket)));
        }
    }
    drop(connections);
    close(received);
    for (id, user, socket) in full {
        let queue = empty(user, &socket);
        change(id, |connection| {
            if let Some(ended) = &mut connection.ended {
                ended.queue = queue;
            }
        });
        release(socket, user, queue);
    }
}

fn empty(user: User, socket: &Disposable<UnixStream>) -> Queue {
    if closing::has_ended_empty(socket) {
        Queue::Empty
    } else if closing::empty(user, socket) {
        Queue::BeingEmptied
    } else {
        Queue::Full
    }
}

/// Removes the connections whose peers have received everything. The caller closes them after it has
/// released the lock.
#[must_use]
fn take_received(connections: &mut Vec<Connection>) -> Vec<Connection> {
    let is_received = |connection: &mut Connection| {
        !connection.is_sending && !packet_socket::has_unreceived(&**connection.socket)
    };
    connections.extract_if(.., is_received).collect()
}

fn close(connections: Vec<Connection>) {
    for Connection { user, socket, ended, .. } in connections {
        release(socket, user, ended.map_or(Queue::Full, |ended| ended.queue));
    }
}

/// Drops a socket. If this is the last reference to it, the socket is closed.
fn release(socket: Arc<Disposable<UnixStream>>, user: User, queue: Queue) {
    if let Some(socket) = Arc::into_inner(socket)
        && queue == Queue::BeingEmptied
    {
        // Dropping it would look into the queue.
        closing::close_without_waiting(user, vec![socket.into_inner().into()]);
    }
}

/// Returns `true` if another connection of `user` may count beside those of `users`.
fn has_room(users: impl Iterator<Item = User> + Clone, user: User) -> bool {
    let max = match users.clone().count() {
        0..SHARED_MAX => PER_USER_MAX,
        SHARED_MAX..MAX => 1,
        _ => 0,
    };
    users.filter(|other| *other == user).count() < max
}

fn lock() -> MutexGuard<'static, Vec<Connection>> {
    CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_until_full(users: &mut Vec<User>, uid: u32) -> usize {
        let user = User::from_uid(uid);
        let before = users.len();
        while has_room(users.iter().copied(), user) {
            users.push(user);
        }
        users.len() - before
    }

    #[test]
    fn a_user_may_have_sixteen_connections_and_one_after_the_shared_ones_are_used_up() {
        let mut users = Vec::new();
        for uid in 0..4 {
            assert_eq!(count_until_full(&mut users, uid), PER_USER_MAX);
        }
        for uid in 4..196 {
            assert_eq!(count_until_full(&mut users, uid), 1);
        }
        assert_eq!(users.len(), MAX);
        assert_eq!(count_until_full(&mut users, 1000), 0);
    }
}
