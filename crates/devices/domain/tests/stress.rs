//! Threads that use one domain concurrently, with devices that read and write.
#![cfg(not(any(loom, miri)))]

#[path = "model/memory.rs"]
mod memory;

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use longshore_access::Session;
use longshore_domain::backend::Soft;
use longshore_domain::{Batch, Bounce, Direction, Domain, Error, Handle, Local, Mapping, WhenFull};
use longshore_mem::{DmaMemory, FileOffset, Iova};

use memory::{Memory, PAGE};

const THREADS: u64 = 4;
const TURNS: u64 = 2000;
/// The threads' transfers, in turn: their offset in a page, and their length.
const SHAPES: [(usize, usize); 8] = [
    (0, 4096),
    (5, 100),
    (0, 3 * 4096),
    (4000, 5000),
    (0, 64),
    (17, 66 * 4096),
    (0, 20 * 4096),
    (4095, 2),
];

/// A transfer for a device thread: the byte that it expects, and the one that it writes.
struct Order {
    iova: Iova,
    len: usize,
    direction: Direction,
    expected: u8,
    new: u8,
    done: SyncSender<()>,
}

/// Runs a device, which checks all bytes of each transfer, and writes new ones.
fn serve(device: &Session, orders: &Receiver<Order>) -> u64 {
    let mut served = 0;
    for Order { iova, len, direction, expected, new, done } in orders {
        if direction != Direction::FromDevice {
            let mut seen = vec![0; len];
            device.read(iova, &mut seen).unwrap();
            let wrong = seen.iter().position(|byte| *byte != expected);
            assert_eq!(wrong, None, "read {:x?}, expected {expected:#x}", wrong.map(|at| seen[at]));
        }
        let written = device.write(iova, &vec![new; len]);
        assert_eq!(written.is_ok(), direction != Direction::ToDevice);
        served += 1;
        done.send(()).unwrap();
    }
    served
}

/// The state of a thread.
struct Worker<'d, D: Handle> {
    domain: &'d Domain,
    orders: SyncSender<Order>,
    batch: Batch<'d, Memory, D>,
    /// The expected bytes of the memory in the batch.
    deferred: Vec<u8>,
    turn: u64,
    tag: u64,
    refused: &'d AtomicU64,
}

fn holds(memory: &Memory, len: usize, byte: u8) {
    let bytes = memory.place().bytes();
    let own = &bytes[memory.first..memory.first + len];
    let wrong = own.iter().position(|found| *found != byte);
    assert_eq!(wrong, None, "found {:x?}, expected {byte:#x}", wrong.map(|at| own[at]));
    // The bytes around it are never written.
    let (before, behind) = (&bytes[..memory.first], &bytes[memory.first + len..]);
    assert!(before.iter().chain(behind).all(|byte| *byte == 0));
}

impl<'d, D: Handle> Worker<'d, D> {
    fn next(&mut self) -> (usize, usize, Direction, u8, u8) {
        self.turn += 1;
        let (skip, len) = SHAPES[(self.turn * 5 + self.tag) as usize % SHAPES.len()];
        let direction = [Direction::ToDevice, Direction::FromDevice, Direction::Bidirectional]
            [(self.turn * 7 + self.tag) as usize % 3];
        // Neighboring turns and other threads have other bytes.
        let byte = (self.turn * THREADS + self.tag) as u8 & 0x7e | 1;
        (skip, len, direction, byte, byte | 0x80)
    }

    fn order(&self, iova: Iova, len: usize, direction: Direction, expected: u8, new: u8) {
        let (done, waits) = sync_channel(1);
        self.orders.send(Order { iova, len, direction, expected, new, done }).unwrap();
        waits.recv().unwrap();
    }

