//! Closing descriptors of untrusted processes without waiting for these processes.
//!
//! The last close of a socket can block for as long as its owner likes: a TCP socket with `SO_LINGER`
//! waits for its peer, and a Unix socket closes the descriptors that are queued on it. The kernel does
//! not wait for a peer if the closing thread is exiting. So descriptors are sent, as `SCM_RIGHTS`, to a
//! thread with its own descriptor table, which exits after it has received them:
//!
//! ```text
//!   main table                    table of the receiver          table of the exiting thread
//!   dispose ── SCM_RIGHTS ──────► (never receives itself) ────►  receive, exit: the kernel closes all
//!   then close the copies here
//! ```
//!
//! Two kinds of files can still delay an exiting thread for ever: a FUSE file in the queue of a socket,
//! if it has dirty data; and a pollable file (a socket, an eventfd, a DMA-buf) in an epoll whose lock
//! another process holds. So [`Disposals`] has only a few such threads for each user. If all of them are
//! delayed, one more thread receives further descriptors. It exits only when its table is full, or when
//! it finds that one of the others has ended.
//!
//! [`prepare`] starts the receiver, which keeps none of the process's descriptors open. These threads
//! use no descriptors of the standard library and run no signal handlers, because a descriptor number
//! refers to another file there, or to none.
#![expect(unsafe_code, reason = "gives threads their own descriptor tables")]

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketType, sockopt,
};

use crate::packet_socket::{self, DESCRIPTORS_MAX};
use crate::{descriptors, mapping, proc_self, retry_interrupted, signals};

use self::gate::{Gate, OpenGate};

mod gate;

/// The name of the threads.
const NAME: &str = "longshore-drop";
/// The stack of each thread, in bytes.
const STACK_BYTES: usize = 64 << 10;
/// The time after which the receiver tries again if no thread or memory is available.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// The number of errors of a connection that are ignored while its queue is emptied.
const ERRORS_MAX: u32 = 4;

/// The number of bytes of a stream that are received at once while its queue is emptied.
const STREAM_BYTES: usize = 4096;

/// The interval at which a [`Holder`] checks whether another thread has ended.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// The number of threads that may close descriptors of one user before further descriptors are held.
const THREADS_MAX: usize = 16;

/// The byte of a message whose descriptors are closed.
const CLOSE: u8 = 0;
/// The byte of a message with the socket of a [`Holder`].
const HOLD: u8 = 1;
/// The byte of a message with a connection whose queue is emptied.
const EMPTY: u8 = 2;

/// `None` if the receiver cannot be started: in a sandbox, before Linux 5.9, or without free
/// descriptors.
static RECEIVER: OnceLock<Option<Receiver>> = OnceLock::new();

/// The sending side of the receiver thread, which has no descriptors of this process.
#[derive(Debug)]
struct Receiver {
    socket: OwnedFd,
    /// The process that started the thread. A forked child has the socket, but not the thread.
    pid: u32,
    /// The messages that were sent but not received, in order.
    sent: Arc<Mutex<VecDeque<Sent>>>,
}

/// A message that was sent to the receiver.
#[derive(Debug)]
struct Sent {
    /// The id of the thread that receives it, which that thread stores here.
    thread: Arc<AtomicU32>,
    /// The thread exits only after the sender's copies of the descriptors are closed.
    gate: Arc<Gate>,
    /// The threads that were closing descriptors when a [`Holder`] was started, if the message has its
    /// socket.
    others: Option<Arc<[Disposal]>>,
}

/// This thread's copies of descriptors that other threads close. Dropping it closes the copies. Drop it
/// without a lock: each close walks the record locks of the file, which its owner can set. The other
/// threads wait for it.
#[derive(Debug, Default)]
#[must_use = "drop it without a lock"]
pub struct Copies(Vec<(Vec<OwnedFd>, OpenGate)>);

impl Copies {
    /// Adds other copies.
    pub fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }
}

/// A set of descriptors that are closed by their own thread.
#[derive(Clone, Debug)]
pub struct Disposal {
    /// The id of the thread; 0 until it has received the descriptors.
    thread: Arc<AtomicU32>,
}

impl Disposal {
    /// Returns a disposal that never ends, for tests.
    fn endless() -> Self {
        Self { thread: Arc::default() }
    }

