//! The Unix socket of a server, and the queue of its waiting clients.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use longshore_sys::account::Permit;
use longshore_sys::closing::{Disposable, User};
use longshore_sys::socket_lock::{SocketLock, remove_same};
use longshore_sys::unix_socket::{self, Interest, Ready};
use longshore_sys::{descriptors, event_fd, kept_descriptors};

use crate::client::served::Served;
use crate::client::stop::Stop;

/// The time until `accept(2)` is tried again after it failed for a lack of descriptors or memory.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// The interval at which the receive queues of waiting connections are checked.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The number of connections that are accepted before the waiting ones are checked.
const ACCEPTED_AT_ONCE_MAX: u32 = 16;
/// The maximum number of waiting connections, in all and for each user.
const WAITING_MAX: usize = 256;
const WAITING_PER_USER_MAX: usize = 64;
/// The number of sent bytes at which a waiting client is disconnected. The first message of each
/// protocol, after which the client waits for an answer, is much shorter.
const UNSERVED_BYTES_MAX: usize = 128 << 10;

/// A Unix socket that clients connect to. Dropping it removes its path.
#[derive(Debug)]
pub struct Listener {
    /// Closing it also closes the connections that were not accepted, with the descriptors queued on
    /// them.
    listener: Disposable<UnixListener>,
    path: PathBuf,
    /// The device and inode of the socket file.
    identity: (u64, u64),
    waiting: Mutex<Waiting>,
    /// Released after the socket's file is removed.
    lock: SocketLock,
}

/// The connections that were accepted and are not served yet.
#[derive(Debug, Default)]
struct Waiting {
    /// In the order in which they are served.
    clients: Vec<WaitingClient>,
    /// `true` while another client is served.
    is_serving: bool,
    /// The client that is served. Also `None` if there was no free descriptor for it.
    served: Option<Served>,
    /// The error if accepting has failed permanently.
    error: Option<io::Error>,
}

#[derive(Debug)]
struct WaitingClient {
    stream: Disposable<UnixStream>,
    /// Counts the descriptor of the stream.
    _descriptor: Permit,
}

