//! DMA pools: elements that stay mapped, and a device in this process that accesses them.
#![cfg(not(any(loom, miri)))]

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use longshore_access::Session;
use longshore_domain::backend::Soft;
use longshore_domain::{
    Direction, DmaElement, DmaPool, DmaPoolOptions, DmaSlice, Domain, Error, PoolError,
};
use longshore_mem::Iova;
use proptest::prelude::*;

const CHUNK: u64 = 2 << 20;

fn domain() -> (Domain, Session) {
    let soft = Soft::new().unwrap();
    let device = soft.space().session();
    (Domain::builder(soft).free_after(None).build(), device)
}

fn used_iova_bytes(domain: &Domain) -> u64 {
    domain.iovas().all_bytes() - domain.iovas().free_bytes()
}

fn read(device: &Session, iova: Iova, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    device.read(iova, &mut bytes).unwrap();
    bytes
}

#[test]
fn the_device_and_the_cpu_see_the_same_bytes() {
    let (domain, device) = domain();
    let pool = domain.dma_pool(1000, 8, DmaPoolOptions::new()).unwrap();
    let mut element = pool.take().unwrap();
    assert_eq!((element.len(), pool.element_len()), (1000, 1000));
    assert_eq!(read(&device, element.iova(), 1000), [0; 1000]);
    element.write_at(990, b"to device!").unwrap();
    assert_eq!(read(&device, element.iova(), 1000)[990..], *b"to device!");
    device.write(element.iova(), b"from device").unwrap();
    let mut seen = [0; 11];
    element.read_at(0, &mut seen).unwrap();
    assert_eq!(&seen, b"from device");
    // Accesses beyond the end fail.
    assert!(element.read_at(990, &mut seen).is_err());
    assert!(element.write_at(990, &seen).is_err());
    assert!(element.view_mut().write(usize::MAX, &[0]).is_err());
}

#[test]
fn the_device_may_do_what_the_direction_says() {
    for direction in [Direction::ToDevice, Direction::FromDevice, Direction::Bidirectional] {
        let (domain, device) = domain();
        let options = DmaPoolOptions::new().direction(direction);
        let pool = domain.dma_pool(64, 64, options).unwrap();
        assert_eq!(pool.direction(), direction);
        let mut element = pool.take().unwrap();
        element.write_at(0, &[7; 64]).unwrap();
        let writes = device.write(element.iova(), &[9]).is_ok();
        let reads = device.read(element.iova(), &mut [0]).is_ok();
        assert_eq!(writes, direction != Direction::ToDevice);
        assert_eq!(reads, direction != Direction::FromDevice);
        let mut seen = [0];
        element.read_at(0, &mut seen).unwrap();
        assert_eq!(seen, [if writes { 9 } else { 7 }]);
    }
}

#[test]
fn an_element_is_zeroed_unless_take_unzeroed_is_called() {
    let (domain, device) = domain();
    let pool = domain.dma_pool(5000, 1, DmaPoolOptions::new().limit(1)).unwrap();
    let used = |element: DmaElement| {
        device.write(element.iova(), &[0x5e; 5000]).unwrap();
        element.iova()
    };
    let iova = used(pool.take().unwrap());
    let again = pool.take_unzeroed().unwrap();
    assert_eq!((again.iova(), read(&device, iova, 5000)), (iova, vec![0x5e; 5000]));
    drop(again);
    let zeroed = pool.take().unwrap();
    assert_eq!((zeroed.iova(), read(&device, iova, 5000)), (iova, vec![0; 5000]));
    // An element whose parts were all dropped is whole again.
    let mut element = zeroed;
    let head = element.split_to(100).unwrap();
    drop((element, head));
    assert_eq!(pool.take().unwrap().len(), 5000);
}