    /// Returns `true` if all of the descriptors are closed. A file whose close waits for another process
    /// (a FUSE file in the queue of a socket, or an epoll) can delay that for ever.
    pub fn has_ended(&self) -> bool {
        // A thread disappears after its descriptors were closed. If another thread reuses the id, that
        // only delays the answer.
        match self.thread.load(Ordering::Acquire) {
            0 => false,
            id => !thread_exists(id),
        }
    }
}

/// Starts the receiver, if it was not started before, and keeps the entries of `/proc` that a server
/// needs in the kernel's cache. A server calls this before it has any descriptor of a client. Returns
/// `false` if the kernel refuses to start the receiver.
///
/// If another user holds the lock of a directory of `/proc` at this moment, this returns after about two
/// seconds. If it succeeds, threads that serve do not wait for that lock later.
///
/// # Errors
/// `TimedOut` if the entries of this process's directory were not found within two seconds. Threads that
/// serve would wait for the lock of that directory, so the server must not start. A user who holds the lock
/// before the process has begun `main` delays it instead. Also descriptors or memory exhausted.
pub fn prepare() -> io::Result<bool> {
    let prepared = proc_self::prepare();
    mapping::count_max();
    prepared.wait()?;
    Ok(receiver().is_some())
}

/// Closes descriptors without waiting for other processes: takes as many as possible out of
/// `descriptors`, and lets exiting threads close them. The caller must close the remaining ones by other
/// means; these are all if the kernel refuses `close_range(2)`, or if an unprivileged user has more
/// descriptors in flight than `RLIMIT_NOFILE`.
///
/// This is for files of which only the last close can block. It does not help with FUSE files, whose
/// closes can block even if they are not the last.
pub fn dispose(descriptors: &mut Vec<OwnedFd>) -> Vec<Disposal> {
    dispose_copies(descriptors, &mut Copies::default())
}

fn dispose_copies(descriptors: &mut Vec<OwnedFd>, copies: &mut Copies) -> Vec<Disposal> {
    let mut disposals = Vec::new();
    let Some(receiver) = receiver() else { return disposals };
    let most = room().clamp(1, DESCRIPTORS_MAX);
    while !descriptors.is_empty() {
        let first = descriptors.len().saturating_sub(most);
        let Ok(disposal) = receiver.dispose(descriptors, first, CLOSE, copies) else { break };
        disposals.push(disposal);
    }
    disposals
}

/// The descriptors of one user that are being closed.
#[derive(Debug, Default)]
pub struct Disposals {
    /// The disposals that may not have ended.
    threads: Vec<Disposal>,
    /// The holder of the descriptors that came while there were too many disposals.
    holder: Option<Holder>,
}

impl Disposals {
    /// Returns as many disposals as a user may have, which never end, for tests.
    #[doc(hidden)]
    pub fn endless() -> Self {
        Self { threads: (0..THREADS_MAX).map(|_| Disposal::endless()).collect(), holder: None }
    }

    /// Closes descriptors like [`dispose`], with a bounded number of threads. Also continues with
    /// descriptors that are held, if threads have ended since.
    pub fn dispose(&mut self, descriptors: &mut Vec<OwnedFd>) -> Copies {
        let mut copies = Copies::default();
        self.dispose_copies(descriptors, &mut copies);
        copies
    }

    /// Continues with descriptors that are held, if threads have ended since.
    pub fn proceed(&mut self) {
        // There are no copies without descriptors.
        drop(self.dispose(&mut Vec::new()));
    }

    fn dispose_copies(&mut self, descriptors: &mut Vec<OwnedFd>, copies: &mut Copies) {
        let is_closing = self.holder.as_ref().is_some_and(Holder::is_closing);
        if self.threads.len() >= THREADS_MAX {
            self.forget_ended();
        }
        if is_closing || self.threads.len() < THREADS_MAX {
            self.threads.extend(self.holder.take().map(Holder::close));
        }
        if self.threads.len() < THREADS_MAX {
            self.threads.extend(dispose_copies(descriptors, copies));
            return;
        }
        while !descriptors.is_empty() {
            let start = || Holder::start(&self.threads);
            let Some(mut holder) = self.holder.take().or_else(start) else { return };
            let before = descriptors.len();
            holder.take(descriptors, copies);
            match holder.is_full() {
                true => self.threads.push(holder.close()),
                false => self.holder = Some(holder),
            }
            if descriptors.len() == before {
                return;
            }
        }
    }

