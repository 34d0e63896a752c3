//! A backend that refuses a call at each step of each way to map and to unmap, and memory that has
//! vanished when it is copied.
#![cfg(not(loom))]

#[path = "model/backend.rs"]
mod backend;
#[path = "model/memory.rs"]
mod memory;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longshore_access::Session;
use longshore_domain::{
    Bounce, Direction, Domain, Error, Failed, Local, Mapping, PoolError, WhenFull,
};
use longshore_mem::fault::FaultGuard;
use longshore_mem::{DmaMemory, FileOffset, Granule, Iova};
use longshore_sys::mapping::{self, Access};

use backend::{CHUNK, Script, Scripted, lock};
use memory::{Memory, PAGE};

const LONG: usize = 70 * PAGE as usize;

/// A way to map.
#[derive(Clone, Copy, Debug)]
struct Shape {
    skip: usize,
    len: usize,
    bounce: Bounce,
    /// The number of calls of the backend, without and with free slots.
    calls: [u32; 2],
}

const SHAPES: [Shape; 6] = [
    // A chunk.
    Shape { skip: 0, len: 5000, bounce: Bounce::Always, calls: [1, 0] },
    Shape { skip: 0, len: 8192, bounce: Bounce::Never, calls: [1, 1] },
    // A chunk, the head, the tail, the middle. The next two shapes lack the tail or the head.
    Shape { skip: 9, len: LONG, bounce: Bounce::Never, calls: [4, 3] },
    Shape { skip: 9, len: LONG - 9, bounce: Bounce::Never, calls: [3, 2] },
    Shape { skip: 0, len: LONG - 9, bounce: Bounce::Never, calls: [3, 2] },
    Shape { skip: 4095, len: LONG, bounce: Bounce::Always, calls: [4, 3] },
];

struct Rig {
    domain: Domain,
    device: Session,
    script: Arc<Mutex<Script>>,
}

impl Rig {
    fn new(bounce: Bounce, when_full: WhenFull) -> Self {
        let backend = Scripted::new(true);
        let (device, script) = (backend.soft.space().session(), Arc::clone(&backend.script));
        let builder = Domain::builder(backend).bounce(bounce).free_after(None);
        Self { domain: builder.pool_limit(u64::MAX, when_full).build(), device, script }
    }

    fn refused(&self) -> u32 {
        lock(&self.script).refused
    }

    fn is_at_rest(&self) {
        lock(&self.script).relent();
        self.domain.shrink(Duration::ZERO).unwrap();
        let (iovas, counters) = (self.domain.iovas(), self.domain.counters());
        assert_eq!(iovas.free_bytes(), iovas.all_bytes());
        assert_eq!((counters.maps, counters.leaked), (counters.unmaps, 0));
        assert_eq!((counters.pool_bytes, counters.pool_grows), (0, counters.pool_shrinks));
        assert!(lock(&self.script).entries.is_empty());
    }
}

fn memory(shape: Shape) -> Memory {
    let memory = Memory::new(shape.skip, shape.len);
    let place = memory.place();
    place.fill(&vec![0x91; place.len]);
    memory
}

fn is_unchanged(memory: &Memory) -> bool {
    memory.place().bytes().iter().all(|byte| *byte == 0x91)
}

/// For each way to map, each call of the backend is refused once. The state is then as before, and the
/// next try succeeds.
#[test]
fn a_map_that_fails_at_any_step_leaves_nothing() {
    for shape in SHAPES {
        for has_slots in [false, true] {
            for by_local in [false, true] {
                let calls = shape.calls[usize::from(has_slots)];
                for nth in 0..=calls {
                    fails_at(shape, has_slots, by_local, nth, nth < calls);
                }
            }
        }
    }
}

type Unmap<'d> = Box<dyn FnOnce() -> Memory + 'd>;

