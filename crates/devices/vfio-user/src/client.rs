//! A client: connects to a server, drives its device and gives it memory.
//!
//! The tests of this crate drive servers with it. It can also try a device without a virtual machine.
//! One thread uses it, and waits for each reply.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use longshore_sys::closing::Disposable;
use longshore_sys::unix_socket::{self, Interest, Ready};

use crate::Errno;
use crate::link::REPLY_TIMEOUT_DEFAULT;
use crate::negotiation::{Capabilities, VERSION_MAJOR, VERSION_MINOR};
use crate::receiver::{Message, Received, Receiver};
use crate::wire::{
    Command, DeviceInfo, DmaAccess, DmaMap, DmaUnmap, IrqData, IrqInfo, MessageHeader,
    RegionAccess, RegionInfo, Request, SetIrqs,
};

/// Memory that the server reads and writes by messages.
pub trait DmaMemory {
    /// Reads at `iova`.
    ///
    /// # Errors
    /// The error that is sent to the server.
    fn read(&mut self, iova: u64, into: &mut [u8]) -> Result<(), Errno>;

    /// Writes at `iova`.
    ///
    /// # Errors
    /// The error that is sent to the server.
    fn write(&mut self, iova: u64, from: &[u8]) -> Result<(), Errno>;
}

/// No memory: every access is refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDmaMemory;

impl DmaMemory for NoDmaMemory {
    fn read(&mut self, _: u64, _: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::EFAULT)
    }

    fn write(&mut self, _: u64, _: &[u8]) -> Result<(), Errno> {
        Err(Errno::EFAULT)
    }
}

/// The error of a client's call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The server sent this error.
    #[error("the server {0}")]
    Refused(Errno),
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// The server did not answer in time.
    #[error("the server did not answer within {0:?}")]
    TimedOut(Duration),
    /// The server sent a message that is not valid.
    #[error("unexpected message from the server: {0:?}")]
    UnexpectedReply(MessageHeader),
    /// The socket failed.
    #[error("the socket to the server failed")]
    Io(#[from] io::Error),
}

impl From<Errno> for ClientError {
    fn from(errno: Errno) -> Self {
        Self::Refused(errno)
    }
}

/// The reply to a command.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Reply {
    /// The payload.
    pub payload: Vec<u8>,
    /// The descriptors.
    pub fds: Vec<OwnedFd>,
}

/// A connection to a server.
#[derive(Debug)]
pub struct Client<M = NoDmaMemory> {
    stream: Disposable<UnixStream>,
    receiver: Receiver,
    memory: M,
    next_id: u16,
    timeout: Duration,
    server: Capabilities,
}