#[test]
fn slices_keep_their_element_until_the_last_is_dropped() {
    let (domain, device) = domain();
    let pool = domain.dma_pool(256, 256, DmaPoolOptions::new().limit(1)).unwrap();
    // Even the smallest chunk has as many elements as fill a page.
    let others: Vec<_> = (1..16).map(|_| pool.take().unwrap()).collect();
    let mut element = pool.take().unwrap();
    element.write_at(0, &(0..=255).collect::<Vec<u8>>()).unwrap();
    let start = element.iova();
    let tail = element.split_off(200).unwrap();
    let head = element.split_to(50).unwrap();
    let lens = [head.len(), element.len(), tail.len()];
    assert_eq!((lens, element.iova().raw() - start.raw()), ([50, 150, 56], 50));
    assert_eq!(element.split_to(151).unwrap_err(), element.split_off(151).unwrap_err());
    assert!(element.split_off(150).unwrap().is_empty());

    let whole = element.freeze();
    let middle = whole.slice(10..20).unwrap();
    assert_eq!(middle.iova().raw(), start.raw() + 60);
    let mut seen = [0; 10];
    middle.read_at(0, &mut seen).unwrap();
    assert_eq!(seen, [60, 61, 62, 63, 64, 65, 66, 67, 68, 69]);
    assert_eq!(read(&device, middle.iova(), 10), seen);
    #[expect(clippy::reversed_empty_ranges, reason = "refused")]
    for odd in [0..151, 151..151, 20..10, 0..usize::MAX, usize::MAX..usize::MAX] {
        assert!(whole.slice(odd).is_err());
    }
    #[expect(clippy::reversed_empty_ranges, reason = "refused")]
    let reversed = whole.slice(6..3).unwrap_err();
    assert_eq!(reversed.to_string(), "the range 6..3 ends before it begins");
    let beyond = whole.slice(3..151).unwrap_err();
    assert_eq!(beyond.to_string(), "the range 3..151 ends beyond the last of 150 bytes");
    let is_exhausted = || matches!(pool.take(), Err(Error::Pool(PoolError::Exhausted { .. })));
    drop(whole);
    let last = middle.clone();
    let middle = middle.try_into_element().unwrap_err();
    thread::spawn(move || drop(middle)).join().unwrap();
    drop((head, tail));
    assert!(is_exhausted());
    let mut last = last.try_into_element().unwrap();
    last.write_at(0, &[1; 10]).unwrap();
    assert!(is_exhausted());
    // Parts count as handles of the whole element, although they share no byte.
    let tail = last.split_off(5).unwrap();
    let last = last.freeze().try_into_element().unwrap_err();
    drop(tail);
    let last = last.try_into_element().unwrap();
    drop(last);
    assert_eq!(pool.take().unwrap().iova(), start);
    drop(others);
}

#[test]
fn an_exhausted_pool_takes_elements_from_caches_and_then_fails() {
    let (domain, _device) = domain();
    let pool = domain.dma_pool(4096, 4096, DmaPoolOptions::new().limit(100)).unwrap();
    let (dropped, have_dropped) = mpsc::channel();
    let (end, is_over) = mpsc::channel::<()>();
    thread::scope(|scope| {
        // Dropped also if this panics.
        let (pool, _end) = (&pool, end);
        scope.spawn(move || {
            drop((0..40).map(|_| pool.take().unwrap()).collect::<Vec<_>>());
            dropped.send(()).unwrap();
            // The thread caches its elements while it lives.
            is_over.recv().unwrap_err();
        });
        have_dropped.recv().unwrap();
        assert!(pool.usage().cached >= 40 && pool.usage().in_use == 0);
        let elements: Vec<_> = (0..100).map(|_| pool.take().unwrap()).collect();
        let refused = pool.take().unwrap_err();
        let Error::Pool(PoolError::Exhausted { elements: most, element_len }) = refused else {
            panic!("{refused}")
        };
        assert_eq!((most, element_len), (100, 4096));
        assert_eq!(
            refused.to_string(),
            "all 100 elements of 4096 bytes of a DMA pool are in use; drop some, or make the pool \
             with a higher limit"
        );
        let usage = pool.usage();
        assert_eq!((usage.in_use, usage.cached, usage.free, usage.peak), (100, 0, 0, 100));
        assert!(usage.to_string().ends_with("peak 100 in use or cached"), "{usage}");
        drop(elements);
    });
    assert_eq!(pool.usage().in_use, 0);
    assert!(pool.take().is_ok());
}

