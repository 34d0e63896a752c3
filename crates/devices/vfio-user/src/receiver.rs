//! Reads messages from a stream of bytes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use longshore_sys::closing::{Disposable, User};
use longshore_sys::unix_socket::{self, Interest, Ready};

use crate::wire::{HEADER_LEN_BYTES, MessageHeader, MessageKind};

/// The descriptors that came with a message.
#[derive(Debug, Default)]
pub struct ReceivedFds {
    /// The descriptors.
    pub fds: Vec<OwnedFd>,
    /// `true` if some did not arrive: too many were sent, or this process has too many open.
    pub is_truncated: bool,
}

/// The descriptors of an untrusted process, which can delay their close.
#[derive(Debug, Default)]
pub(crate) struct Files {
    pub(crate) fds: Vec<Disposable<OwnedFd>>,
    pub(crate) is_truncated: bool,
}

impl From<ReceivedFds> for Files {
    /// Counts the closes for this process's own user, because the sender is not known.
    fn from(received: ReceivedFds) -> Self {
        let ReceivedFds { fds, is_truncated } = received;
        let fds = fds.into_iter().map(|file| Disposable::of_user(file, User::own())).collect();
        Self { fds, is_truncated }
    }
}

/// A whole message.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) header: MessageHeader,
    pub(crate) payload: Vec<u8>,
    pub(crate) files: Files,
    /// `true` if it was longer than the limit, and its payload was discarded.
    pub(crate) is_too_long: bool,
}

/// The result of one call of [`Receiver::receive`].
#[derive(Debug)]
pub(crate) enum Received {
    Message(Message),
    /// An event or the deadline came first; a part of a message that has arrived is kept.
    Interrupted,
    /// The other end closed the connection, or a message was not complete when it did.
    Closed {
        in_message: bool,
    },
    /// The bytes are not a message, so the boundaries of the following messages are unknown, too.
    Garbled(MessageHeader),
}

/// Reads messages from a stream. It never reads bytes of the next message together with one, so that
/// descriptors belong to the message that they arrived with.
#[derive(Debug)]
pub(crate) struct Receiver {
    payload_len_bytes_max: u32,
    files_max: usize,
    header: [u8; HEADER_LEN_BYTES],
    header_have_bytes: usize,
    payload: Vec<u8>,
    payload_have_bytes: usize,
    /// The bytes left to discard of a message that is too long.
    skip_bytes: u32,
    files: Files,
}

/// The number of reads after which events and the deadline are checked. A message that is too long can
/// have 4 GiB, and its sender need not pause.
const PARTS_MAX: u32 = 8;

/// The most bytes that are allocated for a payload before they arrive.
const PAYLOAD_STEP_BYTES: usize = 64 << 10;

impl Receiver {
    pub(crate) fn new(payload_len_bytes_max: u32, files_max: u32) -> Self {
        Self {
            payload_len_bytes_max,
            files_max: files_max as usize,
            header: [0; HEADER_LEN_BYTES],
            header_have_bytes: 0,
            payload: Vec::new(),
            payload_have_bytes: 0,
            skip_bytes: 0,
            files: Files::default(),
        }
    }

    /// Reads until a message is complete, or an event, the deadline or the end of the connection comes
    /// first.
    pub(crate) fn receive(
        &mut self,
        stream: &Disposable<UnixStream>,
        events: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
    ) -> io::Result<Received> {
        let mut parts_count = 0_u32;
        loop {
            match self.advance(stream) {
                Ok(Some(received)) => return Ok(received),
                Ok(None) => {
                    parts_count = parts_count.wrapping_add(1);
                    if !parts_count.is_multiple_of(PARTS_MAX) {
                        continue;
                    }
                    if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                        return Ok(Received::Interrupted);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Ok(Received::Closed { in_message: self.header_have_bytes > 0 });
                }
                Err(error) => return Err(error),
            }
            match unix_socket::wait(stream.as_fd(), Interest::Receive, events, deadline)? {
                Ready::Socket => {}
                Ready::Event(_) | Ready::TimedOut => return Ok(Received::Interrupted),
            }
        }
    }

