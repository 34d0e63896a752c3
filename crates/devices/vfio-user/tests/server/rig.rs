//! A device, memory and a log that only note each call; served on a thread, over a pair of sockets.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use longshore_mem::{AddrRange, Iova};
use longshore_vfio_user::client::{Client, DmaMemory, NoDmaMemory};
use longshore_vfio_user::pci::{Bar, CONFIG_REGION, ConfigSpace, MsixTable};
use longshore_vfio_user::wire::{HEADER_LEN_BYTES, Request};
use longshore_vfio_user::{
    Capabilities, ConnectionSummary, Device, DeviceDescription, DirtyLog, DmaBacking, DmaError,
    DmaMapping, DmaTarget, Errno, Link, MappableFile, MessageHeader, Migration, MigrationError,
    MigrationState, RegionDescription, Server,
};
use rustix::process::Uid;

pub(crate) const BAR_BYTES: u64 = 0x2000;
/// Writing here makes the device read 16 bytes of the client's memory on the server's thread.
pub(crate) const READ_INLINE: u64 = 0x100;
/// Reading here takes as many milliseconds as were written here before.
pub(crate) const SLEEP: u64 = 0x110;
/// Writing here is refused with `ENOSPC`.
pub(crate) const REFUSES: u64 = 0x120;

/// The first region after those of PCI.
pub(crate) const EXTRA_REGION: u32 = 9;

/// The calls, for the test to check.
#[derive(Default)]
pub(crate) struct Noted {
    pub(crate) registers: Vec<u8>,
    pub(crate) link: Option<Link>,
    pub(crate) resets: u32,
    pub(crate) connects: u32,
    pub(crate) disconnects: u32,
    pub(crate) mapped: BTreeMap<u64, u64>,
    pub(crate) files: BTreeMap<u64, OwnedFd>,
    pub(crate) refuse_next_map: Option<Errno>,
    pub(crate) refuse_next_unmap: Option<Errno>,
    pub(crate) inline: Option<Result<[u8; 16], DmaError>>,
    pub(crate) log: Vec<String>,
    pub(crate) state: Vec<u8>,
    pub(crate) refuse_state: Option<MigrationError>,
    /// The files that [`EXTRA_REGION`] is mapped by: one for each client, in reverse order.
    pub(crate) mappable: Vec<MappableFile>,
}

pub(crate) type Shared = Arc<Mutex<Noted>>;

pub(crate) struct TestDevice {
    pub(crate) noted: Shared,
    config: ConfigSpace,
    extra: Vec<RegionDescription>,
    state_read: usize,
}

pub(crate) struct TestDma(Shared);

/// Two sockets whose other ends are those of this user; `None` where that is not possible.
pub(crate) fn pair_of(uid: u32) -> Option<(UnixStream, UnixStream)> {
    let made = thread::spawn(move || {
        let uid = Some(Uid::from_raw(uid));
        // Of this thread only, which ends.
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        UnixStream::pair()
    });
    match made.join().unwrap() {
        Ok(pair) => Some(pair),
        Err(error) => {
            println!("SKIPPED: a connection of user {uid} cannot be made: {error}");
            None
        }
    }
}

pub(crate) fn device(noted: &Shared, extra: Vec<RegionDescription>) -> TestDevice {
    noted.lock().unwrap().registers = vec![0; BAR_BYTES as usize];
    let config = ConfigSpace::new(0x1234, 0x5678)
        .class(0x08_80_00)
        .bar(0, Bar::memory32(BAR_BYTES as u32))
        .intx()
        .msix(MsixTable { vectors: 8, bar: 0, table_offset: 0x1000, pba_offset: 0x1800 });
    TestDevice { noted: Arc::clone(noted), config, extra, state_read: 0 }
}

pub(crate) fn dma(noted: &Shared) -> TestDma {
    TestDma(Arc::clone(noted))
}

impl TestDevice {
    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap()
    }
}

impl Device for TestDevice {
    fn description(&self) -> DeviceDescription {
        let mut description = self.config.description();
        description.regions.extend(self.extra.iter().cloned());
        description
    }

    fn mappable(&mut self, region: u32) -> io::Result<Option<MappableFile>> {
        Ok(if region == EXTRA_REGION { self.noted().mappable.pop() } else { None })
    }

