//! The protocol without a socket: the server's reply to each message.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use longshore_sys::closing::{Disposable, User};

use crate::Errno;
use crate::description::DeviceDescription;
use crate::device::Device;
use crate::dma::{DmaMaps, DmaTarget};
use crate::features::{Features, State};
use crate::interrupts::Interrupts;
use crate::link::Link;
use crate::mappable::Mappable;
use crate::migration::MigrationState;
use crate::negotiation::{Capabilities, Settled, VERSION_MAJOR, negotiate};
use crate::receiver::{Files, ReceivedFds};
use crate::wire::{
    self, Command, DeviceInfo, MessageHeader, MigrationData, RegionAccess, RegionWriteMulti,
    Request, SmallWrite,
};

/// A reply to a client.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReplyMessage {
    /// The whole message.
    pub bytes: Vec<u8>,
    file: Option<Arc<Disposable<OwnedFd>>>,
}

impl ReplyMessage {
    /// Returns the descriptor that goes with it, to be sent and not to be used otherwise
    /// ([`MappableFile`](crate::MappableFile)).
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(|file| file.as_fd())
    }
}

/// A message that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedMessage {
    /// The message's header.
    pub header: MessageHeader,
    /// The error that was sent to the client, unless the client expects no reply.
    pub errno: Errno,
}

/// A device with the protocol around it. It keeps a client's memory and eventfds until that client
/// disconnects, and the state of the device for the next client.
///
/// It accepts messages from any source, one after the other; [`Server`](crate::Server) passes it those
/// of a socket. Its [`Capabilities`] bound the memory that it uses for a message.
#[derive(Debug)]
pub struct Responder<D, M> {
    device: D,
    dma: M,
    description: DeviceDescription,
    interrupts: Interrupts,
    limits: Capabilities,
    maps: DmaMaps,
    /// The memory that the client can map, for each region; `None` before [`begin`](Self::begin).
    mappable: Option<Vec<Option<Mappable>>>,
    settled: Option<Settled>,
    state: State,
    refused_count: u64,
    last_refused: Option<RefusedMessage>,
}

impl<D: Device, M: DmaTarget> Responder<D, M> {
    /// Makes a responder for a device, before the first client.
    pub fn new(device: D, dma: M, limits: Capabilities) -> Self {
        let description = device.description();
        let interrupts = Interrupts::new(&description.irqs);
        Self {
            device,
            dma,
            description,
            interrupts,
            limits,
            maps: DmaMaps::default(),
            mappable: None,
            settled: None,
            state: State::default(),
            refused_count: 0,
            last_refused: None,
        }
    }

    /// Executes a client's message and returns the reply, or `None` if the client expects none.
    pub fn respond(
        &mut self,
        header: &MessageHeader,
        payload: &[u8],
        files: ReceivedFds,
    ) -> Option<ReplyMessage> {
        self.respond_to(header, payload, files.into())
    }

    pub(crate) fn respond_to(
        &mut self,
        header: &MessageHeader,
        payload: &[u8],
        files: Files,
    ) -> Option<ReplyMessage> {
        let done = match files.is_truncated {
            true => Err(Errno::EINVAL),
            false => Request::parse(header.command, payload)
                .and_then(|request| self.answer(&request, files.fds)),
        };
        self.reply(header, done)
    }

    /// Refuses a message without reading it, and returns the reply.
    pub(crate) fn refuse(&mut self, header: &MessageHeader, errno: Errno) -> Option<ReplyMessage> {
        self.reply(header, Err(errno))
    }

    fn reply(
        &mut self,
        header: &MessageHeader,
        done: Result<Answer, Errno>,
    ) -> Option<ReplyMessage> {
        if let Err(errno) = &done {
            self.refused_count += 1;
            self.last_refused = Some(RefusedMessage { header: *header, errno: *errno });
        }
        if !header.wants_reply() {
            return None;
        }
        Some(match done {
            Ok(Answer { payload, file }) => {
                let header = header.reply(payload.len()).encode();
                ReplyMessage { bytes: [&header[..], &payload].concat(), file }
            }
            Err(errno) => {
                let header = header.error_reply(errno.raw());
                ReplyMessage { bytes: header.encode().to_vec(), file: None }
            }
        })
    }

    /// Returns the client's capabilities, or `None` before they were negotiated.
    pub fn client_capabilities(&self) -> Option<Capabilities> {
        Some(self.settled.as_ref()?.client)
    }

    /// Returns the number of refused messages, and the last of them.
    pub fn refused(&self) -> (u64, Option<RefusedMessage>) {
        (self.refused_count, self.last_refused)
    }

    /// Returns the ranges of the client's memory that are mapped, in the order of their addresses.
    pub fn maps(&self) -> impl Iterator<Item = longshore_mem::AddrRange<longshore_mem::Iova>> {
        self.maps.ranges()
    }

    /// Returns the device's interrupts.
    pub fn interrupts(&self) -> &Interrupts {
        &self.interrupts
    }

