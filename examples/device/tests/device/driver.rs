//! A driver of the device in place of a guest: the vfio-user client, with memfds as memory.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use longshore::access::Space;
use longshore::vfio_user::client::{Client, DmaMemory, NoDmaMemory};
use longshore::vfio_user::pci::{BAR0_REGION, CONFIG_REGION};
use longshore::vfio_user::{ConnectionSummary, Listener, Stop};
use longshore_device_example::layout::{
    Completion, Descriptor, ENTRY_BYTES, SEGMENT_BYTES, control, register,
};
use longshore_device_example::server;
use longshore_device_example::trace::Counts;
use rustix::fs::{MemfdFlags, memfd_create};

/// An entry of a scatter list: its IOVA and its length in bytes.
pub(crate) type Part = (u64, u64);

/// The number of entries of the rings.
pub(crate) const ENTRIES: u32 = 16;
/// The IOVA of the memory for rings and lists.
pub(crate) const RINGS: u64 = 0x10_0000;
/// The IOVAs of two other pieces of memory.
pub(crate) const SOURCE: u64 = 0x4000_0000;
pub(crate) const TARGET: u64 = 0x1_8000_0000;
/// The length of each piece of memory.
pub(crate) const PIECE_BYTES: u64 = 2 << 20;

const COMPLETIONS_AT: u64 = 0x1000;
const LISTS_AT: u64 = 0x1_0000;
const LIST_BYTES: u64 = 256 * SEGMENT_BYTES;
/// The time limit of each wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The device, served on a socket in a temporary folder.
pub(crate) struct Host {
    pub(crate) counts: Counts,
    pub(crate) path: PathBuf,
    stop: Stop,
    thread: JoinHandle<Vec<ConnectionSummary>>,
    _folder: tempfile::TempDir,
}

impl Host {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device.sock");
        let listener = Listener::bind(&path).unwrap();
        let counts = Counts::default();
        // Longer than any test, so that a test fails if the server waits for this.
        let server = server(Space::new().unwrap(), &counts).unwrap();
        let mut server = server.reply_timeout(Duration::from_secs(3600));
        let stop = server.stop_handle();
        let thread = thread::spawn(move || {
            let mut all = Vec::new();
            server.serve_all(&listener, |served| all.push(served.clone())).unwrap();
            all
        });
        Self { counts, path, stop, thread, _folder: folder }
    }

    /// Returns a driver that has mapped its memory and enabled the device.
    pub(crate) fn driver(&self) -> Driver {
        Driver::over(UnixStream::connect(&self.path).unwrap(), NoDmaMemory)
    }

    /// Stops the server, and returns the summaries of all connections.
    pub(crate) fn stop(self) -> Vec<ConnectionSummary> {
        self.stop.stop();
        self.thread.join().unwrap()
    }
}

/// Returns zeroed memory for the driver.
pub(crate) fn piece() -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = File::from(memfd_create("piece", flags).unwrap());
    memory.set_len(PIECE_BYTES).unwrap();
    memory
}

/// A driver. Its memory is at [`RINGS`], [`SOURCE`] and [`TARGET`].
pub(crate) struct Driver<M = NoDmaMemory> {
    pub(crate) client: Client<M>,
    pub(crate) source: File,
    pub(crate) target: File,
    rings: File,
    submitted: u32,
    completed: u32,
}

impl<M: DmaMemory> Driver<M> {
    pub(crate) fn over(stream: UnixStream, memory: M) -> Self {
        let client = Client::from_stream(stream, memory).unwrap();
        let [rings, source, target] = [(); 3].map(|()| piece());
        let mut driver = Self { client, source, target, rings, submitted: 0, completed: 0 };
        driver.set_bus_master(true);
        driver.client.dma_map(RINGS, PIECE_BYTES, Some((driver.rings.as_fd(), 0)), true).unwrap();
        driver.client.dma_map(SOURCE, PIECE_BYTES, Some((driver.source.as_fd(), 0)), true).unwrap();
        driver.client.dma_map(TARGET, PIECE_BYTES, Some((driver.target.as_fd(), 0)), true).unwrap();
        driver.enable(0);
        driver
    }

