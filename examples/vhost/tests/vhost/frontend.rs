//! A front-end and its driver, which encode messages by hand and have one ring in a memfd.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use longshore::vhost_user::wire::{MessageHeader, number};
use longshore_sys::closing::User;
use longshore_sys::unix_socket::{self, Interest, Ready};
use longshore_sys::{event_fd, memfd};
use longshore_vhost_example::Stop;
use longshore_vhost_example::{BlockDevice, Counts, Disk, Listener, Server};
use rustix::io::Errno;
use rustix::net::RecvFlags;

/// The guest-physical address of the guest's memory.
pub(crate) const GUEST: u64 = 0x10_0000;
/// The address of the guest's memory in the front-end.
pub(crate) const USER: u64 = 0x7000_0000_0000;
/// The IOVA of the guest's memory behind an IOMMU.
pub(crate) const IOVA: u64 = 0xff00_0000;
/// The length of the guest's memory.
pub(crate) const MEMORY_BYTES: u64 = 4 << 20;
pub(crate) const DISK_BYTES: u64 = 1 << 20;
pub(crate) const SERIAL: &str = "a disk";

/// The offsets of the ring's parts and of a request's parts in memory.
pub(crate) const DESCRIPTORS: u64 = 0;
pub(crate) const AVAILABLE: u64 = 0x1000;
pub(crate) const USED: u64 = 0x2000;
pub(crate) const HEADER: u64 = 0x3000;
pub(crate) const STATUS: u64 = 0x3800;
pub(crate) const DATA: u64 = 0x8000;
pub(crate) const ENTRIES: u16 = 16;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

pub(crate) const LOG_ALL: u64 = 1 << 26;
pub(crate) const PROTOCOL_FEATURES: u64 = 1 << 30;
pub(crate) const VERSION_1: u64 = 1 << 32;
pub(crate) const ACCESS_PLATFORM: u64 = 1 << 33;
/// The protocol features: MQ, LOG_SHMFD, REPLY_ACK, BACKEND_REQ, CONFIG.
pub(crate) const PROTOCOL: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 5 | 1 << 9;

/// The time limit of each wait. A reply takes microseconds, but the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server in a thread, and its disk.
pub(crate) struct Served {
    pub(crate) disk: File,
    pub(crate) counts: Counts,
    path: PathBuf,
    stop: Stop,
    ended: Receiver<String>,
    thread: Option<JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

impl Served {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.sock");
        let disk = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..DISK_BYTES).map(|at| (at * 7 + (at >> 9)) as u8).collect();
        disk.write_all_at(&content, 0).unwrap();
        let of_server = Disk::from_file(disk.try_clone().unwrap(), false, SERIAL).unwrap();
        let counts = Counts::default();
        let server = Server::new(BlockDevice::new(of_server, counts.clone())).unwrap();
        let (stop, listener) = (server.stop_handle(), Listener::bind(&path).unwrap());
        let (sender, ended) = mpsc::channel();
        let thread = thread::spawn(move || {
            server.serve_all(&listener, |ended| drop(sender.send(ended.to_string()))).unwrap();
        });
        Self { disk, counts, path, stop, ended, thread: Some(thread), _dir: dir }
    }

    pub(crate) fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.path).unwrap()
    }

    /// Returns the reason that the last connection ended.
    pub(crate) fn ended(&self) -> String {
        self.ended.recv_timeout(PATIENCE).expect("the connection ends")
    }

    /// Asserts that the reason for the end of the last connection contains `what`, and that the next
    /// front-end is served.
    pub(crate) fn ends_with(&self, what: &str) {
        let ended = self.ended();
        assert!(ended.contains(what), "{ended:?} does not contain {what:?}");
        self.still_serves();
    }

    /// Asserts that the next front-end is served.
    pub(crate) fn still_serves(&self) {
        let mut frontend = Frontend::ready(self);
        let expected = self.on_disk(3, 512);
        assert_eq!(frontend.read(3, 512), (0, expected));
        drop(frontend);
        assert_eq!(self.ended(), "closed by the front-end");
    }

    pub(crate) fn on_disk(&self, sector: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.disk.read_exact_at(&mut bytes, sector * 512).unwrap();
        bytes
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.stop();
        let deadline = Instant::now() + PATIENCE;
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            if thread::panicking() {
                return;
            }
            assert!(Instant::now() < deadline, "the server ends");
            thread::sleep(Duration::from_millis(1));
        }
        let joined = self.thread.take().map(JoinHandle::join);
        if !thread::panicking() {
            joined.unwrap().expect("the server did not panic");
        }
    }
}