fn fails_at(shape: Shape, has_slots: bool, by_local: bool, nth: u32, is_to_fail: bool) {
    let what = format!("{shape:?}, {has_slots}, {by_local}, {nth}");
    let rig = Rig::new(shape.bounce, WhenFull::Refuse);
    {
        let local = rig.domain.local();
        let map = |memory: Memory| -> Result<(Iova, Unmap<'_>), Failed<Memory>> {
            Ok(match by_local {
                false => {
                    let mapping = rig.domain.map(memory, Direction::Bidirectional)?;
                    (mapping.iova(), Box::new(move || mapping.unmap().unwrap()))
                }
                true => {
                    let mapping = local.map(memory, Direction::Bidirectional)?;
                    (mapping.iova(), Box::new(move || mapping.unmap().unwrap()))
                }
            })
        };
        if has_slots {
            drop(map(memory(shape)).unwrap().1());
        }
        let before = lock(&rig.script).entries.clone();
        let pool_bytes = rig.domain.counters().pool_bytes;
        lock(&rig.script).refuse_map = Some(nth);
        let calls = lock(&rig.script).calls;
        let outcome = map(memory(shape));
        assert_eq!(outcome.is_err(), is_to_fail, "{what}");
        let memory = match outcome {
            Ok((_, unmap)) => {
                assert_eq!(
                    lock(&rig.script).calls - calls,
                    nth,
                    "{what}: steps that are not listed"
                );
                lock(&rig.script).relent();
                unmap()
            }
            Err(Failed { error, value }) => {
                assert!(error.to_string().contains("as the script says"), "{what}: {error}");
                let is_chunks = matches!(*error, Error::Pool(PoolError::Backend(_)));
                let is_first = nth == 0 && !has_slots && shape.calls[0] != shape.calls[1];
                assert_eq!(is_chunks, is_first, "{what}: {error}");
                assert!(is_unchanged(&value), "{what}");
                // Only a chunk that was mapped for it may stay.
                let mut after = lock(&rig.script).entries.clone();
                let grown = rig.domain.counters().pool_bytes - pool_bytes;
                after.retain(|iova, entry| {
                    before.contains_key(iova) || grown == 0 || entry.len_bytes != CHUNK
                });
                assert_eq!(after, before, "{what}");
                let (iova, unmap) = map(value).unwrap();
                let mut seen = vec![0; shape.len];
                rig.device.read(iova, &mut seen).unwrap();
                assert!(seen.iter().all(|byte| *byte == 0x91), "{what}");
                unmap()
            }
        };
        assert!(is_unchanged(&memory), "{what}");
    }
    rig.is_at_rest();
}

/// If pieces that were mapped before a refusal cannot be unmapped again, they are leaked. The device
/// cannot access memory of the caller, and the slots and the addresses are not used again.
#[test]
fn pieces_that_cannot_be_unmapped_are_leaked() {
    let shape = SHAPES[2];
    for nth in 2..4 {
        for partly in [false, true] {
            let rig = Rig::new(shape.bounce, WhenFull::Refuse);
            {
                let mut script = lock(&rig.script);
                (script.refuse_map, script.refuse_unmap) = (Some(nth), Some((0, partly)));
            }
            let failed = rig.domain.map(memory(shape), Direction::Bidirectional).unwrap_err();
            assert!(is_unchanged(&failed.value));
            assert_eq!(rig.refused(), 2);
            let counters = rig.domain.counters();
            assert_eq!((counters.leaked, counters.maps), (1, 0));
            let stuck = lock(&rig.script).entries.clone();
            assert!(
                stuck.values().all(|entry| entry.len_bytes == CHUNK || entry.len_bytes == PAGE)
            );
            assert_eq!(rig.domain.shrink(Duration::ZERO).unwrap(), 0);
            // Writes to the leaked pieces change no memory of the caller.
            let again = rig.domain.map(failed.value, Direction::Bidirectional).unwrap();
            for (iova, entry) in stuck.iter().filter(|(_, entry)| entry.len_bytes == PAGE) {
                rig.device.write(Iova::new(*iova), &vec![0x13; entry.len_bytes as usize]).unwrap();
            }
            assert!(is_unchanged(&again.unmap().unwrap()));
        }
    }
}

