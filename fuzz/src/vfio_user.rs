//! Properties of a vfio-user server for any messages of its client.
//!
//! An input is a list of messages, each of four bytes and a payload:
//!
//! ```text
//!   command    descriptors and flags    payload's length    the beginning of the payload
//!              0..3: their number                           0: nothing
//!              4: eventfds              5: no reply         1..: a template of that command
//! ```
//!
//! They go to the protocol without a socket, where every answer is compared with a model of the maps,
//! and to one that maps into a space, whose page tables are counted. Then the unchanged payloads go
//! through a socket.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use longshore_access::Space;
use longshore_mem::{AddrRange, Iova};
use longshore_sys::{event_fd, memfd};
use longshore_vfio_user::pci::{Bar, CONFIG_REGION, ConfigSpace, MsixTable};
use longshore_vfio_user::wire::{Command, HEADER_LEN_BYTES, MessageKind};
use longshore_vfio_user::{
    Capabilities, Device, DeviceDescription, DirtyLog, DmaMapping, DmaTarget, Errno,
    MAPPED_BYTES_MAX, MessageHeader, Migration, MigrationError, MigrationState, ReceivedFds,
    ReplyMessage, Responder, Server, SpaceDma,
};

const LIMITS: Capabilities = Capabilities::DEFAULT
    .with_transfer_bytes_max(4096)
    .with_dma_maps_max(6)
    .with_message_fds_max(4);
const BAR_BYTES: u64 = 0x2000;

/// Sends `data` as the messages of a client.
pub fn vfio_user(data: &[u8]) {
    let (mut checked, mut mapped) = (Checked::new(), Mapped::new());
    let mut stream = Vec::new();
    let mut rest = data;
    while let [command, files, len, template, tail @ ..] = rest {
        let len = usize::from(*len).min(tail.len());
        let (payload, tail) = tail.split_at(len);
        let payload = [&beginning(*command, *template)[..], payload].concat();
        checked.message(u16::from(*command), &payload, *files);
        mapped.message(u16::from(*command), &payload, *files);
        let mut header = MessageHeader::command(0, Command::Version, payload.len()).encode();
        header[2..4].copy_from_slice(&u16::from(*command).to_ne_bytes());
        stream.extend([&header[..], &payload].concat());
        rest = tail;
    }
    checked.end();
    mapped.end();
    stream.extend(data);
    serve(&stream);
}

/// Returns a valid beginning of a payload, so that the server examines the rest.
fn beginning(command: u8, template: u8) -> Vec<u8> {
    let small = u64::from(template >> 4);
    let words = |words: &[u64]| words.iter().flat_map(|it| (*it as u32).to_ne_bytes()).collect();
    match (template & 3, command) {
        (0, _) => Vec::new(),
        (_, 1) => vec![0; 4],
        (1, 2) => words(&[32, 3, small * 0x1000, 0, small * 0x1000, 0, 0x2000, 0]),
        (_, 2) => words(&[32, 3]),
        (1, 3) => words(&[24, 0, small * 0x1000, 0, 0x2000, 0]),
        (_, 3) => words(&[24, small]),
        (_, 4) => words(&[16, 0, 0, 0]),
        (_, 5) => words(&[64, 0, small, 0, 0, 0, 0, 0]),
        (_, 7) => words(&[16, 0, small, 0]),
        (1, 8) => words(&[20, 1 << 2 | 1 << 5, 2, small, 1]),
        (_, 8) => words(&[20]),
        (_, 9) => words(&[small * 16, 0, small, 16]),
        (_, 16) => words(&[4096, small | 1 << (16 + (template >> 2 & 3))]),
        (_, 17) => words(&[4096, small]),
        _ => Vec::new(),
    }
}

/// The protocol with a space in which the client's memory is mapped.
struct Mapped {
    responder: Responder<Toy, SpaceDma>,
    space: Space,
    /// A long file without pages.
    memory: OwnedFd,
}

impl Mapped {
    /// The bytes of a table.
    const TABLE: u64 = 4096;
    /// The maximum number of tables for a map: three tables at each end, their parents, and one for each
    /// 512 GiB of the longest map.
    const TABLES_OF_MAP: u64 = 12 + MAPPED_BYTES_MAX / (512 << 30);