/// A descriptor: address, length, flags, and index of the next one.
#[derive(Clone, Copy)]
pub(crate) struct Descriptor(pub(crate) u64, pub(crate) u32, pub(crate) u16, pub(crate) u16);

/// The front-end's handler of a request for a translation.
pub(crate) type Translate = fn(&mut Frontend, u64, bool);

pub(crate) struct Frontend {
    pub(crate) socket: UnixStream,
    /// The other end of the channel for the back-end's requests.
    pub(crate) channel: Option<UnixStream>,
    /// The guest's memory, which the tests read and write as a file.
    pub(crate) memory: File,
    pub(crate) kick: OwnedFd,
    pub(crate) call: OwnedFd,
    pub(crate) error: OwnedFd,
    /// The address of the guest's memory for the device.
    pub(crate) base: u64,
    pub(crate) next: u16,
    pub(crate) translate: Translate,
    pub(crate) misses: u64,
    /// The offset in memory to which a test's own handler translates.
    pub(crate) target: u64,
}

impl Frontend {
    /// Returns a front-end that has negotiated the protocol, and nothing else.
    pub(crate) fn negotiated(served: &Served) -> Self {
        Self::over(served.connect())
    }

    /// As [`negotiated`](Self::negotiated), over this connection.
    pub(crate) fn over(socket: UnixStream) -> Self {
        let memory = memfd::create("guest", memfd::Backing::Shmem).unwrap();
        memfd::set_len(&memory, MEMORY_BYTES).unwrap();
        let mut frontend = Self {
            socket,
            channel: None,
            memory: File::from(memory),
            kick: event_fd::create().unwrap(),
            call: event_fd::create().unwrap(),
            error: event_fd::create().unwrap(),
            base: GUEST,
            next: 0,
            translate: Self::translate,
            misses: 0,
            target: 0,
        };
        let offered = frontend.ask_u64(number::GET_FEATURES);
        let needed = LOG_ALL | PROTOCOL_FEATURES | VERSION_1 | ACCESS_PLATFORM;
        assert_eq!(offered & needed, needed);
        assert_eq!(frontend.ask_u64(number::GET_PROTOCOL_FEATURES), PROTOCOL);
        frontend.send(number::SET_PROTOCOL_FEATURES, &PROTOCOL.to_ne_bytes(), &[], false);
        frontend
    }

    /// Returns a front-end with a running ring, without an IOMMU.
    pub(crate) fn ready(served: &Served) -> Self {
        let mut frontend = Self::negotiated(served);
        frontend.done(number::SET_FEATURES, &(PROTOCOL_FEATURES | VERSION_1).to_ne_bytes(), &[]);
        frontend.set_table();
        frontend.start_ring(USER, 0);
        frontend
    }