/// A mapping that cannot be unmapped stays, with the bytes that the device wrote. The next try succeeds.
#[test]
fn an_unmap_that_fails_keeps_the_mapping() {
    for shape in SHAPES {
        for partly in [false, true] {
            let rig = Rig::new(shape.bounce, WhenFull::Refuse);
            let mapping = rig.domain.map(memory(shape), Direction::Bidirectional).unwrap();
            rig.device.write(mapping.iova(), &[0x17; 5000]).unwrap();
            lock(&rig.script).refuse_unmap = Some((0, partly));
            let mut memory = match mapping.unmap() {
                // Slots stay mapped.
                Ok(memory) => {
                    assert_eq!((rig.refused(), shape.calls[1]), (0, 0));
                    memory
                }
                Err(Failed { error, value }) => {
                    assert!(matches!(*error, Error::Backend { .. }), "{error}");
                    assert_eq!(rig.domain.counters().unmaps, 0);
                    value.unmap().unwrap()
                }
            };
            let bytes = memory.place().bytes();
            let transfer = &bytes[memory.first..memory.first + shape.len];
            assert!(transfer[..5000].iter().all(|byte| *byte == 0x17));
            assert!(transfer[5000..].iter().all(|byte| *byte == 0x91));

            // In a batch, all mappings stay.
            let mut batch = rig.domain.batch();
            for _ in 0..3 {
                let mapping = rig.domain.map(memory, Direction::Bidirectional).unwrap();
                mapping.unmap_deferred(&mut batch).unwrap();
                memory = self::memory(shape);
            }
            lock(&rig.script).refuse_unmap = Some((0, partly));
            let mut back = 0;
            if batch.flush(|_| back += 1).is_err() {
                assert_eq!((back, batch.len()), (0, 3));
                batch.flush(|_| back += 1).unwrap();
            }
            assert_eq!((back, batch.len()), (3, 0));
            drop(batch);
            rig.is_at_rest();
        }
    }
}

/// If a mapping that is dropped cannot be unmapped, its memory is leaked, as the device can access it.
#[test]
fn a_dropped_mapping_that_cannot_be_unmapped_is_leaked() {
    for shape in SHAPES.into_iter().filter(|shape| shape.calls[1] != 0) {
        let rig = Rig::new(shape.bounce, WhenFull::Refuse);
        let mapping = rig.domain.map(memory(shape), Direction::Bidirectional).unwrap();
        let memory = memory(shape);
        let dropped = memory.place();
        let other = rig.domain.map(memory, Direction::Bidirectional).unwrap();
        let iova = other.iova();
        lock(&rig.script).refuse_unmap = Some((0, false));
        drop(other);
        assert!(dropped.is_alive());
        assert_eq!(rig.domain.counters().leaked, 1);
        rig.device.write(iova, &[0x18; 64]).unwrap();
        let again = rig.domain.map(self::memory(shape), Direction::Bidirectional).unwrap();
        assert_ne!(again.iova(), iova);
        for mapping in [mapping, again] {
            assert!(is_unchanged(&mapping.unmap().unwrap()));
        }
        drop(rig.domain);
        assert!(dropped.is_alive());
    }
}

/// If a pool cannot grow for any reason, a transfer is mapped directly or refused, as configured.
#[test]
fn a_pool_that_cannot_grow_falls_back_or_refuses() {
    for when_full in [WhenFull::MapDirectly, WhenFull::Refuse] {
        let rig = Rig::new(Bounce::Always, when_full);
        for (skip, may_be_mapped) in [(0, true), (1, false)] {
            let memory = Memory::new(skip, PAGE as usize);
            lock(&rig.script).refuse_map = Some(0);
            let outcome = rig.domain.map(memory, Direction::ToDevice);
            assert_eq!(rig.refused(), 1 + skip as u32);
            let falls_back = may_be_mapped && when_full == WhenFull::MapDirectly;
            match outcome {
                Ok(mapping) => assert!(falls_back && !mapping.is_bounced()),
                Err(Failed { error, .. }) => {
                    assert!(!falls_back);
                    assert!(matches!(*error, Error::Pool(PoolError::Backend(_))), "{error}");
                }
            }
        }
        rig.is_at_rest();
    }
    // The addresses suffice for two mappings, but not for a chunk.
    for when_full in [WhenFull::MapDirectly, WhenFull::Refuse] {
        let builder = Domain::builder(Scripted::new(true)).bounce(Bounce::Always).address_bits(16);
        let domain = builder.pool_limit(u64::MAX, when_full).free_after(None).build();
        let outcome = domain.map(Memory::new(0, PAGE as usize), Direction::ToDevice);
        match outcome {
            Ok(mapping) => assert!(when_full == WhenFull::MapDirectly && !mapping.is_bounced()),
            Err(Failed { error, .. }) => {
                assert_eq!(when_full, WhenFull::Refuse);
                assert!(matches!(*error, Error::Pool(PoolError::Iova(_))), "{error}");
            }
        }
        assert_eq!(domain.counters().pool_bytes, 0);
        assert_eq!(domain.iovas().free_bytes(), domain.iovas().all_bytes());
    }
}