    fn region_read(&mut self, region: u32, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        match region {
            CONFIG_REGION => return self.config.read(offset, into),
            0 => {
                let noted = self.noted();
                into.copy_from_slice(&noted.registers[offset as usize..][..into.len()]);
                let sleep_ms = noted.registers[SLEEP as usize];
                drop(noted);
                if offset == SLEEP {
                    thread::sleep(Duration::from_millis(sleep_ms.into()));
                }
            }
            _ => into.fill(0xee),
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, from: &[u8]) -> Result<(), Errno> {
        if region == CONFIG_REGION {
            return self.config.write(offset, from);
        }
        if offset == REFUSES {
            return Err(Errno::ENOSPC);
        }
        if offset == READ_INLINE {
            let mut bytes = [0; 16];
            let link = self.noted().link.clone().unwrap();
            let iova = u64::from_le_bytes(from.try_into().map_err(|_| Errno::EINVAL)?);
            let read = link.read(Iova::new(iova), &mut bytes);
            self.noted().inline = Some(read.map(|()| bytes));
        }
        self.noted().registers[offset as usize..][..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn reset(&mut self) {
        self.noted().resets += 1;
    }

    fn connected(&mut self, link: &Link) {
        let mut noted = self.noted();
        noted.connects += 1;
        noted.link = Some(link.clone());
    }

    fn disconnected(&mut self) {
        let mut noted = self.noted();
        noted.disconnects += 1;
        noted.link = None;
    }

    fn migration(&mut self) -> Option<&mut dyn Migration> {
        Some(self)
    }
}

impl Migration for TestDevice {
    fn has_pre_copy(&self) -> bool {
        true
    }

    fn set_state(
        &mut self,
        from: MigrationState,
        to: MigrationState,
    ) -> Result<(), MigrationError> {
        let mut noted = self.noted.lock().unwrap();
        if let Some(failed) = noted.refuse_state.take() {
            return Err(failed);
        }
        noted.log.push(format!("{from:?} to {to:?}"));
        self.state_read = 0;
        Ok(())
    }

    fn read_state(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        let noted = self.noted.lock().unwrap();
        let left = &noted.state[self.state_read..];
        let count = left.len().min(into.len());
        into[..count].copy_from_slice(&left[..count]);
        self.state_read += count;
        Ok(count)
    }

    fn write_state(&mut self, from: &[u8]) -> Result<(), Errno> {
        self.noted().state.extend(from);
        Ok(())
    }
}

impl DmaTarget for TestDma {
    fn dma_map(&mut self, map: DmaMapping) -> Result<(), Errno> {
        let mut noted = self.0.lock().unwrap();
        if let Some(errno) = noted.refuse_next_map.take() {
            return Err(errno);
        }
        let start = map.range.start().raw();
        assert_eq!(noted.mapped.insert(start, map.range.len()), None);
        if let DmaBacking::Mmap { file, .. } | DmaBacking::FileIo { file, .. } = map.backing {
            noted.files.insert(start, file);
        }
        Ok(())
    }

    fn dma_unmap(&mut self, range: AddrRange<Iova>) -> Result<(), Errno> {
        let mut noted = self.0.lock().unwrap();
        if let Some(errno) = noted.refuse_next_unmap.take() {
            return Err(errno);
        }
        let start = range.start().raw();
        assert_eq!(noted.mapped.remove(&start), Some(range.len()));
        noted.files.remove(&start);
        Ok(())
    }

    fn dirty_log(&mut self) -> Option<&mut dyn DirtyLog> {
        Some(self)
    }
}

impl DirtyLog for TestDma {
    fn start(&mut self, ranges: &[AddrRange<Iova>], page_bytes: u64) -> Result<u64, Errno> {
        self.0.lock().unwrap().log.push(format!("start {ranges:?} {page_bytes}"));
        Ok(page_bytes.max(4096))
    }

    fn stop(&mut self) -> Result<(), Errno> {
        self.0.lock().unwrap().log.push("stop".into());
        Ok(())
    }

    fn report(
        &mut self,
        range: AddrRange<Iova>,
        page_bytes: u64,
        bitmap: &mut [u64],
    ) -> Result<(), Errno> {
        assert_eq!(bitmap.len() as u64, range.len().div_ceil(page_bytes).div_ceil(64));
        assert!(bitmap.iter().all(|word| *word == 0));
        bitmap[0] = 0b101;
        Ok(())
    }
}

/// A client and a server that serves it once.
pub(crate) struct Rig<M = NoDmaMemory> {
    pub(crate) client: Client<M>,
    pub(crate) noted: Shared,
    server: JoinHandle<ConnectionSummary>,
}

impl<M: DmaMemory> Rig<M> {
    pub(crate) fn new(memory: M) -> Self {
        let mut rig = Self::without_negotiation(memory, Capabilities::DEFAULT, Vec::new());
        rig.client.negotiate(&Capabilities::DEFAULT).unwrap();
        rig
    }

    pub(crate) fn without_negotiation(
        memory: M,
        limits: Capabilities,
        extra: Vec<RegionDescription>,
    ) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let noted = Shared::default();
        let server = Server::with_capabilities(device(&noted, extra), dma(&noted), limits).unwrap();
        let mut server = server.reply_timeout(Duration::from_secs(20));
        let server = thread::spawn(move || server.serve(theirs).unwrap());
        Self { client: Client::without_negotiation(ours, memory), noted, server }
    }

    pub(crate) fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap()
    }

    /// Returns the link, once the device has it.
    pub(crate) fn link(&mut self) -> Link {
        // The device gets the link after the reply to the version, and before the next reply.
        self.client.device_info().unwrap();
        self.noted().link.clone().unwrap()
    }

    /// Disconnects the client; returns the server's summary.
    pub(crate) fn hang_up(self) -> (ConnectionSummary, Shared) {
        drop(self.client);
        (self.server.join().unwrap(), self.noted)
    }
}

/// Answers the server's commands until `device` has ended. Returns the number of commands, and the
/// result of `device`.
pub(crate) fn serve_until<M: DmaMemory, T>(
    client: &mut Client<M>,
    device: JoinHandle<T>,
) -> (u64, T) {
    let mut asked = 0;
    while !device.is_finished() {
        asked += client.serve_memory(Duration::from_millis(1)).unwrap();
    }
    (asked, device.join().unwrap())
}

/// Memory from address 0 that is accessed by messages.
pub(crate) struct Ram(pub(crate) Vec<u8>);

impl DmaMemory for Ram {
    fn read(&mut self, iova: u64, into: &mut [u8]) -> Result<(), Errno> {
        let end = (iova as usize).checked_add(into.len());
        let from = end.and_then(|end| self.0.get(iova as usize..end)).ok_or(Errno::EFAULT)?;
        into.copy_from_slice(from);
        Ok(())
    }