    /// Does one transfer, which ends in one of several ways.
    fn turn<M>(&mut self, map: M)
    where
        M: FnOnce(Memory, Direction) -> Result<Mapping<'d, Memory, D>, Error>,
    {
        let (skip, len, direction, byte, new) = self.next();
        let memory = Memory::new(skip, len);
        let mut bytes = vec![0; memory.place().len];
        bytes[memory.first..memory.first + len].fill(byte);
        memory.place().fill(&bytes);
        let mut mapping = match map(memory, direction) {
            Ok(mapping) => mapping,
            // The pools are full, and this transfer must be bounced.
            Err(Error::Pool(_)) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return;
            }
            Err(other) => panic!("{other}"),
        };
        self.order(mapping.iova(), len, direction, byte, new);
        let after = if direction == Direction::ToDevice { byte } else { new };
        match self.turn % 5 {
            0 => drop(mapping),
            1 => {
                mapping.unmap_deferred(&mut self.batch).unwrap();
                self.deferred.push(after);
                if self.batch.len() == 8 {
                    self.flush();
                }
            }
            2 => {
                mapping.sync_for_cpu(0..len as u64).unwrap();
                mapping.write(0, &vec![0x40; len]).unwrap();
                mapping.sync_for_device(0..len as u64).unwrap();
                self.order(mapping.iova(), len, direction, 0x40, new);
                let after = if direction == Direction::ToDevice { 0x40 } else { new };
                holds(&mapping.unmap().unwrap(), len, after);
            }
            _ => holds(&mapping.unmap().unwrap(), len, after),
        }
    }

    fn flush(&mut self) {
        let mut expected = self.deferred.drain(..);
        let mut count = 0;
        let back = |memory: Memory| {
            let len = memory.host().len();
            holds(&memory, len, expected.next().unwrap());
            count += 1;
        };
        self.batch.flush(back).unwrap();
        assert!(expected.next().is_none(), "{count} came back");
    }

    fn lend(&mut self) {
        let (skip, len, _, byte, new) = self.next();
        let mut bytes = vec![byte; len + skip];
        let lent = self.domain.lend_mut(&mut bytes[skip..], Direction::Bidirectional, |iova| {
            self.order(iova, len, Direction::Bidirectional, byte, new);
        });
        let after = match lent {
            Ok(()) => new,
            Err(Error::Pool(_)) => byte,
            Err(other) => panic!("{other}"),
        };
        assert!(bytes[..skip].iter().all(|found| *found == byte));
        assert!(bytes[skip..].iter().all(|found| *found == after));
    }
}

fn work(domain: &Domain, tag: u64, orders: SyncSender<Order>, refused: &AtomicU64) {
    let deferred = Vec::new();
    if tag.is_multiple_of(2) {
        let local: Local<'_> = domain.local();
        let batch = local.batch();
        let mut worker = Worker { domain, orders, batch, deferred, turn: 0, tag, refused };
        for _ in 0..TURNS {
            worker.turn(|memory, direction| local.map(memory, direction).map_err(Error::from));
        }
        worker.flush();
    } else {
        let batch = domain.batch();
        let mut worker = Worker { domain, orders, batch, deferred, turn: 0, tag, refused };
        for turn in 0..TURNS {
            if turn.is_multiple_of(4) {
                worker.lend();
            }
            worker.turn(|memory, direction| domain.map(memory, direction).map_err(Error::from));
        }
        worker.flush();
    }
}

