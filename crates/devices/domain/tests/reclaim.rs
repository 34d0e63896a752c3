//! `Domain::reclaim` gives back all unused memory, as counters show.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use longshore_access::{ReadOnly, Space};
use longshore_domain::backend::Soft;
use longshore_domain::iova::IovaError;
use longshore_domain::{Bounce, Builder, Direction, Domain, Error};
use longshore_heap::{Buffer, Heap};
use longshore_mem::Iova;

const PAGE: u64 = 4096;

fn domain(set_up: impl FnOnce(Builder) -> Builder) -> (Domain, Space) {
    let soft = Soft::new().unwrap();
    let space = soft.space().clone();
    (set_up(Domain::builder(soft).free_after(None)).build(), space)
}

fn buffer(len_bytes: u64) -> Buffer {
    let mut buffer = Heap::Memfd.allocate(len_bytes).unwrap();
    buffer.write().unwrap().fill(7);
    buffer
}

fn assert_only_the_root(domain: &Domain, space: &Space) {
    assert_eq!(space.tables(), 1);
    assert_eq!(domain.counters().pool_bytes, 0);
    assert_eq!(domain.iovas().free_bytes(), domain.iovas().all_bytes());
}

/// Maps single pages all over the addresses, each of which leaves up to three empty tables.
fn scatter(domain: &Domain, count: u64) {
    let step = (domain.limits().usable[0].len().min(1 << 32) / count) & !(PAGE - 1);
    for nth in 0..count {
        let iova = Iova::new(PAGE + nth * step);
        drop(domain.map_at(iova, buffer(PAGE), Direction::ToDevice).unwrap());
    }
}

#[test]
fn tables_that_map_nothing_are_freed() {
    for set_up in [
        |builder: Builder| builder,
        |builder: Builder| builder.address_bits(32),
        |builder: Builder| builder.guard_bytes(3 * PAGE),
    ] {
        let (domain, space) = domain(set_up);
        assert_eq!(space.tables(), 1);
        scatter(&domain, 1000);
        let full = space.tables();
        assert!(full > 1000, "{full}");
        assert_eq!(domain.shrink(std::time::Duration::ZERO).unwrap(), 0);
        assert_eq!(space.tables(), full, "shrinking frees no tables");
        let freed = domain.reclaim().unwrap();
        assert_eq!((freed.tables, freed.pool_bytes), (full - 1, 0));
        assert_only_the_root(&domain, &space);
        assert_eq!(domain.reclaim().unwrap().tables, 0);
    }
}

/// Tables of live mappings stay, and the device can still access these mappings.
#[test]
fn live_mappings_stay_mapped() {
    let (domain, space) = domain(|builder| builder);
    let device = space.session();
    let near = domain.map_at(Iova::new(1 << 21), buffer(PAGE), Direction::ToDevice).unwrap();
    let far = domain.map_at(Iova::new(1 << 45), buffer(PAGE), Direction::ToDevice).unwrap();
    let alone = space.tables();
    scatter(&domain, 500);
    domain.reclaim().unwrap();
    assert_eq!(space.tables(), alone);
    for mapping in [&near, &far] {
        assert_eq!(device.read_obj::<u8>(mapping.iova()).unwrap(), 7);
    }
    drop((near, far));
    domain.reclaim().unwrap();
    assert_only_the_root(&domain, &space);
}

/// Pools, and the caches of the handles of other threads, which are not in a call.
#[test]
fn caches_of_other_threads_are_emptied() {
    let (domain, space) = domain(|builder| builder.bounce(Bounce::Below(3 * PAGE)));
    let (warm, done) = (Barrier::new(4), Barrier::new(4));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let local = domain.local();
                for len_bytes in [PAGE, 2 * PAGE, 4 * PAGE, 16 * PAGE] {
                    let buffers: Vec<_> = (0..8)
                        .map(|_| local.map(buffer(len_bytes), Direction::Bidirectional).unwrap())
                        .collect();
                    drop(buffers);
                }
                warm.wait();
                done.wait();
                // The handle still works.
                drop(local.map(buffer(PAGE), Direction::ToDevice).unwrap());
                drop(local.map(buffer(4 * PAGE), Direction::ToDevice).unwrap());
            });
        }
        warm.wait();
        let held = domain.counters().pool_bytes;
        assert!(held != 0 && space.tables() > 1);
        assert!(domain.iovas().free_bytes() < domain.iovas().all_bytes());
        assert_eq!(domain.reclaim().unwrap().pool_bytes, held);
        assert_only_the_root(&domain, &space);
        done.wait();
    });
    domain.reclaim().unwrap();
    assert_only_the_root(&domain, &space);
}

#[test]
fn threads_map_while_tables_are_freed() {
    let (domain, space) = domain(|builder| builder.address_bits(34));
    let turns = if cfg!(miri) { 20 } else { 3000 };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let mapping: Vec<_> = (0..3u64)
            .map(|thread| {
                let (domain, space) = (&domain, &space);
                scope.spawn(move || {
                    let device = space.session();
                    let local = domain.local();
                    let mut memory = Some(buffer(PAGE));
                    let mut taken = 0;
                    for turn in 0..turns {
                        // Each thread requests other addresses, whose tables other threads use, too.
                        let iova = Iova::new((1 << 30) + (turn * 3 + thread) * (1 << 19));
                        let mapping = match turn % 3 {
                            0 => {
                                let mapping =
                                    local.map(memory.take().unwrap(), Direction::ToDevice);
                                let mapping = mapping.unwrap();
                                assert_eq!(device.read_obj::<u8>(mapping.iova()).unwrap(), 7);
                                memory = Some(mapping.unmap().unwrap());
                                continue;
                            }
                            _ => domain.map_at(iova, memory.take().unwrap(), Direction::ToDevice),
                        };
                        memory = Some(match mapping {
                            Ok(mapping) => {
                                assert_eq!(device.read_obj::<u8>(iova).unwrap(), 7);
                                mapping.unmap().unwrap()
                            }
                            // The address is free, but may be in another thread's cache.
                            Err(failed) => {
                                let error = &*failed.error;
                                assert!(matches!(error, Error::Iova(IovaError::NotFree { .. })));
                                taken += 1;
                                failed.value
                            }
                        });
                    }
                    assert!(taken < turns / 3, "{taken} of {turns}");
                })
            })
            .collect();
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                domain.reclaim().unwrap();
            }
        });
        for thread in mapping {
            let joined = thread.join();
            if joined.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            joined.unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    domain.reclaim().unwrap();
    assert_only_the_root(&domain, &space);
}

/// A thread that holds a pin would deadlock.
#[test]
fn a_thread_that_holds_a_pin_is_refused() {
    let (domain, space) = domain(|builder| builder);
    let session = space.session();
    let mapping = domain.map(buffer(PAGE), Direction::ToDevice).unwrap();
    scatter(&domain, 10);
    let before = space.tables();
    let refused =
        session.pin(mapping.iova(), 8, ReadOnly, |_| domain.reclaim().unwrap_err()).unwrap();
    assert!(refused.to_string().contains("pin"), "{refused}");
    assert_eq!(space.tables(), before);
    assert_ne!(domain.reclaim().unwrap().tables, 0);
}
