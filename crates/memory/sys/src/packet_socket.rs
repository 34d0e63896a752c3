//! Unix sockets that preserve message boundaries (`SOCK_SEQPACKET`), with a descriptor in a message and
//! the credentials of the peer. No function here blocks.
#![expect(
    unsafe_code,
    reason = "gets the peer's credentials, which may have no process id, and calls an ioctl"
)]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::retry_interrupted;

/// The maximum length of a socket's path in bytes: `sun_path` without the terminating zero.
pub const PATH_BYTES_MAX: usize = 107;

/// The maximum number of descriptors in a message: `SCM_MAX_FD` of the kernel's `net/scm.h`.
pub const DESCRIPTORS_MAX: usize = 253;

/// The maximum number of messages that [`drain`] receives. For each message the kernel wakes all waiters of the
/// other end, of which the peer can have any number.
const DRAINED_MAX: usize = 4;

/// The credentials of the process at the other end of a socket, at the time when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process ID; 0 if the process is in a PID namespace that this process does not see.
    pub pid: u32,
    /// The user ID.
    pub uid: u32,
    /// The group ID.
    pub gid: u32,
}

/// A received message.
#[derive(Debug)]
pub struct Packet {
    /// The number of bytes; zero if the peer closed its end or sent an empty message.
    pub len_bytes: usize,
    /// `true` if it was longer than the buffer. The rest is lost.
    pub is_too_long: bool,
    /// The first of the descriptors that came with it, which is close-on-exec.
    pub descriptors: Vec<OwnedFd>,
    /// `true` if the message has more than one descriptor, if this process has no free descriptor for
    /// it, or if the message cannot be removed from the queue. It stays in the queue then.
    pub descriptors_lost: bool,
}

/// Makes a listening socket at `path`, which must not exist, with the permissions `mode`.
///
/// # Errors
/// `EADDRINUSE` if `path` exists, `ENAMETOOLONG` beyond [`PATH_BYTES_MAX`], `PermissionDenied` if
/// another process replaces the socket meanwhile; those of `bind(2)`, `listen(2)` and `chmod(2)`. After
/// an error the path is removed again.
pub fn listen(path: &Path, mode: u32, backlog: u16) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = new_socket()?;
    let mode = Mode::from_raw_mode(mode & 0o777);
    // The file is made with these permissions minus the umask, so it never has more permissions.
    rustix::fs::fchmod(&socket, mode)?;
    rustix::net::bind(&socket, &address)?;
    let listening = rustix::net::listen(&socket, i32::from(backlog))
        .map_err(io::Error::from)
        .and_then(|()| set_mode(path, mode));
    if let Err(error) = listening {
        // Report the first error only.
        let _ = rustix::fs::unlink(path);
        return Err(error);
    }
    Ok(socket)
}

/// Adds the permissions that the umask has removed from the socket at `path`, on which this process
/// listens.
///
/// Another user who can write to the directory can replace the socket at any moment. So the file is
/// opened once, without following a symbolic link, and its mode is changed only after a connection
/// has shown that this process listens on it.
fn set_mode(path: &Path, mode: Mode) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::open(path, flags, Mode::empty())?;
    let replaced = || {
        let reason = "another process has replaced the socket at its path";
        io::Error::new(io::ErrorKind::PermissionDenied, reason)
    };
    let status = rustix::fs::fstat(&found)?;
    if rustix::fs::FileType::from_raw_mode(status.st_mode) != rustix::fs::FileType::Socket {
        return Err(replaced());
    }
    if Mode::from_raw_mode(status.st_mode) == mode {
        return Ok(());
    }
    let link = format!("/proc/self/fd/{}", found.as_raw_fd());
    // The server accepts this connection later and finds it closed.
    let listener = connect(Path::new(&link)).and_then(peer)?;
    if listener.pid != std::process::id() {
        return Err(replaced());
    }
    Ok(rustix::fs::chmodat(rustix::fs::CWD, link.as_str(), mode, AtFlags::empty())?)
}