    fn new() -> Self {
        let space = Space::new().expect("a space");
        let memory = memfd::create("client", memfd::Backing::Shmem).expect("a memfd");
        memfd::set_len(&memory, 2 * MAPPED_BYTES_MAX).expect("a sparse file");
        let responder = Responder::new(Toy::new(), SpaceDma::new(space.clone()), LIMITS);
        let mut mapped = Self { responder, space, memory };
        mapped.message(Command::Version.number(), &[0; 4], 0);
        mapped
    }

    fn message(&mut self, command: u16, payload: &[u8], files: u8) {
        let file = |_| self.memory.try_clone().expect("a descriptor");
        let arrived = (0..files & 0xf).map(file).collect();
        let mut header = MessageHeader::command(1, Command::Version, payload.len());
        header.command = command;
        self.responder.respond(&header, payload, ReceivedFds { fds: arrived, is_truncated: false });
        let maps = self.responder.maps().count() as u64;
        let tables = self.space.table_bytes() / Self::TABLE;
        assert!(tables <= 1 + maps * Self::TABLES_OF_MAP, "{tables} tables of {maps} maps");
        for range in self.responder.maps() {
            assert!(self.space.walker().lookup(range.start()).is_ok_and(|leaf| leaf.is_some()));
        }
    }

    fn end(mut self) {
        assert_eq!(self.responder.disconnect(), 0);
        assert_eq!(self.space.table_bytes(), Self::TABLE);
    }
}

/// The protocol, and a model of the maps.
struct Checked {
    responder: Responder<Toy, Maps>,
    model: Vec<(u128, u128)>,
    file: File,
    next_id: u16,
}

impl Checked {
    fn new() -> Self {
        let mut checked = Self {
            responder: Responder::new(Toy::new(), Maps::default(), LIMITS),
            model: Vec::new(),
            file: File::open("/dev/null").expect("the null device"),
            next_id: 0,
        };
        // Before the version is negotiated, the server refuses everything.
        let before = checked.send(4, &[0; 16], Vec::new(), false);
        assert!(before.is_some_and(|reply| error_of(&reply).is_some()));
        let settled = checked.send(1, &[0; 4], Vec::new(), false);
        assert!(settled.is_some_and(|reply| error_of(&reply).is_none()));
        checked
    }

    fn message(&mut self, command: u16, payload: &[u8], files: u8) {
        let count = usize::from(files & 0xf);
        let is_posted = files & 0x20 != 0;
        let expected = match command {
            2 => Some(self.expected_of_map(payload, count)),
            3 => Some(self.expected_of_unmap(payload, count)),
            _ => None,
        };
        let arrived = self.files(count, files & 0x10 != 0);
        let reply = self.send(command, payload, arrived, is_posted);
        if let (Some(expected), Some(reply)) = (&expected, &reply) {
            assert_eq!(error_of(reply), expected.as_ref().err().copied(), "{payload:x?}");
        }
        if let Some(Ok(change)) = expected {
            change.apply(&mut self.model);
        }
        self.model.sort_unstable();
        let wide = |range: AddrRange<Iova>| {
            let start = u128::from(range.start().raw());
            (start, start + u128::from(range.len()))
        };
        let maps: Vec<(u128, u128)> = self.responder.maps().map(wide).collect();
        assert_eq!(maps, self.model);
        assert!(maps.is_sorted_by(|a, b| a.1 <= b.0) && maps.len() <= 6);
        let kept: Vec<(u128, u128)> = self.responder.dma().0.values().copied().map(wide).collect();
        assert_eq!(kept, self.model);
    }

    /// Sends a message, and checks the form of the answer.
    fn send(
        &mut self,
        command: u16,
        payload: &[u8],
        arrived: Vec<OwnedFd>,
        is_posted: bool,
    ) -> Option<ReplyMessage> {
        self.next_id = self.next_id.wrapping_add(7);
        let make =
            if is_posted { MessageHeader::command_without_reply } else { MessageHeader::command };
        let mut header = make(self.next_id, Command::Version, payload.len());
        header.command = command;
        let reply = self.responder.respond(
            &header,
            payload,
            ReceivedFds { fds: arrived, is_truncated: false },
        );
        assert_eq!(reply.is_none(), is_posted);
        let reply = reply?;
        let said = MessageHeader::decode(*reply.bytes.first_chunk().expect("a header"));
        assert_eq!((said.id, said.command), (header.id, header.command));
        assert_eq!(said.kind(), Some(MessageKind::Reply));
        assert_eq!(said.len_bytes as usize, reply.bytes.len());
        let most = if said.error().is_some() { 0 } else { 4096 + payload.len() + 256 };
        assert!(reply.bytes.len() <= HEADER_LEN_BYTES + most, "{} bytes", reply.bytes.len());
        Some(reply)
    }

