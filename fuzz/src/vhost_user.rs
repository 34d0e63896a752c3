//! Properties of `examples/vhost` for any messages of a vhost-user front-end.
//!
//! The input is a list of messages:
//!
//! ```text
//!   request u8, flags u8, files u8, len u8, len bytes
//! ```
//!
//! `flags`: bit 0, the message asks for an acknowledgement; bit 1, the bytes are the payload, otherwise
//! they are XORed onto a valid payload. `files`: the number of descriptors in bits 0 and 1, their kind
//! in bits 2 and 3.
//!
//! The properties: the server ends by itself when the front-end disconnects, it answers each message at
//! most once and completely, it uses few page tables for each message, and it serves the next front-end.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use longshore_sys::closing::User;
use longshore_sys::{event_fd, memfd, unix_socket};
use longshore_vhost_example::{BlockDevice, Counts, Disk, Server};
use longshore_vhost_user::wire::{HEADER_LEN_BYTES, MessageHeader, number};
use longshore_vhost_user::{REGIONS_MAX, TABLE_BYTES_MAX};

const MEMORY_BYTES: u64 = 1 << 20;
/// The length of the file behind the memory. It is longer, without pages there, so that regions may be
/// long.
const FILE_BYTES: u64 = 1 << 45;
const GUEST: u64 = 0x10_0000;
const USER: u64 = 0x7000_0000_0000;
const LOG_BYTES: u64 = (GUEST + MEMORY_BYTES) / 4096 / 8;
const PROTOCOL_FEATURES: u64 = 0x22b;
/// Few enough that all answers fit into a socket.
const MESSAGES_MAX: usize = 64;
/// The maximum bytes of page tables for one range: three tables at each end, their parents, and one for
/// each 512 GiB of the longest range.
const TABLE_BYTES_OF_RANGE: u64 = 4096 * (12 + TABLE_BYTES_MAX / (512 << 30));

/// The descriptors that a front-end can send.
struct Files {
    memory: File,
    event: OwnedFd,
    log: OwnedFd,
    socket: UnixStream,
}

impl Files {
    fn new() -> Self {
        let file = |len| {
            let file = memfd::create("front-end", memfd::Backing::Shmem).unwrap();
            memfd::set_len(&file, len).unwrap();
            file
        };
        let memory = File::from(file(FILE_BYTES));
        fill(&memory);
        let socket = UnixStream::pair().unwrap().0;
        let event = event_fd::create().unwrap();
        event_fd::signal(&event).unwrap();
        Self { memory, event, log: file(LOG_BYTES), socket }
    }

    fn kind(&self, kind: u8) -> BorrowedFd<'_> {
        match kind & 3 {
            0 => self.memory.as_fd(),
            1 => self.event.as_fd(),
            2 => self.log.as_fd(),
            _ => self.socket.as_fd(),
        }
    }
}

/// Writes a ring with one read request at the beginning.
fn fill(memory: &File) {
    let put = |at: u64, bytes: &[u8]| memory.write_all_at(bytes, at).unwrap();
    for (slot, (at, len, flags, next)) in
        [(0x3000_u64, 16_u32, 1_u16, 1_u16), (0x8000, 512, 3, 2), (0x3800, 1, 2, 0)]
            .into_iter()
            .enumerate()
    {
        let at_slot = 16 * slot as u64;
        put(at_slot, &(GUEST + at).to_le_bytes());
        put(at_slot + 8, &len.to_le_bytes());
        put(at_slot + 12, &flags.to_le_bytes());
        put(at_slot + 14, &next.to_le_bytes());
    }
    put(0x1002, &1_u16.to_le_bytes());
}

