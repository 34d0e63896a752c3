//! The other end: connects to a server, drives its device and lends it memory.
//!
//! It is what the tests here drive servers with, and serves as well to try a device without a
//! virtual machine. One thread uses it; it waits for each answer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use longshore_sys::closing::Disposable;
use longshore_sys::unix_socket::{self, Interest, Ready};

use crate::Refusal;
use crate::link::REPLY_TIMEOUT_DEFAULT;
use crate::negotiation::{Limits, VERSION_MAJOR, VERSION_MINOR};
use crate::receiver::{Message, Received, Receiver};
use crate::wire::{
    Command, DeviceInfo, DmaAccess, DmaMap, DmaUnmap, Header, IrqData, IrqInfo, RegionAccess,
    RegionInfo, Request, SetIrqs,
};

/// Memory that the server reads and writes by messages.
pub trait Memory {
    /// Reads at `iova`.
    ///
    /// # Errors
    /// What the server is told.
    fn read(&mut self, iova: u64, into: &mut [u8]) -> Result<(), Refusal>;

    /// Writes at `iova`.
    ///
    /// # Errors
    /// What the server is told.
    fn write(&mut self, iova: u64, from: &[u8]) -> Result<(), Refusal>;
}

/// No memory: every access is refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMemory;

impl Memory for NoMemory {
    fn read(&mut self, _: u64, _: &mut [u8]) -> Result<(), Refusal> {
        Err(Refusal::FAULT)
    }

    fn write(&mut self, _: u64, _: &[u8]) -> Result<(), Refusal> {
        Err(Refusal::FAULT)
    }
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The server answered so.
    #[error("the server {0}")]
    Refused(Refusal),
    /// The server is gone.
    #[error("the server closed the connection")]
    Closed,
    /// The server did not answer in time.
    #[error("the server did not answer within {0:?}")]
    TimedOut(Duration),
    /// What the server answered makes no sense.
    #[error("the server's answer makes no sense: {0:?}")]
    Nonsense(Header),
    /// The socket failed.
    #[error("the socket to the server failed")]
    Io(#[from] io::Error),
}

impl From<Refusal> for ClientError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// What came back.
#[derive(Debug, Default)]
pub struct Answer {
    /// The payload.
    pub payload: Vec<u8>,
    /// The descriptors.
    pub files: Vec<OwnedFd>,
}

/// A connection to a server.
#[derive(Debug)]
pub struct Client<M = NoMemory> {
    stream: Disposable<UnixStream>,
    receiver: Receiver,
    memory: M,
    next_id: u16,
    timeout: Duration,
    server: Limits,
}

impl<M: Memory> Client<M> {
    /// Connects to the socket at `path` and settles the version.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn connect(path: &Path, memory: M) -> Result<Self, ClientError> {
        Self::over(UnixStream::connect(path)?, memory)
    }

