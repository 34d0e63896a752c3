//! A domain that cannot allocate memory. No other test may run in this process, because the limit that
//! is reached here applies to the process.
#![cfg(not(any(loom, miri)))]

use std::fs::File;
use std::os::fd::AsRawFd;

use longshore_domain::backend::Soft;
use longshore_domain::{Bounce, Direction, Domain, Error, PoolError, WhenFull};
use longshore_heap::Heap;
use longshore_mem::DmaMemory;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const PAGE: u64 = 4096;

/// Runs `work` while no descriptor can be opened, so that no memory can be allocated.
fn without_memory<R>(work: impl FnOnce() -> R) -> R {
    let limit = getrlimit(Resource::Nofile);
    let next = File::open("/dev/null").unwrap().as_raw_fd() as u64;
    let none = Rlimit { current: Some(next), maximum: limit.maximum };
    setrlimit(Resource::Nofile, none).unwrap();
    // A number below it is free if another thread had a file open a moment ago.
    let taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    let result = work();
    drop(taken);
    setrlimit(Resource::Nofile, limit).unwrap();
    result
}

fn is_of_memory(refused: &Error) {
    assert!(matches!(refused, Error::Pool(PoolError::Memory(_))), "{refused}");
}

#[test]
fn only_operations_that_need_memory_are_refused() {
    for when_full in [WhenFull::MapDirectly, WhenFull::Refuse] {
        let soft = Soft::new().unwrap();
        let device = soft.space().session();
        let domain = Domain::builder(soft).bounce(Bounce::Always).free_after(None);
        let domain = domain.pool_limit(u64::MAX, when_full).build();
        let buffer = |_| Heap::Memfd.allocate(8192).unwrap();
        let mut buffers: Vec<_> = (0..3).map(buffer).collect();
        let free_bytes = domain.iovas().free_bytes();
        for _ in 0..3 {
            without_memory(|| {
                let refused = domain.alloc_coherent(PAGE).unwrap_err();
                assert!(matches!(refused, Error::Memory(_)), "{refused}");
                let buffer = buffers.pop().unwrap();
                // Keeps the buffer, with its descriptor, until the end.
                let _kept = match domain.map(buffer, Direction::Bidirectional) {
                    Ok(mapping) => {
                        assert!(when_full == WhenFull::MapDirectly && !mapping.is_bounced());
                        device.write(mapping.iova(), b"here").unwrap();
                        mapping.unmap().unwrap()
                    }
                    Err(refused) => {
                        assert_eq!(when_full, WhenFull::Refuse);
                        assert_eq!(refused.value.host().len(), 8192);
                        is_of_memory(&refused.error);
                        refused.value
                    }
                };
                // A transfer that must be bounced, and one whose ends must be.
                for len in [100, 300_000] {
                    let mut bytes = vec![7; len + 3];
                    let lent = domain.lend_mut(&mut bytes[3..], Direction::Bidirectional, |_| ());
                    is_of_memory(&lent.unwrap_err());
                    assert!(bytes.iter().all(|byte| *byte == 7));
                }
            });
            assert_eq!(domain.iovas().free_bytes(), free_bytes);
            assert_eq!(domain.counters().pool_bytes, 0);
        }
        domain.lend(&[7; 100], |iova| device.read(iova, &mut [0]).unwrap()).unwrap();
        assert_eq!(domain.counters().bounced, 1);
        drop(domain.alloc_coherent(PAGE).unwrap());
    }
}
