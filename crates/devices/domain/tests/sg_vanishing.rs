//! Scattered memory that vanishes while it is mapped, and comes back.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use longshore_domain::backend::Soft;
use longshore_domain::{Direction, Domain, Error, SgLimits};
use longshore_mem::fault::FaultGuard;
use longshore_mem::{DmaMemory, FileOffset, Granule};
use longshore_sys::mapping::{Access, Mapping};

const LEN: u64 = 300_000;

/// Part of a mapped file. It does not begin at a granule.
#[derive(Debug)]
struct Pages {
    mapping: Mapping,
    skip: usize,
    len: usize,
}

impl Pages {
    fn new(file: &File, skip: usize, len: usize) -> Self {
        file.set_len(LEN).unwrap();
        let mapping = Mapping::of_file(file, LEN, Granule::SIZE_4K, Access::ReadWrite).unwrap();
        Self { mapping, skip, len }
    }
}

// SAFETY: the mapping stays at its address, and there are no references to it.
#[allow(unsafe_code, reason = "memory of a test")]
unsafe impl DmaMemory for Pages {
    fn host(&self) -> NonNull<[u8]> {
        // SAFETY: within the mapping.
        let start = unsafe { self.mapping.start().add(self.skip) };
        NonNull::slice_from_raw_parts(start, self.len)
    }

    fn is_writable(&self) -> bool {
        true
    }

    unsafe fn file(&self) -> Option<(BorrowedFd<'_>, FileOffset)> {
        None
    }
}

/// A mapping that could not be copied back is not unmapped twice, and leaks neither addresses nor slots.
#[test]
fn a_copy_that_fails_can_be_done_again() {
    let _guard = FaultGuard::install().unwrap();
    let domain = Domain::builder(Soft::new().unwrap()).free_after(None).build();
    let file = tempfile::tempfile().unwrap();
    let places = || vec![Pages::new(&file, 5, 290_001), Pages::new(&file, 100, 8)];

    let mapping = domain.map_sg(places(), Direction::FromDevice, SgLimits::new()).unwrap();
    file.set_len(0).unwrap();
    let failed = mapping.unmap().unwrap_err();
    assert!(matches!(*failed.error, Error::Copy { .. }), "{failed}");
    let failed = failed.value.unmap().unwrap_err();
    file.set_len(LEN).unwrap();
    assert_eq!(failed.value.unmap().unwrap().len(), 2);
    assert_eq!(domain.counters().flushes, 1);

    let mapping = domain.map_sg(places(), Direction::FromDevice, SgLimits::new()).unwrap();
    file.set_len(0).unwrap();
    let failed = mapping.unmap().unwrap_err();
    assert!(matches!(*failed.error, Error::Copy { .. }), "{failed}");
    let failed = failed.value.unmap().unwrap_err();
    // If it is dropped, only the bytes that the device has written are lost.
    drop(failed.value);
    assert_eq!(domain.counters().flushes, 2);

    domain.shrink(std::time::Duration::ZERO).unwrap();
    assert_eq!(domain.iovas().free_bytes(), domain.iovas().all_bytes());
    let counters = domain.counters();
    assert_eq!((counters.maps, counters.leaked), (counters.unmaps, 0));
}
