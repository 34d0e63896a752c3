//! Missing memory, processes that end, cancelled calls, and threads that would wait for themselves.
#![cfg(not(any(loom, miri)))]
#![expect(unsafe_code, reason = "writes to memory of another program")]

use std::io::IoSliceMut;
use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use longshore_access::{
    Error, Fault, OnUnmap, ProcessMemory, ReadOnly, ReadWrite, Reason, Region, RegionAccess,
    RemoteFault, RemoteMemory, Space, WriteOnly,
};
use longshore_iov::{Cursor, Dest, Segment, SegmentSource, Source};
use longshore_mem::{FileOffset, Iova};
use longshore_mem::{VolatileSlice, VolatileSliceMut};
use longshore_pagetable::Prot;
use longshore_sys::memfd::{self, Backing, Seals};

const PAGE: u64 = 4096;
const START: Iova = Iova::new(0x4000_0000);

fn at(offset: u64) -> Iova {
    Iova::new(START.raw() + offset)
}

fn mapped(region: Region, prot: Prot) -> (Space, Arc<Region>) {
    let (space, region) = (Space::new().unwrap(), Arc::new(region));
    space.attach(&region).unwrap();
    space.map(START, &region, 0, region.len(), prot).unwrap();
    (space, region)
}

fn lost(offset: u64, done: usize) -> Fault {
    Fault::new(at(offset + done as u64), done, Reason::BackingLost)
}

#[test]
fn accesses_to_a_truncated_file_fault_at_the_exact_byte() {
    let file = memfd::create("shrinks", Backing::Shmem).unwrap();
    memfd::set_len(&file, 4 * PAGE).unwrap();
    let region = Region::map_file(&file, FileOffset::new(0), 4 * PAGE, RegionAccess::ReadWrite);
    let region = region.unwrap();
    assert!(region.is_guarded());
    let (space, _region) = mapped(region, Prot::READ_WRITE);
    let session = space.session();
    session.fill(START, 0x5a, 4 * PAGE as usize).unwrap();
    memfd::set_len(&file, 2 * PAGE).unwrap();
    let end = 2 * PAGE;

    let mut into = vec![0; 6000];
    assert_eq!(session.read(at(end - 5000), &mut into), Err(lost(end - 5000, 5000)));
    assert!(into[..5000].iter().all(|byte| *byte == 0x5a) && into[5000..] == [0; 1000]);
    assert_eq!(session.write(at(end - 40), &[1; 64]), Err(lost(end - 40, 40)));
    assert_eq!(session.fill(at(end - 500), 2, 1000), Err(lost(end - 500, 500)));
    assert_eq!(session.read(at(end - 3), &mut into[..20]), Err(lost(end - 3, 3)));
    for offset in [end, end + 8, 3 * PAGE] {
        assert_eq!(session.read_obj::<u64>(at(offset)), Err(lost(offset, 0)));
        assert_eq!(session.read_obj::<u8>(at(offset)), Err(lost(offset, 0)));
        assert_eq!(session.write_obj(at(offset), 1u16), Err(lost(offset, 0)));
        assert_eq!(session.load::<u32>(at(offset), Ordering::Acquire), Err(lost(offset, 0)));
        assert_eq!(session.store(at(offset), 1u8, Ordering::Release), Err(lost(offset, 0)));
        assert_eq!(session.compare_exchange(at(offset), 0u64, 1), Err(lost(offset, 0)));
        assert_eq!(session.fetch_add(at(offset), 1u16), Err(lost(offset, 0)));
    }
    let mut slices = [IoSliceMut::new(&mut into)];
    let mut cursor = Cursor::<Dest>::own_vec(&mut slices);
    assert_eq!(session.read_iter(at(end - 9), &mut cursor, 20), Err(lost(end - 9, 9)));
    assert_eq!(cursor.walked(), 9);
    assert_eq!(cursor.remaining(), 6000 - 9);
    let outcome = session.pin(at(end - PAGE), 2 * PAGE as usize, ReadWrite, |view| {
        assert_eq!(view.write(10, &[3; 20]), Ok(()));
        assert_eq!(view.read(PAGE as usize - 2, &mut [0; 4]), Err(lost(end - 2, 2)));
        view.write(PAGE as usize, &[3; 4])
    });
    assert_eq!(outcome.unwrap(), Err(lost(end, 0)));
    // The rest of the file is still accessible, and so is its end after the file has grown again.
    session.read(at(end - 5000), &mut into[..5000]).unwrap();
    memfd::set_len(&file, 4 * PAGE).unwrap();
    assert_eq!(session.read_obj::<u64>(at(end)), Ok(0));
}