    fn files(&self, count: usize, are_events: bool) -> Vec<OwnedFd> {
        let file = |_| match are_events {
            true => event_fd::create().expect("an eventfd"),
            false => OwnedFd::from(self.file.try_clone().expect("a descriptor")),
        };
        (0..count).map(file).collect()
    }

    /// Returns the result of a map according to the specification.
    fn expected_of_map(&self, payload: &[u8], files: usize) -> Result<Change, u32> {
        let Some([argsz_flags, offset, iova, len]) = words_of(payload) else { return Err(22) };
        let (argsz, flags) = (argsz_flags as u32, (argsz_flags >> 32) as u32);
        let (by_mmap, by_file_io) = (flags & 4 != 0, flags & 8 != 0);
        let has_sense = argsz >= 32
            && flags & !0xf == 0
            && flags & 3 != 0
            && !(by_mmap && by_file_io)
            && files <= 1
            && (files == 1 || !(by_mmap || by_file_io))
            && len != 0
            && (iova | len) & 0xfff == 0
            && u128::from(iova) + u128::from(len) <= 1 << 64;
        let file_end = u128::from(offset) + u128::from(len);
        let file_has_sense =
            files == 0 || file_end < 1 << 63 && (by_file_io || offset & 0xfff == 0);
        if !has_sense || !file_has_sense {
            return Err(22);
        }
        let map = (u128::from(iova), u128::from(iova) + u128::from(len));
        if self.model.iter().any(|other| other.0 < map.1 && map.0 < other.1) {
            return Err(17);
        }
        if self.model.len() >= 6 { Err(28) } else { Ok(Change::Map(map)) }
    }

    /// Returns the result of an unmap according to the specification.
    fn expected_of_unmap(&self, payload: &[u8], files: usize) -> Result<Change, u32> {
        let Some([argsz_flags, iova, len]) = words_of(payload) else { return Err(22) };
        let (argsz, flags) = (argsz_flags as u32, (argsz_flags >> 32) as u32);
        if argsz < 24 || files > 0 {
            return Err(22);
        }
        let map = (u128::from(iova), u128::from(iova) + u128::from(len));
        match flags {
            0 if self.model.contains(&map) => Ok(Change::Unmap(map)),
            0 => Err(2),
            2 if (iova, len) == (0, 0) => Ok(Change::UnmapAll),
            _ => Err(22),
        }
    }

    /// Disconnects, and checks that no map is left.
    fn end(mut self) {
        assert_eq!(self.responder.disconnect(), 0);
        assert!(self.responder.maps().next().is_none() && self.responder.dma().0.is_empty());
    }
}

enum Change {
    Map((u128, u128)),
    Unmap((u128, u128)),
    UnmapAll,
}

impl Change {
    fn apply(self, model: &mut Vec<(u128, u128)>) {
        match self {
            Self::Map(map) => model.push(map),
            Self::Unmap(map) => model.retain(|other| *other != map),
            Self::UnmapAll => model.clear(),
        }
    }
}

/// Returns the payload as words of eight bytes, if it has exactly `N` of them.
fn words_of<const N: usize>(payload: &[u8]) -> Option<[u64; N]> {
    let words = payload.chunks(8).map(|it| Some(u64::from_ne_bytes(it.try_into().ok()?)));
    words.collect::<Option<Vec<u64>>>()?.try_into().ok()
}

fn error_of(reply: &ReplyMessage) -> Option<u32> {
    MessageHeader::decode(*reply.bytes.first_chunk()?).error()
}

