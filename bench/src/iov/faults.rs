//! The cost of surviving faults: that of a guard without a fault, and that of a fault.
#![expect(unsafe_code, reason = "makes a view of memory that is not mapped")]

use std::cell::RefCell;
use std::hint::black_box;
use std::io::IoSlice;
use std::ptr::NonNull;

use anyhow::Result;
use longshore_iov::{Cursor, Error, Source, copy};
use longshore_mem::VolatileSlice;
use longshore_mem::fault::FaultGuard;

use super::bytes_per_clock::TARGET_SKEW;
use super::timed::{Repeat, Unit};
use crate::harness::metric::{BYTES_PER_CLOCK, CORE_CYCLES};
use crate::harness::{Against, CommonOptions, Session};

const CASE: &str = "fault-tolerant copy";
const FAULT_CASE: &str = "a fault";
const WITHOUT: &str = "without a guard";
const COPIES: usize = 10_000;
const COPY_BYTES: usize = 4096;

pub(super) fn run(options: &CommonOptions, session: &mut Session) -> Result<()> {
    if options.wants(CASE) {
        let source = vec![5u8; COPY_BYTES];
        let repeat = Repeat::new(options, Unit::BytesPerClock(COPIES * COPY_BYTES));
        let many = |into: &mut [u8]| {
            for _ in 0..COPIES {
                let slices = [IoSlice::new(black_box(&source))];
                let done = copy::read(&mut Cursor::<Source>::own_vec(&slices), black_box(into));
                black_box(done.is_ok());
            }
        };
        // Both candidates share one target, so that they use the same memory.
        let mut target = vec![0u8; TARGET_SKEW + COPY_BYTES];
        let target = RefCell::new(&mut target[TARGET_SKEW..]);
        let candidates = vec![
            repeat.of(WITHOUT, || many(&mut target.borrow_mut())).ours(),
            repeat
                .of("with a guard", || {
                    let guard = FaultGuard::install().expect("a signal handler can be installed");
                    many(&mut target.borrow_mut());
                    drop(guard);
                })
                .ours(),
        ];
        let against = [Against::new(BYTES_PER_CLOCK, WITHOUT)];
        session.compare(CASE, candidates, &against)?;
    }
    if options.wants(FAULT_CASE) {
        let _guard = FaultGuard::install()?;
        // The first page of a process is never mapped (`mmap_min_addr`).
        // SAFETY: foreign memory may fault, because a guard is installed.
        let nowhere =
            unsafe { VolatileSlice::from_raw_parts(NonNull::without_provenance(START), 64) };
        let mut into = [0; 64];
        let fault = || {
            let done =
                copy::read(&mut Cursor::<Source>::foreign_buf(nowhere), black_box(&mut into));
            assert!(matches!(done, Err(Error::Fault { done_bytes: 0, .. })), "{done:?}");
        };
        let repeat = Repeat::new(options, Unit::CyclesEach(1));
        let against = [Against::new(CORE_CYCLES, "longshore")];
        session.compare(FAULT_CASE, vec![repeat.of("longshore", fault).ours()], &against)?;
    }
    Ok(())
}

const START: std::num::NonZeroUsize = std::num::NonZeroUsize::new(64).unwrap();