#[test]
fn a_file_is_guarded_whatever_its_seals_are() {
    let file = memfd::create("sealed", Backing::Shmem).unwrap();
    memfd::set_len(&file, 2 * PAGE).unwrap();
    let map =
        |offset, len| Region::map_file(&file, FileOffset::new(offset), len, RegionAccess::ReadOnly);
    for (shrink, grow, write) in [(false, false, false), (true, false, false), (true, true, true)] {
        memfd::add_seals(&file, Seals { shrink, grow, write, ..Seals::default() }).unwrap();
        let region = Arc::new(map(PAGE, PAGE).unwrap());
        assert!(region.is_guarded() && region.is_read_only() && region.is_direct());
        assert!(Region::part(&region, 0, PAGE).unwrap().is_guarded());
    }
    for (offset, len) in [(0, 4 * PAGE), (PAGE, 2 * PAGE), (1 << 40, PAGE)] {
        let end = offset + len;
        let refused = map(offset, len).unwrap_err();
        assert!(
            matches!(refused, Error::BeyondFile { end: at, file_bytes } if (at, file_bytes) == (end, 2 * PAGE)),
            "{refused}"
        );
    }
    for (offset, len) in [(1, PAGE), (0, PAGE - 1), (0, 0), (u64::MAX - 0xfff, PAGE)] {
        assert!(matches!(map(offset, len), Err(Error::RegionAlignment { .. })));
    }
}

#[test]
fn the_offset_into_a_file_is_kept() {
    let file = memfd::create("offset", Backing::Shmem).unwrap();
    memfd::set_len(&file, 3 * PAGE).unwrap();
    rustix::io::pwrite(&file, b"here", 2 * PAGE + 8).unwrap();
    let region = Region::map_file(&file, FileOffset::new(PAGE), 2 * PAGE, RegionAccess::ReadOnly);
    let (space, region) = mapped(region.unwrap(), Prot::READ);
    let mut four = [0; 4];
    space.session().read(at(PAGE + 8), &mut four).unwrap();
    assert_eq!(&four, b"here");
    let fault = space.session().write(START, b"no").unwrap_err();
    assert_eq!(fault.reason, Reason::Permission);
    let refused = space.map(Iova::new(0), &region, 0, PAGE, Prot::READ_WRITE);
    assert!(matches!(refused, Err(Error::ReadOnlyRegion)));
}

/// A process that is killed on drop.
struct Killed(Child);

impl Killed {
    fn end(&mut self) {
        // The process may have ended before.
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts a program that sleeps, and returns the end of its stack, and the start of its first mapping,
/// which is read-only and begins with the magic number of ELF.
fn sleeping() -> (Killed, u64, u64) {
    let mut command = Command::new("sleep");
    command.arg("1000").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = Killed(command.spawn().unwrap());
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        assert!(Instant::now() < end, "the process has no stack that is named so");
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.0.id())).unwrap();
        // Wait until it has executed `sleep` and sleeps, because until then it uses its stack.
        let is_new =
            maps.lines().any(|line| line.ends_with("sleep") || line.ends_with("coreutils"));
        let status = std::fs::read_to_string(format!("/proc/{}/stat", child.0.id())).unwrap();
        let is_asleep = status.rsplit(')').next().is_some_and(|rest| rest.starts_with(" S"));
        let range = |line: &str| {
            let (start, end) = line.split_once(' ')?.0.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            Some((number(start)?, number(end)?))
        };
        // Both mappings exist from the start.
        let stack = maps.lines().find(|line| line.ends_with("[stack]")).and_then(range);
        let first = maps.lines().find(|line| line.contains(" r--p ")).and_then(range);
        if let (true, true, Some(stack), Some(first)) = (is_new, is_asleep, stack, first) {
            return (child, stack.1, first.0);
        }
    }
}

