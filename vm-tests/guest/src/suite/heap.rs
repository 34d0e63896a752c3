//! Real udmabufs and dma-heaps: another process sees the content of their buffers.

use std::{fs, os::fd::AsFd};

use longshore_heap::{Error, Heap, Sealing, SharedBuffer, Unavailability};
use longshore_sys::{memory, udmabuf};
use longshore_vm_tests::pattern;

use super::{Suite, Test};
use crate::{
    leftovers::Holdings,
    outcome::{Passed, TestResult, described, ensure},
    peer,
};

pub(super) const SUITE: Suite = Suite {
    name: "heap",
    tests: &[
        Test { name: "udmabuf_reaches_another_process", run: udmabuf_reaches_another_process },
        Test { name: "system_heap_reaches_another_process", run: system_heap_reaches_another },
        Test { name: "udmabuf_of_nothing", run: udmabuf_of_nothing },
        Test { name: "auto_takes_a_udmabuf", run: auto_takes_a_udmabuf },
        Test { name: "hugetlb_comes_from_the_pool", run: hugetlb_comes_from_the_pool },
        Test { name: "root_raises_the_udmabuf_limit", run: root_raises_the_udmabuf_limit },
        Test { name: "the_error_at_the_udmabuf_limit_names_it", run: others_are_told_of_the_limit },
        Test { name: "others_may_not_open_udmabuf", run: others_may_not_open_udmabuf },
        Test { name: "system_heap_refuses_too_much", run: system_heap_refuses_too_much },
        Test {
            name: "an_unknown_heap_is_an_error_that_names_the_others",
            run: unknown_heap_names_others,
        },
        Test { name: "content_of_a_udmabuf_cannot_be_sealed", run: content_cannot_be_sealed },
    ],
};

const SIZES: [u64; 6] = [1, 4095, 4096, 4097, (2 << 20) + 1, 8 << 20];
const SIZE_LIMIT: &str = "/sys/module/udmabuf/parameters/size_limit_mb";
const DEFAULT_LIMIT_MIB: u64 = 64;

fn udmabuf_reaches_another_process() -> TestResult {
    reaches_another_process(&Heap::Udmabuf)
}

fn system_heap_reaches_another() -> TestResult {
    reaches_another_process(&Heap::DmaHeap("system".to_owned()))
}

fn reaches_another_process(heap: &Heap) -> TestResult {
    let before = Holdings::now()?;
    for len in SIZES {
        let shared = filled(heap, len)?;
        ensure!(shared.heap() == heap, "it came from heap {}", shared.heap());
        let dma_buf = shared.dma_buf().ok_or("it has no dma-buf")?;
        peer::check_content(dma_buf.as_fd(), len, len)?;
    }
    before.ensure_unchanged()?;
    Ok(Passed::Yes)
}

/// A dma-buf without pages does not exist; the heap must return an error or do without.
fn udmabuf_of_nothing() -> TestResult {
    let before = Holdings::now()?;
    match filled(&Heap::Udmabuf, 0) {
        Ok(shared) => ensure!(shared.is_empty(), "it has {} bytes", shared.len()),
        Err(error) => {
            let said = error.to_string();
            ensure!(said.contains("udmabuf"), "the error does not name the heap: {said}");
        }
    }
    before.ensure_unchanged()?;
    Ok(Passed::Yes)
}

fn auto_takes_a_udmabuf() -> TestResult {
    let shared = filled(&Heap::Auto, 10_000)?;
    ensure!(*shared.heap() == Heap::Udmabuf, "it took heap {}", shared.heap());
    ensure!(shared.memfd().is_some(), "its memfd is not kept beside the dma-buf");
    Ok(Passed::Yes)
}

fn hugetlb_comes_from_the_pool() -> TestResult {
    let pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    let before = Holdings::now()?;
    // With an empty pool the allocation fails, and the error says how to fill it.
    let refused = Heap::Hugetlb.allocate(1).err().ok_or("an empty pool gave a page")?;
    let said = described(&refused);
    ensure!(said.contains("nr_hugepages"), "the error does not say what to do: {said}");
    fs::write(pool, "2")?;
    let refused = Heap::Hugetlb.allocate(6 << 20).err().ok_or("two pages gave three")?;
    let Error::Unavailable { reason, .. } = refused else { return Err(described(&refused).into()) };
    let lacks = Unavailability::HugetlbPool { needed_pages: 3, available_pages: 2 };
    ensure!(reason == lacks, "the reason is {reason:?}");
    let shared = filled(&Heap::Hugetlb, (2 << 20) + 1)?;
    let pages = shared.page_report();
    ensure!(pages.hugetlb_2m_bytes > 2 << 20, "its pages are {pages:?}");
    drop(shared);
    fs::write(pool, "0")?;
    before.ensure_unchanged()?;
    Ok(Passed::Yes)
}