/// Sends bytes to a server, which must end.
fn serve(bytes: &[u8]) {
    let (mut ours, theirs) = UnixStream::pair().expect("sockets");
    let server = Server::with_capabilities(Toy::new(), Maps::default(), LIMITS).expect("a server");
    // It soon gives up if its answers are not read.
    let mut server = server.reply_timeout(Duration::from_millis(1));
    // Data that does not fit into the socket is not sent.
    ours.set_nonblocking(true).expect("a socket");
    let mut version = MessageHeader::command(0, Command::Version, 4).encode().to_vec();
    version.extend([0; 4]);
    for part in [&version[..], bytes] {
        if ours.write_all(part).is_err() {
            break;
        }
    }
    ours.shutdown(Shutdown::Write).expect("a socket");
    let served = server.serve(theirs).expect("a client is served");
    assert_eq!(served.maps_left_count, 0);
    assert!(served.messages_count > 0);
    // Every answer is complete, except one that was not read.
    let mut answers = Vec::new();
    let _ = ours.read_to_end(&mut answers);
    let mut rest = &answers[..];
    while let Some((header, tail)) = rest.split_first_chunk() {
        let header = MessageHeader::decode(*header);
        assert_eq!(header.kind(), Some(MessageKind::Reply));
        let len = header.payload_len_bytes().expect("a length") as usize;
        rest = tail.get(len..).unwrap_or_default();
    }
}

/// The maps.
#[derive(Default)]
struct Maps(BTreeMap<u64, AddrRange<Iova>>);

impl DmaTarget for Maps {
    fn dma_map(&mut self, map: DmaMapping) -> Result<(), Errno> {
        assert!(map.readable || map.writable);
        assert!(self.0.insert(map.range.start().raw(), map.range).is_none());
        Ok(())
    }

    fn dma_unmap(&mut self, range: AddrRange<Iova>) -> Result<(), Errno> {
        assert_eq!(self.0.remove(&range.start().raw()), Some(range));
        Ok(())
    }

    fn dirty_log(&mut self) -> Option<&mut dyn DirtyLog> {
        Some(self)
    }
}

impl DirtyLog for Maps {
    fn start(&mut self, ranges: &[AddrRange<Iova>], page_bytes: u64) -> Result<u64, Errno> {
        assert!(ranges.iter().all(|range| !range.is_empty()) && page_bytes.is_power_of_two());
        Ok(page_bytes)
    }

    fn stop(&mut self) -> Result<(), Errno> {
        Ok(())
    }

    fn report(
        &mut self,
        range: AddrRange<Iova>,
        page_bytes: u64,
        bitmap: &mut [u64],
    ) -> Result<(), Errno> {
        assert_eq!(bitmap.len() as u64, range.len().div_ceil(page_bytes).div_ceil(64));
        bitmap.fill(u64::MAX);
        Ok(())
    }
}

/// A device that checks the requests.
struct Toy {
    config: ConfigSpace,
    state: MigrationState,
}

impl Toy {
    fn new() -> Self {
        let config = ConfigSpace::new(1, 2)
            .bar(0, Bar::memory32(BAR_BYTES as u32))
            .intx()
            .msix(MsixTable { vectors: 4, bar: 0, table_offset: 0, pba_offset: 0x1000 });
        Self { config, state: MigrationState::Running }
    }

    fn check(&self, region: u32, offset: u64, len: usize) {
        let len_bytes = self.config.description().regions[region as usize].len_bytes;
        assert!(offset.checked_add(len as u64).is_some_and(|end| end <= len_bytes));
        assert!(len <= 4096);
    }
}

impl Device for Toy {
    fn description(&self) -> DeviceDescription {
        self.config.description()
    }

    fn region_read(&mut self, region: u32, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        self.check(region, offset, into.len());
        if region == CONFIG_REGION { self.config.read(offset, into) } else { Ok(()) }
    }

    fn region_write(&mut self, region: u32, offset: u64, from: &[u8]) -> Result<(), Errno> {
        self.check(region, offset, from.len());
        if region == CONFIG_REGION { self.config.write(offset, from) } else { Ok(()) }
    }

    fn reset(&mut self) {
        self.state = MigrationState::Running;
    }

    fn migration(&mut self) -> Option<&mut dyn Migration> {
        Some(self)
    }
}

impl Migration for Toy {
    fn has_pre_copy(&self) -> bool {
        true
    }

    fn set_state(
        &mut self,
        from: MigrationState,
        to: MigrationState,
    ) -> Result<(), MigrationError> {
        assert!(from == self.state && from.is_neighbour(to), "{from:?} to {to:?}");
        self.state = to;
        Ok(())
    }

    fn read_state(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        assert!(self.state.is_saving());
        Ok(into.len() / 2)
    }

    fn write_state(&mut self, _: &[u8]) -> Result<(), Errno> {
        assert_eq!(self.state, MigrationState::Resuming);
        Ok(())
    }
}