    /// Returns a front-end with a running ring behind an IOMMU.
    pub(crate) fn ready_behind_iommu(served: &Served, translate: Translate) -> Self {
        let mut frontend = Self::negotiated(served);
        let (ours, theirs) = UnixStream::pair().unwrap();
        // The server refuses it while too many threads of earlier channels of this user run.
        let begin = Instant::now();
        while frontend.acknowledged(number::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()]) != 0 {
            assert!(begin.elapsed() < PATIENCE, "the server refuses the channel");
            thread::sleep(Duration::from_millis(1));
        }
        (frontend.channel, frontend.base, frontend.translate) = (Some(ours), IOVA, translate);
        let features = PROTOCOL_FEATURES | VERSION_1 | ACCESS_PLATFORM;
        frontend.done(number::SET_FEATURES, &features.to_ne_bytes(), &[]);
        frontend.set_table();
        frontend.start_ring(IOVA, 0);
        frontend
    }

    pub(crate) fn set_table(&mut self) {
        let memory = self.memory.try_clone().unwrap();
        let table = table(&[[GUEST, MEMORY_BYTES, USER, 0]]);
        self.done(number::SET_MEM_TABLE, &table, &[memory.as_fd()]);
    }

    /// Starts ring 0, in memory that begins at `base`.
    pub(crate) fn start_ring(&mut self, base: u64, flags: u32) {
        self.done(number::SET_VRING_NUM, &state(0, ENTRIES.into()), &[]);
        self.done(number::SET_VRING_BASE, &state(0, self.next.into()), &[]);
        let addresses = addresses(0, flags, base);
        self.done(number::SET_VRING_ADDR, &addresses, &[]);
        let event = |event: &OwnedFd| event.try_clone().unwrap();
        let (kick, call, error) = (event(&self.kick), event(&self.call), event(&self.error));
        self.done(number::SET_VRING_CALL, &0_u64.to_ne_bytes(), &[call.as_fd()]);
        self.done(number::SET_VRING_ERR, &0_u64.to_ne_bytes(), &[error.as_fd()]);
        self.done(number::SET_VRING_KICK, &0_u64.to_ne_bytes(), &[kick.as_fd()]);
        self.done(number::SET_VRING_ENABLE, &state(0, 1), &[]);
    }

    pub(crate) fn send(
        &mut self,
        request: u32,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
        needs_reply: bool,
    ) {
        let header = MessageHeader::new(request, false, needs_reply, payload.len()).encode();
        let bytes = [&header, payload].concat();
        assert_eq!(unix_socket::send(&self.socket, &bytes, descriptors).unwrap(), bytes.len());
    }

    /// Sends a request, waits for the acknowledgement, and returns its value.
    pub(crate) fn acknowledged(
        &mut self,
        request: u32,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> u64 {
        self.send(request, payload, descriptors, true);
        let (header, payload) = receive(&self.socket);
        assert!(header.is_reply && header.request == request, "{header:?}");
        u64::from_ne_bytes(payload.try_into().unwrap())
    }

    /// Sends a request, and asserts that the acknowledgement reports success.
    pub(crate) fn done(&mut self, request: u32, payload: &[u8], descriptors: &[BorrowedFd<'_>]) {
        assert_eq!(self.acknowledged(request, payload, descriptors), 0, "request {request}");
    }

    /// Sends a request, and asserts that the acknowledgement reports a failure.
    pub(crate) fn refused(&mut self, request: u32, payload: &[u8], descriptors: &[BorrowedFd<'_>]) {
        assert_eq!(self.acknowledged(request, payload, descriptors), 1, "request {request}");
    }

    /// Sends a request that has a reply, and returns the reply.
    pub(crate) fn ask(&mut self, request: u32, payload: &[u8]) -> Vec<u8> {
        self.send(request, payload, &[], false);
        let (header, payload) = receive(&self.socket);
        assert!(header.is_reply && header.request == request, "{header:?}");
        payload
    }

    pub(crate) fn ask_u64(&mut self, request: u32) -> u64 {
        u64::from_ne_bytes(self.ask(request, &[]).try_into().unwrap())
    }

    pub(crate) fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at).unwrap();
    }

    pub(crate) fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    pub(crate) fn get_u16(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.get(at, 2).try_into().unwrap())
    }

    pub(crate) fn put_descriptors(&self, at: u64, descriptors: &[Descriptor]) {
        for (slot, Descriptor(address, len, flags, next)) in (0..).zip(descriptors) {
            let at = at + 16 * slot;
            self.put(at, &address.to_le_bytes());
            self.put(at + 8, &len.to_le_bytes());
            self.put(at + 12, &flags.to_le_bytes());
            self.put(at + 14, &next.to_le_bytes());
        }
    }

    /// Makes the chain that begins at `head` available, and kicks.
    pub(crate) fn submit(&mut self, head: u16) {
        let slot = u64::from(self.next % ENTRIES);
        self.put(AVAILABLE + 4 + 2 * slot, &head.to_le_bytes());
        self.next = self.next.wrapping_add(1);
        self.put(AVAILABLE + 2, &self.next.to_le_bytes());
        event_fd::signal(&self.kick).unwrap();
    }

    /// Waits until all requests are completed, and answers misses meanwhile. Returns false if the ring
    /// is broken.
    pub(crate) fn wait(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if event_fd::drain(&self.error).unwrap() != 0 {
                return false;
            }
            if self.get_u16(USED + 2) == self.next {
                return true;
            }
            assert!(Instant::now() < deadline, "neither completed nor broken");
            let event = match &self.channel {
                Some(channel) => {
                    let events = [self.call.as_fd(), self.error.as_fd()];
                    let soon = Some(Instant::now() + Duration::from_millis(50));
                    unix_socket::wait(channel.as_fd(), Interest::Receive, &events, soon).unwrap()
                }
                None => {
                    let soon = Some(Instant::now() + Duration::from_millis(50));
                    let events = [self.error.as_fd()];
                    unix_socket::wait(self.call.as_fd(), Interest::Receive, &events, soon).unwrap();
                    Ready::Event(0)
                }
            };
            event_fd::drain(&self.call).unwrap();
            if event == Ready::Socket {
                self.answer_miss();
            }
        }
    }

    /// Waits until the ring is broken, and returns `false`, as [`wait`](Self::wait) does then.
    pub(crate) fn wait_broken(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while event_fd::drain(&self.error).unwrap() == 0 {
            assert!(Instant::now() < deadline, "the ring is not broken");
            let soon = Some(Instant::now() + Duration::from_millis(50));
            let ready = match &self.channel {
                Some(channel) => {
                    let events = [self.error.as_fd()];
                    unix_socket::wait(channel.as_fd(), Interest::Receive, &events, soon).unwrap()
                }
                None => {
                    unix_socket::wait(self.error.as_fd(), Interest::Receive, &[], soon).unwrap();
                    Ready::TimedOut
                }
            };
            if ready == Ready::Socket && self.channel.as_ref().is_some_and(has_ended) {
                self.channel = None;
            } else if ready == Ready::Socket {
                self.answer_miss();
            }
        }
        false
    }

    /// Receives a request for a translation without a reply. Returns its address, and true for a write.
    pub(crate) fn take_miss(&mut self) -> (u64, bool) {
        let channel = self.channel.as_ref().unwrap();
        let (header, payload) = receive(channel);
        assert!(header.needs_reply && header.request == number::BACKEND_IOTLB_MSG, "{header:?}");
        assert_eq!((payload.len(), payload[25]), (32, 1));
        self.misses += 1;
        (u64::from_ne_bytes(payload[..8].try_into().unwrap()), payload[24] == 2)
    }

    /// Receives a request for a translation, and calls `translate` to reply.
    pub(crate) fn answer_miss(&mut self) {
        let (iova, is_write) = self.take_miss();
        (self.translate)(self, iova, is_write);
    }

    /// Translates one page correctly.
    pub(crate) fn translate(&mut self, iova: u64, is_write: bool) {
        let offset = (iova & !0xfff).checked_sub(IOVA).filter(|offset| *offset < MEMORY_BYTES);
        let is_known = offset.is_some();
        if let Some(offset) = offset {
            // A page is mapped read-only until it is written.
            let access = if is_write { 3 } else { 1 };
            let update = iotlb(iova & !0xfff, 0x1000, USER + offset, access, 2);
            self.done(number::IOTLB_MSG, &update, &[]);
        }
        self.answer(u64::from(!is_known));
    }

    /// Replies to a request for a translation.
    pub(crate) fn answer(&mut self, outcome: u64) {
        let header = MessageHeader::new(number::BACKEND_IOTLB_MSG, true, false, 8).encode();
        let bytes = [&header[..], &outcome.to_ne_bytes()].concat();
        // The server may have closed the channel.
        let _ = unix_socket::send(self.channel.as_ref().unwrap(), &bytes, &[]);
    }

    /// Executes one request, and returns its status.
    pub(crate) fn request(&mut self, kind: u32, sector: u64, data: &[Descriptor]) -> u8 {
        assert!(self.try_request(kind, sector, data), "the ring is broken");
        self.get(STATUS, 1)[0]
    }

    /// Submits one request.
    pub(crate) fn begin(&mut self, kind: u32, sector: u64, data: &[Descriptor]) {
        self.put(HEADER, &[kind.to_le_bytes(), [0; 4]].concat());
        self.put(HEADER + 8, &sector.to_le_bytes());
        self.put(STATUS, &[0xff]);
        let mut chain = vec![Descriptor(self.base + HEADER, 16, 0, 0)];
        chain.extend(data);
        chain.push(Descriptor(self.base + STATUS, 1, WRITE, 0));
        let last = chain.len() - 1;
        for (at, descriptor) in chain[..last].iter_mut().enumerate() {
            (descriptor.2, descriptor.3) = (descriptor.2 | NEXT, at as u16 + 1);
        }
        self.put_descriptors(DESCRIPTORS, &chain);
        self.submit(0);
    }

    /// Executes one request. Returns false if the ring is broken.
    pub(crate) fn try_request(&mut self, kind: u32, sector: u64, data: &[Descriptor]) -> bool {
        self.begin(kind, sector, data);
        self.wait()
    }

    /// Reads from the disk. Returns the status and the bytes.
    pub(crate) fn read(&mut self, sector: u64, len: u32) -> (u8, Vec<u8>) {
        let status = self.request(0, sector, &[Descriptor(self.base + DATA, len, WRITE, 0)]);
        (status, self.get(DATA, len as usize))
    }
}

