//! Memory of every heap, accessed by IOVA.

use std::os::fd::AsFd;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use std::{fs, io, slice, thread};

use held_epoll::HeldEpoll;
use longshore_access::client::{MappingAccounts, MappingQuota};
use longshore_access::dirty::ExternalLog;
use longshore_access::{Reason, Region, RegionAccess, Space};
use longshore_heap::{Heap, Sealing, SharedBuffer};
use longshore_mem::{FileOffset, GuestPhys, Iova};
use longshore_pagetable::Prot;
use longshore_sys::closing::{self, User};
use longshore_sys::memfd::{self, Backing, Seals};
use longshore_vm_tests::pattern;
use rustix::fs::FallocateFlags;

use super::{Suite, Test};
use crate::{
    leftovers::Holdings,
    outcome::{Passed, TestResult, ensure},
};

#[path = "../../../../crates/memory/sys/tests/closing/held_epoll.rs"]
mod held_epoll;

pub(super) const SUITE: Suite = Suite {
    name: "access",
    tests: &[
        Test { name: "memfd_by_iova", run: || by_iova(&Heap::Memfd) },
        Test { name: "hugetlb_by_iova", run: hugetlb_by_iova },
        Test { name: "udmabuf_by_iova", run: || by_iova(&Heap::Udmabuf) },
        Test { name: "hole_without_memory", run: hole_without_memory },
        Test { name: "hole_in_a_shared_buffer_without_memory", run: hole_in_a_shared_buffer },
        Test { name: "unmapping_waits_for_no_epoll", run: unmapping_waits_for_no_epoll },
        Test { name: "system_heap_by_iova", run: || by_iova(&Heap::DmaHeap("system".to_owned())) },
    ],
};

const LEN: u64 = 4 << 20;
const SEED: u64 = 11;

fn hugetlb_by_iova() -> TestResult {
    let pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    fs::write(pool, "2")?;
    let result = by_iova(&Heap::Hugetlb);
    fs::write(pool, "0")?;
    result
}

/// A hole in a client's sealed file for which the kernel has no page is an error of the access.
fn hole_without_memory() -> TestResult {
    let file = || -> io::Result<_> {
        let file = memfd::create("sealed", Backing::Shmem)?;
        memfd::set_len(&file, LEN)?;
        memfd::add_seals(&file, Seals { shrink: true, ..Seals::default() })?;
        Ok(file)
    };
    let region = Region::map_file(file()?, FileOffset::new(0), LEN, RegionAccess::ReadWrite)?;
    let log = ExternalLog::<GuestPhys>::map_file(file()?, FileOffset::new(0), LEN)?;
    let (region, space, at) = (Arc::new(region), Space::new()?, Iova::new(0x1_0000));
    space.attach(&region)?;
    space.map(at, &region, 0, LEN, Prot::READ_WRITE)?;
    let session = space.session();
    let look =
        || (session.write(Iova::new(at.raw() + LEN / 2), &[1; 4]), log.mark(GuestPhys::new(0), 1));
    session.write(at, &[1; 4]).map_err(io::Error::other)?;

    let (written, marked) = without_memory(look)?;
    let reason = written.map_err(|fault| fault.reason);
    ensure!(reason == Err(Reason::BackingLost), "the write's result is {reason:?}");
    ensure!(marked.is_err(), "the mark succeeded");
    let (written, marked) = look();
    ensure!(written.is_ok() && marked.is_ok(), "with memory: {written:?}, {marked:?}");
    Ok(Passed::Yes)
}

/// A hole in a shared buffer for which the kernel has no page is an error of the access.
fn hole_in_a_shared_buffer() -> TestResult {
    let shared = Arc::new(filled(&Heap::Memfd)?);
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(shared.memfd().ok_or("it has no memfd")?, mode, 0, LEN)?;
    let view = shared.view()?;
    let read = without_memory(|| view.read(5, &mut [0; 4]))?;
    let is_lost = matches!(read, Err(longshore_heap::Error::Lost { offset: 5, .. }));
    ensure!(is_lost, "the result of the read is {read:?}");
    let (space, at) = (Space::new()?, Iova::new(0x1_0000));
    let region = Arc::new(Region::from_memory(Arc::clone(&shared))?);
    space.attach(&region)?;
    space.map(at, &region, 0, LEN, Prot::READ_WRITE)?;
    let session = space.session();
    let reason = without_memory(|| session.write(at, &[1; 4]))?.map_err(|fault| fault.reason);
    ensure!(reason == Err(Reason::BackingLost), "the result of the write is {reason:?}");
    view.read(5, &mut [0; 4])?;
    Ok(Passed::Yes)
}

