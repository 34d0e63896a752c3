//! Bytes and descriptors over a Unix stream socket: `sendmsg(2)` and `recvmsg(2)` with `SCM_RIGHTS`, and
//! `poll(2)`. Only [`wait`] blocks.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::answering::{DeviceLookUps, may_be_passed_on_with};
use crate::closing;
use crate::closing::Disposable;
use crate::user::User;
use crate::{descriptors, packet_socket};

/// The maximum number of descriptors that one call sends or passes on. Received descriptors beyond that
/// are closed.
pub const DESCRIPTORS_MAX: usize = 64;

/// The result of a call of [`receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The number of bytes; zero if the peer closed its end.
    pub len_bytes: usize,
    /// `true` if descriptors were lost, because there were more than [`DESCRIPTORS_MAX`] or more than
    /// this process may have.
    pub descriptors_lost: bool,
}

/// Sends as many bytes as the socket takes without blocking, and returns their number. The descriptors
/// are sent with the first byte.
///
/// # Errors
/// `WouldBlock` if the socket takes no byte, `EPIPE` if the peer has closed its end (no signal is
/// raised), `InvalidInput` if there are more than [`DESCRIPTORS_MAX`] descriptors or no bytes.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    if descriptors.len() > DESCRIPTORS_MAX || bytes.is_empty() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    crate::retry_interrupted(|| {
        Ok(rustix::net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags)?)
    })
}

/// Receives the available bytes, at most as many as `into` has room for. Appends the descriptors that
/// came with them to `descriptors`; they are close-on-exec.
///
/// Only descriptors for which [`crate::answering::may_be_passed_on`] returns `true` are passed on. If `sockets` is given,
/// Unix stream sockets are passed on as well, and appended to `sockets`. Reading or mapping other files
/// could block for ever; if one arrives, the call fails, and all descriptors are closed by
/// [`closing::close_without_waiting`]. The same happens to passed-on descriptors when they are dropped.
/// All descriptors are counted for `user`, the user at the other end or the one who sent this socket.
///
/// # Errors
/// `WouldBlock` if nothing is available; `InvalidData` for a descriptor that is not passed on;
/// `ResourceBusy` if a descriptor is in the queue of the socket while too many of this user are still
/// being closed; `EMFILE` if a descriptor is in the queue and this process does not have as many free
/// descriptors as a message can have; those of `recvmsg(2)`.
pub fn receive(
    socket: impl AsFd,
    user: User,
    into: &mut [u8],
    descriptors: &mut Vec<Disposable<OwnedFd>>,
    sockets: Option<&mut Vec<Disposable<UnixStream>>>,
) -> io::Result<Received> {
    let socket = socket.as_fd();
    let into = if !closing::may_receive(user) {
        let bytes = without_descriptors(socket, into, closing::too_many_closing);
        match bytes.map(|bytes| bytes.len()) {
            Ok(len_bytes) => &mut into[..len_bytes],
            Err(error) if error.kind() != io::ErrorKind::ResourceBusy => return Err(error),
            Err(error) if !closing::catch_up(user) => return Err(error),
            Err(_) => into,
        }
    } else if !descriptors::has_room_for_message() {
        // The kernel would close descriptors for which there is no room on this thread, which may block.
        without_descriptors(socket, into, || Errno::MFILE.into())?
    } else {
        into
    };
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(packet_socket::DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let receiving = closing::Receiving::begin(user);
    let received = crate::retry_interrupted(|| {
        Ok(rustix::net::recvmsg(socket, &mut [IoSliceMut::new(into)], &mut control, flags)?)
    });
    drop(receiving);
    let received = received?;
    let mut arrived = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            arrived.extend(rights);
        }
    }
    let mut descriptors_lost = received.flags.contains(ReturnFlags::CTRUNC);
    if !arrived.is_empty() {
        descriptors_lost |= arrived.len() > DESCRIPTORS_MAX;
        pass_on(arrived, user, descriptors, sockets, &mut DeviceLookUps::new())?;
    }
    Ok(Received { len_bytes: received.bytes, descriptors_lost })
}

