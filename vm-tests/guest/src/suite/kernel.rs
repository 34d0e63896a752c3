//! The basis of the other tests: this kernel has the interfaces, and they behave as the libraries
//! assume.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
};

use longshore_mem::{AddrRange, FileOffset, Granule};
use longshore_sys::{
    answering, dma_buf, dma_heap,
    file::{self, ReadFlags},
    huge_pages,
    memfd::{self, Backing, Seals},
    udmabuf, uring,
};
use longshore_vm_tests::{
    fixture::{BAD_SECTOR, BAD_SEED, NVME_SEED, RAW_DISK_BYTES, VIRTIO_SEED},
    pattern,
};

use super::{Suite, Test};
use crate::{
    mapped::Mapped,
    outcome::{Passed, TestResult, ensure},
};

pub(super) const SUITE: Suite = Suite {
    name: "kernel",
    tests: &[
        Test { name: "memfd_becomes_dma_buf", run: memfd_becomes_dma_buf },
        Test { name: "udmabuf_needs_the_right_seals", run: udmabuf_needs_the_right_seals },
        Test { name: "udmabuf_of_hugetlb", run: udmabuf_of_hugetlb },
        Test { name: "system_heap_is_zeroed", run: system_heap_is_zeroed },
        Test { name: "direct_io_stops_at_a_dma_buf", run: direct_io_stops_at_a_dma_buf },
        Test { name: "virtio_disk_reads_direct", run: virtio_disk_reads_direct },
        Test { name: "nvme_disk_reads_direct", run: nvme_disk_reads_direct },
        Test { name: "bad_sector_is_eio", run: bad_sector_is_eio },
        Test { name: "io_uring_is_allowed", run: io_uring_is_allowed },
    ],
};

const PAGE_BYTES: u64 = 4096;

const SHRINK: Seals = Seals { shrink: true, grow: false, write: false, seal: false };

fn memfd_becomes_dma_buf() -> TestResult {
    let len = 3 * PAGE_BYTES;
    let memfd = filled_memfd(len, 11)?;
    let dma_buf = udmabuf::create(&memfd, whole(len)?)?;
    ensure!(dma_buf::size_bytes(&dma_buf)? == len, "the dma-buf has another size");

    let seen = Mapped::new(&dma_buf, len)?;
    let difference = seen.first_difference(11)?;
    ensure!(difference.is_none(), "the dma-buf differs from the memfd at {difference:?}");
    // They are the same pages, not a copy.
    rustix::io::pwrite(&memfd, b"changed", PAGE_BYTES)?;
    let mut bytes = [0; 7];
    seen.view().read(4096, &mut bytes)?;
    ensure!(&bytes == b"changed", "a write to the memfd does not show in the dma-buf");
    ensure!(answering::may_be_passed_on(&dma_buf), "servers refuse the dma-buf");
    ensure!(answering::is_disposable(&dma_buf), "the dma-buf is treated as a regular file");
    Ok(Passed::Yes)
}

fn udmabuf_needs_the_right_seals() -> TestResult {
    let unsealed = memfd::create("unsealed", Backing::Shmem)?;
    memfd::set_len(&unsealed, PAGE_BYTES)?;
    refused_with(udmabuf::create(&unsealed, whole(PAGE_BYTES)?), libc::EINVAL, "without seals")?;
    let written_off = memfd::create("write-sealed", Backing::Shmem)?;
    memfd::set_len(&written_off, PAGE_BYTES)?;
    memfd::add_seals(&written_off, Seals { write: true, ..SHRINK })?;
    refused_with(udmabuf::create(&written_off, whole(PAGE_BYTES)?), libc::EINVAL, "write-sealed")?;
    let good = filled_memfd(PAGE_BYTES, 1)?;
    refused_with(udmabuf::create(&good, whole(PAGE_BYTES - 1)?), libc::EINVAL, "part of a page")?;
    udmabuf::create(&good, whole(PAGE_BYTES)?)?;
    Ok(Passed::Yes)
}