/// Writes to memory that is read-only in the other process fail, and change nothing.
#[test]
fn read_only_memory_of_another_process_is_read_and_never_written() {
    let (child, _, first) = sleeping();
    let pid = child.0.id();
    // SAFETY: the first mapping of another program, which shares no memory with this one.
    let memory = Arc::new(unsafe { ProcessMemory::open(pid, first).unwrap().writable() });
    for prot in [Prot::READ, Prot::READ_WRITE] {
        let (space, _region) = mapped(Region::remote(memory.clone(), PAGE).unwrap(), prot);
        let session = space.session();
        let reason = match prot == Prot::READ {
            true => Reason::Permission,
            false => Reason::BackingLost,
        };
        let refused = Err(Fault::new(at(0), 0, reason));
        assert_eq!(session.write(at(0), b"none"), refused);
        assert_eq!(session.fill(at(0), 1, 4), refused);
        let mut four = [0; 4];
        session.read(at(0), &mut four).unwrap();
        assert_eq!(&four, b"\x7fELF");
    }
}

/// A child may share memory with this process, which safe code must not change.
#[test]
fn writing_memory_of_another_process_needs_unsafe_code() {
    let (child, stack, _) = sleeping();
    let pid = child.0.id();
    let memory = Arc::new(ProcessMemory::open(pid, stack - 2 * PAGE).unwrap());
    let (space, _region) = mapped(Region::remote(memory, 2 * PAGE).unwrap(), Prot::READ_WRITE);
    let session = space.session();
    let refused = Err(Fault::new(at(16), 0, Reason::Permission));
    let mut before = [0; 4];
    session.read(at(16), &mut before).unwrap();
    assert_eq!(session.write(at(16), b"none"), refused);
    assert_eq!(session.fill(at(16), 1, 4), refused);
    let mut after = [0; 4];
    session.read(at(16), &mut after).unwrap();
    assert_eq!(after, before);
}

#[test]
fn memory_of_another_process_faults_once_the_process_is_gone() {
    let (mut child, stack, _) = sleeping();
    let pid = child.0.id();
    // SAFETY: the stack of another program, which shares no memory with this one.
    let memory =
        Arc::new(unsafe { ProcessMemory::open(pid, stack - 2 * PAGE).unwrap().writable() });
    let (space, _region) = mapped(Region::remote(memory, 4 * PAGE).unwrap(), Prot::READ_WRITE);
    let session = space.session();
    let mut page = vec![0; PAGE as usize];
    session.read(at(PAGE), &mut page).unwrap();
    let text = String::from_utf8_lossy(&page).into_owned();
    assert!(text.contains("sleep"), "the name of the program is at the top of its stack");
    session.write(at(16), b"written").unwrap();
    let mut seven = [0; 7];
    session.read(at(16), &mut seven).unwrap();
    assert_eq!(&seven, b"written");
    // Nothing is mapped after the stack.
    assert_eq!(session.read(at(2 * PAGE - 3), &mut seven), Err(lost(2 * PAGE - 3, 3)));
    assert_eq!(session.pin(START, 8, ReadOnly, |_| ()).unwrap_err().reason, Reason::NotDirect);
    assert_eq!(session.fetch_or(START, 1u32).unwrap_err().reason, Reason::NotDirect);
    let leased = session.lease(START, 8, WriteOnly, OnUnmap::Wait).map(drop);
    assert_eq!(leased.unwrap_err().reason, Reason::NotDirect);

    child.end();
    assert_eq!(session.read(at(PAGE), &mut page), Err(lost(PAGE, 0)));
    assert_eq!(session.write(at(0), &[1; 9]), Err(lost(0, 0)));
    assert_eq!(session.fill(at(0), 1, 9), Err(lost(0, 0)));
    space.unmap(START, 4 * PAGE).unwrap();
}

/// Remote memory whose reads end when they are cancelled, with three bytes done, and whose writes call
/// `on_write`.
struct Slow {
    reading: Mutex<Option<bool>>,
    changed: Condvar,
    cancelled: Mutex<Vec<Range<u64>>>,
    on_write: Box<dyn Fn() + Send + Sync>,
}

impl Slow {
    fn new(on_write: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            reading: Mutex::new(None),
            changed: Condvar::new(),
            cancelled: Mutex::default(),
            on_write: Box::new(on_write),
        })
    }

    fn wait_until_reading(&self) {
        let reading = self.reading.lock().unwrap();
        drop(self.changed.wait_while(reading, |reading| reading.is_none()).unwrap());
    }
}

