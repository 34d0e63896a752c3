//! A vhost-user back-end with one queue behind a virtual IOMMU, and a minimal front-end.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use longshore::vhost_user::wire::{HEADER_LEN_BYTES, MessageHeader, feature, number, protocol};
use longshore::vhost_user::{
    ACCESS_PLATFORM, Device, Listener, Queue, QueueState, RunningQueue, Server, Stop,
};
use longshore_sys::closing::User;
use longshore_sys::unix_socket::{self, Interest, Ready};
use longshore_sys::{event_fd, memfd};

use crate::run::{Files, Phase, Run, Steps};

const SOCKET: &str = "queue.sock";
const VERSION_1: u64 = 1 << 32;

/// Answers each kick with a new used index and a call.
struct Echo;

struct Running {
    stop: Stop,
    thread: JoinHandle<()>,
}

impl Device for Echo {
    fn queues_count(&self) -> u16 {
        1
    }

    fn features(&self) -> u64 {
        VERSION_1 | ACCESS_PLATFORM
    }

    fn config(&self) -> Vec<u8> {
        vec![0; 8]
    }

    fn start(&self, queue: Queue) -> io::Result<Box<dyn RunningQueue>> {
        let stop = queue.stop_handle();
        let thread = thread::Builder::new().name("queue".to_owned()).spawn(move || {
            let memory = queue.memory(|_, _| ());
            while {
                memory.session().park();
                queue.wait()
            } {
                let index: u16 =
                    memory.load(queue.layout.available + 2, Ordering::Acquire).unwrap();
                memory.store(queue.layout.used + 2, index, Ordering::Release).unwrap();
                queue.log_used(2, 2).unwrap();
                queue.call();
            }
        })?;
        Ok(Box::new(Running { stop, thread }))
    }
}

impl RunningQueue for Running {
    fn stop(self: Box<Self>) -> QueueState {
        self.stop.stop();
        self.thread.join().unwrap();
        QueueState { next: 0, is_broken: false }
    }
}

pub(crate) fn backend(run: &mut Run) -> ! {
    let path = Files::new().run.join(SOCKET);
    let mut peer = run.peer("a vhost-user front-end");
    let (mut disconnected, mut disconnects) = run.gate();

    run.begin(Phase::Setup);
    let server = Server::new(Echo).unwrap();
    let (listener, stop) = (Listener::bind(&path).unwrap(), server.stop_handle());
    let server =
        thread::spawn(move || server.serve_all(&listener, |_| disconnected.open()).unwrap());
    peer.step();

    run.begin(Phase::Steady);
    peer.step();

    run.begin(Phase::Teardown);
    peer.step();
    disconnects.wait();
    stop.stop();
    server.join().unwrap();
    run.end()
}

/// The start of the guest's memory: guest-physical, in the front-end's address space, and as an IOVA.
const GUEST: u64 = 0x10_0000;
const USER: u64 = 0x7000_0000_0000;
const IOVA: u64 = 0xff00_0000;
const MEMORY_BYTES: u64 = 4 << 20;
/// The offsets of the queue's rings in that memory.
const DESCRIPTORS: u64 = 0;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const ENTRIES: u32 = 16;
/// The length of the dirty log: at least one bit for each page below the end of the guest's memory.
const LOG_BYTES: u64 = 4096;

const FEATURES: u64 = feature::PROTOCOL_FEATURES | VERSION_1 | ACCESS_PLATFORM;
const PROTOCOL: u64 = protocol::LOG_SHMFD | protocol::REPLY_ACK | protocol::BACKEND_REQ;
const IOTLB_UPDATE: u8 = 2;
const IOTLB_INVALIDATE: u8 = 3;

const PATIENCE: Duration = Duration::from_secs(20);

/// Starts the queue, kicks it, also after an IOTLB invalidation and with a dirty log, and stops it.
pub(crate) fn frontend(mut steps: Steps) {
    let mut frontend = steps.step(|| {
        let mut frontend = Frontend::connect();
        frontend.start();
        frontend.turn(1);
        frontend
    });
    steps.step(|| {
        frontend.turn(2);
        frontend.invalidate();
        frontend.turn(3);
        frontend.log_writes();
        frontend.turn(4);
    });
    steps.step(|| {
        frontend.ask(number::GET_VRING_BASE, &words(&[0, 0]), &[]);
        drop(frontend);
    });
    steps.step(|| ());
}

struct Frontend {
    socket: UnixStream,
    /// The front-end's end of the channel for requests of the back-end.
    channel: UnixStream,
    memory: File,
    kick: OwnedFd,
    call: OwnedFd,
}