fn udmabuf_of_hugetlb() -> TestResult {
    let huge = Granule::SIZE_2M.bytes();
    fs::write("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "2")?;
    let pool = huge_pages::pool_2m()?;
    ensure!(pool.available_pages == 2, "the pool did not fill: {pool:?}");
    {
        let memfd = memfd::create("huge", Backing::Hugetlb2M)?;
        memfd::set_len(&memfd, huge)?;
        fill(&mut Mapped::new(&memfd, huge)?, 12)?;
        ensure!(huge_pages::pool_2m()?.available_pages == 1, "it is not from the pool");
        memfd::add_seals(&memfd, SHRINK)?;
        let dma_buf = udmabuf::create(&memfd, whole(huge)?)?;
        let difference = Mapped::new(&dma_buf, huge)?.first_difference(12)?;
        ensure!(difference.is_none(), "the dma-buf differs from the memfd at {difference:?}");
    }
    fs::write("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0")?;
    ensure!(huge_pages::pool_2m()?.total_pages == 0, "the pages did not come back");
    Ok(Passed::Yes)
}

fn system_heap_is_zeroed() -> TestResult {
    let names = dma_heap::names();
    ensure!(names.iter().any(|name| name == "system"), "the heaps are {names:?}");
    // Not a whole page: the kernel rounds up.
    let buffer = dma_heap::allocate("system", 5 * PAGE_BYTES - 7)?;
    let len = dma_buf::size_bytes(&buffer)?;
    ensure!(len == 5 * PAGE_BYTES, "it has {len} bytes");
    let mut bytes = vec![1; 5 * 4096];
    Mapped::new(&buffer, len)?.view().read(0, &mut bytes)?;
    let dirty = bytes.iter().position(|byte| *byte != 0);
    ensure!(dirty.is_none(), "byte {dirty:?} is not zero");
    Ok(Passed::Yes)
}

/// Direct reads work into a memfd's pages, even while a dma-buf pins them, but not through the dma-buf's
/// own mapping. That is why the loader fills the memfd.
fn direct_io_stops_at_a_dma_buf() -> TestResult {
    let disk = open_direct("virtio")?;
    let memfd = filled_memfd(PAGE_BYTES, 99)?;
    let dma_buf = udmabuf::create(&memfd, whole(PAGE_BYTES)?)?;
    let mut through_memfd = Mapped::new(&memfd, PAGE_BYTES)?;
    let mut through_dma_buf = Mapped::new(&dma_buf, PAGE_BYTES)?;
    let zero = FileOffset::new(0);

    let mut view = through_dma_buf.view_mut();
    let refused = file::read_at(&disk, &mut view, zero, ReadFlags::default());
    refused_with(refused, libc::EFAULT, "into the dma-buf's mapping")?;
    let mut view = through_memfd.view_mut();
    let done = file::read_at(&disk, &mut view, zero, ReadFlags::default())?;
    ensure!(done == 4096, "only {done} bytes were read");
    let difference = through_dma_buf.first_difference(VIRTIO_SEED)?;
    ensure!(difference.is_none(), "the dma-buf differs from the disk at {difference:?}");
    Ok(Passed::Yes)
}

fn virtio_disk_reads_direct() -> TestResult {
    disk_reads_direct("virtio", VIRTIO_SEED)
}

fn nvme_disk_reads_direct() -> TestResult {
    disk_reads_direct("nvme", NVME_SEED)
}

fn disk_reads_direct(name: &str, seed: u64) -> TestResult {
    let disk = open_direct(name)?;
    let memfd = memfd::create("target", Backing::Shmem)?;
    memfd::set_len(&memfd, RAW_DISK_BYTES)?;
    let mut target = Mapped::new(&memfd, RAW_DISK_BYTES)?;
    let mut done = 0;
    while done < RAW_DISK_BYTES {
        let at = usize::try_from(done)?;
        let mut whole_view = target.view_mut();
        let mut view = whole_view.subslice_mut(at, usize::try_from(RAW_DISK_BYTES - done)?)?;
        let read = file::read_at(&disk, &mut view, FileOffset::new(done), ReadFlags::default())?;
        ensure!(read > 0, "the disk ends after {done} bytes");
        done += read as u64;
    }
    let difference = target.first_difference(seed)?;
    ensure!(difference.is_none(), "byte {difference:?} differs from the written content");
    Ok(Passed::Yes)
}

/// The harness can make exactly one read fail.
fn bad_sector_is_eio() -> TestResult {
    let disk = open_direct("bad")?;
    let memfd = memfd::create("target", Backing::Shmem)?;
    memfd::set_len(&memfd, PAGE_BYTES)?;
    let mut target = Mapped::new(&memfd, PAGE_BYTES)?;
    let bad = FileOffset::new(BAD_SECTOR * 512);
    let mut view = target.view_mut();
    for attempt in ["at first", "again"] {
        let refused = file::read_at(&disk, &mut view, bad, ReadFlags::default());
        refused_with(refused, libc::EIO, attempt)?;
    }
    let before = FileOffset::new(BAD_SECTOR * 512 - PAGE_BYTES);
    let done = file::read_at(&disk, &mut view, before, ReadFlags::default())?;
    ensure!(done == 4096, "only {done} bytes were read");
    let mut bytes = [0; 4096];
    target.view().read(0, &mut bytes)?;
    let difference = pattern::first_difference(BAD_SEED, before.raw(), &bytes);
    ensure!(difference.is_none(), "byte {difference:?} differs from the written content");
    Ok(Passed::Yes)
}

fn io_uring_is_allowed() -> TestResult {
    uring::probe(8)?;
    Ok(Passed::Yes)
}

fn open_direct(name: &str) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(format!("/dev/disk/{name}"))
}

/// Returns a memfd with content, sealed as udmabuf requires.
fn filled_memfd(len: u64, seed: u64) -> Result<OwnedFd, Box<dyn std::error::Error>> {
    let memfd = memfd::create("filled", Backing::Shmem)?;
    memfd::set_len(&memfd, len)?;
    fill(&mut Mapped::new(&memfd, len)?, seed)?;
    memfd::add_seals(&memfd, SHRINK)?;
    Ok(memfd)
}

fn fill(target: &mut Mapped, seed: u64) -> Result<(), longshore_mem::OutOfBounds> {
    let mut view = target.view_mut();
    let mut content = vec![0; view.len()];
    pattern::fill(seed, 0, &mut content);
    view.write(0, &content)
}

fn whole(len: u64) -> Result<AddrRange<FileOffset>, Box<dyn std::error::Error>> {
    Ok(AddrRange::new(FileOffset::new(0), len)?)
}

fn refused_with<T>(result: io::Result<T>, errno: i32, what: &str) -> Result<(), String> {
    match result {
        Ok(_) => Err(format!("{what}: it was not refused")),
        Err(error) if error.raw_os_error() == Some(errno) => Ok(()),
        Err(error) => Err(format!("{what}: refused with {error}, not errno {errno}")),
    }
}