    fn write(&mut self, iova: u64, from: &[u8]) -> Result<(), Errno> {
        let end = (iova as usize).checked_add(from.len());
        let into = end.and_then(|end| self.0.get_mut(iova as usize..end)).ok_or(Errno::EFAULT)?;
        into.copy_from_slice(from);
        Ok(())
    }
}

/// A client without a library: a socket on which the version is negotiated, and nothing else.
pub(crate) struct Raw {
    pub(crate) stream: UnixStream,
    pub(crate) noted: Shared,
    pub(crate) link: Link,
    server: JoinHandle<ConnectionSummary>,
}

impl Raw {
    /// Returns a client that takes 4,096 bytes at once, of a server with this reply timeout.
    pub(crate) fn new(reply_timeout: Duration) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let noted = Shared::default();
        let server = Server::new(device(&noted, Vec::new()), dma(&noted)).unwrap();
        let mut server = server.reply_timeout(reply_timeout);
        let server = thread::spawn(move || server.serve(theirs).unwrap());
        let mut client = Client::without_negotiation(ours.try_clone().unwrap(), NoDmaMemory);
        client.negotiate(&Capabilities::DEFAULT.with_transfer_bytes_max(4096)).unwrap();
        client.device_info().unwrap();
        let link = noted.lock().unwrap().link.clone().unwrap();
        ours.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { stream: ours, noted, link, server }
    }

    pub(crate) fn send(&mut self, header: MessageHeader, payload: &[u8]) {
        self.stream.write_all(&[&header.encode()[..], payload].concat()).unwrap();
    }

    pub(crate) fn request(&mut self, id: u16, request: &Request<'_>) {
        let payload = request.encode();
        self.send(MessageHeader::command(id, request.command(), payload.len()), &payload);
    }

    pub(crate) fn receive(&mut self) -> (MessageHeader, Vec<u8>) {
        self.receive_unless_closed().expect("the server sends a message")
    }

    /// Returns the next message, or `None` if no whole message arrives.
    pub(crate) fn receive_unless_closed(&mut self) -> Option<(MessageHeader, Vec<u8>)> {
        let mut header = [0; HEADER_LEN_BYTES];
        self.stream.read_exact(&mut header).ok()?;
        let header = MessageHeader::decode(header);
        let mut payload = vec![0; header.payload_len_bytes().unwrap() as usize];
        self.stream.read_exact(&mut payload).ok()?;
        Some((header, payload))
    }

    /// Disconnects the client; returns the server's summary.
    pub(crate) fn hang_up(self) -> ConnectionSummary {
        drop(self.stream);
        self.server.join().unwrap()
    }

    /// Returns the summary of a server that ends without a disconnect.
    pub(crate) fn ended(self) -> ConnectionSummary {
        self.server.join().unwrap()
    }
}