#[test]
fn chunks_are_freed_except_the_reserve() {
    let (domain, _device) = domain();
    let options = DmaPoolOptions::new().reserve(600).limit(2000);
    let pool = domain.dma_pool(4096, 4096, options).unwrap();
    assert_eq!((pool.usage().chunks, pool.usage().elements), (2, 1024));
    let mut elements: Vec<_> = (0..1100).map(|_| pool.take_unzeroed().unwrap()).collect();
    assert_eq!(pool.usage().chunks, 3);
    assert_eq!(pool.shrink().unwrap(), 0);
    elements.truncate(1);
    assert_eq!(pool.shrink().unwrap(), CHUNK);
    assert_eq!((pool.usage().chunks, pool.usage().in_use, pool.usage().cached), (2, 1, 0));
    drop(elements);
    assert_eq!(domain.shrink(Duration::ZERO).unwrap(), 0);
    let dump = domain.dump();
    assert_eq!(dump.dma_pools, [pool.usage()]);
    assert!(dump.to_string().contains("DMA pool    4096 Bidirectional: 2 chunks, 1024 elements"));

    let other = domain.dma_pool(CHUNK + 1, 1, DmaPoolOptions::new()).unwrap();
    drop(other.take_unzeroed().unwrap());
    assert_eq!(domain.shrink(Duration::ZERO).unwrap(), CHUNK + 4096);
    drop((pool, other));
    assert_eq!((used_iova_bytes(&domain), domain.dump().dma_pools), (0, vec![]));
}

#[test]
fn a_reserve_that_was_never_used_is_freed_with_its_pool() {
    let (domain, _device) = domain();
    let pool = domain.dma_pool(4096, 4096, DmaPoolOptions::new().reserve(600)).unwrap();
    let used = pool.take().unwrap();
    drop((pool, used));
    assert_eq!((used_iova_bytes(&domain), domain.dump().dma_pools), (0, vec![]));
}

#[test]
fn idle_chunks_are_freed_after_a_time() {
    let domain = Domain::builder(Soft::new().unwrap());
    let domain = domain.free_after(Some(Duration::from_millis(2))).build();
    let pool = domain.dma_pool(4096, 1, DmaPoolOptions::new()).unwrap();
    drop(pool.take().unwrap());
    let is_freed = |_: &u32| {
        thread::sleep(Duration::from_millis(1));
        pool.usage().chunks == 0
    };
    assert!((0..60_000).any(|round| is_freed(&round)), "no idle chunk is freed");
}

/// All orders in which a domain, its pool and two elements can be dropped.
#[test]
fn memory_stays_mapped_until_the_last_element_is_dropped() {
    let all = (0..256u32).map(|n| [n & 3, n >> 2 & 3, n >> 4 & 3, n >> 6]);
    let orders = all.filter(|order| (0..4).all(|nth| order.contains(&nth)));
    for order in orders {
        let (domain, device) = domain();
        let pool = domain.dma_pool(512, 512, DmaPoolOptions::new()).unwrap();
        let [mut one, two] = [pool.take().unwrap(), pool.take().unwrap()];
        one.write_at(0, b"one").unwrap();
        let (at_one, at_two) = (one.iova(), two.iova());
        let (mut domain, mut pool) = (Some(domain), Some(pool));
        let (mut one, mut two) = (Some(one), Some(two.freeze()));
        for dropped in order {
            match dropped {
                0 => drop(domain.take()),
                1 => drop(pool.take()),
                2 => drop(one.take()),
                _ => drop(two.take()),
            }
            let is_mapped = device.read(at_one, &mut [0]).is_ok();
            assert_eq!(is_mapped, device.write(at_two, b"two").is_ok());
            assert_eq!(is_mapped, pool.is_some() || one.is_some() || two.is_some());
            if let Some(one) = &one {
                let mut seen = [0; 3];
                one.read_at(0, &mut seen).unwrap();
                assert_eq!(&seen, b"one");
            }
            if let Some(domain) = domain.as_ref().filter(|_| !is_mapped) {
                assert_eq!(used_iova_bytes(domain), 0);
            }
        }
    }
}