/// Returns true if the other end is closed, and everything that it sent was received.
fn has_ended(socket: &UnixStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    // A connection that is closed with unread bytes in its queue is reset.
    matches!(rustix::net::recv(socket, &mut [0; 1], flags), Ok((0, _)) | Err(Errno::CONNRESET))
}

/// Receives a message.
pub(crate) fn receive(socket: &UnixStream) -> (MessageHeader, Vec<u8>) {
    let user = User::of_peer(socket);
    let exact = |len: usize| {
        let (mut bytes, mut have) = (vec![0; len], 0);
        while have < len {
            let deadline = Some(Instant::now() + PATIENCE);
            let ready = unix_socket::wait(socket.as_fd(), Interest::Receive, &[], deadline);
            assert_eq!(ready.unwrap(), Ready::Socket, "a message arrives");
            let into = &mut bytes[have..];
            let taken = unix_socket::receive(socket, user, into, &mut Vec::new(), None).unwrap();
            assert_ne!(taken.len_bytes, 0, "the connection ended before the message");
            have += taken.len_bytes;
        }
        bytes
    };
    let header = MessageHeader::decode(exact(12).try_into().unwrap()).unwrap();
    let payload = exact(header.len_bytes as usize);
    (header, payload)
}

pub(crate) fn state(index: u32, num: u32) -> Vec<u8> {
    [index, num].map(u32::to_ne_bytes).concat()
}

/// Encodes a memory table. Each region has a guest-physical address, a length, a user address, and an
/// offset.
pub(crate) fn table(regions: &[[u64; 4]]) -> Vec<u8> {
    let mut payload = state(regions.len() as u32, 0);
    payload.extend(regions.iter().flatten().flat_map(|word| word.to_ne_bytes()));
    payload
}

pub(crate) fn addresses(index: u32, flags: u32, base: u64) -> Vec<u8> {
    let mut payload = state(index, flags);
    let words = [base + DESCRIPTORS, base + USED, base + AVAILABLE, GUEST + USED];
    payload.extend(words.map(u64::to_ne_bytes).concat());
    payload
}

pub(crate) fn iotlb(iova: u64, len_bytes: u64, user: u64, access: u8, kind: u8) -> Vec<u8> {
    let mut payload = [iova, len_bytes, user].map(u64::to_ne_bytes).concat();
    payload.extend([access, kind, 0, 0, 0, 0, 0, 0]);
    payload
}