    pub(crate) fn set_bus_master(&mut self, may: bool) {
        let command = [if may { 0b110 } else { 0b010 }, 0];
        self.client.region_write(CONFIG_REGION, 4, &command).unwrap();
    }

    /// Enables the device again, with the rings at their usual place.
    pub(crate) fn enable(&mut self, bits: u32) {
        self.enable_at(RINGS, ENTRIES, bits);
    }

    /// As [`enable`](Self::enable), with rings at this IOVA and of this length.
    pub(crate) fn enable_at(&mut self, at: u64, entries: u32, bits: u32) {
        self.write(register::CONTROL, 0);
        self.rings.write_all_at(&[0; 0x1000], COMPLETIONS_AT).unwrap();
        self.write(register::ENTRIES, entries);
        let rings = [at.to_le_bytes(), (at + COMPLETIONS_AT).to_le_bytes()];
        self.client.region_write(BAR0_REGION, register::DESCRIPTORS, rings.as_flattened()).unwrap();
        self.write(register::CONTROL, control::ENABLE | bits);
        (self.submitted, self.completed) = (0, 0);
    }

    pub(crate) fn read(&mut self, at: u64) -> u32 {
        let mut word = [0; 4];
        self.client.region_read(BAR0_REGION, at, &mut word).unwrap();
        u32::from_le_bytes(word)
    }

    pub(crate) fn write(&mut self, at: u64, value: u32) {
        self.client.region_write(BAR0_REGION, at, &value.to_le_bytes()).unwrap();
    }

    /// Submits a descriptor with this scatter list, without ringing the doorbell.
    pub(crate) fn submit(&mut self, opcode: u32, list: &[Part], target: u64) {
        let list_at = LISTS_AT + u64::from(self.submitted % ENTRIES) * LIST_BYTES;
        for (entry, (iova, len)) in (0..).zip(list) {
            let bytes = [iova.to_le_bytes(), len.to_le_bytes()];
            let at = list_at + entry * SEGMENT_BYTES;
            self.rings.write_all_at(bytes.as_flattened(), at).unwrap();
        }
        let (segments, cookie) = (list.len() as u32, 1000 + u64::from(self.submitted));
        self.submit_raw(Descriptor { opcode, segments, list: RINGS + list_at, target, cookie });
    }

    pub(crate) fn submit_raw(&mut self, descriptor: Descriptor) {
        let at = u64::from(self.submitted % ENTRIES) * ENTRY_BYTES;
        let bytes = descriptor.words().map(u64::to_ne_bytes);
        self.rings.write_all_at(bytes.as_flattened(), at).unwrap();
        self.submitted += 1;
    }

    pub(crate) fn ring(&mut self) {
        self.write(register::DOORBELL, self.submitted);
    }

    /// Returns the next completion, if there is one.
    pub(crate) fn look(&mut self) -> Option<Completion> {
        let at = COMPLETIONS_AT + u64::from(self.completed % ENTRIES) * ENTRY_BYTES;
        let look = || {
            let mut bytes = [[0; 8]; 4];
            self.rings.read_exact_at(bytes.as_flattened_mut(), at).unwrap();
            Completion::of(bytes.map(u64::from_ne_bytes))
        };
        if look().sequence != self.completed + 1 {
            return None;
        }
        self.completed += 1;
        // Fields that were read together with the sequence number may be older.
        Some(look())
    }

    /// Waits for the next completion.
    pub(crate) fn completion(&mut self) -> Completion {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            if let Some(completion) = self.look() {
                return completion;
            }
            thread::yield_now();
        }
        panic!("no descriptor completes; the status is {}", self.read(register::STATUS));
    }

    /// Executes one descriptor, and returns its completion.
    pub(crate) fn run(&mut self, opcode: u32, list: &[Part], target: u64) -> Completion {
        self.submit(opcode, list, target);
        self.ring();
        self.completion()
    }
}

/// Waits until `is_so` returns true, and panics if that takes too long.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "timed out: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}