fn root_raises_the_udmabuf_limit() -> TestResult {
    fs::write(SIZE_LIMIT, DEFAULT_LIMIT_MIB.to_string())?;
    let len = (DEFAULT_LIMIT_MIB << 20) + 1;
    let shared = filled(&Heap::Udmabuf, len)?;
    let limit = udmabuf::size_limit_bytes()?;
    ensure!(limit >= len, "the limit is {limit}");
    peer::check_content(shared.dma_buf().ok_or("it has no dma-buf")?.as_fd(), len, len)?;
    fs::write(SIZE_LIMIT, DEFAULT_LIMIT_MIB.to_string())?;
    Ok(Passed::Yes)
}

fn others_are_told_of_the_limit() -> TestResult {
    fs::write(SIZE_LIMIT, DEFAULT_LIMIT_MIB.to_string())?;
    let _open = OpenedDevice::new()?;
    let limit = DEFAULT_LIMIT_MIB << 20;
    peer::allocate_as_ordinary_user(&Heap::Udmabuf, limit)?
        .map_err(|said| format!("at the limit it is refused: {said}"))?;
    match peer::allocate_as_ordinary_user(&Heap::Udmabuf, limit + 1)? {
        Ok(()) => return Err("above the limit it is not refused".into()),
        Err(said) => {
            for part in ["size_limit_mb", "at least 65", "'memfd'"] {
                ensure!(said.contains(part), "the error does not contain {part}: {said}");
            }
        }
    }
    let limit = udmabuf::size_limit_bytes()?;
    ensure!(limit == DEFAULT_LIMIT_MIB << 20, "the limit is now {limit}");
    Ok(Passed::Yes)
}

fn others_may_not_open_udmabuf() -> TestResult {
    match peer::allocate_as_ordinary_user(&Heap::Udmabuf, 4096)? {
        Ok(()) => Err("it was not refused".into()),
        Err(said) => {
            ensure!(said.contains("/dev/udmabuf"), "the error does not name the device: {said}");
            // Any user can have a memfd, so 'auto' still works.
            peer::allocate_as_ordinary_user(&Heap::Auto, 4096)?
                .map_err(|said| format!("heap 'auto' is refused too: {said}"))?;
            Ok(Passed::Yes)
        }
    }
}

/// Without the check, the kernel would kill the caller, so this test would not even end.
fn system_heap_refuses_too_much() -> TestResult {
    let before = Holdings::now()?;
    let available = memory::meminfo_bytes("MemAvailable:").ok_or("no MemAvailable")?;
    let heap = Heap::DmaHeap("system".to_owned());
    for len in [available + (1 << 20), 1 << 40, u64::MAX >> 1] {
        match heap.allocate(len) {
            Err(Error::OutOfMemory { len_bytes, .. }) if len_bytes == len => {}
            other => return Err(format!("{len} bytes: {other:?}").into()),
        }
    }
    before.ensure_unchanged()?;
    Ok(Passed::Yes)
}

fn unknown_heap_names_others() -> TestResult {
    let refused = Heap::DmaHeap("unheard-of".to_owned()).allocate(4096);
    let said = refused.err().ok_or("it was not refused")?.to_string();
    for part in ["'unheard-of'", "system"] {
        ensure!(said.contains(part), "the error does not contain {part}: {said}");
    }
    Ok(Passed::Yes)
}

fn content_cannot_be_sealed() -> TestResult {
    for heap in [Heap::Udmabuf, Heap::DmaHeap("system".to_owned())] {
        let refused = heap.allocate(4096)?.share(Sealing::Content);
        let Err(Error::CannotSealContent { heap: named }) = refused else {
            return Err(format!("{heap}: {refused:?}").into());
        };
        ensure!(named == heap, "the error names heap {named}");
    }
    Ok(Passed::Yes)
}

/// Returns a shared buffer with the content whose seed is its length.
fn filled(heap: &Heap, len: u64) -> Result<SharedBuffer, Error> {
    let mut buffer = heap.allocate(len)?;
    pattern::fill(len, 0, &mut buffer.write()?);
    buffer.share(Sealing::Size)
}

/// Lets every user open the device until this is dropped.
struct OpenedDevice {
    mode: fs::Permissions,
}

impl OpenedDevice {
    fn new() -> std::io::Result<Self> {
        use std::os::unix::fs::PermissionsExt;

        let mode = fs::metadata(udmabuf::DEVICE)?.permissions();
        fs::set_permissions(udmabuf::DEVICE, fs::Permissions::from_mode(0o666))?;
        Ok(Self { mode })
    }
}

impl Drop for OpenedDevice {
    fn drop(&mut self) {
        // If this fails, a test that finds the device open reports it.
        let _ = fs::set_permissions(udmabuf::DEVICE, self.mode.clone());
    }
}