    /// Settles the version over a socket that is connected.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn over(stream: UnixStream, memory: M) -> Result<Self, ClientError> {
        let mut client = Self::unsettled(stream, memory);
        client.settle(&Limits::DEFAULT)?;
        Ok(client)
    }

    /// A client that has not said anything yet.
    pub fn unsettled(stream: UnixStream, memory: M) -> Self {
        let limits = Limits::DEFAULT;
        // All answers are bounded by what was asked for, and commands by what was settled.
        let payload_bytes_max = limits.transfer_bytes_max.saturating_add(64 << 10);
        Self {
            stream: Disposable::new(stream),
            receiver: Receiver::new(payload_bytes_max, limits.message_fds_max),
            memory,
            next_id: 0,
            timeout: REPLY_TIMEOUT_DEFAULT,
            server: Limits::UNSAID,
        }
    }

    /// Proposes a version and `limits`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn settle(&mut self, limits: &Limits) -> Result<(), ClientError> {
        let capabilities = limits.encode();
        let (major, minor) = (VERSION_MAJOR, VERSION_MINOR);
        let request = Request::Version { major, minor, capabilities: &capabilities };
        let answer = self.ask(&request, &[])?;
        let Request::Version { major: VERSION_MAJOR, minor, capabilities } =
            Request::parse(Command::Version.number(), &answer.payload)?
        else {
            return Err(Refusal::INVALID.into());
        };
        self.server = Limits::parse(capabilities)?;
        if minor > VERSION_MINOR { Err(Refusal::INVALID.into()) } else { Ok(()) }
    }

    /// Waits this long for an answer, instead of [`REPLY_TIMEOUT_DEFAULT`].
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// What the server takes.
    pub fn server_limits(&self) -> &Limits {
        &self.server
    }

    /// The memory that the server reaches by messages.
    pub fn memory(&mut self) -> &mut M {
        &mut self.memory
    }

    /// What the device is.
    ///
    /// # Errors
    /// See [`ClientError`]; so for all that follow.
    pub fn device_info(&mut self) -> Result<DeviceInfo, ClientError> {
        let answer = self.ask(&Request::DeviceGetInfo { argsz: 16 }, &[])?;
        Ok(DeviceInfo::parse(&answer.payload)?)
    }

    /// What a region is, and the file to map it from.
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
            let mut answer = self.ask(&request, &[])?;
            let info = RegionInfo::parse(&answer.payload)?;
            if info.argsz <= argsz {
                return Ok((info, answer.files.pop()));
            }
            // Areas were left out. No server needs to ask for more than its messages may have.
            if info.argsz > 64 << 10 {
                return Err(Refusal::TOO_LONG.into());
            }
            argsz = info.argsz;
        }
    }

    /// What a kind of interrupts is.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn irq_info(&mut self, index: u32) -> Result<IrqInfo, ClientError> {
        let answer = self.ask(&Request::DeviceGetIrqInfo { argsz: 16, index }, &[])?;
        Ok(IrqInfo::parse(&answer.payload)?)
    }

    /// Lets interrupts from `start` of a kind be told by `events`.
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
        self.ask(&Request::DeviceSetIrqs(set), events).map(drop)
    }

    /// Lends the server memory: `file` from `offset` on, or, without one, by messages.
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
        self.ask(&Request::DmaMap(map), &files).map(drop)
    }

    /// Takes memory back.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn dma_unmap(&mut self, iova: u64, len_bytes: u64) -> Result<(), ClientError> {
        let argsz = DmaUnmap::LEN_BYTES;
        let unmap = DmaUnmap { argsz, flags: 0, iova, len_bytes };
        self.ask(&Request::DmaUnmap(unmap), &[]).map(drop)
    }

    /// Reads from a region, at most what the server takes at once.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn region_read(
        &mut self,
        region: u32,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), ClientError> {
        let count = u32::try_from(into.len()).map_err(|_| Refusal::TOO_LONG)?;
        let answer = self.ask(&Request::RegionRead { offset, region, count }, &[])?;
        let access = RegionAccess::parse(&answer.payload)?;
        if access.data.len() != into.len() {
            return Err(Refusal::INVALID.into());
        }
        into.copy_from_slice(access.data);
        Ok(())
    }

    /// Writes to a region, at most what the server takes at once.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn region_write(
        &mut self,
        region: u32,
        offset: u64,
        data: &[u8],
    ) -> Result<(), ClientError> {
        self.ask(&Request::RegionWrite { offset, region, data }, &[]).map(drop)
    }

    /// Resets the device.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn reset(&mut self) -> Result<(), ClientError> {
        self.ask(&Request::DeviceReset, &[]).map(drop)
    }

    /// Sends any command and waits for its answer. What the server asks meanwhile is answered.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn ask(
        &mut self,
        request: &Request<'_>,
        files: &[BorrowedFd<'_>],
    ) -> Result<Answer, ClientError> {
        let payload = request.encode();
        let header = Header::command(self.next_id, request.command(), payload.len());
        self.next_id = self.next_id.wrapping_add(1);
        self.send(&[&header.encode()[..], &payload].concat(), files)?;
        let deadline = Instant::now() + self.timeout;
        loop {
            let message = self.receive(deadline)?.ok_or(ClientError::TimedOut(self.timeout))?;
            if message.is_too_long {
                return Err(ClientError::Nonsense(message.header));
            }
            if !message.is_reply() {
                self.answer(&message)?;
                continue;
            }
            let came = message.header;
            if (came.id, came.command) != (header.id, header.command) {
                return Err(ClientError::Nonsense(came));
            }
            return match came.error() {
                Some(0) => Err(Refusal::IO.into()),
                Some(errno) => Err(Refusal::from_errno(errno).into()),
                None => Ok(Answer { payload: message.payload, files: message.files.arrived }),
            };
        }
    }

    /// Sends bytes as they are, whatever they are.
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

    /// Answers what the server asks, until it has asked nothing for `quiet`; how many times it did.
    ///
    /// # Errors
    /// See [`ClientError`]; [`Nonsense`](ClientError::Nonsense) where it answers what it was not
    /// asked.
    pub fn serve_memory(&mut self, quiet: Duration) -> Result<u64, ClientError> {
        let mut asked = 0;
        while let Some(message) = self.receive(Instant::now() + quiet)? {
            if message.is_reply() {
                return Err(ClientError::Nonsense(message.header));
            }
            self.answer(&message)?;
            asked += 1;
        }
        Ok(asked)
    }

    /// The next message, whatever it is; `None` where none comes.
    fn receive(&mut self, deadline: Instant) -> Result<Option<Message>, ClientError> {
        match self.receiver.receive(&self.stream, &[], Some(deadline))? {
            Received::Message(message) => Ok(Some(message)),
            Received::Interrupted => Ok(None),
            Received::Closed { .. } => Err(ClientError::Closed),
            Received::Garbled(header) => Err(ClientError::Nonsense(header)),
        }
    }

    /// Answers a command of the server.
    fn answer(&mut self, message: &Message) -> Result<(), ClientError> {
        let done = match Command::from_number(message.header.command) {
            Some(command @ (Command::DmaRead | Command::DmaWrite)) => {
                self.access(command, &message.payload)
            }
            _ => Err(Refusal::UNKNOWN),
        };
        if !message.header.wants_reply() {
            return Ok(());
        }
        let reply = match done {
            Ok(payload) => [&message.header.reply(payload.len()).encode()[..], &payload].concat(),
            Err(why) => message.header.error_reply(why.errno()).encode().to_vec(),
        };
        self.send(&reply, &[])
    }

    fn access(&mut self, command: Command, payload: &[u8]) -> Result<Vec<u8>, Refusal> {
        let asked = DmaAccess::parse(payload)?;
        if asked.count > Limits::DEFAULT.transfer_bytes_max.into() {
            return Err(Refusal::TOO_LONG);
        }
        if command == Command::DmaRead {
            let mut data = vec![0; asked.count as usize];
            self.memory.read(asked.iova, &mut data)?;
            return Ok(DmaAccess { data: &data, ..asked }.encode());
        }
        if asked.data.len() as u64 != asked.count {
            return Err(Refusal::INVALID);
        }
        self.memory.write(asked.iova, asked.data)?;
        Ok(DmaAccess { data: &[], ..asked }.encode())
    }
}