/// Returns `true` if a descriptor is a listening socket of this kind.
///
/// # Errors
/// Those of `getsockopt(2)`; `ENOTSOCK` if it is not a socket.
pub fn is_listening(socket: impl AsFd) -> io::Result<bool> {
    let socket = socket.as_fd();
    Ok(rustix::net::sockopt::socket_domain(socket)? == AddressFamily::UNIX
        && rustix::net::sockopt::socket_type(socket)? == SocketType::SEQPACKET
        && rustix::net::sockopt::socket_acceptconn(socket)?)
}

/// Makes a socket non-blocking.
///
/// # Errors
/// Those of `fcntl(2)`.
pub fn set_nonblocking(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(socket, true)?)
}

/// Connects to the server that listens at `path`.
///
/// # Errors
/// `ENOENT`; `ECONNREFUSED` if no process listens; `EACCES`; `EPROTOTYPE` if it is a socket of another
/// kind; `WouldBlock` if the backlog is full.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = new_socket()?;
    retry_interrupted(|| Ok(rustix::net::connect(&socket, &address)?))?;
    Ok(socket)
}

/// Accepts the next connection.
///
/// # Errors
/// `WouldBlock` if there is none; `EMFILE` or `ENFILE` if descriptors are exhausted.
pub fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = retry_interrupted(|| Ok(rustix::net::accept_with(&listener, flags)?))?;
    // If this fails, messages may look as if they had more than one descriptor.
    let _ = pass_rights_alone(&socket);
    Ok(socket)
}

/// Removes the first message from the queue. The kernel closes its descriptors, which must not be the
/// last ones of their files.
fn take(socket: impl AsFd) -> bool {
    let received = || Ok(rustix::net::recv(&socket, &mut [0; 1], RecvFlags::DONTWAIT)?);
    // If the peer closes its end before it has read everything, one call returns an error before the
    // remaining messages.
    (0..2).any(|_| retry_interrupted(received).is_ok())
}

/// Makes a Unix socket receive only descriptors as ancillary data, because other data would take their
/// room. A connection inherits these options from the listener, which may come from a service manager.
///
/// # Errors
/// Those of `setsockopt(2)`.
pub fn pass_rights_alone(socket: impl AsFd) -> io::Result<()> {
    /// `SO_PASSPIDFD` of `asm-generic/socket.h`, Linux 6.5.
    const PASSPIDFD: libc::c_int = 76;
    let socket = socket.as_fd();
    for option in [libc::SO_PASSCRED, libc::SO_PASSSEC, PASSPIDFD] {
        let off: libc::c_int = 0;
        // SAFETY: the value is an int, and the pointer to it is valid.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw const off).cast(),
                size_of_val(&off) as libc::socklen_t,
            )
        };
        let error = io::Error::last_os_error();
        // A kernel that does not know an option does not pass its data either.
        if set != 0 && error.raw_os_error() != Some(libc::ENOPROTOOPT) {
            return Err(error);
        }
    }
    Ok(())
}