/// Returns the result of `work`, during which the kernel refuses more memory.
fn without_memory<T>(work: impl FnOnce() -> T) -> io::Result<T> {
    const OVERCOMMIT: &str = "/proc/sys/vm/overcommit_memory";
    const RATIO: &str = "/proc/sys/vm/overcommit_ratio";
    let [overcommit, ratio] = [fs::read_to_string(OVERCOMMIT)?, fs::read_to_string(RATIO)?];
    fs::write("/proc/sys/vm/overcommit_kbytes", "1")?;
    fs::write(OVERCOMMIT, "2")?;
    let result = work();
    fs::write(OVERCOMMIT, overcommit)?;
    fs::write(RATIO, ratio)?;
    Ok(result)
}

/// The last close of a dma-buf waits for the lock of every epoll instance that contains it. A device
/// server must unmap a client's dma-buf without that wait.
fn unmapping_waits_for_no_epoll() -> TestResult {
    const UID: u32 = 4_000_000_001;
    const PATIENCE: Duration = Duration::from_secs(60);
    static ACCOUNTS: MappingAccounts = MappingAccounts::new(16, 1 << 30);
    let before = Holdings::now()?;
    let shared = filled(&Heap::Udmabuf)?;
    let dma_buf = shared.dma_buf().ok_or("it has no dma-buf")?.as_fd().try_clone_to_owned()?;
    let held = HeldEpoll::of(slice::from_ref(&dma_buf)).ok_or("no lock can be held")?;
    let region = MappingQuota::new(&ACCOUNTS, UID).map_file(
        dma_buf.try_clone()?,
        FileOffset::new(0),
        LEN,
        RegionAccess::ReadWrite,
    )?;
    // Only the region's references are left.
    drop((dma_buf, shared));
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        drop(region);
        tell.send(())
    });
    ensure!(told.recv_timeout(PATIENCE).is_ok(), "unmapping waits for the epoll");
    ensure!(closing::is_busy(User::from_uid(UID)), "no close waits for the epoll");
    drop(held);
    let begin = Instant::now();
    while closing::is_busy(User::from_uid(UID)) {
        ensure!(begin.elapsed() < PATIENCE, "the close does not end with the lock");
        thread::sleep(Duration::from_millis(1));
    }
    ensure!(!Holdings::now()?.holds_more_memory_than(&before), "the dma-buf is left");
    Ok(Passed::Yes)
}

/// Accesses one memory by two mappings: as the owner mapped it, and through its descriptor.
fn by_iova(heap: &Heap) -> TestResult {
    let before = Holdings::now()?;
    let shared = Arc::new(filled(heap)?);
    let file =
        shared.dma_buf().map(AsFd::as_fd).or(shared.memfd()).ok_or("it has no descriptor")?;
    let through_file = Region::map_file(file, FileOffset::new(0), LEN, RegionAccess::ReadWrite)?;
    let regions = [Arc::new(through_file), Arc::new(Region::from_memory(Arc::clone(&shared))?)];
    let space = Space::new()?;
    let places = [Iova::new(0x1_2000), Iova::new(1 << 40)];
    for (place, region) in places.iter().zip(&regions) {
        space.attach(region)?;
        space.map(*place, region, 0, LEN, Prot::READ_WRITE)?;
    }
    let session = space.session();
    let mut bytes = vec![0; LEN as usize];
    for place in places {
        session.read(place, &mut bytes).map_err(io::Error::other)?;
        let wrong = pattern::first_difference(SEED, 0, &bytes);
        ensure!(wrong.is_none(), "at {place:?} byte {wrong:?} is wrong");
    }
    // A write through one mapping is read through the other, also from an odd offset on.
    for (nth, [to, from]) in [[0, 1], [1, 0]].into_iter().enumerate() {
        let (seed, skip) = (SEED + 1 + nth as u64, 4093 + nth);
        pattern::fill(seed, 0, &mut bytes[skip..]);
        let at = |place: Iova| Iova::new(place.raw() + skip as u64);
        session.write(at(places[to]), &bytes[skip..]).map_err(io::Error::other)?;
        bytes.fill(0);
        session.read(at(places[from]), &mut bytes[skip..]).map_err(io::Error::other)?;
        let wrong = pattern::first_difference(seed, 0, &bytes[skip..]);
        ensure!(
            wrong.is_none(),
            "after a write through mapping {to}, byte {wrong:?} is wrong in {from}"
        );
    }
    space.unmap(Iova::new(places[0].raw() + LEN / 2), LEN / 2)?;
    let fault = session.read(places[0], &mut bytes).err().ok_or("unmapped memory was read")?;
    let seen = (fault.done as u64, fault.reason);
    ensure!(seen == (LEN / 2, Reason::Unmapped), "the fault is {fault:?}");
    drop((session, space, regions, shared));
    before.ensure_unchanged()?;
    Ok(Passed::Yes)
}

fn filled(heap: &Heap) -> Result<SharedBuffer, longshore_heap::Error> {
    let mut buffer = heap.allocate(LEN)?;
    pattern::fill(SEED, 0, &mut buffer.write()?);
    buffer.share(Sealing::Size)
}