    /// Receives all messages in the queue of a connection that was shut down, in an exiting thread,
    /// which closes the descriptors that came with them. The other end of the same connection can be one
    /// of them. The connection remains open here. Returns `false` if no thread is available for now.
    pub fn empty(&mut self, connection: impl AsFd) -> bool {
        if self.threads.len() >= THREADS_MAX {
            self.forget_ended();
        }
        if self.threads.len() >= THREADS_MAX {
            return false;
        }
        // Dropping this copy does not block, because it is not the last one, and has no record locks.
        let copy = connection.as_fd().try_clone_to_owned().ok();
        let disposal = receiver().zip(copy).and_then(|(receiver, copy)| {
            receiver.dispose(&mut vec![copy], 0, EMPTY, &mut Copies::default()).ok()
        });
        let is_started = disposal.is_some();
        self.threads.extend(disposal);
        is_started
    }

    fn forget_ended(&mut self) {
        self.threads.retain(|disposal| !disposal.has_ended());
    }

    /// Returns the number of descriptors that wait for a thread to end.
    pub fn held(&self) -> usize {
        self.holder.as_ref().map_or(0, |holder| holder.count)
    }

    /// Returns `true` if all descriptors are closed.
    pub fn have_ended(&mut self) -> bool {
        self.forget_ended();
        if self.holder.as_ref().is_some_and(Holder::is_closing) {
            self.threads.extend(self.holder.take().map(Holder::close));
        }
        self.threads.is_empty() && self.holder.is_none()
    }
}

/// A thread that keeps descriptors open in its own table, so that they need neither further threads nor
/// descriptors of the process. When this is dropped, the thread closes them like [`dispose`].
#[derive(Debug)]
struct Holder {
    socket: OwnedFd,
    /// The number of descriptors that it has taken.
    count: usize,
    /// The maximum number of descriptors that it can take.
    max: usize,
    disposal: Disposal,
    gate: Arc<Gate>,
}

impl Holder {
    /// Starts a thread, which exits when one of the others has ended. Returns `None` if there is no
    /// receiver, or descriptors are exhausted.
    fn start(others: &[Disposal]) -> Option<Self> {
        let (socket, theirs) = packet_socket::pair().ok()?;
        // The sockets of the holder and of the receiver take two.
        let max = room().saturating_sub(2);
        let gate = Arc::<Gate>::default();
        let (others, copies) = (Some(others.into()), &mut Copies::default());
        let disposal =
            receiver()?.dispose_as(&mut vec![theirs], 0, HOLD, copies, &gate, others).ok()?;
        Some(Self { socket, count: 0, max, disposal, gate })
    }

    /// Returns `true` if the thread exits, and closes all descriptors that it was sent.
    fn is_closing(&self) -> bool {
        self.gate.is_closing()
    }

    /// Takes as many as possible out of `descriptors`: all of them, unless the holder is full or the
    /// kernel refuses them as in [`dispose`].
    fn take(&mut self, descriptors: &mut Vec<OwnedFd>, copies: &mut Copies) {
        while !descriptors.is_empty() && self.count < self.max {
            let Some(open) = self.gate.open() else { return };
            let most = (self.max - self.count).min(DESCRIPTORS_MAX);
            let first = descriptors.len().saturating_sub(most);
            if send(&self.socket, &descriptors[first..], CLOSE).is_err() {
                return;
            }
            self.count += descriptors.len() - first;
            copies.0.push((descriptors.split_off(first), open));
        }
    }

    fn is_full(&self) -> bool {
        self.count >= self.max
    }

    /// Makes the thread close all descriptors.
    fn close(self) -> Disposal {
        self.disposal.clone()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // The thread notices this even if a forked process has a copy of the socket.
        packet_socket::shut_down(&self.socket);
    }
}

/// Returns the receiver, unless it could not be started or this is a forked process without its thread.
fn receiver() -> Option<&'static Receiver> {
    let receiver = RECEIVER.get_or_init(|| start().ok()).as_ref();
    receiver.filter(|receiver| receiver.pid == std::process::id())
}