/// Appends the first [`DESCRIPTORS_MAX`] of the received descriptors, or closes all if one of them is
/// not passed on. All together take at most two seconds, if another user delays look-ups.
fn pass_on(
    mut arrived: Vec<OwnedFd>,
    user: User,
    descriptors: &mut Vec<Disposable<OwnedFd>>,
    mut sockets: Option<&mut Vec<Disposable<UnixStream>>>,
    look_ups: &mut DeviceLookUps,
) -> io::Result<()> {
    let is_socket = |file: &OwnedFd| match may_be_passed_on_with(file, look_ups) {
        true => Some(false),
        false => (sockets.is_some() && is_stream(file).unwrap_or(false)).then_some(true),
    };
    let Some(are_sockets) = arrived.iter().map(is_socket).collect::<Option<Vec<bool>>>() else {
        closing::close_without_waiting(user, arrived);
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a descriptor was sent that is neither memory nor an eventfd (a socket, a pipe, a \
             device), or of a file that another process or machine may answer for (FUSE, a network \
             file system, /proc) or that has record locks (fcntl); send a memfd, or a file of tmpfs, \
             hugetlbfs or a disk, without locks",
        ));
    };
    if arrived.len() > DESCRIPTORS_MAX {
        closing::close_without_waiting(user, arrived.split_off(DESCRIPTORS_MAX));
    }
    for (file, is_socket) in arrived.into_iter().zip(are_sockets) {
        match &mut sockets {
            Some(sockets) if is_socket => sockets.push(Disposable::of_user(file.into(), user)),
            _ => descriptors.push(Disposable::of_user(file, user)),
        }
    }
    Ok(())
}

fn is_stream(file: &OwnedFd) -> io::Result<bool> {
    Ok(rustix::net::sockopt::socket_domain(file)? == AddressFamily::UNIX
        && rustix::net::sockopt::socket_type(file)? == SocketType::STREAM)
}

/// Returns the beginning of `into`, as long as the bytes that are in the queue. Fails with `refused` if
/// a descriptor comes with these bytes or directly after them: the kernel reports both in the same way.
/// Everything stays in the queue.
fn without_descriptors<'i>(
    socket: BorrowedFd<'_>,
    into: &'i mut [u8],
    refused: fn() -> io::Error,
) -> io::Result<&'i mut [u8]> {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let peeked = crate::retry_interrupted(|| {
        let mut control = RecvAncillaryBuffer::default();
        Ok(rustix::net::recvmsg(socket, &mut [IoSliceMut::new(into)], &mut control, flags)?)
    })?;
    // This flag means that there was no room for descriptors.
    if peeked.flags.contains(ReturnFlags::CTRUNC) {
        return Err(refused());
    }
    Ok(&mut into[..peeked.bytes])
}

/// Returns `true` if a descriptor is in the queue of a stream socket, or if the queue has at least as
/// many bytes as `scratch`, so that a descriptor may come after them. Everything stays in the queue.
pub fn may_have_descriptors(socket: impl AsFd, scratch: &mut [u8]) -> bool {
    let len_bytes = scratch.len();
    let refused = || io::ErrorKind::InvalidData.into();
    // A peek ends at a byte out of band, also if that is received inline.
    let queued = rustix::io::ioctl_fionread(&socket).unwrap_or(u64::MAX);
    match without_descriptors(socket.as_fd(), scratch, refused) {
        Ok(peeked) => peeked.len() == len_bytes || (peeked.len() as u64) < queued,
        Err(error) => error.kind() == io::ErrorKind::InvalidData,
    }
}

/// Returns `true` if the other end of a connection is closed, so that nothing more can be sent to it.
pub fn has_hung_up(socket: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&socket, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let asked = crate::retry_interrupted(|| Ok(rustix::event::poll(&mut polled, Some(&now))?));
    asked.is_ok() && polled[0].revents().contains(PollFlags::HUP)
}

/// Connects to the stream socket at `path` without waiting for room in its backlog.
///
/// # Errors
/// `WouldBlock` if the backlog is full, `ConnectionRefused` if no process listens; those of
/// `connect(2)`.
pub fn connect_at_once(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new(path)?;
    crate::retry_interrupted(|| Ok(rustix::net::connect(&socket, &address)?))?;
    Ok(socket.into())
}

