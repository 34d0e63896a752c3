//! Bounce buffers if devices can read memory that is mapped for writing only, as with VT-d under Linux.

use longshore_access::Session;
use longshore_domain::backend::{Backend, BackendError, Limits, Piece, Soft};
use longshore_domain::{Bounce, Direction, Domain};
use longshore_heap::{Buffer, Heap};
use longshore_mem::{AddrRange, Iova};
use longshore_pagetable::Prot;

const SECRET: u8 = 0x5e;

/// A space whose mappings can all be read.
#[derive(Debug)]
struct Readable(Soft);

// SAFETY: the calls are passed on to a space. `limits` says that it does not deny reads.
#[allow(unsafe_code, reason = "passes on what a domain maps")]
unsafe impl Backend for Readable {
    fn name(&self) -> &'static str {
        "readable"
    }

    fn limits(&self) -> Limits {
        let mut limits = self.0.limits();
        limits.denies_reads = false;
        limits
    }

    unsafe fn map(&self, iova: Iova, piece: Piece<'_>, prot: Prot) -> Result<(), BackendError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.map(iova, piece, prot.union(Prot::READ)) }
    }

    unsafe fn unmap(&self, ranges: &[AddrRange<Iova>]) -> Result<(), BackendError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.unmap(ranges) }
    }
}

fn buffer(len_bytes: u64) -> Buffer {
    let mut buffer = Heap::Memfd.allocate(len_bytes).unwrap();
    buffer.write().unwrap().fill(SECRET);
    buffer
}

fn slot(device: &Session, iova: Iova) -> [u8; 4096] {
    let mut bytes = [0xee; 4096];
    device.read(iova, &mut bytes).unwrap();
    bytes
}

/// A device cannot read bytes of an earlier transfer from a slot, whether the new transfer fills the
/// slot or not.
#[test]
fn a_device_that_reads_what_it_writes_sees_no_other_transfer() {
    let soft = Soft::new().unwrap();
    let device = soft.space().session();
    let domain = Domain::builder(Readable(soft)).bounce(Bounce::Always).build();
    for _ in 0..3 {
        // So many that each slot that is used again was one of these.
        let before: Vec<_> =
            (0..600).map(|_| domain.map(buffer(4096), Direction::FromDevice).unwrap()).collect();
        assert_eq!(slot(&device, before[0].iova()), [SECRET; 4096]);
        drop(before);

        let filled = domain.map(buffer(5), Direction::FromDevice).unwrap();
        let seen = slot(&device, filled.iova());
        assert_eq!(seen[..5], [SECRET; 5]);
        assert!(seen[5..].iter().all(|byte| *byte == 0), "bytes of another transfer");

        let reported = domain.map_reported(buffer(4096)).unwrap();
        let seen = slot(&device, reported.iova());
        assert!(!seen.contains(&SECRET), "bytes of another transfer");
        device.write(reported.iova(), b"written").unwrap();
        let buffer = reported.complete(7).unwrap();
        assert_eq!(buffer.read().unwrap()[..8], *b"written\x5e");
    }
}