impl Receiver {
    /// Sends the descriptors from `first` on to a new thread, and moves the copies here to `copies`.
    fn dispose(
        &self,
        descriptors: &mut Vec<OwnedFd>,
        first: usize,
        how: u8,
        copies: &mut Copies,
    ) -> io::Result<Disposal> {
        self.dispose_as(descriptors, first, how, copies, &Arc::default(), None)
    }

    fn dispose_as(
        &self,
        descriptors: &mut Vec<OwnedFd>,
        first: usize,
        how: u8,
        copies: &mut Copies,
        gate: &Arc<Gate>,
        others: Option<Arc<[Disposal]>>,
    ) -> io::Result<Disposal> {
        let open = gate.open().ok_or(io::ErrorKind::Other)?;
        let thread = Arc::new(AtomicU32::new(0));
        let message = Sent { thread: Arc::clone(&thread), gate: Arc::clone(gate), others };
        // Hold the lock for both, so that the messages and their descriptions have the same order.
        let mut sent = lock(&self.sent);
        send(&self.socket, &descriptors[first..], how)?;
        sent.push_back(message);
        drop(sent);
        copies.0.push((descriptors.split_off(first), open));
        Ok(Disposal { thread })
    }
}

fn send(socket: &OwnedFd, descriptors: &[OwnedFd], how: u8) -> io::Result<()> {
    let rights: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&rights)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    retry_interrupted(|| {
        rustix::net::sendmsg(socket, &[IoSlice::new(&[how])], &mut control, flags)?;
        Ok(())
    })
}

fn start() -> io::Result<Receiver> {
    if cfg!(miri) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let (socket, theirs) = packet_socket::pair()?;
    let sent = Arc::new(Mutex::new(VecDeque::new()));
    let (number, for_thread) = (theirs.as_raw_fd(), Arc::clone(&sent));
    let (started, has_started) = mpsc::sync_channel(1);
    thread().spawn(move || receive_all(number, &for_thread, &started))?;
    // After this the thread has its own copy of the descriptor, or has failed.
    has_started.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
    drop(theirs);
    Ok(Receiver { socket, pid: std::process::id(), sent })
}

fn thread() -> thread::Builder {
    thread::Builder::new().name(NAME.to_owned()).stack_size(STACK_BYTES)
}

/// Leaves the descriptor table of the process, and then starts a thread for each message, which receives
/// it.
fn receive_all(
    number: RawFd,
    sent: &Arc<Mutex<VecDeque<Sent>>>,
    started: &SyncSender<io::Result<()>>,
) {
    // A signal handler may use descriptors, whose numbers refer to other files here.
    let result = signals::block_all().and_then(|()| leave_table(number));
    let is_started = result.is_ok();
    if started.send(result).is_err() || !is_started {
        return;
    }
    close_below(number);
    // SAFETY: this thread has its own descriptor table, in which the number is the socket and is never
    // closed.
    let socket = unsafe { BorrowedFd::borrow_raw(number) };
    loop {
        let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        let waited = retry_interrupted(|| Ok(rustix::event::poll(&mut polled, None)?));
        let is_gone = polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR);
        if waited.is_ok() && is_gone && !polled[0].revents().contains(PollFlags::IN) {
            return;
        }
        let (received, has_received) = mpsc::sync_channel(1);
        let sent = Arc::clone(sent);
        let started = thread().spawn(move || receive_one(number, &sent, &received));
        // Wait, so that the next thread does not find the same message.
        if waited.is_err() || started.is_err() || !has_received.recv().is_ok_and(|done| done) {
            thread::sleep(RETRY_AFTER);
        }
    }
}