/// Returns two connected sockets.
///
/// # Errors
/// Those of `socketpair(2)`, if descriptors are exhausted for example.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Returns the credentials of the peer.
///
/// # Errors
/// Those of `getsockopt(2)`.
pub fn peer(socket: impl AsFd) -> io::Result<Peer> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len_bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len_bytes` to `credentials`, which has that length, and every
    // bit pattern is valid for it.
    let asked = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len_bytes,
        )
    };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    let pid = u32::try_from(credentials.pid).unwrap_or(0);
    Ok(Peer { pid, uid: credentials.uid, gid: credentials.gid })
}

/// Sends one whole message, with a descriptor if one is given.
///
/// # Errors
/// `WouldBlock` if there is no room, `EPIPE` or `ECONNRESET` if the peer has closed its end (no signal
/// is raised), `EMSGSIZE`, `ETOOMANYREFS` if too many descriptors are in flight.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    retry_interrupted(|| {
        rustix::net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags)?;
        Ok(())
    })
}

/// A `struct cmsghdr` with one descriptor.
#[repr(align(8))]
struct ForOneDescriptor([MaybeUninit<u8>; 20]);
const _: () = assert!(size_of::<libc::cmsghdr>() + size_of::<libc::c_int>() == 20);

/// Receives one message, if it has at most one descriptor.
///
/// A message with more descriptors, or for which this process has no free descriptor, stays in the
/// queue, and [`Packet::descriptors_lost`] is `true`. If it were received, the kernel would close the
/// other descriptors on this thread, which may block for as long as their owner likes.
///
/// # Errors
/// `WouldBlock` if there is none; those of `recvmsg(2)`.
pub fn receive(socket: impl AsFd, into: &mut [u8]) -> io::Result<Packet> {
    // Use `CMSG_LEN`, because the kernel would use the padding of `CMSG_SPACE` for a second descriptor.
    let mut space = ForOneDescriptor([MaybeUninit::uninit(); 20]);
    let mut control = RecvAncillaryBuffer::new(&mut space.0);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC | RecvFlags::PEEK;
    let peeked = retry_interrupted(|| {
        Ok(rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(into)], &mut control, flags)?)
    })?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    // From here on, no error may drop the descriptor.
    let descriptors_lost = peeked.flags.contains(ReturnFlags::CTRUNC) || !take(&socket);
    Ok(Packet {
        len_bytes: peeked.bytes,
        is_too_long: peeked.flags.contains(ReturnFlags::TRUNC),
        descriptors,
        descriptors_lost,
    })
}

/// Returns `true` if the peer has not received everything that was sent on this socket, and has not
/// closed its end. Only then can sent descriptors still be in flight.
pub fn has_unreceived(socket: impl AsFd) -> bool {
    let mut unreceived_bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ, which is SIOCOUTQ, writes one int, and the pointer to it is valid.
    let asked = unsafe {
        libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut unreceived_bytes)
    };
    // If a sandbox forbids the call, do not treat well-behaved peers like others.
    asked == 0 && unreceived_bytes > 0
}

/// Returns `true` if an error of [`send`] means that the user of this process has more descriptors in
/// flight (sent and not received) than `RLIMIT_NOFILE`. The kernel counts those of all processes of the
/// user.
pub fn has_too_many_in_flight(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ETOOMANYREFS)
}

/// Shuts down a connection in both directions, so that the peer cannot send any more. Messages that it
/// sent before stay in the queue. A listening socket refuses connections from then on.
pub fn shut_down(socket: impl AsFd) {
    // It fails if the socket was never connected; then nothing was sent either.
    let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
}

/// Receives messages of a connection that was shut down, up to the first one with descriptors, whose
/// close may block for as long as the peer likes. Returns `true` if no message is left, so that closing
/// the connection neither blocks nor resets it. After a reset the peer gets an error before it can read
/// the last messages.
pub fn drain(socket: impl AsFd) -> bool {
    let socket = socket.as_fd();
    // Credentials distinguish an empty message from the end of the connection.
    let pass_credentials = |on| rustix::net::sockopt::set_socket_passcred(socket, on);
    if pass_credentials(true).is_err() {
        return false;
    }
    let is_drained = drain_some(socket);
    // Credentials would take the room of descriptors in later messages.
    let _ = pass_credentials(false);
    is_drained
}

fn drain_some(socket: BorrowedFd<'_>) -> bool {
    for _ in 0..DRAINED_MAX {
        match first_message(socket) {
            Ok(First::None) => return true,
            Ok(First::WithDescriptors) => return false,
            // An error of the connection is returned only once.
            Err(_) => {}
            Ok(First::WithoutDescriptors) => {
                let received = || Ok(rustix::net::recv(socket, &mut [0; 1], RecvFlags::DONTWAIT)?);
                let _ = retry_interrupted(received);
            }
        }
    }
    false
}

/// The first message in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    None,
    WithoutDescriptors,
    WithDescriptors,
}

/// Peeks at the first message in the queue of a socket that passes credentials.
fn first_message(socket: BorrowedFd<'_>) -> io::Result<First> {
    // Room for the credentials of `unix(7)`, and not for descriptors.
    let mut control = [0_u64; 4];
    let mut byte = 0_u8;
    let mut parts = [libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
    // SAFETY: all bytes may be zero, because the fields are integers and pointers.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    let peeked = retry_interrupted(|| {
        // SAFETY: the kernel writes at most `msg_controllen` bytes to the control buffer and one byte to
        // the only part, both of which live until the call returns.
        match unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    });
    match peeked {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(First::None),
        Err(error) => Err(error),
        // This flag means that there was no room for descriptors.
        Ok(()) if message.msg_flags & libc::MSG_CTRUNC != 0 => Ok(First::WithDescriptors),
        Ok(()) if message.msg_controllen > 0 => Ok(First::WithoutDescriptors),
        Ok(()) => Ok(First::None),
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::event_fd;

    #[test]
    fn messages_have_boundaries_and_carry_a_descriptor() {
        let (ours, theirs) = pair().unwrap();
        let event = event_fd::create().unwrap();
        send(&ours, b"first", Some(event.as_fd())).unwrap();
        send(&ours, b"second", None).unwrap();
        let mut bytes = [0; 5];
        let first = receive(&theirs, &mut bytes).unwrap();
        assert_eq!((first.len_bytes, &bytes, first.descriptors.len()), (5, b"first", 1));
        assert!(!first.is_too_long && !first.descriptors_lost);
        event_fd::signal(&first.descriptors[0]).unwrap();
        assert_eq!(event_fd::drain(&event).unwrap(), 1);
        let second = receive(&theirs, &mut bytes).unwrap();
        assert!(second.is_too_long && second.descriptors.is_empty());
        let nothing = receive(&theirs, &mut bytes).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        drop(ours);
        assert_eq!(receive(&theirs, &mut bytes).unwrap().len_bytes, 0);
        assert_eq!(send(&theirs, b"x", None).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn messages_before_the_first_descriptor_are_drained() {
        let (ours, theirs) = pair().unwrap();
        let (sent, other) = pair().unwrap();
        let is_open = || receive(&other, &mut [0]).is_err();
        send(&theirs, b"none", None).unwrap();
        send(&theirs, b"", None).unwrap();
        send(&theirs, b"", Some(sent.as_fd())).unwrap();
        send(&theirs, b"message", Some(sent.as_fd())).unwrap();
        drop(sent);
        shut_down(&ours);
        assert!(send(&theirs, b"more", None).is_err());
        assert!(!drain(&ours) && is_open(), "no descriptor was closed");
        for expected in [0, 7] {
            let packet = receive(&ours, &mut [0; 8]).unwrap();
            assert_eq!((packet.len_bytes, packet.descriptors.len()), (expected, 1));
        }
        assert!(!is_open() && drain(&ours));
        drop(ours);
        assert_eq!(receive(&theirs, &mut [0]).unwrap().len_bytes, 0, "no reset");
    }

    fn send_all(socket: &OwnedFd, descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        let flags = SendFlags::empty();
        rustix::net::sendmsg(socket, &[IoSlice::new(b"x")], &mut control, flags).unwrap();
    }

    #[test]
    fn a_message_with_many_descriptors_stays_in_the_queue() {
        let (ours, theirs) = pair().unwrap();
        let (sent, other) = pair().unwrap();
        let is_open = || receive(&other, &mut [0]).is_err();
        send_all(&theirs, &[sent.as_fd(); DESCRIPTORS_MAX]);
        drop(sent);
        for _ in 0..2 {
            let packet = receive(&ours, &mut [0]).unwrap();
            assert!(packet.descriptors_lost && packet.descriptors.len() == 1);
        }
        assert!(is_open(), "the others are in the queue");
        drop(ours);
        assert!(!is_open());
    }

    #[test]
    fn a_message_is_removed_even_if_the_peer_closes_its_end_meanwhile() {
        let (ours, theirs) = pair().unwrap();
        let event = event_fd::create().unwrap();
        send(&ours, b"not read", None).unwrap();
        send(&theirs, b"x", Some(event.as_fd())).unwrap();
        // The peer closes its end after the message was peeked at.
        drop(theirs);
        assert!(take(&ours), "the connection was reset");
        assert_eq!(receive(&ours, &mut [0]).unwrap().len_bytes, 0, "it was the only one");
    }

    #[test]
    fn a_descriptor_is_received_from_a_listener_that_passes_credentials() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = listen(&path, 0o600, 4).unwrap();
        rustix::net::sockopt::set_socket_passcred(&listener, true).unwrap();
        let theirs = connect(&path).unwrap();
        let ours = accept(&listener).unwrap();
        let event = event_fd::create().unwrap();
        send(&theirs, b"x", Some(event.as_fd())).unwrap();
        let before = receive(&ours, &mut [0]).unwrap();
        assert!(before.descriptors.len() == 1 && !before.descriptors_lost);
        send(&theirs, b"x", Some(event.as_fd())).unwrap();
        shut_down(&ours);
        assert!(!drain(&ours));
        let after = receive(&ours, &mut [0]).unwrap();
        assert!(after.descriptors.len() == 1 && !after.descriptors_lost, "after draining");
    }

    #[test]
    fn a_connection_that_the_peer_has_closed_is_drained() {
        for messages in [0, 2, DRAINED_MAX] {
            let (ours, theirs) = pair().unwrap();
            // The peer leaves this unread, so that the connection is reset.
            send(&ours, b"last", None).unwrap();
            for number in 0..messages {
                send(&theirs, if number % 2 == 0 { b"" } else { b"x" }, None).unwrap();
            }
            drop(theirs);
            shut_down(&ours);
            assert_eq!(drain(&ours), messages < DRAINED_MAX);
        }
    }

    #[test]
    fn unreceived_messages_are_reported_until_the_peer_closes_its_end() {
        let (ours, theirs) = pair().unwrap();
        let event = event_fd::create().unwrap();
        assert!(!has_unreceived(&ours));
        send(&ours, b"", Some(event.as_fd())).unwrap();
        assert!(has_unreceived(&ours) && !has_unreceived(&theirs));
        assert_eq!(receive(&theirs, &mut [0]).unwrap().descriptors.len(), 1);
        assert!(!has_unreceived(&ours));
        send(&ours, b"first", Some(event.as_fd())).unwrap();
        send(&ours, b"second", None).unwrap();
        receive(&theirs, &mut [0]).unwrap();
        shut_down(&ours);
        shut_down(&theirs);
        assert!(has_unreceived(&ours), "it can still be received");
        drop(theirs);
        assert!(!has_unreceived(&ours));
    }

    #[test]
    fn permissions_change_only_for_a_socket_of_this_process() {
        let dir = tempfile::tempdir().unwrap();
        let mode_of = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let (victim, path) = (dir.path().join("victim"), dir.path().join("socket"));
        let wanted = Mode::from_raw_mode(0o666);
        std::fs::write(&victim, b"secret").unwrap();
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&victim, private).unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        assert!(set_mode(&path, wanted).is_err(), "a symbolic link");
        std::fs::remove_file(&path).unwrap();
        std::fs::hard_link(&victim, &path).unwrap();
        assert!(set_mode(&path, wanted).is_err(), "another file");
        assert_eq!(mode_of(&victim), 0o600);
        std::fs::remove_file(&path).unwrap();
        let listener = listen(&path, 0o600, 4).unwrap();
        set_mode(&path, wanted).unwrap();
        assert_eq!(mode_of(&path), 0o666);
        drop(listener);
        set_mode(&path, Mode::from_raw_mode(0o600)).unwrap_err();
        assert_eq!(mode_of(&path), 0o666, "a socket on which this process does not listen");
    }

    #[test]
    fn a_listener_has_its_permissions_and_the_credentials_of_clients() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        let listener = listen(&path, 0o640, 4).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(is_listening(&listener).unwrap());
        assert_eq!(listen(&path, 0o600, 4).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(accept(&listener).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let client = connect(&path).unwrap();
        assert!(!is_listening(&client).unwrap());
        let served = accept(&listener).unwrap();
        let peer = peer(&served).unwrap();
        assert_eq!(peer.pid, std::process::id());
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        drop(listener);
        assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let long = dir.path().join("x".repeat(PATH_BYTES_MAX));
        assert_eq!(listen(&long, 0o600, 4).unwrap_err().kind(), io::ErrorKind::InvalidFilename);
    }
}
