//! A queue does not allocate memory after it was made.
#![allow(unsafe_code, reason = "counts calls of the allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

#[path = "driver/model.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod model;

use longshore_domain::backend::Soft;
use longshore_domain::{Bounce, Domain};
use longshore_heap::Heap;
use longshore_nvme::{Controller, DataPointerFormat, Hardware, Opcode, Options, Segment};

use self::model::{Model, Traits};

struct Counting;

thread_local!(static ASKED: Cell<u64> = const { Cell::new(0) });

// SAFETY: the calls are passed to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.set(ASKED.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        ASKED.set(ASKED.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A model whose allocations are not counted.
struct Uncounted<'a>(&'a Model);

impl Hardware for Uncounted<'_> {
    fn registers_len(&self) -> usize {
        self.0.registers_len()
    }

    fn read_u32(&self, at: usize) -> u32 {
        self.0.read_u32(at)
    }

    fn read_u64(&self, at: usize) -> u64 {
        self.0.read_u64(at)
    }

    fn write_u32(&self, at: usize, value: u32) {
        let before = ASKED.get();
        self.0.write_u32(at, value);
        ASKED.set(before);
    }

    fn write_u64(&self, at: usize, value: u64) {
        self.0.write_u64(at, value);
    }

    fn set_bus_master(&self, may: bool) -> std::io::Result<()> {
        self.0.set_bus_master(may)
    }

    fn reset(&self) -> std::io::Result<()> {
        self.0.reset()
    }
}

#[test]
fn a_warm_queue_allocates_nothing() {
    const LEN_BYTES: u64 = 32 << 10;
    for format in [DataPointerFormat::Prp, DataPointerFormat::Sgl] {
        for bounce in [Bounce::Never, Bounce::Always] {
            let soft = Soft::new().unwrap();
            let session = soft.space().session();
            let model = Model::new(session, Traits::default(), vec![7; 1 << 20]);
            let domain = Domain::builder(soft).free_after(None).bounce(bounce).build();
            let options = Options::default().format(format);
            let controller = Controller::new(&domain, Uncounted(&model), options).unwrap();
            let namespace = controller.namespace(1).unwrap();
            let local = domain.local();
            let mut queue = controller.queue(8).unwrap();
            let mut idle: Vec<_> =
                (0..8).map(|_| Heap::Memfd.allocate(LEN_BYTES).unwrap()).collect();
            let mut once = || {
                while let Some(buffer) = idle.pop() {
                    let mapping = local.map_reported(buffer).unwrap();
                    let segment = Segment { iova: mapping.iova(), len_bytes: LEN_BYTES };
                    queue.submit(Opcode::Read, &namespace, 0, &[segment], mapping).unwrap();
                }
                queue.ring();
                while let Some(done) = queue.take().unwrap() {
                    done.result.unwrap();
                    idle.push(done.payload.complete(LEN_BYTES).unwrap());
                }
                queue.ring();
                assert_eq!(idle.len(), 8);
            };
            (0..3).for_each(|_| once());
            let before = ASKED.get();
            (0..100).for_each(|_| once());
            assert_eq!(ASKED.get(), before, "{format:?}, {bounce:?}");
            let bounced = if bounce == Bounce::Always { 103 * 8 } else { 0 };
            assert_eq!(domain.counters().bounced, bounced);
        }
    }
}
