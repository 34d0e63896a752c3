//! Transfers of zero bytes fail with the same error for each policy, alignment and way to map.

use std::num::NonZero;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::time::Duration;

use longshore_domain::backend::Soft;
use longshore_domain::{Bounce, Direction, Domain, Error, SgLimits};
use longshore_heap::{Buffer, Heap};
use longshore_iov::crc32c::Crc32c;
use longshore_iov::{Cursor, Dest, Source};
use longshore_mem::{DmaMemory, FileOffset, Iova};

use crate::outside::Outside;

/// Zero bytes at an offset in a buffer.
#[derive(Debug)]
struct Nothing(Buffer, u64);

// SAFETY: the value keeps the buffer, and there are no bytes.
#[allow(unsafe_code, reason = "memory of a test")]
unsafe impl DmaMemory for Nothing {
    fn host(&self) -> NonNull<[u8]> {
        let start = self.0.host().cast::<u8>().expose_provenance().get() + self.1 as usize;
        let start = NonNull::with_exposed_provenance(NonZero::new(start).unwrap());
        NonNull::slice_from_raw_parts(start, 0)
    }

    fn is_writable(&self) -> bool {
        true
    }

    unsafe fn file(&self) -> Option<(BorrowedFd<'_>, FileOffset)> {
        None
    }
}

fn nothing(skip: u64) -> Nothing {
    Nothing(Heap::Memfd.allocate(4096).unwrap(), skip)
}

#[track_caller]
fn assert_empty(error: impl Into<Error>) {
    let error = error.into();
    assert!(matches!(error, Error::Empty { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("no bytes") && !text.contains("0x"), "{text}");
}

#[test]
fn zero_bytes_are_refused_alike_by_every_policy() {
    let directions = [Direction::ToDevice, Direction::FromDevice, Direction::Bidirectional];
    for bounce in [Bounce::Never, Bounce::Below(8192), Bounce::Always] {
        for (is_trusted, skip) in [(false, 0), (false, 3), (true, 0), (true, 3)] {
            let builder = Domain::builder(Outside(Soft::new().unwrap())).bounce(bounce);
            // SAFETY: there is no device.
            #[allow(unsafe_code, reason = "a policy of several")]
            let builder = if is_trusted { unsafe { builder.trusted() } } else { builder };
            let domain = builder.free_after(None).build();
            let local = domain.local();
            for direction in directions {
                assert_empty(domain.map(nothing(skip), direction).unwrap_err());
                assert_empty(local.map(nothing(skip), direction).unwrap_err());
                let at = Iova::new(1 << 20);
                assert_empty(domain.map_at(at, nothing(skip), direction).unwrap_err());
                let mut sum = Crc32c::new();
                assert_empty(domain.map_summed(nothing(skip), direction, &mut sum).unwrap_err());
                let lent = domain.lend_mut(&mut [], direction, |_| panic!("it is called"));
                assert_empty(lent.unwrap_err());
                for places in [vec![], vec![nothing(skip)], vec![nothing(0), nothing(skip)]] {
                    let limits = SgLimits::new();
                    assert_empty(domain.map_sg(places, direction, limits).unwrap_err());
                }
            }
            assert_empty(domain.map_reported(nothing(skip)).unwrap_err());
            assert_empty(domain.lend(&[], |_| panic!("it is called")).unwrap_err());
            assert_empty(domain.alloc_coherent(0).unwrap_err());
            drop(local);
            domain.shrink(Duration::ZERO).unwrap();
            assert_eq!(domain.iovas().free_bytes(), domain.iovas().all_bytes());
            assert_eq!(domain.counters().maps, 0);
        }
    }
}

#[test]
fn a_cursor_that_is_at_its_end_is_refused_and_does_not_move() {
    for bounce in [Bounce::Never, Bounce::Always] {
        let domain = Domain::builder(Soft::new().unwrap()).bounce(bounce).build();
        let bytes = [1; 100];
        let mut cursor = Cursor::<Dest>::own_vec(&mut []);
        let lent = domain.lend_sg(&mut cursor, 10, SgLimits::new(), |_| panic!("it is called"));
        assert_empty(lent.unwrap_err());
        let slices = [std::io::IoSlice::new(&bytes)];
        let mut cursor = Cursor::<Source>::own_vec(&slices);
        let lent = domain.lend_sg(&mut cursor, 0, SgLimits::new(), |_| panic!("it is called"));
        assert_empty(lent.unwrap_err());
        assert_eq!(longshore_iov::SegmentSource::remaining(&cursor), 100);
    }
}