/// Sends the messages in `data` to a server.
pub fn vhost_user(data: &[u8]) {
    let disk = memfd::create("disk", memfd::Backing::Shmem).unwrap();
    memfd::set_len(&disk, 1 << 16).unwrap();
    let disk = Disk::from_file(File::from(disk), false, "fuzzed").unwrap();
    let counts = Counts::default();
    let server = Server::new(BlockDevice::new(disk, counts.clone())).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let files = Files::new();
    let mut rest = data;
    let mut sent = 0;
    while let ([request, flags, kinds, len, more @ ..], true) = (rest, sent < MESSAGES_MAX) {
        let (bytes, after) = more.split_at(usize::from(*len).min(more.len()));
        rest = after;
        let payload = payload(u32::from(*request), flags & 2 != 0, bytes);
        let header =
            MessageHeader::new((*request).into(), false, flags & 1 != 0, payload.len()).encode();
        let descriptors = [files.kind(kinds >> 2); 3];
        let descriptors = &descriptors[..usize::from(kinds & 3)];
        let message = [&header[..], &payload].concat();
        // All messages are sent before any is read, so the socket may be full.
        match unix_socket::send(&ours, &message, descriptors) {
            Ok(done) if done == message.len() => sent += 1,
            _ => break,
        }
    }
    ours.shutdown(std::net::Shutdown::Write).unwrap();
    server.serve(&theirs).unwrap();
    drop(theirs);
    assert!(answers(&ours) <= sent + 1);
    let table_bytes = counts.snapshot().page_table_bytes_max;
    let ranges_max = (REGIONS_MAX + MESSAGES_MAX) as u64;
    assert!(table_bytes <= ranges_max * TABLE_BYTES_OF_RANGE, "{table_bytes}");

    let (ours, theirs) = UnixStream::pair().unwrap();
    let header = MessageHeader::new(number::GET_FEATURES, false, false, 0).encode();
    unix_socket::send(&ours, &header, &[]).unwrap();
    ours.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(server.serve(&theirs).unwrap().to_string(), "closed by the front-end");
    assert_eq!(answers(&ours), 1);
    assert_eq!(counts.snapshot().clients, 2);
}

/// Returns a valid payload for the request, changed by `bytes`, or `bytes` alone.
fn payload(request: u32, is_raw: bool, bytes: &[u8]) -> Vec<u8> {
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let state = |num: u64| words(&[num << 32]);
    let sensible: Vec<u8> = match request {
        _ if is_raw => return bytes.to_owned(),
        number::SET_FEATURES => words(&[1 << 30 | 1 << 32]),
        number::SET_PROTOCOL_FEATURES => words(&[PROTOCOL_FEATURES]),
        number::SET_MEM_TABLE => words(&[1, GUEST, MEMORY_BYTES, USER, 0]),
        number::SET_LOG_BASE => words(&[LOG_BYTES, 0]),
        number::SET_VRING_NUM => state(16),
        number::SET_VRING_ENABLE => state(1),
        number::SET_VRING_BASE | number::GET_VRING_BASE => state(0),
        number::SET_VRING_KICK | number::SET_VRING_CALL | number::SET_VRING_ERR => words(&[0]),
        number::SET_VRING_ADDR => words(&[0, USER, USER + 0x2000, USER + 0x1000, GUEST + 0x2000]),
        number::IOTLB_MSG => words(&[GUEST, MEMORY_BYTES, USER, 0x0203]),
        number::GET_CONFIG => [words(&[60 << 32]), vec![0; 64]].concat(),
        _ => Vec::new(),
    };
    let changed = |(at, byte)| byte ^ bytes.get(at).copied().unwrap_or(0);
    sensible.into_iter().enumerate().map(changed).collect()
}

/// Returns the number of messages up to the end, all of which must be complete.
fn answers(socket: &UnixStream) -> usize {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    let user = User::of_peer(socket);
    while let Ok(taken) = unix_socket::receive(socket, user, &mut chunk, &mut Vec::new(), None) {
        if taken.len_bytes == 0 {
            break;
        }
        bytes.extend_from_slice(&chunk[..taken.len_bytes]);
    }
    let (mut rest, mut answers) = (&bytes[..], 0);
    while let Some((header, more)) = rest.split_first_chunk::<HEADER_LEN_BYTES>() {
        let header = MessageHeader::decode(*header).expect("a header");
        assert!(header.is_reply && !header.needs_reply, "{header:?}");
        (rest, answers) = (more.get(header.len_bytes as usize..).expect("a payload"), answers + 1);
    }
    assert!(rest.is_empty(), "an incomplete answer");
    answers
}