/// Receives one message into a descriptor table that ends with this thread.
fn receive_one(number: RawFd, sent: &Mutex<VecDeque<Sent>>, received: &SyncSender<bool>) {
    if leave_table(number).is_err() {
        let _ = received.send(false);
        return;
    }
    // SAFETY: the table has the socket under this number until the thread exits.
    let socket = unsafe { BorrowedFd::borrow_raw(number) };
    let mut how = [CLOSE];
    let message = receive_kept(socket, &mut how);
    let mut description = None;
    if message.is_ok() {
        description = lock(sent).pop_front();
        if let Some(sent) = &description {
            let id = rustix::thread::gettid().as_raw_nonzero().get();
            sent.thread.store(id.unsigned_abs(), Ordering::Release);
        }
    }
    // Only now may another thread receive a message, and take the next description.
    let _ = received.send(message.is_ok());
    let (Ok((_, descriptors)), Some(description)) = (message, description) else { return };
    if let Some(&number) = descriptors.first() {
        // SAFETY: the socket was received into this thread's table and remains open.
        let socket = unsafe { BorrowedFd::borrow_raw(number) };
        match (how, description.others) {
            ([HOLD], Some(others)) => hold(socket, &others),
            ([EMPTY], _) => empty(socket),
            _ => {}
        }
    }
    description.gate.close();
}

/// Receives all messages of a connection that was shut down.
fn empty(socket: BorrowedFd<'_>) {
    let is_stream = sockopt::socket_type(socket) == Ok(SocketType::STREAM);
    let mut errors = 0;
    // A reset by the peer causes one error.
    while errors < ERRORS_MAX && (is_stream || !packet_socket::drain(socket)) {
        match receive_kept(socket, &mut [0; STREAM_BYTES]) {
            // A stream has no empty messages.
            Ok((0, _)) if is_stream => return,
            Ok(_) => {}
            Err(_) => errors += 1,
        }
    }
}

/// Receives all messages of a [`Holder`], until it is dropped or one of the other threads has ended.
/// Descriptors that are still queued are closed with the socket.
fn hold(socket: BorrowedFd<'_>, others: &[Disposal]) {
    while !others.iter().any(Disposal::has_ended) {
        let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        let waited = retry_interrupted(|| Ok(rustix::event::poll(&mut polled, Some(&LOOK_EVERY))?));
        match waited.and_then(|_| receive_kept(socket, &mut [0])) {
            Ok((0, _)) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// Receives one message. The descriptors that come with it remain open until the thread exits.
fn receive_kept(socket: impl AsFd, into: &mut [u8]) -> io::Result<(usize, Vec<RawFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    // Dropping this would close descriptors.
    let mut control = ManuallyDrop::new(RecvAncillaryBuffer::new(&mut space));
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = retry_interrupted(|| {
        Ok(rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(into)], &mut control, flags)?)
    })?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights.map(IntoRawFd::into_raw_fd));
        }
    }
    Ok((received.bytes, descriptors))
}

/// Returns the number of descriptors that a thread has room for. The kernel would close others before
/// the thread exits.
fn room() -> usize {
    // The socket takes one.
    usize::try_from(descriptors::limit()).unwrap_or(usize::MAX).saturating_sub(1)
}

/// Gives this thread its own descriptor table, with the descriptors of the old one up to `last`. The
/// others are not copied, so no descriptor has to be closed.
fn leave_table(last: RawFd) -> io::Result<()> {
    close_range(last.unsigned_abs() + 1, u32::MAX, libc::CLOSE_RANGE_UNSHARE)
}

/// Closes this thread's copies of the descriptors below `number`.
fn close_below(number: RawFd) {
    if let Some(last) = number.unsigned_abs().checked_sub(1) {
        // Descriptors that remain open here are never used.
        let _ = close_range(0, last, 0);
    }
}

/// Returns `true` if a thread of this process has this id. Signal 0 is not delivered. `/proc/self/task`
/// has the same information, but another user can delay a look-up there for as long as it likes (see
/// [`proc_self`]).
fn thread_exists(id: u32) -> bool {
    let process = rustix::process::getpid().as_raw_pid();
    // SAFETY: the call has no pointers, and signal 0 only checks that the thread exists.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, id, 0) };
    sent == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

fn close_range(first: u32, last: u32, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: the first call of a thread gives it its own table; that call and a second one close
    // descriptors only in that table. The descriptors of other threads stay open, and this thread
    // neither uses nor owns the closed ones.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn lock<T>(sent: &Mutex<T>) -> MutexGuard<'_, T> {
    sent.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, not(miri)))]
mod lingering;
#[cfg(all(test, not(miri)))]
mod tests;