impl<M: DmaMemory> Client<M> {
    /// Connects to the socket at `path` and negotiates the version.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn connect(path: &Path, memory: M) -> Result<Self, ClientError> {
        Self::from_stream(UnixStream::connect(path)?, memory)
    }

    /// Negotiates the version over a connected socket.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn from_stream(stream: UnixStream, memory: M) -> Result<Self, ClientError> {
        let mut client = Self::without_negotiation(stream, memory);
        client.negotiate(&Capabilities::DEFAULT)?;
        Ok(client)
    }

    /// Makes a client that has not proposed a version yet: call [`negotiate`](Self::negotiate) first.
    pub fn without_negotiation(stream: UnixStream, memory: M) -> Self {
        let limits = Capabilities::DEFAULT;
        // The request bounds each reply, and the negotiated limits bound commands.
        let payload_bytes_max = limits.transfer_bytes_max.saturating_add(64 << 10);
        Self {
            stream: Disposable::new(stream),
            receiver: Receiver::new(payload_bytes_max, limits.message_fds_max),
            memory,
            next_id: 0,
            timeout: REPLY_TIMEOUT_DEFAULT,
            server: Capabilities::UNSPECIFIED,
        }
    }

    /// Proposes a version and `capabilities`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn negotiate(&mut self, capabilities: &Capabilities) -> Result<(), ClientError> {
        let capabilities = capabilities.encode();
        let (major, minor) = (VERSION_MAJOR, VERSION_MINOR);
        let request = Request::Version { major, minor, capabilities: &capabilities };
        let answer = self.request(&request, &[])?;
        let Request::Version { major: VERSION_MAJOR, minor, capabilities } =
            Request::parse(Command::Version.number(), &answer.payload)?
        else {
            return Err(Errno::EINVAL.into());
        };
        self.server = Capabilities::parse(capabilities)?;
        if minor > VERSION_MINOR { Err(Errno::EINVAL.into()) } else { Ok(()) }
    }

    /// Sets how long to wait for a reply, instead of [`REPLY_TIMEOUT_DEFAULT`].
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Returns the capabilities of the server.
    pub fn server_capabilities(&self) -> &Capabilities {
        &self.server
    }

    /// Returns the memory that the server accesses by messages.
    pub fn memory(&mut self) -> &mut M {
        &mut self.memory
    }

    /// Returns the description of the device.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn device_info(&mut self) -> Result<DeviceInfo, ClientError> {
        let answer = self.request(&Request::DeviceGetInfo { argsz: 16 }, &[])?;
        Ok(DeviceInfo::parse(&answer.payload)?)
    }

    /// Returns the description of a region, and the file to map it from.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn region_info(
        &mut self,
        index: u32,
    ) -> Result<(RegionInfo, Option<OwnedFd>), ClientError> {
        let mut argsz = super::wire::REGION_INFO_LEN_BYTES;
        loop {
            let request = Request::DeviceGetRegionInfo { argsz, index };
            let mut answer = self.request(&request, &[])?;
            let info = RegionInfo::parse(&answer.payload)?;
            if info.argsz <= argsz {
                return Ok((info, answer.fds.pop()));
            }
            // Areas were left out. A server's reply is never longer than this.
            if info.argsz > 64 << 10 {
                return Err(Errno::EMSGSIZE.into());
            }
            argsz = info.argsz;
        }
    }

    /// Returns the description of a kind of interrupts.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn irq_info(&mut self, index: u32) -> Result<IrqInfo, ClientError> {
        let answer = self.request(&Request::DeviceGetIrqInfo { argsz: 16, index }, &[])?;
        Ok(IrqInfo::parse(&answer.payload)?)
    }

    /// Attaches `events` to the interrupts of a kind from `start` on.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn set_irq_events(
        &mut self,
        index: u32,
        start: u32,
        events: &[BorrowedFd<'_>],
    ) -> Result<(), ClientError> {
        let (action, count) = (SetIrqs::TRIGGER, events.len() as u32);
        let set = SetIrqs { action, index, start, count, data: IrqData::EventFds };
        self.request(&Request::DeviceSetIrqs(set), events).map(drop)
    }

    /// Gives the server memory: `file` from `offset` on, or memory that it accesses by messages if
    /// `file` is `None`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn dma_map(
        &mut self,
        iova: u64,
        len_bytes: u64,
        file: Option<(BorrowedFd<'_>, u64)>,
        writable: bool,
    ) -> Result<(), ClientError> {
        let flags = if writable { DmaMap::READ | DmaMap::WRITE } else { DmaMap::READ };
        let offset = file.map_or(0, |(_, offset)| offset);
        let files: Vec<_> = file.iter().map(|(file, _)| *file).collect();
        let map = DmaMap { flags, offset, iova, len_bytes };
        self.request(&Request::DmaMap(map), &files).map(drop)
    }

    /// Unmaps memory.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn dma_unmap(&mut self, iova: u64, len_bytes: u64) -> Result<(), ClientError> {
        let argsz = DmaUnmap::LEN_BYTES;
        let unmap = DmaUnmap { argsz, flags: 0, iova, len_bytes };
        self.request(&Request::DmaUnmap(unmap), &[]).map(drop)
    }

    /// Reads from a region, at most the server's largest transfer.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn region_read(
        &mut self,
        region: u32,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), ClientError> {
        let count = u32::try_from(into.len()).map_err(|_| Errno::EMSGSIZE)?;
        let answer = self.request(&Request::RegionRead { offset, region, count }, &[])?;
        let access = RegionAccess::parse(&answer.payload)?;
        if access.data.len() != into.len() {
            return Err(Errno::EINVAL.into());
        }
        into.copy_from_slice(access.data);
        Ok(())
    }

    /// Writes to a region, at most the server's largest transfer.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn region_write(
        &mut self,
        region: u32,
        offset: u64,
        data: &[u8],
    ) -> Result<(), ClientError> {
        self.request(&Request::RegionWrite { offset, region, data }, &[]).map(drop)
    }

    /// Resets the device.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn reset(&mut self) -> Result<(), ClientError> {
        self.request(&Request::DeviceReset, &[]).map(drop)
    }

    /// Sends any command and waits for its reply. Commands of the server that arrive meanwhile are
    /// answered.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn request(
        &mut self,
        request: &Request<'_>,
        files: &[BorrowedFd<'_>],
    ) -> Result<Reply, ClientError> {
        let payload = request.encode();
        let header = MessageHeader::command(self.next_id, request.command(), payload.len());
        self.next_id = self.next_id.wrapping_add(1);
        self.send(&[&header.encode()[..], &payload].concat(), files)?;
        let deadline = Instant::now() + self.timeout;
        loop {
            let message = self.receive(deadline)?.ok_or(ClientError::TimedOut(self.timeout))?;
            if message.is_too_long {
                return Err(ClientError::UnexpectedReply(message.header));
            }
            if !message.is_reply() {
                self.answer(&message)?;
                continue;
            }
            let came = message.header;
            if (came.id, came.command) != (header.id, header.command) {
                return Err(ClientError::UnexpectedReply(came));
            }
            return match came.error() {
                Some(0) => Err(Errno::EIO.into()),
                Some(errno) => Err(Errno::from_raw(errno).into()),
                None => {
                    let fds = message.files.fds.into_iter().map(Disposable::into_inner).collect();
                    Ok(Reply { payload: message.payload, fds })
                }
            };
        }
    }

    /// Sends bytes as they are, without checks.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn send(&mut self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        let (mut bytes, mut files) = (bytes, files);
        let deadline = Instant::now() + self.timeout;
        while !bytes.is_empty() {
            match unix_socket::send(&self.stream, bytes, files) {
                Ok(sent) => (bytes, files) = (&bytes[sent..], &[]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let socket = self.stream.as_fd();
                    let ready = unix_socket::wait(socket, Interest::Send, &[], Some(deadline))?;
                    if ready == Ready::TimedOut {
                        return Err(ClientError::TimedOut(self.timeout));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    return Err(ClientError::Closed);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Answers commands of the server until none arrives for `quiet`; returns their number.
    ///
    /// # Errors
    /// See [`ClientError`]; [`UnexpectedReply`](ClientError::UnexpectedReply) if the server sends a
    /// reply.
    pub fn serve_memory(&mut self, quiet: Duration) -> Result<u64, ClientError> {
        let mut asked = 0;
        while let Some(message) = self.receive(Instant::now() + quiet)? {
            if message.is_reply() {
                return Err(ClientError::UnexpectedReply(message.header));
            }
            self.answer(&message)?;
            asked += 1;
        }
        Ok(asked)
    }

    /// Returns the next message of any kind, or `None` if none arrives before the deadline.
    fn receive(&mut self, deadline: Instant) -> Result<Option<Message>, ClientError> {
        match self.receiver.receive(&self.stream, &[], Some(deadline))? {
            Received::Message(message) => Ok(Some(message)),
            Received::Interrupted => Ok(None),
            Received::Closed { .. } => Err(ClientError::Closed),
            Received::Garbled(header) => Err(ClientError::UnexpectedReply(header)),
        }
    }

    /// Answers a command of the server.
    fn answer(&mut self, message: &Message) -> Result<(), ClientError> {
        let done = match Command::from_number(message.header.command) {
            Some(command @ (Command::DmaRead | Command::DmaWrite)) => {
                self.access(command, &message.payload)
            }
            _ => Err(Errno::ENOSYS),
        };
        if !message.header.wants_reply() {
            return Ok(());
        }
        let reply = match done {
            Ok(payload) => [&message.header.reply(payload.len()).encode()[..], &payload].concat(),
            Err(why) => message.header.error_reply(why.raw()).encode().to_vec(),
        };
        self.send(&reply, &[])
    }

    fn access(&mut self, command: Command, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let asked = DmaAccess::parse(payload)?;
        if asked.count > Capabilities::DEFAULT.transfer_bytes_max.into() {
            return Err(Errno::EMSGSIZE);
        }
        if command == Command::DmaRead {
            let mut data = vec![0; asked.count as usize];
            self.memory.read(asked.iova, &mut data)?;
            return Ok(DmaAccess { data: &data, ..asked }.encode());
        }
        if asked.data.len() as u64 != asked.count {
            return Err(Errno::EINVAL);
        }
        self.memory.write(asked.iova, asked.data)?;
        Ok(DmaAccess { data: &[], ..asked }.encode())
    }
}
