//! Accesses to memory of another process, which may block them for ever.
#![cfg(not(any(loom, miri)))]
#![expect(
    unsafe_code,
    reason = "handles page faults, forks, and writes to another process's memory"
)]

use std::fs;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use longshore_access::dirty::{DirtyLog, Log};
use longshore_access::{
    Fault, Logs, ProcessMemory, Reason, Region, RemoteFault, RemoteMemory, Space,
};
use longshore_mem::VolatileSliceMut;
use longshore_mem::{AddrRange, Granule, Iova};
use longshore_pagetable::Prot;
use rustix::process::Signal;

#[path = "process/peer.rs"]
mod peer;

use peer::{END_OF_READ_ONLY, PAGE, PAGES, Peer, READ_ONLY, UNANSWERED, WRITABLE, content};

/// The timeout of each wait in a test.
const LONG: Duration = Duration::from_secs(60);
/// The timeout of accesses that should time out.
const SHORT: Duration = Duration::from_millis(200);
/// The maximum number of calls to one process at a time.
const CALLS_MAX: usize = 4;
/// The maximum number of idle threads.
const IDLE_MAX: usize = 8;
const START: Iova = Iova::new(0x10_0000);

#[test]
fn peer() {
    peer::be();
}

/// Locks out other tests, because the tests count threads.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of threads that the library has for calls, and the number of threads that are
/// blocked in such a system call.
fn threads() -> (usize, usize) {
    let (mut all, mut stuck) = (0, 0);
    for thread in fs::read_dir("/proc/self/task").unwrap() {
        // The thread may have exited.
        let read = |name| fs::read_to_string(thread.as_ref().unwrap().path().join(name));
        all += usize::from(read("comm").is_ok_and(|name| name.trim_end() == "longshore-call"));
        // The number of the system call in which the thread sleeps.
        let call = read("syscall").unwrap_or_default();
        let call = call.split(' ').next().and_then(|number| number.parse().ok());
        let calls = [libc::SYS_process_vm_readv, libc::SYS_process_vm_writev];
        stuck += usize::from(call.is_some_and(|call| calls.contains(&call)));
    }
    (all, stuck)
}

fn until(is_so: impl Fn() -> bool) {
    let end = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < end, "it takes too long");
        thread::sleep(Duration::from_millis(1));
    }
}

fn until_stuck(count: usize) {
    until(|| threads().1 == count);
}

/// Runs `work`, which might never return, on a thread.
fn in_time<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Receiver<R> {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(work()));
    told
}

fn read(memory: &ProcessMemory, offset: usize, into: &mut [u8]) -> Result<(), RemoteFault> {
    memory.read(offset as u64, VolatileSliceMut::from(into))
}

fn write(memory: &ProcessMemory, offset: usize, from: &mut [u8]) -> Result<(), RemoteFault> {
    memory.write(offset as u64, VolatileSliceMut::from(from).as_readable())
}

fn writable(peer: &Peer) -> ProcessMemory {
    // SAFETY: the memory is private to another program.
    unsafe { peer.memory(peer.address).writable() }
}

/// Maps all of the memory of a process in a space.
fn mapped(memory: ProcessMemory) -> (Space, Arc<Region>) {
    let len = (PAGES * PAGE) as u64;
    let region = Arc::new(Region::remote(Arc::new(memory), len).unwrap());
    let space = Space::new().unwrap();
    space.attach(&region).unwrap();
    space.map(START, &region, 0, len, Prot::READ_WRITE).unwrap();
    (space, region)
}

fn at(page: usize) -> Iova {
    Iova::new(START.raw() + (page * PAGE) as u64)
}

/// Reads or writes a page whose fault the process does not handle.
fn ask(space: &Space, is_write: bool) -> Receiver<Result<(), Fault>> {
    let space = space.clone();
    in_time(move || {
        let (session, mut page) = (space.session(), [7; PAGE]);
        match is_write {
            true => session.write(at(UNANSWERED), &page),
            false => session.read(at(UNANSWERED), &mut page),
        }
    })
}

/// Makes accesses that time out until `count` calls are abandoned. On a busy machine some of the
/// accesses end before their calls have begun.
fn abandon(space: &Space, count: usize) {
    let end = Instant::now() + LONG;
    while threads().1 < count {
        assert!(Instant::now() < end, "it takes too long");
        assert_eq!(ask(space, true).recv_timeout(LONG).unwrap(), fault(Reason::TimedOut));
    }
}

fn fault(reason: Reason) -> Result<(), Fault> {
    Err(Fault::new(at(UNANSWERED), 0, reason))
}

fn answers(memory: &ProcessMemory) {
    let mut byte = [0];
    read(memory, 5, &mut byte).unwrap();
    assert_eq!(byte[0], content(5));
}