    /// Returns the device.
    pub fn device(&mut self) -> &mut D {
        &mut self.device
    }

    /// Returns the owner of the client's memory.
    pub fn dma(&mut self) -> &mut M {
        &mut self.dma
    }

    /// Asks the device for the memory that the next client can map, unless that was done. Closing it is
    /// counted for `client`.
    pub(crate) fn begin(&mut self, client: User) -> io::Result<()> {
        if self.mappable.is_some() {
            return Ok(());
        }
        let mut mappable = Vec::new();
        for (index, region) in (0..).zip(&self.description.regions) {
            let file = self.device.mappable(index)?;
            mappable.push(file.map(|file| file.give(index, region, client)).transpose()?);
        }
        self.mappable = Some(mappable);
        Ok(())
    }

    pub(crate) fn connected(&mut self, link: &Link) {
        self.dma.connected(link);
        self.device.connected(link);
    }

    /// Ends the client's use of the device: unmaps its memory and closes its descriptors. Returns the
    /// number of maps that the [`DmaTarget`] refused to unmap. The device can still access their memory,
    /// so no other client may be served then; [`maps`](Self::maps) returns their ranges.
    pub fn disconnect(&mut self) -> usize {
        self.mappable = None;
        if self.settled.take().is_some() {
            self.device.disconnected();
        }
        if std::mem::take(&mut self.state.migration) != MigrationState::Running {
            // The next client must neither read the state of this one nor get a stopped device.
            self.device.reset();
        }
        self.interrupts.forget_client();
        if std::mem::take(&mut self.state.is_logging)
            && let Some(log) = self.dma.dirty_log()
        {
            // The client is gone, and the next one starts a new log.
            let _ = log.stop();
        }
        let left = self.unmap_all();
        self.dma.disconnected();
        left
    }

    /// Unmaps all maps that it can; returns the number of the others.
    pub(crate) fn unmap_all(&mut self) -> usize {
        let ranges: Vec<_> = self.maps.ranges().collect();
        for range in ranges {
            if self.dma.dma_unmap(range).is_ok() {
                self.maps.remove(range);
            }
        }
        self.maps.ranges().count()
    }

    fn answer(
        &mut self,
        request: &Request<'_>,
        files: Vec<Disposable<OwnedFd>>,
    ) -> Result<Answer, Errno> {
        let takes_files = matches!(request.command(), Command::DmaMap | Command::DeviceSetIrqs);
        let is_first = matches!(request, Request::Version { .. });
        if (!files.is_empty() && !takes_files)
            || files.len() as u64 > self.limits.message_fds_max.into()
            || is_first != self.settled.is_none()
        {
            return Err(Errno::EINVAL);
        }
        let payload = match *request {
            Request::Version { major, minor, capabilities } => {
                let settled = negotiate(&self.limits, (major, minor), capabilities)?;
                self.begin(User::own())?;
                let (minor, answer) = (settled.minor, &settled.answer);
                let reply = Request::Version { major: VERSION_MAJOR, minor, capabilities: answer };
                let reply = reply.encode();
                self.settled = Some(settled);
                reply
            }
            Request::DmaMap(claim) => {
                let (map, _copy) = self.maps.check(&claim, files, &self.limits)?;
                let range = map.range;
                self.dma.dma_map(map)?;
                self.maps.enter(range);
                Vec::new()
            }
            Request::DmaUnmap(unmap) => {
                self.dma_unmap(&unmap)?;
                unmap.encode()
            }
            Request::DeviceGetInfo { .. } => self.device_info().encode(),
            Request::DeviceGetRegionInfo { argsz, index } => return self.region_info(argsz, index),
            // They would let a hypervisor's kernel access the device without this socket.
            Request::DeviceGetRegionIoFds { .. } => return Err(Errno::EOPNOTSUPP),
            Request::DeviceGetIrqInfo { index, .. } => {
                let irqs = self.description.irqs.get(index as usize).ok_or(Errno::EINVAL)?;
                irqs.info(index).encode()
            }
            Request::DeviceSetIrqs(ref set) => {
                if set.data != wire::IrqData::EventFds && !files.is_empty() {
                    return Err(Errno::EINVAL);
                }
                self.interrupts.set(set, files)?;
                Vec::new()
            }
            Request::RegionRead { offset, region, count } => {
                self.check_access(region, offset, count, Access::Read)?;
                let mut payload = RegionAccess { offset, region, count, data: &[] }.encode();
                let data_at = payload.len();
                payload.resize(data_at + count as usize, 0);
                self.device.region_read(region, offset, &mut payload[data_at..])?;
                payload
            }
            Request::RegionWrite { offset, region, data } => {
                let count = data.len() as u32;
                self.region_write(region, offset, data)?;
                RegionAccess { offset, region, count, data: &[] }.encode()
            }
            Request::DeviceReset => {
                if !self.description.has_reset {
                    return Err(Errno::EOPNOTSUPP);
                }
                self.device.reset();
                self.state.migration = MigrationState::Running;
                Vec::new()
            }
            Request::RegionWriteMulti(writes) => {
                let mut done = 0;
                for write in writes.iter() {
                    match self.small_write(&write) {
                        Ok(()) => done += 1,
                        Err(why) if done == 0 => return Err(why),
                        // The reply has the number of writes that were done.
                        Err(_) => break,
                    }
                }
                RegionWriteMulti { done }.encode()
            }
            Request::DeviceFeature(ref feature) => {
                let bitmap_bytes_max = self.limits.transfer_bytes_max;
                let Self { device, dma, state, .. } = self;
                Features { device, dma, state }.answer(feature, bitmap_bytes_max)?
            }
            Request::MigrationDataRead { argsz, size } => self.read_state(argsz, size)?,
            Request::MigrationDataWrite { data } => {
                self.check_transfer(data.len() as u64)?;
                let migration = self.device.migration().ok_or(Errno::EOPNOTSUPP)?;
                if self.state.migration != MigrationState::Resuming {
                    return Err(Errno::EINVAL);
                }
                migration.write_state(data)?;
                Vec::new()
            }
        };
        Ok(Answer { payload, file: None })
    }

