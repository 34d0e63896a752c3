//! A client that sends invalid messages: they are refused or end the connection, the next client is
//! served, and no descriptor stays open. One test, because it counts the descriptors of the whole
//! process.

#![cfg(not(loom))]

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use longshore_sys::memfd::{self, Backing};
use longshore_sys::{disposal, event_fd, unix_socket};
use longshore_vfio_user::client::{Client, NoDmaMemory};
use longshore_vfio_user::pci::MSIX_IRQ;
use longshore_vfio_user::wire::{Command, DmaMap, HEADER_LEN_BYTES, IrqData, Request, SetIrqs};
use longshore_vfio_user::{DisconnectReason, Errno, Listener, MessageHeader, Server};

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "server/rig.rs"]
mod rig;

/// A client that sends raw bytes.
struct Hostile {
    stream: UnixStream,
}

impl Hostile {
    fn send(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) {
        let (mut bytes, mut files) = (bytes, files);
        while !bytes.is_empty() {
            match unix_socket::send(&self.stream, bytes, files) {
                Ok(sent) => (bytes, files) = (&bytes[sent..], &[]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn message(&self, command: u16, payload: &[u8], files: &[BorrowedFd<'_>]) {
        let mut header = MessageHeader::command(7, Command::Version, payload.len()).encode();
        header[2..4].copy_from_slice(&command.to_ne_bytes());
        self.send(&[&header[..], payload].concat(), files);
    }

    /// Returns the errno of the next reply, or 0 if it has none.
    fn errno(&mut self) -> u32 {
        let mut header = [0; HEADER_LEN_BYTES];
        self.stream.read_exact(&mut header).unwrap();
        let header = MessageHeader::decode(header);
        assert_eq!(header.id, 7);
        let mut payload = vec![0; header.payload_len_bytes().unwrap() as usize];
        self.stream.read_exact(&mut payload).unwrap();
        header.error().unwrap_or(0)
    }

    fn request(&mut self, command: u16, payload: &[u8], files: &[BorrowedFd<'_>]) -> u32 {
        self.message(command, payload, files);
        self.errno()
    }

    fn ask_for(&mut self, request: &Request<'_>, files: &[BorrowedFd<'_>]) -> u32 {
        self.request(request.command().number(), &request.encode(), files)
    }

    /// Checks that the server still serves this client.
    fn expect_served(&mut self) {
        assert_eq!(self.ask_for(&Request::DeviceGetInfo { argsz: 16 }, &[]), 0);
    }

    /// Checks that the server has closed its end.
    fn expect_left(mut self) {
        let mut rest = Vec::new();
        // A reset is an end, too: the server closed with bytes of the client unread.
        let _ = self.stream.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{rest:?}");
    }
}

fn descriptors() -> Vec<String> {
    let entries = fs::read_dir("/proc/self/fd").unwrap();
    let link = |entry: fs::DirEntry| fs::read_link(entry.path()).ok();
    let mut links: Vec<String> = entries
        .filter_map(|entry| Some(link(entry.unwrap())?.to_string_lossy().into_owned()))
        // Socket numbers differ between runs; only the number of sockets matters.
        .map(|link| link.split('[').next().unwrap_or_default().to_owned())
        .collect();
    links.sort();
    links
}

fn memory() -> OwnedFd {
    let file = memfd::create("hostile", Backing::Shmem).unwrap();
    memfd::set_len(&file, 0x10_0000).unwrap();
    file
}

const EINVAL: u32 = Errno::EINVAL.raw();
const ENOSYS: u32 = Errno::ENOSYS.raw();
const EMSGSIZE: u32 = Errno::EMSGSIZE.raw();

#[test]
fn invalid_messages_are_refused_and_no_descriptor_stays_open() {
    // The first use of each may open descriptors that stay open.
    drop((memory(), event_fd::create().unwrap()));
    disposal::prepare().unwrap();
    event_fd::prepare();
    let before = descriptors();
    run();
    // Another thread closes the last of them.
    let begin = Instant::now();
    while descriptors() != before && begin.elapsed() < Duration::from_secs(60) {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(descriptors(), before);
}

fn run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let noted = rig::Shared::default();
    let mut server = Server::new(rig::device(&noted, Vec::new()), rig::dma(&noted)).unwrap();
    let listener = Listener::bind(&path).unwrap();
    let stop = server.stop_handle();
    let (tell, told) = mpsc::channel();
    let thread = thread::spawn(move || {
        server.serve_all(&listener, |served| tell.send(served.clone()).unwrap()).unwrap();
    });
    let stranger = || {
        let stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Hostile { stream }
    };
    let client = || {
        let hostile = stranger();
        let stream = hostile.stream.try_clone().unwrap();
        drop(Client::from_stream(stream, NoDmaMemory).unwrap());
        hostile
    };
    let ended = || {
        let served = told.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(served.maps_left_count, 0);
        let noted = noted.lock().unwrap();
        assert!(noted.mapped.is_empty() && noted.files.is_empty());
        served.ended
    };

    before_the_version(&stranger);
    assert_eq!(ended(), DisconnectReason::ClosedByClient);

    // Bytes with no message boundaries.
    let mut garbled = Vec::new();
    for len_bytes in [0_u32, 1, 15] {
        let mut header = MessageHeader::command(7, Command::DeviceGetInfo, 0).encode();
        header[4..8].copy_from_slice(&len_bytes.to_ne_bytes());
        garbled.push(header);
    }
    for kind in 2..16 {
        let mut header = MessageHeader::command(7, Command::DeviceGetInfo, 0).encode();
        header[8] = kind;
        garbled.push(header);
    }
    let file = memory();
    for header in garbled {
        let hostile = client();
        hostile.send(&header, &[file.as_fd()]);
        hostile.expect_left();
        assert!(matches!(ended(), DisconnectReason::Malformed(_)));
    }
    let hostile = client();
    hostile.send(&[0xff; 4096], &[]);
    hostile.expect_left();
    assert!(matches!(ended(), DisconnectReason::Malformed(_)));

    // Messages that end too early, some with descriptors.
    let map = DmaMap { flags: 3, offset: 0, iova: 0, len_bytes: 0x1000 };
    let map = Request::DmaMap(map);
    let header = MessageHeader::command(7, Command::DmaMap, 32).encode();
    let message = [&header[..], &map.encode()].concat();
    for len in [1, 15, 16, 17, 47] {
        let hostile = client();
        hostile.send(&message[..len], &[file.as_fd()]);
        drop(hostile);
        assert_eq!(ended(), DisconnectReason::ClosedInMessage);
    }
    // A message of 4 GiB that never arrives completely.
    let hostile = client();
    let mut vast = header;
    vast[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
    hostile.send(&[&vast[..], &[0; 100_000]].concat(), &[file.as_fd()]);
    hostile.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(ended(), DisconnectReason::ClosedInMessage);
    drop(hostile);
    // Bytes that arrive one by one are a message, with a descriptor at any of them.
    let mut hostile = client();
    for (at, byte) in message.iter().enumerate() {
        let files: &[_] = if at == 20 { &[file.as_fd()] } else { &[] };
        hostile.send(&[*byte], files);
    }
    assert_eq!(hostile.errno(), 0);
    drop(hostile);
    assert_eq!(ended(), DisconnectReason::ClosedByClient);

    let mut hostile = client();
    counts(&mut hostile);
    descriptors_where_none_belong(&mut hostile, &file);
    interrupts(&mut hostile, &file);
    at_random(&mut hostile);
    hostile.expect_served();
    // Its map ends with the client.
    assert_eq!(hostile.ask_for(&map, &[file.as_fd()]), 0);
    drop(hostile);
    assert_eq!(ended(), DisconnectReason::ClosedByClient);

    stop.stop();
    thread.join().unwrap();
    noted.lock().unwrap().link = None;
}

/// Commands before the version is negotiated are refused.
fn before_the_version(stranger: &impl Fn() -> Hostile) {
    let mut hostile = stranger();
    for command in (2..=13).chain([15, 16, 17, 18]) {
        let errno = hostile.request(command, &[0; 64], &[]);
        assert!(errno == EINVAL || errno == ENOSYS, "command {command}: {errno}");
    }
    assert_eq!(hostile.ask_for(&Request::DeviceGetInfo { argsz: 16 }, &[]), EINVAL);
    let versions: [(u16, &[u8]); 8] = [
        (1, b""),
        (0xffff, b"{}\0"),
        (0, b"{}"),
        (0, b"\0"),
        (0, b"{\"capabilities\":[]}\0"),
        (0, b"{\"capabilities\":{\"max_msg_fds\":-1}}\0"),
        (0, b"\xff\xfe\0"),
        (0, b"{\"capabilities\":{\"pgsizes\":1}}\0"),
    ];
    for (major, capabilities) in versions {
        let version = Request::Version { major, minor: 0, capabilities };
        assert_eq!(hostile.ask_for(&version, &[]), EINVAL, "{version:?}");
    }
    assert_eq!(hostile.request(1, &[0; 3], &[]), EINVAL);
    // It may still negotiate.
    let version = Request::Version { major: 0, minor: 0, capabilities: b"" };
    assert_eq!(hostile.ask_for(&version, &[]), 0);
    assert_eq!(hostile.ask_for(&version, &[]), EINVAL, "once");
    hostile.expect_served();
}

/// Counts and lengths that do not match the message.
fn counts(hostile: &mut Hostile) {
    for command in [0, 11, 12, 14, 19, 0x7fff, 0xffff] {
        assert_eq!(hostile.request(command, &[0; 100], &[]), ENOSYS, "command {command}");
    }
    for command in Command::ALL.map(Command::number) {
        for len in [0, 1, 3, 7, 19] {
            let errno = hostile.request(command, &vec![0xff; len], &[]);
            let is_reset = command == Command::DeviceReset.number() && len == 0;
            assert_eq!(errno == 0, is_reset, "command {command} of {len} bytes");
        }
    }
    let words = |words: &[u32]| words.iter().flat_map(|it| it.to_ne_bytes()).collect::<Vec<u8>>();
    let max = u32::MAX;
    // A write of 4 GiB with four bytes, reads of 4 GiB, 2^64 small writes, 4 billion interrupts.
    assert_eq!(hostile.request(10, &words(&[0, 0, 0, max, 1]), &[]), EINVAL);
    assert_eq!(hostile.request(9, &words(&[0, 0, 0, max]), &[]), EMSGSIZE);
    assert_eq!(hostile.request(9, &words(&[max, max, 0, 1]), &[]), EINVAL);
    assert_eq!(hostile.request(9, &words(&[0, 0, max, 1]), &[]), EINVAL);
    assert_eq!(hostile.request(15, &words(&[max, max, 0, 0]), &[]), EINVAL);
    // The product with 24 is 8 more than 2^64.
    let wraps = (1_u64 << 61) / 3 + 1;
    let wraps = [wraps.to_ne_bytes(), [0; 8], [0; 8], [0; 8]].concat();
    assert_eq!(hostile.request(15, &wraps, &[]), EINVAL);
    assert_eq!(hostile.request(8, &words(&[20, 1 | 1 << 5, 2, 0, max]), &[]), EINVAL);
    assert_eq!(hostile.request(8, &words(&[20, 2 | 1 << 5, 2, 0, max]), &[]), EINVAL);
    assert_eq!(hostile.request(17, &words(&[max, max]), &[]), EMSGSIZE);
    assert_eq!(hostile.request(18, &words(&[8, max]), &[]), EINVAL);
    // Longer than any message may be, as its header states.
    assert_eq!(hostile.request(10, &vec![0; 1_200_000], &[]), EMSGSIZE);
    hostile.expect_served();
}

/// Descriptors with messages that need none; too many or the wrong ones with messages that need some.
fn descriptors_where_none_belong(hostile: &mut Hostile, file: &OwnedFd) {
    let info = Request::DeviceGetInfo { argsz: 16 };
    for count in [1, 16, 17, 40, 64] {
        let files = vec![file.as_fd(); count];
        assert_eq!(hostile.ask_for(&info, &files), EINVAL, "{count} descriptors");
        let map = DmaMap { flags: 3, offset: 0, iova: 0x10_0000, len_bytes: 0x1000 };
        let errno = hostile.ask_for(&Request::DmaMap(map), &files);
        assert_eq!(errno == 0, count == 1, "{count} descriptors");
        let overlapping = DmaMap { iova: 0x10_0000, len_bytes: 0x2000, ..map };
        assert_ne!(hostile.ask_for(&Request::DmaMap(overlapping), &files), 0);
    }
    // At the end of a message, and with each part of one that is too long.
    let payload = info.encode();
    hostile.send(&MessageHeader::command(7, info.command(), payload.len()).encode(), &[]);
    hostile.send(&payload[..8], &[file.as_fd(); 3]);
    hostile.send(&payload[8..], &[file.as_fd(); 20]);
    assert_eq!(hostile.errno(), EINVAL);
    let long = 4_000_000;
    hostile.send(&MessageHeader::command(7, info.command(), long).encode(), &[file.as_fd(); 64]);
    for _ in 0..400 {
        hostile.send(&vec![0; long / 400], &[file.as_fd(); 32]);
    }
    assert_eq!(hostile.errno(), EMSGSIZE);
    hostile.expect_served();
}

/// Descriptors that are not eventfds, or not as many as there are interrupts.
fn interrupts(hostile: &mut Hostile, file: &OwnedFd) {
    let on_disk = tempfile::tempfile().unwrap();
    let event = event_fd::create().unwrap();
    let set = |start, count| {
        let (action, index, data) = (SetIrqs::TRIGGER, MSIX_IRQ, IrqData::EventFds);
        Request::DeviceSetIrqs(SetIrqs { action, index, start, count, data })
    };
    for wrong in [on_disk.as_fd(), file.as_fd()] {
        assert_eq!(hostile.ask_for(&set(0, 1), &[wrong]), EINVAL);
        // With one wrong descriptor, all are refused.
        assert_eq!(hostile.ask_for(&set(0, 2), &[event.as_fd(), wrong]), EINVAL);
    }
    for (start, count, files) in [(0, 2, 1), (0, 1, 2), (7, 2, 2), (0, 9, 9), (0, u32::MAX, 1)] {
        let errno = hostile.ask_for(&set(start, count), &vec![event.as_fd(); files]);
        assert_eq!(errno, EINVAL, "{files} for {count} from {start}");
    }
    assert_eq!(hostile.ask_for(&set(0, 0), &[event.as_fd()]), EINVAL);
    for _ in 0..100 {
        assert_eq!(hostile.ask_for(&set(0, 8), &[event.as_fd(); 8]), 0);
    }
    hostile.expect_served();
}

/// Random payloads, the same in every run, with valid headers.
fn at_random(hostile: &mut Hostile) {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        // xorshift64
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for _ in 0..3000 {
        let command = (next() % 20) as u16;
        let words = next() % 16;
        let mut payload = Vec::new();
        for _ in 0..words {
            // Small numbers are valid more often.
            let word = if next() % 4 == 0 { next() } else { next() % 64 };
            payload.extend((word as u32).to_ne_bytes());
        }
        hostile.request(command, &payload, &[]);
    }
    hostile.stream.flush().unwrap();
}