#[test]
fn a_leaked_element_keeps_only_its_chunk() {
    let (domain, device) = domain();
    let pool = domain.dma_pool(CHUNK, 1, DmaPoolOptions::new()).unwrap();
    let [forgotten, other] = [pool.take().unwrap(), pool.take().unwrap()];
    let (at_forgotten, at_other) = (forgotten.iova(), other.iova());
    mem::forget(forgotten);
    drop((other, pool));
    assert!(
        device.read(at_forgotten, &mut [0]).is_ok() && device.read(at_other, &mut [0]).is_err()
    );
    assert_eq!(used_iova_bytes(&domain), CHUNK);
    let dump = domain.dump();
    assert_eq!((dump.dma_pools[0].in_use, dump.dma_pools[0].chunks), (1, 1));
}

/// A thread with cached elements ends after the pool, or while the pool is dropped.
#[test]
fn threads_with_cached_elements_may_outlive_the_pool() {
    let (domain, _device) = domain();
    for _ in 0..50 {
        let pool = Arc::new(domain.dma_pool(64, 64, DmaPoolOptions::new()).unwrap());
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let pool = Arc::clone(&pool);
                thread::spawn(move || {
                    let slice = pool.take().unwrap().freeze();
                    drop(pool.take().unwrap());
                    drop(pool);
                    drop(slice);
                })
            })
            .collect();
        drop(pool);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(used_iova_bytes(&domain), 0);
    }
}