/// No thread gets bytes of another, and at the end nothing is held.
#[test]
fn threads_use_a_domain_concurrently() {
    let soft = Soft::new().unwrap();
    let space = soft.space().clone();
    let domain = Domain::builder(soft)
        .bounce(Bounce::Below(4 * PAGE))
        .pool_limit(8 << 21, WhenFull::MapDirectly)
        .guard_bytes(1)
        .free_after(Some(Duration::from_millis(1)))
        .build();
    let (stop, refused, started) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut served = 0;
    thread::scope(|scope| {
        let mut devices = Vec::new();
        let mut workers = Vec::new();
        for tag in 0..THREADS {
            let (orders, to_do) = sync_channel(4);
            let space = space.clone();
            devices.push(scope.spawn(move || serve(&space.session(), &to_do)));
            let (domain, refused) = (&domain, &refused);
            workers.push(scope.spawn(move || work(domain, tag, orders, refused)));
        }
        scope.spawn(|| {
            let policies = [Bounce::Always, Bounce::Never, Bounce::Below(2 * PAGE)];
            for turn in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                domain.set_bounce(policies[turn % 3]);
                domain.shrink(Duration::ZERO).unwrap();
                let mut handle = domain.local();
                let ring = domain.alloc_coherent(PAGE).unwrap();
                drop((ring, &mut handle));
                started.fetch_add(1, Ordering::Relaxed);
                thread::yield_now();
            }
        });
        let results: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        drop(Stop(&stop));
        for result in results {
            result.unwrap();
        }
        served = devices.into_iter().map(|device| device.join().unwrap()).sum();
    });
    domain.shrink(Duration::ZERO).unwrap();
    let (counters, iovas) = (domain.counters(), domain.iovas());
    assert!(served > THREADS * TURNS && started.load(Ordering::Relaxed) != 0);
    assert!(refused.load(Ordering::Relaxed) < THREADS * TURNS / 2, "{refused:?} were refused");
    assert!(counters.bounced != 0 && counters.flushes != 0, "{counters:?}");
    assert_eq!((counters.maps, counters.leaked, counters.pool_bytes), (counters.unmaps, 0, 0));
    assert_eq!(counters.pool_grows, counters.pool_shrinks);
    assert_eq!(iovas.free_bytes(), iovas.all_bytes());
}

/// A device does not stop when its transfer is unmapped or dropped. From then on, no byte of the memory
/// changes, however it was mapped.
#[test]
fn a_device_that_does_not_stop_writes_to_no_unmapped_memory() {
    const ROUNDS: u64 = if cfg!(debug_assertions) { 300 } else { 2000 };
    let soft = Soft::new().unwrap();
    let space = soft.space().clone();
    let domain = Domain::builder(soft).guard_bytes(1).build();
    let (iova, len, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let (mut arrived, mut faulted) = (0, 0);
    thread::scope(|scope| {
        let device = scope.spawn(|| {
            let session = space.session();
            let (mut arrived, mut faulted, mut byte) = (0u64, 0u64, 0u8);
            while !stop.load(Ordering::Relaxed) {
                byte = byte.wrapping_add(1);
                let at = Iova::new(iova.load(Ordering::Acquire));
                let bytes = vec![byte; len.load(Ordering::Acquire) as usize];
                match session.write(at, &bytes) {
                    Ok(()) => arrived += 1,
                    Err(_) => faulted += 1,
                }
            }
            (arrived, faulted)
        });
        let stop = Stop(&stop);
        for round in 0..ROUNDS {
            // Direct, bounced, and with bounced ends.
            let (skip, size) = [(0, 4 * 4096), (9, 5000), (4000, 66 * 4096)][round as usize % 3];
            let memory = Shared(Arc::new(Memory::new(skip, size)));
            let place = memory.0.place();
            let kept = memory.clone();
            let mapping = domain.map(memory, Direction::Bidirectional).unwrap();
            len.store(size as u64, Ordering::Release);
            iova.store(mapping.iova().raw(), Ordering::Release);
            for _ in 0..round % 7 {
                thread::yield_now();
            }
            if round % 2 == 0 {
                drop(mapping);
            } else {
                drop(mapping.unmap().unwrap());
            }
            let after = place.bytes();
            for _ in 0..5 {
                thread::yield_now();
                assert!(place.bytes() == after, "round {round}: written after the unmapping");
            }
            drop(kept);
        }
        drop(stop);
        (arrived, faulted) = device.join().unwrap();
    });
    assert!(arrived != 0 && faulted != 0, "{arrived} writes arrived, {faulted} did not");
}

/// Stops other threads when it is dropped, also if a test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Memory that the test keeps after its mapping has ended.
#[derive(Clone, Debug)]
struct Shared(Arc<Memory>);

// SAFETY: the value keeps a `Memory`, which makes the same promises.
#[allow(unsafe_code, reason = "memory of a test")]
unsafe impl DmaMemory for Shared {
    fn host(&self) -> NonNull<[u8]> {
        self.0.host()
    }

    fn is_writable(&self) -> bool {
        self.0.is_writable()
    }

    unsafe fn file(&self) -> Option<(BorrowedFd<'_>, FileOffset)> {
        None
    }
}
