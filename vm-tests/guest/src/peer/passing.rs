//! One message with at most one descriptor, over a Unix socket.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde_json::Value;

const MESSAGE_BYTES_MAX: usize = 4096;

/// Creates two connected sockets that preserve message boundaries.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = SocketType::SEQPACKET;
    Ok(socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?)
}

/// Sends the parameters and `fd`.
pub(super) fn send(socket: impl AsFd, told: &Value, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let text = told.to_string();
    let descriptors: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("the space for one descriptor does not hold it"));
    }
    let parts = [IoSlice::new(text.as_bytes())];
    // NOSIGNAL: a peer that has ended is an error here, not a signal.
    let sent = sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL)?;
    if sent == text.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives a message of [`send`].
pub(super) fn receive(socket: impl AsFd) -> io::Result<(Value, Option<OwnedFd>)> {
    let mut text = [0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut text)];
    let received = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((serde_json::from_slice(&text[..received.bytes])?, descriptor))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read, Write},
    };

    use serde_json::json;

    use super::*;

    #[test]
    fn parameters_and_a_descriptor_arrive() {
        let (ours, theirs) = pair().unwrap();
        let (read_end, write_end) = io::pipe().unwrap();
        send(&ours, &json!({"seed": 7}), Some(write_end.as_fd())).unwrap();
        drop(write_end);
        let (told, fd) = receive(&theirs).unwrap();
        assert_eq!(told["seed"], 7);
        File::from(fd.unwrap()).write_all(b"through it").unwrap();
        let mut text = String::new();
        File::from(OwnedFd::from(read_end)).read_to_string(&mut text).unwrap();
        assert_eq!(text, "through it");
    }

    #[test]
    fn a_message_without_a_descriptor_has_none() {
        let (ours, theirs) = pair().unwrap();
        send(&ours, &json!([1, 2]), None).unwrap();
        let (told, fd) = receive(&theirs).unwrap();
        assert_eq!(told, json!([1, 2]));
        assert!(fd.is_none());
    }

    #[test]
    fn a_closed_sender_is_an_error() {
        let (ours, theirs) = pair().unwrap();
        drop(ours);
        assert!(receive(&theirs).is_err());
    }
}