/// Threads take, write, pass on, check and drop elements. All bytes of an element have its number as
/// long as it has a handle.
#[test]
fn threads_take_and_drop_across_each_other() {
    const THREADS: usize = 4;
    const TURNS: u64 = 4000;
    let (domain, _device) = domain();
    let pool = domain.dma_pool(192, 64, DmaPoolOptions::new().limit(300)).unwrap();
    let (to, from): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel()).unzip();
    let check = |slice: &DmaSlice| {
        let mut seen = vec![0; slice.len()];
        slice.read_at(0, &mut seen).unwrap();
        assert!(seen.iter().all(|byte| *byte == seen[0]) && seen[0] != 0);
    };
    thread::scope(|scope| {
        let threads = from.into_iter().enumerate().map(|(nth, from)| {
            let (to, pool) = (to[(nth + 1) % THREADS].clone(), &pool);
            scope.spawn(move || {
                for turn in 0..TURNS {
                    match pool.take() {
                        Ok(mut element) => {
                            let mut is = [1; 192];
                            element.read_at(0, &mut is).unwrap();
                            assert_eq!(is, [0; 192]);
                            let number = 1 + (turn * THREADS as u64 + nth as u64) % 255;
                            element.write_at(0, &[number as u8; 192]).unwrap();
                            let whole = element.freeze();
                            // The thread that drops the last of the two gives the element back.
                            let _ = to.send(whole.slice(64..192).unwrap());
                            check(&whole);
                        }
                        Err(Error::Pool(PoolError::Exhausted { .. })) => {}
                        Err(error) => panic!("{error}"),
                    }
                    if turn % 3 == 0 {
                        from.try_iter().for_each(|slice| check(&slice));
                    }
                    if turn % 1000 == nth as u64 {
                        pool.shrink().unwrap();
                    }
                }
            })
        });
        // A scope does not wait until a thread has given its cache back, but a join does.
        let threads: Vec<_> = threads.collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    drop(to);
    assert_eq!(pool.usage().in_use, 0);
    pool.shrink().unwrap();
    assert_eq!((pool.usage().chunks, used_iova_bytes(&domain)), (0, 0));
}

#[derive(Clone, Debug)]
enum Op {
    Take { pool: usize, is_zeroed: bool },
    Drop { nth: usize },
    Freeze { nth: usize },
    Split { nth: usize, at: usize },
    Slice { nth: usize, from: usize, to: usize },
    DeviceWrites { nth: usize },
    Shrink { pool: usize },
}

enum Handle {
    Element(DmaElement),
    Slice(DmaSlice),
}

/// A handle, its pool, its element and the expected bytes.
struct Live {
    handle: Handle,
    pool: usize,
    /// The IOVA of its element.
    element: u64,
    bytes: Vec<u8>,
}

impl Live {
    fn iova(&self) -> u64 {
        match &self.handle {
            Handle::Element(element) => element.iova().raw(),
            Handle::Slice(slice) => slice.iova().raw(),
        }
    }

    fn is_right(&self, device: &Session) {
        let mut seen = vec![0; self.bytes.len()];
        match &self.handle {
            Handle::Element(element) => element.read_at(0, &mut seen).unwrap(),
            Handle::Slice(slice) => slice.read_at(0, &mut seen).unwrap(),
        }
        assert_eq!(seen, self.bytes);
        if !seen.is_empty() {
            assert_eq!(read(device, Iova::new(self.iova()), seen.len()), seen);
        }
    }
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let (nth, at, pool) = (0usize..64, 0usize..400, 0usize..3);
    let op = prop_oneof![
        4 => (pool.clone(), any::<bool>()).prop_map(|(pool, is_zeroed)| Op::Take { pool, is_zeroed }),
        3 => nth.clone().prop_map(|nth| Op::Drop { nth }),
        1 => nth.clone().prop_map(|nth| Op::Freeze { nth }),
        2 => (nth.clone(), at.clone()).prop_map(|(nth, at)| Op::Split { nth, at }),
        2 => (nth.clone(), at.clone(), at).prop_map(|(nth, from, to)| Op::Slice { nth, from, to }),
        2 => nth.prop_map(|nth| Op::DeviceWrites { nth }),
        1 => pool.prop_map(|pool| Op::Shrink { pool }),
    ];
    proptest::collection::vec(op, 1..120)
}

/// Checks that an element overlaps no live one, has the requested alignment, and is the memory that the
/// device accesses.
struct World {
    domain: Domain,
    device: Session,
    pools: [DmaPool; 3],
    live: Vec<Live>,
    /// The lengths of the live elements, by their IOVAs.
    elements: BTreeMap<u64, u64>,
    count: u8,
}

const SHAPES: [(u64, u64, Option<u64>); 3] =
    [(300, 4, Some(1024)), (64, 64, None), (3000, 8192, Some(4096))];

impl World {
    fn new() -> Self {
        let (domain, device) = domain();
        let pools = SHAPES.map(|(len, align, boundary)| {
            let options = DmaPoolOptions::new().limit(20);
            let options = boundary.map_or(options, |boundary| options.boundary(boundary));
            domain.dma_pool(len, align, options).unwrap()
        });
        Self { domain, device, pools, live: Vec::new(), elements: BTreeMap::new(), count: 0 }
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Take { pool, is_zeroed } => self.take(pool, is_zeroed),
            Op::Shrink { pool } => drop(self.pools[pool].shrink().unwrap()),
            Op::Drop { nth }
            | Op::Freeze { nth }
            | Op::Split { nth, .. }
            | Op::Slice { nth, .. }
            | Op::DeviceWrites { nth }
                if !self.live.is_empty() =>
            {
                let nth = nth % self.live.len();
                self.run_on(nth, op);
            }
            _ => {}
        }
    }

    fn take(&mut self, pool: usize, is_zeroed: bool) {
        let (len, align, boundary) = SHAPES[pool];
        let taken =
            if is_zeroed { self.pools[pool].take() } else { self.pools[pool].take_unzeroed() };
        let Ok(mut element) = taken else {
            assert!(self.live.iter().filter(|live| live.pool == pool).count() >= 20);
            return;
        };
        let start = element.iova().raw();
        let last = start + len - 1;
        assert_eq!((element.len() as u64, start % align), (len, 0));
        assert!(boundary.is_none_or(|boundary| start / boundary == last / boundary));
        let before = self.elements.range(..=last).next_back();
        assert!(before.is_none_or(|(start_of, len_of)| start_of + len_of <= start), "an overlap");
        self.elements.insert(start, len);
        let mut bytes = vec![0; len as usize];
        if is_zeroed {
            assert_eq!(read(&self.device, element.iova(), bytes.len()), bytes);
        }
        self.count = self.count.wrapping_add(1);
        bytes.fill(self.count);
        element.write_at(0, &bytes).unwrap();
        self.live.push(Live { handle: Handle::Element(element), pool, element: start, bytes });
    }

    fn run_on(&mut self, nth: usize, op: Op) {
        let mut live = self.live.swap_remove(nth);
        match (op, live.handle) {
            (Op::Drop { .. }, handle) => {
                drop(handle);
                return self.forget_dropped();
            }
            (Op::Freeze { .. }, Handle::Element(element)) => {
                live.handle = Handle::Slice(element.freeze());
            }
            (Op::Freeze { .. }, Handle::Slice(slice)) => {
                live.handle = match slice.try_into_element() {
                    Ok(element) => Handle::Element(element),
                    Err(slice) => Handle::Slice(slice),
                };
            }
            (Op::Split { at, .. }, Handle::Element(mut element)) => {
                if let Ok(head) = element.split_to(at) {
                    let tail = live.bytes.split_off(at);
                    let bytes = mem::replace(&mut live.bytes, tail);
                    let handle = Handle::Element(head);
                    self.live.push(Live { handle, pool: live.pool, element: live.element, bytes });
                } else {
                    assert!(at > live.bytes.len());
                }
                live.handle = Handle::Element(element);
            }
            (Op::Slice { from, to, .. }, Handle::Slice(slice)) => {
                match (slice.slice(from..to), live.bytes.get(from..to)) {
                    (Ok(part), Some(bytes)) => {
                        let (handle, bytes) = (Handle::Slice(part), bytes.to_vec());
                        self.live.push(Live {
                            handle,
                            pool: live.pool,
                            element: live.element,
                            bytes,
                        });
                    }
                    (part, bytes) => assert!(part.is_err() && bytes.is_none()),
                }
                live.handle = Handle::Slice(slice);
            }
            (Op::DeviceWrites { .. }, Handle::Element(element)) => {
                live.bytes.reverse();
                self.count = self.count.wrapping_add(1);
                live.bytes.fill(self.count);
                if !live.bytes.is_empty() {
                    self.device.write(element.iova(), &live.bytes).unwrap();
                }
                live.handle = Handle::Element(element);
            }
            (_, handle) => live.handle = handle,
        }
        self.live.push(live);
    }

    /// Removes the elements that have no handle.
    fn forget_dropped(&mut self) {
        let live = &self.live;
        self.elements.retain(|start, _| live.iter().any(|live| live.element == *start));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pools_match_a_model(ops in ops()) {
        let mut world = World::new();
        for op in ops {
            world.run(op);
            world.live.iter().for_each(|live| live.is_right(&world.device));
            for (nth, pool) in world.pools.iter().enumerate() {
                let usage = pool.usage();
                assert_eq!(usage.in_use + usage.cached + usage.free, usage.elements);
                let handles = world.live.iter().filter(|live| live.pool == nth).count() as u64;
                assert!(usage.in_use <= handles && (usage.in_use == 0) == (handles == 0));
            }
        }
        let World { domain, pools, live, .. } = world;
        drop(pools);
        drop(live);
        assert_eq!(used_iova_bytes(&domain), 0);
    }
}