/// A mapped file that can be truncated.
#[derive(Debug)]
struct Cut {
    file: File,
    mapping: mapping::Mapping,
    skip: usize,
    len: usize,
}

impl Cut {
    fn new(skip: usize, len: usize) -> (Self, File) {
        let file = tempfile::tempfile().unwrap();
        let all = (skip + len).next_multiple_of(4096) as u64;
        file.set_len(all).unwrap();
        let mapping =
            mapping::Mapping::of_file(file.as_fd(), all, Granule::SIZE_4K, Access::ReadWrite);
        let other = file.try_clone().unwrap();
        (Self { file, mapping: mapping.unwrap(), skip, len }, other)
    }
}

// SAFETY: the memory stays mapped while the value lives, and there are no references to it.
#[allow(unsafe_code, reason = "memory of a test")]
unsafe impl DmaMemory for Cut {
    fn host(&self) -> NonNull<[u8]> {
        let start = self.mapping.start().addr().checked_add(self.skip).unwrap();
        NonNull::slice_from_raw_parts(NonNull::with_exposed_provenance(start), self.len)
    }

    fn is_writable(&self) -> bool {
        true
    }

    unsafe fn file(&self) -> Option<(BorrowedFd<'_>, FileOffset)> {
        None
    }
}

type Mapped<'d> = Mapping<'d, Cut, Local<'d>>;

/// Each copy of memory that has vanished is an error, and leaks no slot and no address.
#[test]
fn memory_that_has_vanished_is_an_error_and_leaks_nothing() {
    // Without a guard, an access to such memory kills the process.
    let _guard = FaultGuard::install().unwrap();
    for (skip, len, bounce) in
        [(0, 8192, Bounce::Always), (9, LONG, Bounce::Never), (0, LONG - 9, Bounce::Never)]
    {
        let rig = Rig::new(bounce, WhenFull::Refuse);
        {
            let local = rig.domain.local();
            let is_copy = |error: &Error| matches!(error, Error::Copy { .. });
            let map = |is_cut: bool| {
                let (memory, file) = Cut::new(skip, len);
                if is_cut {
                    file.set_len(0).unwrap();
                }
                (local.map(memory, Direction::Bidirectional), file)
            };
            // The memory vanishes before it is mapped.
            let failed = map(true).0.unwrap_err();
            assert!(is_copy(&failed.error), "{failed}");
            assert_eq!(failed.value.file.metadata().unwrap().len(), 0);
            // It vanishes while it is mapped. Each try fails until the memory is back.
            let cut = || -> (Mapped<'_>, File) {
                let (mapping, file) = map(false);
                file.set_len(0).unwrap();
                (mapping.unwrap(), file)
            };
            let (mapping, file) = cut();
            let failed = mapping.unmap().unwrap_err();
            assert!(is_copy(&failed.error), "{failed}");
            let failed = failed.value.complete(len as u64).unwrap_err();
            assert!(is_copy(&failed.error), "{failed}");
            file.set_len((skip + len).next_multiple_of(4096) as u64).unwrap();
            failed.value.unmap().unwrap();
            // The mapping is dropped.
            drop(cut());
            drop(cut().0.unmap().unwrap_err());
            // In a batch, the other mappings are given back.
            let mut batch = local.batch();
            let (whole, _file) = map(false);
            whole.unwrap().unmap_deferred(&mut batch).unwrap();
            let (gone, file) = cut();
            gone.unmap_deferred(&mut batch).unwrap();
            let (whole, _file) = map(false);
            whole.unwrap().unmap_deferred(&mut batch).unwrap();
            let mut back = 0;
            let error = batch.flush(|_| back += 1).unwrap_err();
            assert!(is_copy(&error) && (back, batch.len()) == (2, 1), "{error}, {back}");
            let (whole, _file) = map(false);
            whole.unwrap().unmap_deferred(&mut batch).unwrap();
            let error = batch.flush(|_| back += 1).unwrap_err();
            assert!(is_copy(&error) && (back, batch.len()) == (3, 1), "{error}, {back}");
            file.set_len((skip + len).next_multiple_of(4096) as u64).unwrap();
            batch.flush(|_| back += 1).unwrap();
            assert_eq!(back, 4);
        }
        rig.is_at_rest();
    }
}