impl Frontend {
    fn connect() -> Self {
        let socket = UnixStream::connect(Files::new().run.join(SOCKET)).unwrap();
        let memory = memfd::create("guest", memfd::Backing::Shmem).unwrap();
        memfd::set_len(&memory, MEMORY_BYTES).unwrap();
        let (channel, theirs) = UnixStream::pair().unwrap();
        let mut frontend = Self {
            socket,
            channel,
            memory: File::from(memory),
            kick: event_fd::create().unwrap(),
            call: event_fd::create().unwrap(),
        };
        frontend.ask(number::GET_FEATURES, &[], &[]);
        frontend.ask(number::GET_PROTOCOL_FEATURES, &[], &[]);
        let protocol = PROTOCOL.to_ne_bytes();
        frontend.send(number::SET_PROTOCOL_FEATURES, &protocol, &[], false);
        frontend.done(number::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()]);
        frontend.done(number::SET_FEATURES, &FEATURES.to_ne_bytes(), &[]);
        frontend
    }

    fn start(&mut self) {
        let (memory, kick) = (self.memory.try_clone().unwrap(), self.kick.try_clone().unwrap());
        let call = self.call.try_clone().unwrap();
        let region = [GUEST, MEMORY_BYTES, USER, 0].map(u64::to_ne_bytes).concat();
        let table = [words(&[1, 0]), region].concat();
        self.done(number::SET_MEM_TABLE, &table, &[memory.as_fd()]);
        self.done(number::SET_VRING_NUM, &words(&[0, ENTRIES]), &[]);
        self.done(number::SET_VRING_BASE, &words(&[0, 0]), &[]);
        let places = [IOVA + DESCRIPTORS, IOVA + USED, IOVA + AVAILABLE, GUEST + USED];
        let addresses = [words(&[0, 0]), places.map(u64::to_ne_bytes).concat()].concat();
        self.done(number::SET_VRING_ADDR, &addresses, &[]);
        self.done(number::SET_VRING_CALL, &[0; 8], &[call.as_fd()]);
        self.done(number::SET_VRING_KICK, &[0; 8], &[kick.as_fd()]);
        self.done(number::SET_VRING_ENABLE, &words(&[0, 1]), &[]);
    }

    /// Kicks the device and waits for its call. Answers its IOTLB misses meanwhile.
    fn turn(&mut self, index: u16) {
        use std::os::unix::fs::FileExt;
        self.memory.write_all_at(&index.to_le_bytes(), AVAILABLE + 2).unwrap();
        event_fd::signal(&self.kick).unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let events = [self.call.as_fd()];
            let channel = self.channel.as_fd();
            let ready = unix_socket::wait(channel, Interest::Receive, &events, Some(deadline));
            match ready.unwrap() {
                Ready::Socket => self.answer_miss(),
                Ready::Event(_) => break,
                _ => panic!("the device does not answer"),
            }
        }
        event_fd::drain(&self.call).unwrap();
        let mut used = [0; 2];
        self.memory.read_exact_at(&mut used, USED + 2).unwrap();
        assert_eq!(u16::from_le_bytes(used), index);
    }

    fn answer_miss(&mut self) {
        let (_, miss) = receive(&self.channel);
        let iova = u64::from_ne_bytes(miss[..8].try_into().unwrap()) & !0xfff;
        self.iotlb(iova, IOTLB_UPDATE);
        let answer = MessageHeader::new(number::BACKEND_IOTLB_MSG, true, false, 8).encode();
        let answer = [&answer[..], &[0; 8]].concat();
        unix_socket::send(&self.channel, &answer, &[]).unwrap();
    }

    fn iotlb(&mut self, iova: u64, kind: u8) {
        let mut message = [iova, 0x1000, USER + iova - IOVA].map(u64::to_ne_bytes).concat();
        message.extend([3, kind, 0, 0, 0, 0, 0, 0]);
        self.done(number::IOTLB_MSG, &message, &[]);
    }

    fn invalidate(&mut self) {
        self.iotlb(IOVA + USED, IOTLB_INVALIDATE);
    }

    /// Turns on the dirty log, as a migration does.
    fn log_writes(&mut self) {
        let log = memfd::create("log", memfd::Backing::Shmem).unwrap();
        memfd::set_len(&log, LOG_BYTES).unwrap();
        let payload = [LOG_BYTES, 0].map(u64::to_ne_bytes).concat();
        self.ask(number::SET_LOG_BASE, &payload, &[log.as_fd()]);
        let features = FEATURES | feature::LOG_ALL;
        self.done(number::SET_FEATURES, &features.to_ne_bytes(), &[]);
    }

    fn send(&mut self, request: u32, payload: &[u8], files: &[BorrowedFd<'_>], needs_reply: bool) {
        let header = MessageHeader::new(request, false, needs_reply, payload.len()).encode();
        let bytes = [&header, payload].concat();
        assert_eq!(unix_socket::send(&self.socket, &bytes, files).unwrap(), bytes.len());
    }

    /// Sends a request and checks its reply.
    fn ask(&mut self, request: u32, payload: &[u8], files: &[BorrowedFd<'_>]) {
        self.send(request, payload, files, false);
        let (header, _) = receive(&self.socket);
        assert!(header.is_reply && header.request == request, "{header:?}");
    }

    /// Sends a request and checks that it is acknowledged (`VHOST_USER_PROTOCOL_F_REPLY_ACK`).
    fn done(&mut self, request: u32, payload: &[u8], files: &[BorrowedFd<'_>]) {
        self.send(request, payload, files, true);
        let (header, payload) = receive(&self.socket);
        assert!(header.request == request && payload == [0; 8], "{header:?}: {payload:?}");
    }
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn receive(socket: &UnixStream) -> (MessageHeader, Vec<u8>) {
    let user = User::of_peer(socket);
    let exact = |len: usize| {
        let (mut bytes, mut have) = (vec![0; len], 0);
        while have < len {
            let deadline = Some(Instant::now() + PATIENCE);
            let ready = unix_socket::wait(socket.as_fd(), Interest::Receive, &[], deadline);
            assert_eq!(ready.unwrap(), Ready::Socket, "an answer comes");
            let into = &mut bytes[have..];
            let taken = unix_socket::receive(socket, user, into, &mut Vec::new(), None).unwrap();
            assert_ne!(taken.len_bytes, 0, "the connection ended instead of an answer");
            have += taken.len_bytes;
        }
        bytes
    };
    let header = exact(HEADER_LEN_BYTES).try_into().unwrap();
    let header = MessageHeader::decode(header).unwrap();
    let payload = exact(header.len_bytes as usize);
    (header, payload)
}