    /// Reads the available bytes of the current part of a message.
    fn advance(&mut self, stream: &Disposable<UnixStream>) -> io::Result<Option<Received>> {
        let mut skipped = [0; 4096];
        let into = if self.header_have_bytes < HEADER_LEN_BYTES {
            &mut self.header[self.header_have_bytes..]
        } else if self.skip_bytes > 0 {
            let len_bytes = skipped.len().min(self.skip_bytes as usize);
            &mut skipped[..len_bytes]
        } else {
            &mut self.payload[self.payload_have_bytes..]
        };
        let arrived = &mut self.files.fds;
        let got = unix_socket::receive(stream, stream.user(), into, arrived, None)?;
        self.files.is_truncated |= got.descriptors_lost || self.files.fds.len() > self.files_max;
        // Each byte of a message may bring more descriptors.
        self.files.fds.truncate(self.files_max);
        if got.len_bytes == 0 {
            return Ok(Some(Received::Closed { in_message: self.header_have_bytes > 0 }));
        }
        if self.header_have_bytes < HEADER_LEN_BYTES {
            self.header_have_bytes += got.len_bytes;
            if self.header_have_bytes < HEADER_LEN_BYTES {
                return Ok(None);
            }
            let header = MessageHeader::decode(self.header);
            let (Some(len_bytes), Some(_)) = (header.payload_len_bytes(), header.kind()) else {
                return Ok(Some(Received::Garbled(header)));
            };
            if len_bytes > self.payload_len_bytes_max {
                self.skip_bytes = len_bytes;
                return Ok(None);
            }
        } else if self.skip_bytes > 0 {
            self.skip_bytes -= got.len_bytes as u32;
            if self.skip_bytes == 0 {
                return Ok(Some(Received::Message(self.take(true))));
            }
            return Ok(None);
        } else {
            self.payload_have_bytes += got.len_bytes;
        }
        let whole = MessageHeader::decode(self.header).payload_len_bytes().unwrap_or(0) as usize;
        if self.payload_have_bytes == whole {
            return Ok(Some(Received::Message(self.take(false))));
        }
        if self.payload_have_bytes == self.payload.len() {
            let next = self.payload.len() + PAYLOAD_STEP_BYTES.min(whole - self.payload.len());
            self.payload.resize(next, 0);
        }
        Ok(None)
    }

    fn take(&mut self, is_too_long: bool) -> Message {
        self.header_have_bytes = 0;
        self.payload_have_bytes = 0;
        Message {
            header: MessageHeader::decode(self.header),
            payload: std::mem::take(&mut self.payload),
            files: std::mem::take(&mut self.files),
            is_too_long,
        }
    }
}

impl Message {
    pub(crate) fn is_reply(&self) -> bool {
        self.header.kind() == Some(MessageKind::Reply)
    }

    /// Returns roughly how many bytes of memory it holds.
    pub(crate) fn held_bytes(&self) -> usize {
        size_of::<Self>() + self.payload.len() + 64 * self.files.fds.len()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use longshore_sys::event_fd;

    use super::*;
    use crate::wire::Command;

    /// Returns a socket with the beginning of a message of 4 GiB, and as much of it as the kernel
    /// buffers.
    fn much_too_long() -> (Disposable<UnixStream>, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        [&ours, &theirs].into_iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
        let mut header = MessageHeader::command(1, Command::Version, 0);
        header.len_bytes = u32::MAX;
        theirs.write_all(&header.encode()).unwrap();
        let mut sent_bytes = 0;
        while let Ok(len_bytes) = theirs.write(&[7; 32 << 10]) {
            sent_bytes += len_bytes;
        }
        assert!(sent_bytes > 40 << 10, "{sent_bytes}");
        (Disposable::new(ours), theirs)
    }

    fn is_empty(mut stream: &UnixStream) -> bool {
        stream.read(&mut [0]).is_err()
    }

    #[test]
    fn an_event_interrupts_the_reading_of_an_endless_message() {
        let (ours, _theirs) = much_too_long();
        let mut receiver = Receiver::new(4096, 8);
        let event = event_fd::create().unwrap();
        event_fd::signal(&event).unwrap();
        let received = receiver.receive(&ours, &[event.as_fd()], None).unwrap();
        assert!(matches!(received, Received::Interrupted), "{received:?}");
        assert!(!is_empty(&ours), "all bytes were read before the event");
    }

    #[test]
    fn the_deadline_interrupts_the_reading_of_an_endless_message() {
        let (ours, _theirs) = much_too_long();
        let mut receiver = Receiver::new(4096, 8);
        let received = receiver.receive(&ours, &[], Some(Instant::now())).unwrap();
        assert!(matches!(received, Received::Interrupted), "{received:?}");
        assert!(!is_empty(&ours), "all bytes were read after the deadline");
    }
}