    fn dma_unmap(&mut self, unmap: &wire::DmaUnmap) -> Result<(), Errno> {
        let wire::DmaUnmap { flags, iova, len_bytes, .. } = *unmap;
        match flags {
            0 => {
                let range = self.maps.exact(iova, len_bytes).ok_or(Errno::ENOENT)?;
                self.dma.dma_unmap(range)?;
                self.maps.remove(range);
            }
            wire::DmaUnmap::ALL if (iova, len_bytes) == (0, 0) => {
                while let Some(range) = self.maps.first() {
                    self.dma.dma_unmap(range)?;
                    self.maps.remove(range);
                }
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    fn device_info(&self) -> DeviceInfo {
        let DeviceDescription { regions, irqs, is_pci, has_reset } = &self.description;
        let flags = if *is_pci { DeviceInfo::PCI } else { 0 };
        let flags = if *has_reset { flags | DeviceInfo::RESET } else { flags };
        DeviceInfo { flags, regions: regions.len() as u32, irqs: irqs.len() as u32 }
    }

    fn region_info(&self, argsz: u32, index: u32) -> Result<Answer, Errno> {
        let region = self.description.regions.get(index as usize).ok_or(Errno::EINVAL)?;
        let mut info = region.info(index);
        let mappable = self.mappable.iter().flatten().nth(index as usize).and_then(Option::as_ref);
        if let Some(mappable) = mappable {
            mappable.describe(&mut info);
        }
        let file = mappable.map(|mappable| Arc::clone(&mappable.file));
        Ok(Answer { payload: info.encode(argsz), file })
    }

    fn check_transfer(&self, len_bytes: u64) -> Result<(), Errno> {
        if len_bytes <= self.limits.transfer_bytes_max.into() {
            Ok(())
        } else {
            Err(Errno::EMSGSIZE)
        }
    }

    fn check_access(
        &self,
        region: u32,
        offset: u64,
        count: u32,
        access: Access,
    ) -> Result<(), Errno> {
        let region = self.description.regions.get(region as usize).ok_or(Errno::EINVAL)?;
        self.check_transfer(count.into())?;
        let is_allowed = match access {
            Access::Read => region.readable,
            Access::Write => region.writable,
        };
        let end = offset.checked_add(count.into());
        match end.is_some_and(|end| end <= region.len_bytes) {
            true if is_allowed => Ok(()),
            true => Err(Errno::EPERM),
            false => Err(Errno::EINVAL),
        }
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let count = u32::try_from(data.len()).map_err(|_| Errno::EMSGSIZE)?;
        self.check_access(region, offset, count, Access::Write)?;
        self.device.region_write(region, offset, data)
    }

    fn small_write(&mut self, write: &SmallWrite) -> Result<(), Errno> {
        let SmallWrite { offset, region, count, data } = write;
        let data = data.get(..*count as usize).ok_or(Errno::EINVAL)?;
        self.region_write(*region, *offset, data)
    }

    fn read_state(&mut self, argsz: u32, size: u32) -> Result<Vec<u8>, Errno> {
        self.check_transfer(size.into())?;
        let migration = self.device.migration().ok_or(Errno::EOPNOTSUPP)?;
        // The reply has eight bytes before the data.
        if !self.state.migration.is_saving() || argsz - 8 < size {
            return Err(Errno::EINVAL);
        }
        let mut data = vec![0; size as usize];
        let read = migration.read_state(&mut data)?;
        let data = data.get(..read).ok_or(Errno::EIO)?;
        Ok(MigrationData { data }.encode())
    }
}

#[derive(Clone, Copy)]
enum Access {
    Read,
    Write,
}

struct Answer {
    payload: Vec<u8>,
    file: Option<Arc<Disposable<OwnedFd>>>,
}