#[test]
fn calls_on_other_threads_behave_like_calls_on_the_calling_thread() {
    let _alone = alone();
    let Some(peer) = Peer::start() else { return };
    let (by_threads, direct) = (writable(&peer).timeout(LONG), writable(&peer).on_calling_thread());
    let ends = [0, WRITABLE, READ_ONLY, END_OF_READ_ONLY];
    let edges = ends.iter().flat_map(|page| {
        let edge = page * PAGE;
        [1_usize, 0, PAGE, 3 * PAGE + 5, 65_536, 65_537].map(move |before| edge.checked_sub(before))
    });
    for offset in edges.flatten().chain([3 * PAGE + 1]) {
        for len in [0, 1, 4095, PAGE, PAGE + 1, 65_536, 65_537, 150_000] {
            let what = format!("{len} bytes at {offset:#x}");
            let (mut one, mut other) = (vec![1; len], vec![2; len]);
            let done = read(&by_threads, offset, &mut one);
            assert_eq!(done, read(&direct, offset, &mut other), "reading {what}");
            let done_bytes = done.map_or_else(|stop| stop.done, |()| len);
            assert_eq!(one[..done_bytes], other[..done_bytes], "reading {what}");
            assert!(one[done_bytes..].iter().all(|byte| *byte == 1), "untouched by {what}");

            // Write, compare, and restore.
            let mut before = vec![0; WRITABLE * PAGE];
            read(&direct, 0, &mut before).unwrap();
            let outcomes = [&by_threads, &direct].map(|memory| {
                let written = write(memory, offset, &mut vec![9; len]);
                let mut after = vec![0; WRITABLE * PAGE];
                read(&direct, 0, &mut after).unwrap();
                write(&direct, 0, &mut before.clone()).unwrap();
                (written, after)
            });
            assert!(outcomes[0] == outcomes[1], "writing {what}");
            let done = outcomes[0].0.map_or_else(|stop| stop.done, |()| len);
            if offset + len <= WRITABLE * PAGE {
                before[offset..offset + done].fill(9);
                assert!(outcomes[0].1 == before, "writing {what}");
                assert_eq!(done, len, "writing {what}");
            }
        }
    }
    // The end of the address space, a write without the promise of `writable`, and a process that has
    // ended.
    let end = peer.memory(u64::MAX - 4);
    let overflow = RemoteFault::new(0, Reason::Overflow);
    assert_eq!(read(&end, 5, &mut [0]), Err(overflow));
    let reason = Reason::BackingLost;
    assert_eq!(read(&end, 4, &mut [0]), Err(RemoteFault::new(0, reason)));
    let only_read = peer.memory(peer.address);
    let refused = RemoteFault::new(0, Reason::Permission);
    assert_eq!(write(&only_read, 0, &mut [0]), Err(refused));
    drop(peer);
    for memory in [&by_threads, &direct] {
        let lost = Err(RemoteFault::new(0, reason));
        assert_eq!(read(memory, 0, &mut [0]), lost);
        assert_eq!(write(memory, 0, &mut [0]), lost);
        assert_eq!(read(memory, 0, &mut []), Ok(()));
    }
}

#[test]
fn unmapping_ends_accesses_that_the_process_blocks() {
    let _alone = alone();
    let Some(mut peer) = Peer::start() else { return };
    let (space, _region) = mapped(writable(&peer).timeout(LONG));
    let asked = [ask(&space, false), ask(&space, true)];
    until_stuck(2);
    let unmapped = in_time(move || space.unmap(START, (PAGES * PAGE) as u64));
    let unmapped = unmapped.recv_timeout(LONG);
    if unmapped.is_err() {
        // Otherwise this test would wait for the call.
        peer.kill();
    }
    unmapped.expect("unmapping waits for the process").unwrap();
    for asked in asked {
        assert_eq!(asked.recv_timeout(LONG).unwrap(), fault(Reason::Revoked));
    }
    // Two more calls to the process are allowed.
    let memory = writable(&peer).timeout(LONG);
    answers(&memory);
    assert_eq!(threads().1, 2);
    assert_eq!(peer.ask("answer"), "ok");
    until_stuck(0);
    // The abandoned write is not done later, because it was abandoned while it faulted in its pages.
    let mut page = [1; PAGE];
    read(&memory, UNANSWERED * PAGE, &mut page).unwrap();
    assert_eq!(page, [0; PAGE]);
}