impl Listener {
    /// Makes a socket at `path`. Replaces an existing socket there on which no process listens.
    ///
    /// A lock file beside the socket (`.lock`) belongs to this process, and is removed with the listener. It
    /// shows that a server was killed even if the kernel still has its socket, because a thread of it
    /// hangs.
    ///
    /// # Errors
    /// Those of `bind(2)` and of the lock file; `AddrInUse` if a process listens there, or if `path` is a
    /// file other than a socket.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let lock = SocketLock::take(path)?;
        let bound = UnixListener::bind(path).or_else(|error| {
            let is_deaf = || {
                // Do not wait: connections that are not accepted may fill the backlog.
                let tried = unix_socket::connect_at_once(path);
                tried.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
            };
            let is_dead = |there: Metadata| {
                there.file_type().is_socket() && (lock.names(&there) || is_deaf())
            };
            if error.kind() != io::ErrorKind::AddrInUse
                || !fs::symlink_metadata(path).is_ok_and(is_dead)
            {
                return Err(error);
            }
            fs::remove_file(path)?;
            UnixListener::bind(path)
        })?;
        bound.set_nonblocking(true)?;
        let name = fs::symlink_metadata(path)?;
        lock.name(&name);
        let listener = Disposable::new(bound);
        Ok(Self {
            listener,
            path: path.to_owned(),
            identity: (name.dev(), name.ino()),
            waiting: Mutex::default(),
            lock,
        })
    }

    /// Waits for the next client and returns its connection, or returns `None` after `stop` was used.
    /// While the process has no free descriptor, clients wait.
    ///
    /// # Errors
    /// Those of `accept(2)`.
    pub fn accept(&self, stop: &Stop) -> io::Result<Option<UnixStream>> {
        loop {
            if stop.is_stopped() {
                return Ok(None);
            }
            if let Some(client) = self.lock().take_first() {
                return Ok(Some(client));
            }
            match self.listener.accept() {
                Ok((stream, _)) => return Ok(Some(stream)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The client closed it before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) if unix_socket::is_for_now(&error) => {
                    unix_socket::wait(
                        stop.as_fd(),
                        Interest::Receive,
                        &[],
                        Some(Instant::now() + RETRY_AFTER),
                    )?;
                    continue;
                }
                Err(error) => return Err(error),
            }
            let listener = self.listener.as_fd();
            if let Ready::Event(_) =
                unix_socket::wait(listener, Interest::Receive, &[stop.as_fd()], None)?
            {
                return Ok(None);
            }
        }
    }

    /// Calls `serve` with one client after the other, until `stop` is used or `serve` fails.
    ///
    /// Meanwhile another thread accepts waiting clients. It disconnects a waiting client that sends
    /// descriptors: one of them can be the served client's end of its connection, which would then stay
    /// open for ever in a queue that is not read. For the same reason it disconnects a waiting client
    /// that has sent 128 KiB. At most 64 clients of a user wait, and 256 in all. Beyond that, the newest
    /// client of the user with the most is disconnected. While the process has no free descriptor,
    /// clients wait.
    ///
    /// Serve users who do not trust each other in separate processes. A client can make all threads of
    /// this process wait in the kernel whenever they map or unmap memory, for as long as it likes, and
    /// no code in the process can prevent that.
    ///
    /// # Errors
    /// Those of `serve` and `accept(2)`; the error if the thread cannot be started.
    pub fn serve_each(
        &self,
        stop: &Stop,
        mut serve: impl FnMut(UnixStream) -> io::Result<()>,
    ) -> io::Result<()> {
        let (over, arrived) = (Stop::new()?, event_fd::create()?);
        thread::scope(|scope| {
            // Also if `serve` panics.
            let _guard = StopOnDrop(&over);
            let watch = || self.watch(&over, &arrived);
            thread::Builder::new().name("waiting clients".to_owned()).spawn_scoped(scope, watch)?;
            while let Some(stream) = self.next(stop, &arrived)? {
                let result = serve(stream);
                let mut waiting = self.lock();
                waiting.is_serving = false;
                let served = waiting.served.take();
                drop(waiting);
                drop(served);
                result?;
            }
            Ok(())
        })
    }

    /// Waits for the next client that the other thread has accepted.
    fn next(&self, stop: &Stop, arrived: &OwnedFd) -> io::Result<Option<UnixStream>> {
        loop {
            if stop.is_stopped() {
                return Ok(None);
            }
            event_fd::drain(arrived)?;
            let mut waiting = self.lock();
            if let Some(client) = waiting.take_first() {
                waiting.is_serving = true;
                waiting.served = Served::new(&client).ok();
                return Ok(Some(client));
            }
            if let Some(error) = waiting.error.take() {
                return Err(error);
            }
            drop(waiting);
            unix_socket::wait(stop.as_fd(), Interest::Receive, &[arrived.as_fd()], None)?;
        }
    }

    /// Accepts clients until `over` is used.
    fn watch(&self, over: &Stop, arrived: &OwnedFd) {
        if let Err(error) = self.accept_all(over, arrived) {
            self.lock().error = Some(error);
            // A counter that is full is readable, too.
            let _ = event_fd::signal(arrived);
        }
    }

    fn accept_all(&self, over: &Stop, arrived: &OwnedFd) -> io::Result<()> {
        let mut scratch = vec![0; UNSERVED_BYTES_MAX];
        let mut accepted_count = 0;
        while !over.is_stopped() {
            // A client may connect without a pause.
            let is_turn_over = accepted_count == ACCEPTED_AT_ONCE_MAX;
            let is_accepting = !is_turn_over
                && (descriptors::has_room_for_message() || self.lock().clients.is_empty());
            accepted_count += 1;
            let accepted = is_accepting.then(|| self.listener.accept());
            let is_short = match accepted {
                Some(Ok((stream, _))) => {
                    let ended = self.lock().add(Disposable::new(stream));
                    drop(ended);
                    let _ = event_fd::signal(arrived);
                    continue;
                }
                Some(Err(error)) => match error.kind() {
                    io::ErrorKind::WouldBlock => false,
                    // The client closed it before it was accepted.
                    io::ErrorKind::ConnectionAborted => continue,
                    _ if unix_socket::is_for_now(&error) => true,
                    _ => return Err(error),
                },
                None => !is_turn_over,
            };
            accepted_count = 0;
            let ended = self.lock().take_those_with_descriptors(&mut scratch);
            drop(ended);
            self.lock().end_if_abandoned();
            if is_short {
                let retry = Some(Instant::now() + RETRY_AFTER);
                unix_socket::wait(over.as_fd(), Interest::Receive, &[], retry)?;
                continue;
            }
            let is_waiting = !self.lock().clients.is_empty();
            let look = is_waiting.then(|| Instant::now() + LOOK_EVERY);
            let listener = self.listener.as_fd();
            unix_socket::wait(listener, Interest::Receive, &[over.as_fd()], look)?;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Waiting {
    fn take_first(&mut self) -> Option<UnixStream> {
        (!self.clients.is_empty()).then(|| self.clients.remove(0).stream.into_inner())
    }

    /// Adds a client. If too many wait, returns the clients to drop: those that have hung up, and if
    /// that is not enough, the newest client of the user with the most.
    #[must_use]
    fn add(&mut self, stream: Disposable<UnixStream>) -> Vec<WaitingClient> {
        let added = stream.user();
        let _descriptor = kept_descriptors::keep_anyway(added, 1);
        self.clients.push(WaitingClient { stream, _descriptor });
        if self.user_with_too_many(added).is_none() {
            return Vec::new();
        }
        let has_gone = |it: &mut WaitingClient| unix_socket::has_hung_up(&it.stream);
        let mut ended: Vec<_> = self.clients.extract_if(.., has_gone).collect();
        let newest = self
            .user_with_too_many(added)
            .and_then(|user| self.clients.iter().rposition(|client| client.stream.user() == user));
        ended.extend(newest.map(|at| self.clients.remove(at).ended()));
        ended
    }

    /// Returns the user that must lose a client after `added` got one, if too many wait.
    fn user_with_too_many(&self, added: User) -> Option<User> {
        let mut counts = BTreeMap::<User, usize>::new();
        for client in &self.clients {
            *counts.entry(client.stream.user()).or_default() += 1;
        }
        if counts.get(&added).is_some_and(|count| *count > WAITING_PER_USER_MAX) {
            Some(added)
        } else if self.clients.len() > WAITING_MAX {
            counts.into_iter().max_by_key(|(_, count)| *count).map(|(user, _)| user)
        } else {
            None
        }
    }

    /// Removes the clients that may have descriptors in their receive queues, while another client is
    /// served. If none is served, the next client is served at once, and its queue is read.
    #[must_use]
    fn take_those_with_descriptors(&mut self, scratch: &mut [u8]) -> Vec<WaitingClient> {
        if !self.is_serving {
            return Vec::new();
        }
        let has_some =
            |it: &mut WaitingClient| unix_socket::may_have_descriptors(&it.stream, scratch);
        self.clients.extract_if(.., has_some).map(WaitingClient::ended).collect()
    }

    /// Ends the connection that is served if its client has exited and others wait.
    fn end_if_abandoned(&mut self) {
        if self.clients.is_empty() {
            return;
        }
        if let Some(served) = &mut self.served {
            served.end_if_abandoned(Instant::now());
        }
    }
}

impl WaitingClient {
    fn ended(self) -> Self {
        // The client may have closed it.
        let _ = self.stream.shutdown(Shutdown::Both);
        self
    }
}

/// Uses a [`Stop`] on drop, so that the other thread ends also if this one panics.
struct StopOnDrop<'s>(&'s Stop);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another listener may have replaced the file.
        if self.lock.is_of_this_process() {
            remove_same(&self.path, self.identity);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::BorrowedFd;
    use std::sync::mpsc;
    use std::thread;

    use longshore_sys::closing;

    use super::*;
    use crate::client::served;

    /// The timeout of each wait in a test.
    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn a_socket_whose_backlog_is_full_is_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let mut waiting = Vec::new();
        let full = loop {
            match unix_socket::connect_at_once(&path) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        let (bound, is_bound) = mpsc::channel();
        thread::spawn(move || bound.send(Listener::bind(&path).map(drop)));
        let refused = is_bound.recv_timeout(PATIENCE).expect("it waits for room").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn a_socket_that_the_kernel_keeps_for_a_killed_server_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let [path, lock] = ["socket", "socket.lock"].map(|name| dir.path().join(name));
        let [kept_path, kept_lock] = ["kept", "kept.lock"].map(|name| dir.path().join(name));
        let listener = Listener::bind(&path).unwrap();
        assert_eq!(Listener::bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // A hanging thread of the killed server still has the socket, but not the lock.
        let _socket = listener.listener.try_clone().unwrap();
        fs::hard_link(&path, &kept_path).unwrap();
        fs::hard_link(&lock, &kept_lock).unwrap();
        drop(listener);
        assert!(!path.exists() && !lock.exists());
        fs::rename(&kept_path, &path).unwrap();
        fs::rename(&kept_lock, &lock).unwrap();
        unix_socket::connect_at_once(&path).unwrap();
        // A process that another test has forked keeps the lock until it executes its program.
        let began = Instant::now();
        let listener = loop {
            match Listener::bind(&path) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    assert!(began.elapsed() < PATIENCE, "{error}");
                    thread::sleep(Duration::from_millis(10));
                }
                bound => break bound.unwrap(),
            }
        };
        drop(listener);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn waiting_clients_are_served_in_turn_except_those_that_have_sent_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let (listener, stop) = (Listener::bind(&path).unwrap(), Stop::new().unwrap());
        let (serving, is_serving) = mpsc::channel();
        thread::scope(|scope| {
            let end = stop.clone();
            let _end = StopOnDrop(&end);
            scope.spawn(|| {
                let serve = |mut stream: UnixStream| {
                    let mut first = [0];
                    stream.read_exact(&mut first)?;
                    serving.send(first[0]).unwrap();
                    stream.read_to_end(&mut Vec::new()).map(drop)
                };
                listener.serve_each(&stop, serve).unwrap();
            });
            let connect = |first: u8, descriptors: &[BorrowedFd<'_>]| {
                let stream = UnixStream::connect(&path).unwrap();
                unix_socket::send(&stream, &[first], &[]).unwrap();
                unix_socket::send(&stream, b"behind it", descriptors).unwrap();
                stream
            };
            let own = connect(1, &[]);
            assert_eq!(is_serving.recv_timeout(PATIENCE), Ok(1));
            let next = connect(2, &[]);
            let mut sender = connect(3, &[own.as_fd()]);
            let last = connect(4, &[]);
            drop((own, next, last));
            let mut served: Vec<_> = (0..2).map(|_| is_serving.recv_timeout(PATIENCE)).collect();
            served.sort_unstable_by_key(|it| it.ok());
            assert_eq!(served, [Ok(2), Ok(4)]);
            // The client that has sent a descriptor is disconnected without an answer.
            sender.set_read_timeout(Some(PATIENCE)).unwrap();
            assert!(matches!(sender.read(&mut [0]), Ok(0) | Err(_)));
        });
        assert!(is_serving.try_recv().is_err());
    }

    #[test]
    fn the_number_of_waiting_clients_of_a_user_is_limited() {
        let mut waiting = Waiting::default();
        let mut peers = Vec::new();
        let mut add = |waiting: &mut Waiting, uid| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            peers.push(theirs);
            waiting.add(Disposable::of_user(ours, User::from_uid(uid)))
        };
        for _ in 0..WAITING_PER_USER_MAX {
            assert!(add(&mut waiting, 1).is_empty());
        }
        let first = |ended: Vec<WaitingClient>| ended[0].stream.user();
        assert_eq!(first(add(&mut waiting, 1)), User::from_uid(1));
        for uid in 2..=(WAITING_MAX - WAITING_PER_USER_MAX + 1) as u32 {
            assert!(add(&mut waiting, uid).is_empty());
        }
        assert_eq!(first(add(&mut waiting, 1000)), User::from_uid(1));
        assert_eq!(waiting.clients.len(), WAITING_MAX);
    }

    #[test]
    fn clients_that_have_hung_up_take_no_place() {
        let mut waiting = Waiting::default();
        let mut add = |uid| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            (waiting.add(Disposable::of_user(ours, User::from_uid(uid))).len(), theirs)
        };
        for _ in 0..WAITING_PER_USER_MAX {
            assert_eq!(add(1).0, 0, "each has hung up");
        }
        let (ended, _last) = add(1);
        assert_eq!(ended, WAITING_PER_USER_MAX);
        assert_eq!(waiting.clients.len(), 1);
    }

    /// Connects and passes the connection on. The test below runs it in a process of its own.
    #[test]
    #[ignore = "a part of the test below"]
    fn connects_and_passes_the_connection_on() {
        let Some(path) = std::env::var_os(SOCKET) else { return };
        let stream = UnixStream::connect(Path::new(&path).join("device")).unwrap();
        let heir = UnixStream::connect(Path::new(&path).join("heir")).unwrap();
        unix_socket::send(&heir, b"x", &[stream.as_fd()]).unwrap();
    }

    /// The folder of that process's sockets.
    const SOCKET: &str = "LONGSHORE_TEST_SOCKETS";

    #[test]
    fn a_client_that_has_exited_is_disconnected_only_if_closing_threads_hang() {
        let dir = tempfile::tempdir().unwrap();
        let heir = UnixListener::bind(dir.path().join("heir")).unwrap();
        let (listener, stop) =
            (Listener::bind(&dir.path().join("device")).unwrap(), Stop::new().unwrap());
        let (serving, is_serving) = mpsc::channel();
        thread::scope(|scope| {
            let end = stop.clone();
            let _end = StopOnDrop(&end);
            scope.spawn(|| {
                let serve = |mut stream: UnixStream| {
                    serving.send(()).unwrap();
                    stream.read_to_end(&mut Vec::new()).map(drop)
                };
                listener.serve_each(&stop, serve).unwrap();
            });
            let name = "client::listener::tests::connects_and_passes_the_connection_on";
            let status = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name, "--include-ignored"])
                .env(SOCKET, dir.path())
                .stdout(std::process::Stdio::null())
                .status()
                .unwrap();
            assert!(status.success());
            is_serving.recv_timeout(PATIENCE).expect("the first client is served");
            // Its connection stays open in the queue of this socket, which is not read.
            let _queue = heir.accept().unwrap();
            let _next = UnixStream::connect(dir.path().join("device")).unwrap();
            let longer = served::HANGS_AFTER + Duration::from_secs(2);
            is_serving.recv_timeout(longer).expect_err("it may have passed its connection on");
            closing::exhaust(User::from_uid(4_000_000_021));
            is_serving.recv_timeout(longer).expect_err("another user's threads do not matter");
            closing::exhaust(User::own());
            is_serving.recv_timeout(PATIENCE).expect("the next client is served");
        });
    }
}