impl RemoteMemory for Slow {
    fn read(&self, _offset: u64, mut into: VolatileSliceMut<'_>) -> Result<(), RemoteFault> {
        into.write(0, b"abc").unwrap();
        let mut reading = self.reading.lock().unwrap();
        *reading = Some(false);
        self.changed.notify_all();
        let _reading = self.changed.wait_while(reading, |done| *done != Some(true)).unwrap();
        Err(RemoteFault::new(3, Reason::BackingLost))
    }

    fn write(&self, _offset: u64, _from: VolatileSlice<'_>) -> Result<(), RemoteFault> {
        (self.on_write)();
        Ok(())
    }

    fn cancel(&self, range: Range<u64>) {
        self.cancelled.lock().unwrap().push(range);
        *self.reading.lock().unwrap() = Some(true);
        self.changed.notify_all();
    }
}

#[test]
fn unmapping_cancels_a_call_to_a_remote_region_and_waits_for_it() {
    let slow = Slow::new(|| ());
    let region = Region::remote(Arc::clone(&slow) as Arc<dyn RemoteMemory>, 4 * PAGE).unwrap();
    let (space, region) = mapped(region, Prot::READ_WRITE);
    let is_back = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let session = space.session();
            let mut into = [0; 8];
            let fault = session.read(at(PAGE + 4), &mut into).unwrap_err();
            let iova = at(PAGE + 7);
            assert_eq!(fault, Fault::new(iova, 3, Reason::Revoked));
            assert_eq!(&into, b"abc\0\0\0\0\0");
            is_back.store(true, Ordering::SeqCst);
            assert_eq!(session.read(START, &mut into).unwrap_err().reason, Reason::Unmapped);
        });
        slow.wait_until_reading();
        assert!(matches!(space.detach(&region), Err(Error::StillMapped { .. })));
        space.unmap(START, 4 * PAGE).unwrap();
        // The call is cancelled more than once if it takes long to return.
        let cancelled = slow.cancelled.lock().unwrap();
        assert!(
            !cancelled.is_empty() && cancelled.iter().all(|range| *range == (PAGE + 4..PAGE + 12))
        );
        drop(cancelled);
        space.detach(&region).unwrap();
    });
    assert!(is_back.load(Ordering::SeqCst));
}

#[test]
fn unmapping_other_ranges_cancels_no_call() {
    let slow = Slow::new(|| ());
    let region = Region::remote(Arc::clone(&slow) as Arc<dyn RemoteMemory>, 4 * PAGE).unwrap();
    let space = Space::new().unwrap();
    let region = Arc::new(region);
    space.attach(&region).unwrap();
    space.map(START, &region, 0, PAGE, Prot::READ).unwrap();
    space.map(at(PAGE), &region, PAGE, PAGE, Prot::READ).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| space.session().read(START, &mut [0; 8]).unwrap_err());
        slow.wait_until_reading();
        space.unmap(at(PAGE), PAGE).unwrap();
        assert!(slow.cancelled.lock().unwrap().is_empty());
        slow.cancel(0..0);
    });
}

#[test]
fn unmapping_fails_if_the_thread_would_wait_for_itself() {
    let space = Space::new().unwrap();
    let (inner, outcome) = (space.clone(), Arc::new(Mutex::new(None)));
    let told = Arc::clone(&outcome);
    let slow = Slow::new(move || {
        // Like a server that handles an unmapping while it waits for an answer.
        *told.lock().unwrap() = Some(inner.unmap(START, PAGE));
    });
    let region = Arc::new(Region::remote(slow, PAGE).unwrap());
    space.attach(&region).unwrap();
    space.map(START, &region, 0, PAGE, Prot::READ_WRITE).unwrap();
    let session = space.session();
    session.write(START, &[1; 8]).unwrap();
    let refused = outcome.lock().unwrap().take();
    assert!(matches!(refused, Some(Err(Error::PinnedByCaller { .. }))), "{refused:?}");
    space.unmap(START, PAGE).unwrap();

    let file = memfd::create("own", Backing::Shmem).unwrap();
    memfd::set_len(&file, 2 * PAGE).unwrap();
    let region = Region::map_file(&file, FileOffset::new(0), 2 * PAGE, RegionAccess::ReadWrite);
    let region = Arc::new(region.unwrap());
    space.attach(&region).unwrap();
    space.map(START, &region, 0, 2 * PAGE, Prot::READ_WRITE).unwrap();
    // A lease with `OnUnmap::Wait` that overlaps the range.
    let lease = session.lease(START, 8, ReadOnly, OnUnmap::Wait).unwrap();
    let refused = space.unmap(START, 2 * PAGE);
    assert!(matches!(refused, Err(Error::PinnedByCaller { .. })), "{refused:?}");
    drop(lease);
    // A batch that was begun before the pin.
    let mut batch = space.batch();
    batch.unmap(START, 2 * PAGE).unwrap();
    space.map(at(0x10_0000), &region, 0, PAGE, Prot::READ).unwrap();
    session
        .pin(at(0x10_0000), 8, ReadOnly, |_| {
            assert!(matches!(batch.finish(), Err(Error::PinnedByCaller { .. })));
        })
        .unwrap();
    batch.finish().unwrap();
    // A panic in a pin ends the pin.
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        session.pin(at(0x10_0000), 8, ReadOnly, |_| panic!("in a pin"))
    }));
    assert!(panicked.is_err());
    space.unmap(at(0x10_0000), PAGE).unwrap();
    space.detach(&region).unwrap();
}

