//! A second process, whose memory the tests read and write. It handles some of its page faults itself.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::ptr;

use longshore_access::ProcessMemory;
use rustix::io::FdFlags;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::{
    MapFlags, MprotectFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, mprotect, munmap,
    userfaultfd,
};
use rustix::process::{Pid, Signal, kill_process};

pub(crate) const PAGE: usize = 4096;
/// The number of pages from the address on that can be read and written. The next one is not mapped.
pub(crate) const WRITABLE: usize = 40;
/// The first read-only page.
pub(crate) const READ_ONLY: usize = WRITABLE + 1;
/// The page after the read-only ones, which is not mapped.
pub(crate) const END_OF_READ_ONLY: usize = READ_ONLY + 20;
/// The first page whose faults the process does not handle in time.
pub(crate) const UNANSWERED: usize = END_OF_READ_ONLY + 1;
/// The number of such pages.
const UNANSWERED_PAGES: usize = 32;
/// The number of all pages.
pub(crate) const PAGES: usize = UNANSWERED + UNANSWERED_PAGES;

/// The environment variable that is set in the second process.
const INSIDE: &str = "LONGSHORE_TEST_PEER";

pub(crate) struct Peer {
    pub(crate) child: Child,
    /// Closing it ends the programs that the process has started.
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    pub(crate) address: u64,
}

/// Returns the initial byte at an offset before [`UNANSWERED`].
pub(crate) fn content(offset: usize) -> u8 {
    (offset.wrapping_mul(31) ^ (offset / PAGE)) as u8
}

impl Peer {
    /// Starts this test program as the second process, in a test named `peer` that calls [`be`]. Returns
    /// `None` if there is no `userfaultfd`.
    pub(crate) fn start() -> Option<Self> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "peer", "--nocapture"]).env(INSIDE, "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (commands, answers) = (child.stdin.take(), child.stdout.take().unwrap());
        let mut peer = Self { child, commands, answers: BufReader::new(answers), address: 0 };
        let answer = peer.answer();
        match answer.parse() {
            Ok(address) => peer.address = address,
            Err(_) => {
                println!("SKIPPED: {answer}");
                return None;
            }
        }
        Some(peer)
    }

    /// Returns its memory from `address` on.
    pub(crate) fn memory(&self, address: u64) -> ProcessMemory {
        ProcessMemory::open(self.child.id(), address).unwrap()
    }

    /// Sends it a command, and waits for the answer.
    pub(crate) fn ask(&mut self, command: &str) -> String {
        writeln!(self.commands.as_ref().unwrap(), "{command}").unwrap();
        self.answer()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "the process has ended");
            if let Some(answer) = line.strip_prefix("PEER ") {
                return answer.trim_end().to_owned();
            }
        }
    }

    /// Ends the programs that it has started.
    pub(crate) fn hang_up(&mut self) {
        self.commands = None;
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.commands = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    len: u64,
}

#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

/// The requests of `linux/userfaultfd.h`.
const API: Opcode = opcode::read_write::<Api>(0xaa, 0x3f);
const REGISTER: Opcode = opcode::read_write::<Register>(0xaa, 0);
const UNREGISTER: Opcode = opcode::read::<Range>(0xaa, 1);

/// Lets the holder of the returned descriptor handle page faults in a range.
fn register(range: Range) -> rustix::io::Result<OwnedFd> {
    // SAFETY: the handler has no effect on memory that this program uses through references.
    let handler = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC)? };
    let mut api = Api { api: 0xaa, features: 0, ioctls: 0 };
    // SAFETY: the structure of this request.
    let request = unsafe { Updater::<API, Api>::new(&mut api) };
    // SAFETY: the request changes only the descriptor.
    unsafe { ioctl(&handler, request)? };
    let mut register = Register { range, mode: 1, ioctls: 0 };
    // SAFETY: the structure of this request.
    let request = unsafe { Updater::<REGISTER, Register>::new(&mut register) };
    // SAFETY: no reference to the mapping exists.
    unsafe { ioctl(&handler, request)? };
    Ok(handler)
}

fn unregister(handler: impl AsFd, mut range: Range) {
    // SAFETY: the structure of this request.
    let request = unsafe { Updater::<UNREGISTER, Range>::new(&mut range) };
    // SAFETY: no reference to the mapping exists.
    unsafe { ioctl(handler, request).unwrap() };
}

/// Maps and fills the memory.
fn memory() -> *mut u8 {
    let flags = MapFlags::PRIVATE;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping.
    let start = unsafe { mmap_anonymous(ptr::null_mut(), PAGES * PAGE, prot, flags) }.unwrap();
    let start = start.cast::<u8>();
    for offset in 0..UNANSWERED * PAGE {
        // SAFETY: within the mapping.
        let at = unsafe { start.add(offset) };
        // SAFETY: the mapping can be written.
        unsafe { at.write(content(offset)) };
    }
    let page = |page: usize| start.wrapping_add(page * PAGE).cast();
    // SAFETY: the page is within the mapping, to which no reference exists.
    unsafe { munmap(page(WRITABLE), PAGE) }.unwrap();
    // SAFETY: the same.
    unsafe { munmap(page(END_OF_READ_ONLY), PAGE) }.unwrap();
    let len = (END_OF_READ_ONLY - READ_ONLY) * PAGE;
    // SAFETY: the same.
    unsafe { mprotect(page(READ_ONLY), len, MprotectFlags::READ) }.unwrap();
    start
}

/// Runs as the second process, if this program was started as that.
pub(crate) fn be() {
    if std::env::var_os(INSIDE).is_none() {
        return;
    }
    let tell = |answer: &str| {
        println!("\nPEER {answer}");
        std::io::stdout().flush().unwrap();
    };
    let start = memory();
    let first = start.wrapping_add(UNANSWERED * PAGE);
    let len = UNANSWERED_PAGES * PAGE;
    let range = Range { start: first.expose_provenance() as u64, len: len as u64 };
    let handler = match register(range) {
        Ok(handler) => handler,
        Err(error) => return tell(&format!("no userfaultfd: {error}")),
    };
    tell(&start.expose_provenance().to_string());
    for command in std::io::stdin().lines().map_while(Result::ok) {
        match command.as_str() {
            // Waiting accesses continue and read zeros.
            "answer" => unregister(&handler, range),
            // The new program has neither the memory nor the handler.
            "exec" => {
                use std::os::unix::process::CommandExt;
                tell("ok");
                panic!("{}", Command::new("cat").exec());
            }
            // Another process inherits the handler.
            "share" => {
                rustix::io::fcntl_setfd(&handler, FdFlags::empty()).unwrap();
                let mut other = Command::new("cat");
                let started = other.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
                tell(&started.unwrap().id().to_string());
                // The other process reads the commands from now on.
                loop {
                    std::thread::park();
                }
            }
            other => panic!("unknown command '{other}'"),
        }
        tell("ok");
    }
}
