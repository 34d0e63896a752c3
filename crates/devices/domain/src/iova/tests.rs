use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;

use super::*;

const PAGE: u64 = 4096;

fn range(start: u64, len_bytes: u64) -> AddrRange<Iova> {
    AddrRange::new(Iova::new(start), len_bytes).unwrap()
}

fn allocator(pages: u64) -> IovaAllocator {
    IovaAllocator::new(Granule::SIZE_4K, &[range(PAGE, pages * PAGE)], &[], 0)
}

#[test]
fn only_usable_addresses_that_are_not_reserved_are_given() {
    let usable = [range(0, 0x10_0000), range(0x20_0800, 0x2000), range(0xfe00_0000, 0x200_0000)];
    let reserved = [range(0x5800, 0x1000), range(0xfee0_0000, 0x10_0000)];
    let allocator = IovaAllocator::new(Granule::SIZE_4K, &usable, &reserved, 0);
    let mut seen = BTreeMap::new();
    while let Ok(range) = allocator.take(1, Placement::ANYWHERE) {
        seen.insert(range.start().raw(), range);
    }
    // Page 0; the two pages that a reserved range touches; half a page at both ends of the second.
    let pages = (0x100 - 1 - 2) + 1 + (0x2000 - 0x100);
    assert_eq!(seen.len(), pages);
    let forbidden = [0, 0x5000, 0x6000, 0x20_0000, 0x20_2000, 0xfee0_0000, 0xfeef_f000];
    assert!(forbidden.iter().all(|page| !seen.contains_key(page)), "{seen:?}");
    assert!(
        [0x1000, 0x4000, 0x7000, 0x20_1000, 0xfef0_0000, 0xffff_f000]
            .iter()
            .all(|page| seen.contains_key(page))
    );
    assert_eq!(allocator.free_bytes(), 0);
    seen.into_values().for_each(|range| allocator.give(range));
    assert_eq!(allocator.free_bytes(), allocator.all_bytes());
}

#[test]
fn placements_are_respected() {
    let allocator = IovaAllocator::new(Granule::SIZE_4K, &[range(0, 1 << 40)], &[], 0);
    let below = Placement::ANYWHERE.address_bits(32);
    let taken = allocator.take(3 * PAGE, below).unwrap();
    assert_eq!(taken.start().raw(), (1 << 32) - 3 * PAGE);
    let aligned = allocator.take(PAGE, below.aligned(Granule::SIZE_2M)).unwrap();
    assert!(aligned.start().is_aligned(Granule::SIZE_2M) && aligned.start().raw() < 1 << 32);
    let fixed = allocator.take_at(Iova::new(0x7000), 1).unwrap();
    assert_eq!(fixed.start().raw(), 0x7000);
    let again = allocator.take_at(Iova::new(0x6000), 2 * PAGE).unwrap_err();
    assert!(matches!(again, IovaError::NotFree { .. }), "{again}");
    for (start, len_bytes) in [(0x1800, PAGE), (u64::MAX - PAGE + 1, 2 * PAGE)] {
        let refused = allocator.take_at(Iova::new(start), len_bytes).unwrap_err();
        assert!(matches!(refused, IovaError::Claim { .. }), "{refused}");
    }
    assert_eq!(allocator.take_at(Iova::new(0x1000), 0), Err(IovaError::Empty));
    assert_eq!(allocator.take(0, Placement::ANYWHERE), Err(IovaError::Empty));
}

#[test]
fn the_error_for_a_length_beyond_all_addresses_has_the_largest_length() {
    // Rounded up to granules, and with a gap, the length is 2^64 or more.
    for guard_bytes in [0, PAGE, u64::MAX] {
        let usable = [range(0, 1 << 40)];
        let allocator = IovaAllocator::new(Granule::SIZE_4K, &usable, &[], guard_bytes);
        let refused = allocator.take(u64::MAX, Placement::ANYWHERE).unwrap_err();
        let is_named = matches!(refused, IovaError::Full { len_bytes: u64::MAX, .. });
        assert!(is_named, "{refused}");
    }
}

#[test]
fn the_error_of_a_full_space_reports_the_free_bytes() {
    let allocator = allocator(8);
    let mut pages: Vec<_> =
        (0..8).map(|_| allocator.take(PAGE, Placement::ANYWHERE).unwrap()).collect();
    pages.sort_by_key(IovaRange::start);
    for at in [5, 3, 1] {
        allocator.give(pages.remove(at));
    }
    let refused = allocator.take(2 * PAGE, Placement::ANYWHERE).unwrap_err();
    let IovaError::Full { len_bytes, free_bytes, longest_bytes, .. } = refused else {
        panic!("{refused}")
    };
    assert_eq!((len_bytes, free_bytes, longest_bytes), (2 * PAGE, 3 * PAGE, PAGE));
}

#[test]
fn a_gap_follows_each_range() {
    let allocator = IovaAllocator::new(Granule::SIZE_4K, &[range(PAGE, 16 * PAGE)], &[], 1);
    let mut cache = IovaCache::new(&allocator);
    let mut starts: Vec<_> = (0..8)
        .map(|_| cache.take(&allocator, PAGE, Placement::ANYWHERE).unwrap().start().raw())
        .collect();
    starts.sort_unstable();
    assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= 2 * PAGE), "{starts:x?}");
    assert!(cache.take(&allocator, PAGE, Placement::ANYWHERE).is_err());
}

#[test]
#[should_panic(expected = "free already")]
fn giving_back_a_range_of_another_allocator_panics() {
    let (one, other) = (allocator(8), allocator(8));
    other.give(one.take(PAGE, Placement::ANYWHERE).unwrap());
}

