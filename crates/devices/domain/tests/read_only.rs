//! No transfer writes to memory that this process can only read. A write would kill the process with
//! SIGSEGV, so each case runs in a child process.

use std::env;
use std::num::NonZero;
use std::os::fd::BorrowedFd;
use std::process::Command;
use std::ptr::NonNull;
use std::sync::Arc;

use longshore_access::{Error as AccessError, Region, Space};
use longshore_domain::backend::Soft;
use longshore_domain::{Bounce, Builder, Direction, Domain, Error, SgLimits};
use longshore_heap::{Heap, Sealing, SharedBuffer};
use longshore_iov::crc32c::Crc32c;
use longshore_mem::{DmaMemory, FileOffset, Iova};
use longshore_pagetable::Prot;

const CASE: &str = "LONGSHORE_READ_ONLY_CASE";

const CASES: [(&str, fn()); 9] = [
    ("write", write),
    ("sync_for_cpu", sync_for_cpu),
    ("bounced", bounced),
    ("direct", direct),
    ("scattered", scattered),
    ("unaligned", unaligned),
    ("summed", summed),
    ("reported", reported),
    ("region", region),
];

#[test]
#[cfg_attr(miri, ignore = "runs processes")]
fn no_transfer_writes_to_read_only_memory() {
    if let Ok(name) = env::var(CASE) {
        let (_, case) = CASES.iter().find(|(known, _)| *known == name).expect("a known case");
        return case();
    }
    let mut failed = String::new();
    for (name, _) in CASES {
        let output = Command::new(env::current_exe().unwrap())
            .args(["--exact", "no_transfer_writes_to_read_only_memory", "--nocapture"])
            .env(CASE, name)
            .output()
            .unwrap();
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            failed += &format!("case {name}: {}\n{text}\n", output.status);
        }
    }
    assert!(failed.is_empty(), "{failed}");
}

fn sealed(len_bytes: usize) -> SharedBuffer {
    let mut buffer = Heap::Memfd.allocate(len_bytes as u64).unwrap();
    buffer.write().unwrap().fill(0x5a);
    buffer.share(Sealing::Content).unwrap()
}

fn domain(bounce: Bounce) -> Domain {
    builder().bounce(bounce).build()
}

fn builder() -> Builder {
    Domain::builder(Soft::new().unwrap()).free_after(None)
}

/// Asserts that the error names the memory.
fn assert_read_only(error: &Error, memory: &impl DmaMemory) {
    let host = memory.host();
    let expected = (host.cast::<u8>().addr().get() as u64, host.len() as u64);
    match *error {
        Error::ReadOnly { start, len_bytes, .. } => assert_eq!((start, len_bytes), expected),
        ref error => panic!("{error}"),
    }
    assert!(error.to_string().contains("read-only"), "{error}");
}

const WRITING: [Direction; 2] = [Direction::FromDevice, Direction::Bidirectional];

fn write() {
    for bounce in [Bounce::Never, Bounce::Always] {
        let domain = domain(bounce);
        let mut mapping = domain.map(sealed(8192), Direction::ToDevice).unwrap();
        let error = mapping.write(0, b"x").unwrap_err();
        assert!(matches!(error, Error::ReadOnly { len_bytes: 8192, .. }), "{error}");
        let mut byte = [0];
        mapping.read(0, &mut byte).unwrap();
        assert_eq!(byte, [0x5a]);
        assert_eq!(mapping.unmap().unwrap().as_slice().unwrap(), [0x5a; 8192]);
    }
}

/// A mapping towards the device copies nothing back, even if it is synchronised for the CPU.
fn sync_for_cpu() {
    let domain = domain(Bounce::Always);
    let mut mapping = domain.map(sealed(8192), Direction::ToDevice).unwrap();
    mapping.sync_for_cpu(0..8192).unwrap();
    mapping.sync_for_device(0..8192).unwrap();
    let shared = mapping.complete(8192).unwrap();

    let mut mapping = domain.map_sg(vec![shared], Direction::ToDevice, SgLimits::new()).unwrap();
    mapping.sync_for_cpu(0..8192).unwrap();
    mapping.sync_for_device(0..8192).unwrap();
    let shared = mapping.complete(8192).unwrap().remove(0);

    let mapping = domain.map(shared, Direction::ToDevice).unwrap();
    let mut sum = Crc32c::new();
    mapping.complete_summed(8192, &mut sum).unwrap();
}