/// Returns `true` if an error means that descriptors or memory are exhausted for now, so that the same
/// call may succeed later.
pub fn is_for_now(error: &io::Error) -> bool {
    let short = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    short.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// The condition to wait for at a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Data can be received, or the peer has closed its end.
    Receive,
    /// Data can be sent, or the peer has closed its end.
    Send,
}

/// The reason why a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// The socket fulfils the condition.
    Socket,
    /// The event with this index is signalled. Events take precedence over the socket.
    Event(usize),
    /// The deadline has passed.
    TimedOut,
}

/// Waits for a socket, or for one of at most four events.
///
/// # Errors
/// Those of `poll(2)`; `InvalidInput` for more than four events.
pub fn wait(
    socket: BorrowedFd<'_>,
    interest: Interest,
    events: &[BorrowedFd<'_>],
    deadline: Option<Instant>,
) -> io::Result<Ready> {
    const EVENTS_MAX: usize = 4;
    if events.len() > EVENTS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let wanted = match interest {
        Interest::Receive => PollFlags::IN,
        Interest::Send => PollFlags::OUT,
    };
    let mut polled: [PollFd<'_>; EVENTS_MAX + 1] =
        std::array::from_fn(|at| match at.checked_sub(1).and_then(|at| events.get(at)) {
            Some(event) => PollFd::from_borrowed_fd(*event, PollFlags::IN),
            None => PollFd::from_borrowed_fd(socket, wanted),
        });
    let polled = &mut polled[..=events.len()];
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match rustix::event::poll(polled, left.map(timespec).as_ref()) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(0) if left.is_none_or(|left| !left.is_zero()) => {}
            Ok(0) => return Ok(Ready::TimedOut),
            Ok(_) => break,
        }
    }
    let ready = polled[1..].iter().position(|event| !event.revents().is_empty());
    Ok(ready.map_or(Ready::Socket, Ready::Event))
}