#[test]
fn accesses_time_out_and_keep_few_threads_until_the_process_answers() {
    let _alone = alone();
    let Some(mut peer) = Peer::start() else { return };
    let (space, _region) = mapped(writable(&peer).timeout(SHORT));
    let all = AddrRange::new(START, 1 << 20).unwrap();
    let log = Arc::new(DirtyLog::new(Granule::SIZE_4K, all).unwrap());
    let logs = Logs::default().with_iova(Log::Internal(Arc::clone(&log)));
    space.set_logs(logs).unwrap();
    abandon(&space, 1);
    let asked: Vec<_> = (0..32).map(|at| ask(&space, at % 2 == 0)).collect();
    for asked in asked {
        let asked = asked.recv_timeout(LONG).expect("an access does not end").unwrap_err();
        assert!(matches!(asked.reason, Reason::TimedOut | Reason::Unavailable), "{asked}");
    }
    abandon(&space, CALLS_MAX);
    assert_eq!(threads().1, CALLS_MAX);
    // Other accesses fail at once, even to present memory, and through another handle on the process.
    let memory = peer.memory(peer.address);
    let unavailable = Err(RemoteFault::new(0, Reason::Unavailable));
    assert_eq!(read(&memory, 0, &mut [0]), unavailable);
    assert_eq!(ask(&space, true).recv_timeout(LONG).unwrap(), fault(Reason::Unavailable));
    // Other processes are not affected.
    let other = Peer::start().unwrap();
    answers(&writable(&other).timeout(LONG));
    // The log marks all of the write, because the number of written bytes is unknown.
    let mut dirty = Vec::new();
    space.collect(&log, all, |run| dirty.push((run.start(), run.len()))).unwrap();
    assert_eq!(dirty, [(at(UNANSWERED), PAGE as u64)]);

    assert_eq!(peer.ask("answer"), "ok");
    until_stuck(0);
    until(|| ask(&space, true).recv_timeout(LONG).unwrap() == Ok(()));
    // The threads exit.
    until(|| threads().0 == 0);
    answers(&memory.timeout(LONG));
}

#[test]
fn accesses_end_with_the_process_and_with_its_program() {
    let _alone = alone();
    for way in ["kill", "exec"] {
        let Some(mut peer) = Peer::start() else { return };
        let (space, _region) = mapped(writable(&peer).timeout(LONG));
        // The other accesses wait for their turn.
        let asked: Vec<_> = (0..16).map(|at| ask(&space, at % 2 == 0)).collect();
        until_stuck(CALLS_MAX);
        match way {
            "kill" => peer.kill(),
            way => assert_eq!(peer.ask(way), "ok"),
        }
        // The old memory may exist, filled with zeros, until its last call has returned.
        for asked in asked {
            let _ = asked.recv_timeout(LONG).expect("an access does not end");
        }
        until_stuck(0);
        // Afterwards nothing is mapped there any more.
        assert_eq!(ask(&space, true).recv_timeout(LONG).unwrap(), fault(Reason::BackingLost));
    }
}

/// Another process has inherited the handler of its page faults, and does not answer either.
#[test]
fn the_end_of_a_process_may_not_end_its_calls() {
    let _alone = alone();
    let Some(mut peer) = Peer::start() else { return };
    let process =
        longshore_sys::process_memory::Process::open(peer.ask("share").parse().unwrap()).unwrap();
    let (space, _region) = mapped(writable(&peer).timeout(SHORT));
    abandon(&space, CALLS_MAX);
    peer.kill();
    assert_eq!(threads().1, CALLS_MAX);
    assert_eq!(ask(&space, true).recv_timeout(LONG).unwrap(), fault(Reason::Unavailable));
    let other = Peer::start().unwrap();
    answers(&writable(&other).timeout(LONG));
    peer.hang_up();
    until_stuck(0);
    until(|| process.check_alive().is_err());
    until(|| ask(&space, true).recv_timeout(LONG).unwrap() == fault(Reason::BackingLost));
}

#[test]
fn a_stopped_process_is_read_and_written() {
    let _alone = alone();
    let Some(peer) = Peer::start() else { return };
    peer.signal(Signal::STOP);
    let memory = writable(&peer).timeout(LONG);
    answers(&memory);
    write(&memory, 0, &mut [1; 9000]).unwrap();
    let mut bytes = [0; 9000];
    read(&memory, 0, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 9000]);
}

#[test]
fn many_threads_share_the_calls_of_a_process() {
    let _alone = alone();
    let Some(peer) = Peer::start() else { return };
    let memory = writable(&peer).timeout(LONG);
    thread::scope(|scope| {
        for number in 0..300 {
            let memory = &memory;
            scope.spawn(move || {
                let mut bytes = vec![0; 70_000];
                read(memory, number, &mut bytes).unwrap();
                assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == content(number + at)));
            });
        }
        assert!(threads().0 <= IDLE_MAX + CALLS_MAX);
    });
    assert!(threads().0 <= IDLE_MAX + CALLS_MAX);
}

/// A forked child has none of the threads of its parent.
#[test]
fn a_forked_child_starts_threads_of_its_own() {
    let _alone = alone();
    let Some(peer) = Peer::start() else { return };
    let memory = writable(&peer).timeout(LONG);
    answers(&memory);
    let (space, _region) = mapped(writable(&peer).timeout(SHORT));
    abandon(&space, CALLS_MAX);
    // SAFETY: the child only reads memory and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut byte = [0];
        let is_right = read(&memory, 5, &mut byte).is_ok() && byte[0] == content(5);
        // SAFETY: it ends the child without running the rest of the test.
        unsafe { libc::_exit(if is_right { 0 } else { 1 }) };
    }
    assert!(child > 0);
    let (end, mut status) = (Instant::now() + LONG, 0);
    // SAFETY: it is a child of this process, and no other thread waits for it.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if Instant::now() > end {
            // SAFETY: the same.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(status, 0);
}