fn bounced() {
    refused(&domain(Bounce::Always));
}

fn direct() {
    refused(&domain(Bounce::Never));
}

fn refused(domain: &Domain) {
    let local = domain.local();
    for direction in WRITING {
        let failed = domain.map(sealed(8192), direction).unwrap_err();
        assert_read_only(&failed.error, &failed.value);
        // Also if several owners share the memory.
        let failed = domain.map(Arc::new(failed.value), direction).unwrap_err();
        assert_read_only(&failed.error, &failed.value);
        let failed = local.map(failed.value, direction).unwrap_err();
        assert_read_only(&failed.error, &failed.value);
        let failed = domain.map_at(Iova::new(1 << 20), failed.value, direction).unwrap_err();
        assert_read_only(&failed.error, &failed.value);
    }
    assert_eq!((domain.counters().maps, domain.counters().leaked), (0, 0));
}

fn scattered() {
    for bounce in [Bounce::Never, Bounce::Always] {
        let domain = domain(bounce);
        for direction in WRITING {
            let places = vec![Arc::new(sealed(4096)), Arc::new(sealed(100))];
            let failed = domain.map_sg(places, direction, SgLimits::new()).unwrap_err();
            assert_read_only(&failed.error, &failed.value[0]);
        }
    }
}

/// Sealed memory from its third byte on.
#[derive(Debug)]
struct Part(SharedBuffer);

// SAFETY: the value keeps the buffer, which makes the same promises.
#[allow(unsafe_code, reason = "memory of a test")]
unsafe impl DmaMemory for Part {
    fn host(&self) -> NonNull<[u8]> {
        let host = self.0.host();
        let start = host.cast::<u8>().expose_provenance().checked_add(3).unwrap();
        let start = NonNull::with_exposed_provenance(NonZero::new(start.get()).unwrap());
        NonNull::slice_from_raw_parts(start, host.len() - 3)
    }

    fn is_writable(&self) -> bool {
        self.0.is_writable()
    }

    unsafe fn file(&self) -> Option<(BorrowedFd<'_>, FileOffset)> {
        None
    }
}

/// Transfers whose ends are bounced.
fn unaligned() {
    let domain = domain(Bounce::Never);
    for len_bytes in [100, 5000, 1_000_000] {
        for direction in WRITING {
            let failed = domain.map(Part(sealed(len_bytes)), direction).unwrap_err();
            assert_read_only(&failed.error, &failed.value);
            let failed = domain.map_sg(vec![failed.value], direction, SgLimits::new()).unwrap_err();
            assert_read_only(&failed.error, &failed.value[0]);
        }
        let mapping = domain.map(Part(sealed(len_bytes)), Direction::ToDevice).unwrap();
        assert!(mapping.is_bounced());
        mapping.unmap().unwrap();
    }
}

fn summed() {
    for bounce in [Bounce::Never, Bounce::Always] {
        let domain = domain(bounce);
        for direction in WRITING {
            let mut sum = Crc32c::new();
            let failed = domain.map_summed(sealed(4096), direction, &mut sum).unwrap_err();
            assert_read_only(&failed.error, &failed.value);
        }
    }
}

fn reported() {
    for bounce in [Bounce::Never, Bounce::Always] {
        let domain = builder().bounce(bounce).on_misuse(|misuse| panic!("{misuse}")).build();
        let failed = domain.map_reported(sealed(4096)).unwrap_err();
        assert_read_only(&failed.error, &failed.value);
    }
}

/// A region of it can be mapped for reading only.
fn region() {
    let region = Arc::new(Region::from_memory(Arc::new(sealed(8192))).unwrap());
    assert!(region.is_read_only());
    let space = Space::new().unwrap();
    space.attach(&region).unwrap();
    let iova = Iova::new(0x1000);
    for prot in [Prot::WRITE, Prot::READ_WRITE] {
        let refused = space.map(iova, &region, 0, 8192, prot).unwrap_err();
        assert!(matches!(refused, AccessError::ReadOnlyRegion), "{refused}");
    }
    space.map(iova, &region, 0, 8192, Prot::READ).unwrap();
    let session = space.session();
    assert!(session.write(iova, b"x").is_err());
    assert_eq!(session.read_obj::<u8>(iova).unwrap(), 0x5a);
    let writable = Heap::Memfd.allocate(4096).unwrap();
    assert!(!Region::from_memory(writable).unwrap().is_read_only());
}
