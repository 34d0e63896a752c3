//! Bytes and descriptors over a Unix stream socket: `sendmsg(2)` and `recvmsg(2)` with
//! `SCM_RIGHTS`, and `poll(2)`. Nothing here blocks but [`wait`].

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// How many descriptors one call sends or, within a few, takes. The kernel closes what does not fit.
pub const DESCRIPTORS_MAX: usize = 64;

/// What one call took from a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// How many bytes; zero where the peer closed its end.
    pub len_bytes: usize,
    /// Whether descriptors were sent that are lost: more than [`DESCRIPTORS_MAX`], or more than
    /// this process may have.
    pub descriptors_lost: bool,
}

/// Sends what the socket takes at once; how many bytes that was. The descriptors go with the first
/// of them.
///
/// # Errors
/// `WouldBlock` where it takes none, `EPIPE` where the peer is gone (no signal is raised),
/// `InvalidInput` for more than [`DESCRIPTORS_MAX`] descriptors or for no byte.
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

/// Takes what is there, at most all of `into`. Descriptors that came with it are put behind those
/// that are in `descriptors`; they are closed on exec.
///
/// # Errors
/// `WouldBlock` where nothing is there; those of `recvmsg(2)`.
pub fn receive(
    socket: impl AsFd,
    into: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = crate::retry_interrupted(|| {
        Ok(rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(into)], &mut control, flags)?)
    })?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let descriptors_lost = received.flags.contains(ReturnFlags::CTRUNC);
    Ok(Received { len_bytes: received.bytes, descriptors_lost })
}

/// What to wait for at a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// That there is something to take, or the peer is gone.
    Receive,
    /// That it takes something, or the peer is gone.
    Send,
}

/// What a wait ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// The socket is as it was waited for.
    Socket,
    /// The event with this index among those given counts something. Events go before the socket.
    Event(usize),
    /// The time is over.
    TimedOut,
}

/// Waits for a socket, or for one of at most four events, which end the wait at once.
///
/// # Errors
/// Those of `poll(2)`; `InvalidInput` for more events.
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
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::event_fd;

    #[test]
    fn descriptors_come_with_the_bytes_they_were_sent_with() {
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
        event_fd::signal(&descriptors[0]).unwrap();
        assert_eq!(event_fd::drain(&event).unwrap(), 1);
        assert_eq!(receive(&theirs, &mut bytes, &mut descriptors).unwrap().len_bytes, 1);
        let nothing = receive(&theirs, &mut bytes, &mut descriptors).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        drop(ours);
        assert_eq!(receive(&theirs, &mut bytes, &mut descriptors).unwrap().len_bytes, 0);
    }

    #[test]
    fn too_many_descriptors_are_said_to_be_lost() {
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
    fn a_wait_ends_by_the_socket_an_event_or_the_time() {
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