#[test]
fn a_cache_takes_no_lock_once_it_is_warm() {
    let allocator = allocator(1 << 20);
    let mut cache = IovaCache::new(&allocator);
    let lens = [1, PAGE, 3 * PAGE, 64 * PAGE];
    for len in lens {
        let warm = cache.take(&allocator, len, Placement::ANYWHERE).unwrap();
        cache.give(&allocator, warm);
    }
    // A cache that takes the lock would now wait for ever.
    let held = allocator.lock();
    for _ in 0..1000 {
        let ranges = lens.map(|len| cache.take(&allocator, len, Placement::ANYWHERE).unwrap());
        ranges.into_iter().for_each(|range| cache.give(&allocator, range));
    }
    drop(held);
    cache.clear(&allocator);
    assert_eq!(allocator.free_bytes(), allocator.all_bytes());
}

#[test]
fn a_cache_gives_its_ranges_back_before_the_space_counts_as_full() {
    let allocator = allocator(4096);
    let mut cache = IovaCache::new(&allocator);
    let single = cache.take(&allocator, PAGE, Placement::ANYWHERE).unwrap();
    cache.give(&allocator, single);
    assert!(allocator.free_bytes() < allocator.all_bytes());
    let all = cache.take(&allocator, 4096 * PAGE, Placement::ANYWHERE).unwrap();
    assert!(cache.take(&allocator, PAGE, Placement::ANYWHERE).is_err());
    cache.give(&allocator, all);
    assert!(cache.take(&allocator, PAGE, Placement::ANYWHERE).is_ok());
}

#[test]
fn ranges_of_a_small_space_are_not_cached() {
    let allocator = allocator(512);
    let mut caches: Vec<_> = (0..8).map(|_| IovaCache::new(&allocator)).collect();
    for cache in &mut caches {
        let range = cache.take(&allocator, PAGE, Placement::ANYWHERE).unwrap();
        cache.give(&allocator, range);
    }
    assert_eq!(allocator.free_bytes(), allocator.all_bytes());
}

/// Threads take and give back at random, also ranges that other threads took: no two ranges ever have an
/// address in common, and all addresses are free in the end.
#[test]
fn threads_never_share_an_address() {
    let (threads, turns) = if cfg!(miri) { (2, 60) } else { (4, 20_000) };
    let allocator = allocator(1 << 14);
    let owned = Mutex::new(BTreeMap::<u64, u64>::new());
    let own = |range: &IovaRange| {
        let mut owned = owned.lock().unwrap();
        let (start, end) = (range.start.raw(), range.start.raw() + range.granules * PAGE);
        let before = owned.range(..end).next_back();
        assert!(
            before.is_none_or(|(_, before_end)| *before_end <= start),
            "{range:?}, {before:x?}"
        );
        owned.insert(start, end);
    };
    let handed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for thread in 0..threads {
            let (allocator, own, owned, handed) = (&allocator, &own, &owned, &handed);
            scope.spawn(move || {
                let mut cache = IovaCache::new(allocator);
                let (mut mine, mut random) = (Vec::new(), 0x1234_5678_9abc_def1u64 + thread);
                for _ in 0..turns {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let len = (random >> 8) % (100 * PAGE) + 1;
                    match random % 8 {
                        0..4 => {
                            if let Ok(range) = cache.take(allocator, len, Placement::ANYWHERE) {
                                assert!(range.granules * PAGE >= len);
                                own(&range);
                                mine.push(range);
                            }
                        }
                        4 => handed.lock().unwrap().extend(mine.pop()),
                        5 => {
                            let range = handed.lock().unwrap().pop();
                            if let Some(range) = range {
                                owned.lock().unwrap().remove(&range.start.raw());
                                cache.give(allocator, range);
                            }
                        }
                        _ if !mine.is_empty() => {
                            let range = mine.swap_remove(random as usize % mine.len());
                            owned.lock().unwrap().remove(&range.start.raw());
                            cache.give(allocator, range);
                        }
                        _ => {}
                    }
                }
                for range in mine {
                    owned.lock().unwrap().remove(&range.start.raw());
                    cache.give(allocator, range);
                }
                cache.clear(allocator);
            });
        }
    });
    handed.into_inner().unwrap().into_iter().for_each(|range| allocator.give(range));
    assert_eq!(allocator.free_bytes(), allocator.all_bytes());
}

#[test]
fn unused_ranges_are_all_but_those_in_use() {
    let range = |start: u64, len| AddrRange::new(Iova::new(start * PAGE), len * PAGE).unwrap();
    let unused = |allocator: &IovaAllocator| {
        let mut found = Vec::new();
        allocator.each_unused(100 * PAGE, &mut |range| {
            found.push((range.start().raw() / PAGE, range.len() / PAGE));
        });
        found
    };
    // Usable: 1 to 19, 30 to 49, 60 to 79.
    let usable = [range(0, 20), range(30, 50)];
    let allocator = IovaAllocator::new(Granule::SIZE_4K, &usable, &[range(50, 10)], 0);
    assert_eq!(unused(&allocator), [(0, 100)]);
    let taken: Vec<_> = [(1, 1), (19, 1), (31, 2), (40, 10), (60, 20)]
        .into_iter()
        .map(|(at, len)| allocator.take_at(Iova::new(at * PAGE), len * PAGE).unwrap())
        .collect();
    assert_eq!(unused(&allocator), [(0, 1), (2, 17), (20, 11), (33, 7), (50, 10), (80, 20)]);
    taken.into_iter().for_each(|range| allocator.give(range));
    assert_eq!(unused(&allocator), [(0, 100)]);
    let all = allocator.take_at(Iova::new(60 * PAGE), 20 * PAGE).unwrap();
    assert_eq!(unused(&allocator), [(0, 60), (80, 20)]);
    allocator.give(all);
}