fn timespec(left: Duration) -> Timespec {
    let tv_sec = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: left.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::closing::tests::Hung;
    use crate::event_fd;

    fn receive(
        socket: &UnixStream,
        into: &mut [u8],
        descriptors: &mut Vec<Disposable<OwnedFd>>,
    ) -> io::Result<Received> {
        super::receive(socket, User::of_peer(socket), into, descriptors, None)
    }

    #[test]
    fn descriptors_arrive_with_their_bytes() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let event = event_fd::create().unwrap();
        assert_eq!(send(&ours, b"first", &[]).unwrap(), 5);
        assert_eq!(send(&ours, b"second", &[event.as_fd()]).unwrap(), 6);
        let mut descriptors = Vec::new();
        let mut bytes = [0; 5];
        let first = receive(&theirs, &mut bytes, &mut descriptors).unwrap();
        assert_eq!((first.len_bytes, &bytes, descriptors.len()), (5, b"first", 0));
        let second = receive(&theirs, &mut bytes, &mut descriptors).unwrap();
        assert_eq!((second.len_bytes, &bytes, descriptors.len()), (5, b"secon", 1));
        event_fd::signal(&*descriptors[0]).unwrap();
        assert_eq!(event_fd::drain(&event).unwrap(), 1);
        assert_eq!(receive(&theirs, &mut bytes, &mut descriptors).unwrap().len_bytes, 1);
        let nothing = receive(&theirs, &mut bytes, &mut descriptors).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        drop(ours);
        assert_eq!(receive(&theirs, &mut bytes, &mut descriptors).unwrap().len_bytes, 0);
    }

    #[test]
    fn too_many_descriptors_are_reported_as_lost() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let event = event_fd::create().unwrap();
        let many = vec![event.as_fd(); DESCRIPTORS_MAX + 9];
        assert!(send(&ours, b"x", &many).is_err());
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX + 9))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        rustix::net::sendmsg(&ours, &[IoSlice::new(b"x")], &mut control, SendFlags::empty())
            .unwrap();
        let mut descriptors = Vec::new();
        let received = receive(&theirs, &mut [0; 4], &mut descriptors).unwrap();
        assert!(received.descriptors_lost && received.len_bytes == 1);
        assert!(descriptors.len() < many.len());
    }

    #[test]
    fn the_device_of_all_files_of_a_message_is_looked_up_once() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let mut look_ups = DeviceLookUps::with_look(|_| COUNT.fetch_add(1, Ordering::Relaxed) == 0);
        let file = tempfile::tempfile().unwrap();
        let files = (0..DESCRIPTORS_MAX).map(|_| file.try_clone().unwrap().into()).collect();
        let user = User::from_uid(4_000_000_008);
        let (mut passed, mut sockets) = (Vec::new(), Vec::new());
        pass_on(files, user, &mut passed, Some(&mut sockets), &mut look_ups).unwrap();
        assert_eq!((passed.len(), sockets.len()), (DESCRIPTORS_MAX, 0));
        assert!(COUNT.load(Ordering::Relaxed) <= 1);
    }

    #[test]
    fn a_received_socket_counts_for_the_user_that_sent_it() {
        let (hung, sender) = Hung::of(4_000_000_004);
        drop(hung);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let sent = UnixStream::pair().unwrap().0;
        send(&ours, b"x", &[sent.as_fd()]).unwrap();
        let (mut descriptors, mut sockets) = (Vec::new(), Vec::new());
        super::receive(&theirs, sender, &mut [0], &mut descriptors, Some(&mut sockets)).unwrap();
        assert_eq!((descriptors.len(), sockets.len()), (0, 1));
        assert_eq!(sockets[0].user(), sender);
        assert_ne!(User::of_peer(&sockets[0]), sender);
    }

    #[test]
    fn a_user_whose_closes_are_blocked_can_send_bytes_but_no_descriptors() {
        let (hung, hostile) = Hung::of(4_000_000_003);
        let other = User::of_peer(UnixStream::pair().unwrap().0);
        let event = event_fd::create().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut bytes = [0; 5];
        let mut descriptors = Vec::new();
        let mut take = |user| {
            super::receive(&theirs, user, &mut bytes, &mut descriptors, None).map(|it| it.len_bytes)
        };
        assert_eq!(take(hostile).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        send(&ours, b"first", &[]).unwrap();
        assert_eq!(take(hostile).unwrap(), 5);
        send(&ours, b"second", &[event.as_fd()]).unwrap();
        for _ in 0..2 {
            assert_eq!(take(hostile).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        }
        assert_eq!(take(other).unwrap(), 5, "another user is received from");
        assert_eq!(take(hostile).unwrap(), 1, "the rest of the bytes has no descriptor");
        send(&ours, b"third", &[event.as_fd()]).unwrap();
        assert_eq!(take(hostile).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        drop(hung);
        assert_eq!(take(hostile).unwrap(), 5);
        drop(ours);
        assert_eq!(take(hostile).unwrap(), 0);
        assert_eq!(descriptors.len(), 2);
    }

    #[test]
    fn descriptors_after_a_byte_out_of_band_are_detected() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let looks = |ours: &UnixStream| may_have_descriptors(ours, &mut [0; 64]);
        assert!(!looks(&ours));
        rustix::net::send(&theirs, b"abc", SendFlags::empty()).unwrap();
        assert!(!looks(&ours));
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let rights = [theirs.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&rights)));
        let byte = [IoSlice::new(b"x")];
        match rustix::net::sendmsg(&theirs, &byte, &mut control, SendFlags::OOB) {
            Ok(_) => assert!(looks(&ours)),
            Err(error) => println!("SKIPPED: no bytes out of band on Unix sockets: {error}"),
        }
    }

    #[test]
    fn a_wait_ends_by_the_socket_an_event_or_the_deadline() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let event = event_fd::create().unwrap();
        let wait_for = |interest, deadline| {
            wait(theirs.as_fd(), interest, &[event.as_fd()], deadline).unwrap()
        };
        assert_eq!(wait_for(Interest::Receive, Some(Instant::now())), Ready::TimedOut);
        assert_eq!(wait_for(Interest::Send, None), Ready::Socket);
        send(&ours, b"x", &[]).unwrap();
        assert_eq!(wait_for(Interest::Receive, None), Ready::Socket);
        event_fd::signal(&event).unwrap();
        assert_eq!(wait_for(Interest::Receive, None), Ready::Event(0));
    }
}