#[test]
fn unmapping_notifies_a_lease_and_waits_for_it() {
    let file = memfd::create("leased", Backing::Shmem).unwrap();
    memfd::set_len(&file, 2 * PAGE).unwrap();
    let region = Region::map_file(&file, FileOffset::new(0), 2 * PAGE, RegionAccess::ReadWrite);
    let (space, _region) = mapped(region.unwrap(), Prot::READ_WRITE);
    let session = space.session();
    let told = Arc::new(AtomicUsize::new(0));
    let notify = {
        let told = Arc::clone(&told);
        OnUnmap::Notify(Arc::new(move || {
            told.fetch_add(1, Ordering::SeqCst);
        }))
    };
    let lease = session.lease(at(8), PAGE as usize, WriteOnly, notify).unwrap();
    assert!(!lease.is_revoked());
    let is_dropped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Use the lease on another thread until it is revoked.
            while !lease.is_revoked() {
                lease.view().write(0, b"by lease").unwrap();
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(5));
            lease.view().write(0, b"to the end").unwrap();
            is_dropped.store(true, Ordering::SeqCst);
            drop(lease);
        });
        space.unmap(START, 2 * PAGE).unwrap();
        assert!(is_dropped.load(Ordering::SeqCst), "the unmapping has waited");
    });
    assert_eq!(told.load(Ordering::SeqCst), 1);
    let mut bytes = [0; 10];
    rustix::io::pread(&file, &mut bytes, 8).unwrap();
    assert_eq!(&bytes, b"to the end");
}

/// A custom source whose `remaining` grows as bytes are read from it.
struct Growing<'m> {
    bytes: VolatileSlice<'m>,
    says: usize,
}

impl SegmentSource<Source> for Growing<'_> {
    fn remaining(&self) -> usize {
        self.says
    }

    fn next_segment(&mut self, len_max: usize) -> Option<Segment<'_, Source>> {
        let part = self.bytes.subslice(0, len_max.min(self.bytes.len()));
        part.ok().map(Into::into)
    }

    fn advance(&mut self, len: usize) {
        self.says += len;
    }

    fn revert(&mut self, _: usize) -> Result<(), longshore_iov::Error> {
        Ok(())
    }
}

#[test]
fn a_source_that_lies_about_its_length_moves_as_many_bytes_as_were_copied() {
    let file = memfd::create("remains", Backing::Shmem).unwrap();
    memfd::set_len(&file, 4 * PAGE).unwrap();
    let region = Region::map_file(&file, FileOffset::new(0), 4 * PAGE, RegionAccess::ReadWrite);
    let region = region.unwrap();
    let (space, _region) = mapped(region, Prot::READ_WRITE);
    let session = space.session();
    let mut memory = [5; 100];
    let view = VolatileSliceMut::from(&mut memory[..]);
    let mut source = Growing { bytes: view.as_readable(), says: 1 << 20 };
    assert_eq!(session.write_iter(START, &mut source, 2 * PAGE as usize), Ok(2 * PAGE as usize));
    let mut into = vec![0; 3 * PAGE as usize];
    session.read(START, &mut into).unwrap();
    assert!(into[..2 * PAGE as usize].iter().all(|byte| *byte == 5));
    assert!(into[2 * PAGE as usize..].iter().all(|byte| *byte == 0));
}
