//! Compares the dirty log with a set of page numbers, and checks the cost of its operations.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::thread;

use longshore_mem::{AddrRange, Granule, GuestPhys, Iova};
use proptest::prelude::*;

use crate::dirty::bitmap::{STEP_WORDS_MAX, tests::ORS};
use crate::dirty::{Collected, DirtyLog, ExternalLog, Log, LogError};

const PAGE: u64 = 4096;

fn range(start: u64, len_bytes: u64) -> AddrRange<Iova> {
    AddrRange::new(Iova::new(start), len_bytes).unwrap()
}

fn pages(first: u64, count: u64) -> AddrRange<Iova> {
    range(first * PAGE, count * PAGE)
}

fn log_of(first: u64, count: u64) -> DirtyLog<Iova> {
    DirtyLog::new(Granule::SIZE_4K, pages(first, count)).unwrap()
}

fn mark(log: &DirtyLog<Iova>, first: u64, count: u64) {
    log.mark(Iova::new(first * PAGE), count * PAGE);
}

/// Returns the collected pages. Checks that they come as ascending runs with gaps between them.
fn collected(log: &DirtyLog<Iova>, within: AddrRange<Iova>) -> BTreeSet<u64> {
    let mut told = BTreeSet::new();
    let mut end = None;
    let done = log.collect(within, || {}, |run| add(&mut told, &mut end, log, run));
    assert_eq!(done.pages, told.len() as u64);
    told
}

fn add(
    told: &mut BTreeSet<u64>,
    end: &mut Option<u64>,
    log: &DirtyLog<Iova>,
    run: AddrRange<Iova>,
) {
    let log2 = log.granule_log2();
    assert!(!run.is_empty() && log.covers().contains_range(run));
    let (first, last) = (run.start().raw() >> log2, run.last().unwrap().raw() >> log2);
    assert!(end.is_none_or(|end| first > end + 1), "runs ascend, and adjacent runs are merged");
    *end = Some(last);
    told.extend(first..=last);
}

/// Returns the number of atomic changes that `work` makes.
fn ors(work: impl FnOnce()) -> u64 {
    let before = ORS.get();
    work();
    ORS.get() - before
}

#[test]
fn small_logs_agree_with_a_set_exhaustively() {
    let most = if cfg!(miri) { 3 } else { 6 };
    for first in [0, 1, 63, 4095] {
        for count in 1..=most {
            let log = log_of(first, count);
            for set in 0u64..1 << count {
                for low in 0..=count {
                    for high in low..=count {
                        let wanted = |page: u64| set >> (page - first) & 1 != 0;
                        let all = first..first + count;
                        all.clone()
                            .filter(|&page| wanted(page))
                            .for_each(|page| mark(&log, page, 1));
                        let within = pages(first + low, high - low);
                        let part = first + low..first + high;
                        let expected: BTreeSet<_> = part.filter(|&page| wanted(page)).collect();
                        assert_eq!(log.count(within), expected.len() as u64);
                        assert_eq!(collected(&log, within), expected);
                        let rest = all.filter(|page| wanted(*page) && !expected.contains(page));
                        assert_eq!(collected(&log, log.covers()), rest.collect());
                    }
                }
            }
        }
    }
}

/// Marks and collections begin and end at and beside every kind of edge.
#[test]
fn edges_of_words_agree_with_a_set() {
    let edges: &[u64] =
        if cfg!(miri) { &[0, 3, 64, 70] } else { &[0, 1, 63, 64, 65, 4095, 4096, 4160, 8200] };
    let log = log_of(5, 8200);
    let spans = || {
        let pairs = edges.iter().flat_map(|&low| edges.iter().map(move |&high| (low, high)));
        pairs.filter(|(low, high)| low < high)
    };
    for (low, high) in spans() {
        for (from, to) in spans() {
            mark(&log, 5 + low, high - low);
            let within = pages(5 + from, to - from);
            let expected: BTreeSet<u64> = (5 + low.max(from)..5 + high.min(to)).collect();
            assert_eq!(log.count(within), expected.len() as u64);
            assert_eq!(collected(&log, within), expected);
            assert_eq!(log.count(log.covers()), high - low - expected.len() as u64);
            log.clear(within);
            let left = collected(&log, log.covers());
            assert_eq!(left.len() as u64, high - low - expected.len() as u64);
            assert!(left.is_disjoint(&expected));
        }
    }
}

/// Returns an error, or panics without printing a message.
fn fail<E>(panics: bool, error: E) -> Result<(), E> {
    if panics {
        resume_unwind(Box::new("on purpose"));
    }
    Err(error)
}

#[derive(Clone, Debug)]
enum Step {
    Mark(u64, u64),
    Collect(u64, u64),
    /// A collection whose visitor fails at the run with the third number; the last is `true` for a panic.
    Fail(u64, u64, u64, bool),
    Clear(u64, u64),
    Count(u64, u64),
    Peek(u64),
}

fn step(pages: u64) -> impl Strategy<Value = Step> {
    // Addresses reach beyond both ends of the log; lengths are a few bytes up to all of it.
    let at = || prop_oneof![0..(pages + 8) * PAGE, (0..pages + 8).prop_map(|page| page * PAGE)];
    let len = || prop_oneof![0u64..100, PAGE - 1..PAGE + 2, 0..pages * PAGE, Just(64 * PAGE)];
    prop_oneof![
        6 => (at(), len()).prop_map(|(at, len)| Step::Mark(at, len)),
        2 => (at(), len()).prop_map(|(at, len)| Step::Collect(at, len)),
        2 => (at(), len(), 0u64..4, any::<bool>()).prop_map(|(a, l, n, p)| Step::Fail(a, l, n, p)),
        1 => (at(), len()).prop_map(|(at, len)| Step::Clear(at, len)),
        2 => (at(), len()).prop_map(|(at, len)| Step::Count(at, len)),
        2 => at().prop_map(Step::Peek),
    ]
}

/// Runs the steps on a log of `count` pages of `granule` from `first` on, and on a set.
fn follow(granule: Granule, first: u64, count: u64, steps: Vec<Step>) {
    let scale = granule.bytes() / PAGE;
    let covers = range(first * granule.bytes(), count * granule.bytes());
    let log = DirtyLog::new(granule, covers).unwrap();
    // Steps are in bytes of 4 KiB pages that begin 4 pages below the log.
    let origin = first.saturating_sub(4) * granule.bytes();
    let span = |at: u64, len: u64| range(origin + at * scale, len * scale);
    let page = |address: u64| address >> granule.log2();
    let touched = |span: AddrRange<Iova>| match span.last() {
        Some(last) => {
            page(span.start().raw()).max(first)..(page(last.raw()) + 1).min(first + count)
        }
        None => 0..0,
    };
    let mut model = BTreeSet::new();
    for step in steps {
        match step {
            Step::Mark(at, len) => {
                let span = span(at, len);
                log.mark(span.start(), span.len());
                model.extend(touched(span));
            }
            Step::Collect(at, len) => {
                let within = touched(span(at, len));
                let expected: BTreeSet<_> =
                    model.iter().copied().filter(|page| within.contains(page)).collect();
                assert_eq!(collected(&log, span(at, len)), expected);
                model.retain(|page| !within.contains(page));
            }
            Step::Fail(at, len, runs, panics) => {
                let mut told = BTreeSet::new();
                let (mut end, mut left) = (None, runs);
                let visit = |run| {
                    if left == 0 {
                        return fail(panics, ());
                    }
                    left -= 1;
                    add(&mut told, &mut end, &log, run);
                    Ok(())
                };
                let grace = || Ok(());
                let chunk = STEP_WORDS_MAX;
                let attempt = || log.collect_by_chunks(span(at, len), chunk, grace, visit);
                let failed = !matches!(catch_unwind(AssertUnwindSafe(attempt)), Ok(Ok(_)));
                let within = touched(span(at, len));
                if !failed {
                    let missed =
                        model.iter().find(|page| within.contains(page) && !told.contains(page));
                    assert_eq!(missed, None);
                }
                for page in &told {
                    assert!(model.remove(page) && within.contains(page));
                }
            }
            Step::Clear(at, len) => {
                log.clear(span(at, len));
                let within = touched(span(at, len));
                model.retain(|page| !within.contains(page));
            }
            Step::Count(at, len) => {
                let within = touched(span(at, len));
                let expected = model.iter().filter(|page| within.contains(page)).count();
                assert_eq!(log.count(span(at, len)), expected as u64);
            }
            Step::Peek(at) => {
                let at = span(at, 1).start();
                assert_eq!(log.peek(at), model.contains(&page(at.raw())));
            }
        }
    }
    assert_eq!(collected(&log, covers), model);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    // It runs only safe code, which other tests cover under Miri.
    #[test]
    #[cfg_attr(miri, ignore = "a case takes Miri a minute")]
    fn small_logs_agree_with_a_set(
        log2 in 12u32..16,
        first in prop_oneof![Just(0u64), Just(60), Just(1 << 30)],
        count in 1u64..200,
        steps in proptest::collection::vec(step(200), 1..40),
    ) {
        follow(Granule::new(1 << log2).unwrap(), first, count, steps);
    }

    #[test]
    #[cfg_attr(miri, ignore = "sets of thousands of pages take Miri minutes")]
    fn large_logs_agree_with_a_set(
        first in 0u64..100,
        count in 1u64..20_000,
        steps in proptest::collection::vec(step(20_000), 1..20),
    ) {
        follow(Granule::SIZE_4K, first, count, steps);
    }
}

#[test]
fn a_marked_page_costs_no_atomic_change() {
    let log = log_of(0, 10_000);
    let at = Iova::new(3 * PAGE);
    assert_eq!(ors(|| log.mark(at, 8)), 3, "the page, and two summary levels");
    assert_eq!(ors(|| (0..100).for_each(|_| log.mark(at, 8))), 0);
    assert_eq!(ors(|| log.mark(Iova::new(4 * PAGE), 1)), 1, "its summary bits are set");
    assert_eq!(ors(|| log.mark(Iova::new(3 * PAGE), 2 * PAGE)), 0);
    assert_eq!(ors(|| mark(&log, 0, 64)), 1, "one change for all missing bits of a word");
    assert_eq!(ors(|| mark(&log, 0, 64)), 0);
    assert_eq!(ors(|| mark(&log, 32, 64)), 2, "a new word and its bit in the middle");
    assert_eq!(ors(|| log.mark(at, 0)), 0);
    // After a collection all levels must be set again.
    collected(&log, log.covers());
    assert_eq!(ors(|| log.mark(at, 8)), 3);
}

/// A TiB has few top words. Below them a collection visits only words with dirty pages.
#[test]
#[cfg_attr(miri, ignore = "Miri tracks each byte of the 32 MiB bitmap")]
fn a_collection_of_a_tebibyte_visits_only_dirty_words() {
    let pages_all = (1u64 << 40) / PAGE;
    let log = log_of(0, pages_all);
    let graces = Cell::new(0);
    let collect = || log.collect(log.covers(), || graces.set(graces.get() + 1), |_| {});
    let nothing = collect();
    assert_eq!(nothing, Collected { top_words: 1024, graces: 1, ..Collected::default() });
    assert_eq!(graces.get(), 1);

    // Pages far from each other need one word of each level.
    for dirty in [1u64, 100, 5000] {
        let stride = pages_all / dirty;
        (0..dirty).for_each(|at| mark(&log, at * stride, 1));
        let done = collect();
        assert_eq!((done.pages, done.runs), (dirty, dirty));
        assert_eq!((done.page_words, done.middle_words), (dirty, dirty));
        assert!(done.top_words <= 1024 + dirty, "{done:?}");
        assert_eq!(done.graces, 2);
    }
    // 4 contiguous GiB are one run, and need a sixty-fourth as many words at the next level.
    mark(&log, 777, 1 << 20);
    let done = collect();
    assert_eq!((done.pages, done.runs), (1 << 20, 1));
    assert_eq!((done.page_words, done.middle_words), ((1 << 14) + 1, (1 << 8) + 1));
    assert_eq!(done.graces, 3, "16 Ki words at a time, and one word more");
    // Nothing is left at any level.
    assert_eq!(collect(), nothing);
}

#[test]
fn a_collection_of_a_part_reads_only_that_part() {
    let count = if cfg!(miri) { 1 << 15 } else { 1 << 20 };
    let log = log_of(0, count);
    mark(&log, 0, count);
    let done = log.collect(pages(count / 2, 128), || {}, |_| {});
    assert_eq!((done.pages, done.page_words, done.middle_words), (128, 2, 1));
    assert_eq!(
        log.collect(pages(5, 0), || panic!("an empty range needs no grace period"), |_| {}),
        Collected::default()
    );
    assert_eq!(log.count(log.covers()), count - 128);
}

#[test]
fn runs_continue_from_chunk_to_chunk() {
    let log = log_of(0, 5 * 4096);
    mark(&log, 10, 4 * 4096);
    let mut told = Vec::new();
    let done = log
        .collect_by_chunks::<Infallible>(
            log.covers(),
            STEP_WORDS_MAX,
            || Ok(()),
            |run| {
                told.push(run);
                Ok(())
            },
        )
        .unwrap_or_else(|never| match never {});
    assert_eq!(told, [pages(10, 4 * 4096)]);
    assert_eq!(done.graces, 6, "one at the beginning, and one for each of five chunks");
}

/// Every grace period and every visit fails once, with an error and with a panic. No page is lost, and
/// reported pages are not reported again.
#[test]
fn pages_that_were_not_reported_are_marked_again() {
    let dirty: BTreeSet<u64> = [0, 1, 2, 63, 64, 65, 200, 4095, 4096, 4100, 9000].into();
    let calls_max = if cfg!(miri) { 5 } else { 20 };
    for panics in [false, true] {
        let mut succeeded = 0;
        for fail_at in 0..calls_max {
            let log = log_of(0, 10_000);
            dirty.iter().for_each(|&page| mark(&log, page, 1));
            let calls = Cell::new(0);
            let told = std::cell::RefCell::new(BTreeSet::new());
            let call = || {
                calls.set(calls.get() + 1);
                if calls.get() - 1 == fail_at {
                    return fail(panics, "a failure");
                }
                Ok(())
            };
            let attempt = catch_unwind(AssertUnwindSafe(|| {
                log.collect_by_chunks(log.covers(), STEP_WORDS_MAX, call, |run| {
                    call()?;
                    add(&mut told.borrow_mut(), &mut None, &log, run);
                    Ok(())
                })
            }));
            match attempt {
                Ok(Ok(done)) => {
                    assert_eq!(done.pages, dirty.len() as u64);
                    succeeded += 1;
                }
                Ok(Err(error)) => assert_eq!((error, panics), ("a failure", false)),
                Err(_) => assert!(panics),
            }
            let told = told.into_inner();
            let left = collected(&log, log.covers());
            assert!(told.is_disjoint(&left));
            assert_eq!(&told | &left, dirty);
        }
        // Four grace periods and six runs.
        assert_eq!(succeeded, (calls_max - 10_i32).max(0));
    }
}

#[test]
fn a_visitor_may_mark_and_collect() {
    let log = log_of(0, 1000);
    mark(&log, 1, 1);
    mark(&log, 500, 1);
    let mut inner = BTreeSet::new();
    let done = log.collect(
        log.covers(),
        || {},
        |run| {
            if run == pages(1, 1) {
                mark(&log, 700, 1);
                inner.extend(collected(&log, log.covers()));
                mark(&log, 701, 1);
            }
        },
    );
    // The outer collection had taken page 500.
    assert_eq!((done.pages, inner), (2, BTreeSet::from([700])));
    assert_eq!(collected(&log, log.covers()), BTreeSet::from([701]));
}

#[test]
fn bad_ranges_return_errors() {
    let small = DirtyLog::new(Granule::new(2048).unwrap(), pages(0, 1)).unwrap_err();
    assert_eq!(
        small.to_string(),
        "a dirty log has no granule of 2 KiB: use 4 KiB, or any power of two above"
    );
    let empty = DirtyLog::new(Granule::SIZE_4K, range(0x5000, 0)).unwrap_err();
    assert_eq!(empty, LogError::Empty { start: 0x5000 });
    let huge = Granule::new(1 << 62).unwrap();
    assert_eq!(DirtyLog::new(huge, range(1, u64::MAX)).unwrap_err(), LogError::WholeSpace(huge));
}

#[test]
#[cfg_attr(miri, ignore = "Miri aborts if there is no memory")]
fn a_log_that_does_not_fit_in_memory_returns_an_error() {
    let vast = DirtyLog::new(Granule::SIZE_4K, range(0, u64::MAX - PAGE)).unwrap_err();
    assert!(
        matches!(vast, LogError::OutOfMemory { size_bytes, .. } if size_bytes > 1 << 48),
        "{vast}"
    );
}

#[test]
fn a_log_may_reach_the_top_of_its_space() {
    let granule = Granule::new(1 << 60).unwrap();
    let log = DirtyLog::new(granule, range(1 << 60, u64::MAX - (1 << 60))).unwrap();
    assert_eq!(log.covers().last(), Some(Iova::new(u64::MAX)));
    log.mark(Iova::new(u64::MAX), u64::MAX);
    log.mark(Iova::new(5), 1 << 60);
    assert_eq!(collected(&log, log.covers()), BTreeSet::from([1, 15]));
}

#[test]
fn start_clears_and_stop_keeps() {
    let log = log_of(0, 100);
    let fine = || Ok::<_, Infallible>(());
    mark(&log, 1, 1);
    assert_eq!((log.is_running(), log.stop(fine)), (false, Ok(false)));
    let published = log.start(|| {
        assert!(log.is_running() && !log.peek(Iova::new(PAGE)));
        Ok::<_, Infallible>(())
    });
    assert_eq!(published, Ok(true));
    mark(&log, 2, 1);
    assert_eq!(log.start(fine), Ok(false));
    assert!(log.peek(Iova::new(2 * PAGE)), "starting a running log clears nothing");
    assert_eq!(log.stop(fine), Ok(true));
    assert_eq!(collected(&log, log.covers()), BTreeSet::from([2]));
    // If a start or stop fails, the log is stopped, and the call can be repeated.
    assert_eq!(log.start(|| Err("no barrier")), Err("no barrier"));
    assert!(!log.is_running());
    let panic = catch_unwind(AssertUnwindSafe(|| log.start(|| fail(true, ()))));
    assert!(panic.is_err() && !log.is_running());
    assert_eq!(log.start(fine), Ok(true));
    assert_eq!(log.stop(|| Err(7)), Err(7));
    assert!(!log.is_running());
    assert_eq!(log.start(fine), Ok(true));
}

#[test]
fn a_log_is_off_internal_or_external() {
    let off = Log::<Iova>::default();
    assert!(off.is_off() && off.mark(Iova::new(0), 8).is_ok());
    let inner = Arc::new(log_of(0, 10));
    let log = Log::Internal(Arc::clone(&inner));
    assert!(!log.is_off() && log.mark(Iova::new(20 * PAGE), 8).is_ok());
    assert!(log.mark(Iova::new(PAGE), 8).is_ok() && inner.peek(Iova::new(PAGE)));
    let memory = Arc::new([const { AtomicU64::new(0) }; 1]);
    // More tests of external logs are in their module.
    let external = ExternalLog::<GuestPhys>::of_words(&memory);
    let log = Log::External(Arc::new(external));
    assert!(log.mark(GuestPhys::new(PAGE), 8).is_ok());
    assert_eq!(memory[0].load(Ordering::Relaxed), 2);
    assert!(log.mark(GuestPhys::new(64 * PAGE), 8).is_err());
}

/// Threads write counters into pages while another one collects and copies. In the end the copy must
/// equal the memory. This samples the timings; `tests/loom_dirty.rs` explores them.
#[test]
fn a_copy_by_collections_ends_equal_to_the_memory() {
    const WRITERS: usize = 2;
    const PAGES: usize = 300;
    const CELLS: usize = 4;
    let writes = if cfg!(miri) { 60 } else { 400_000 };
    let log = log_of(7, PAGES as u64);
    let memory: Vec<AtomicU64> = (0..PAGES * CELLS).map(|_| AtomicU64::new(0)).collect();
    let slots: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    let mut copy = vec![0; memory.len()];
    let (mut collections, mut told) = (0u64, 0u64);
    let grace = || {
        fence(Ordering::SeqCst);
        for slot in &slots {
            let seen = slot.load(Ordering::Acquire);
            while seen % 2 == 1 && slot.load(Ordering::Acquire) == seen {
                thread::yield_now();
            }
        }
    };
    let mut collect = || {
        let done = log.collect(log.covers(), grace, |run| {
            let first = (run.start().raw() / PAGE) as usize - 7;
            let cells = first * CELLS..(first + (run.len() / PAGE) as usize) * CELLS;
            for cell in cells {
                copy[cell] = memory[cell].load(Ordering::Relaxed);
            }
        });
        collections += 1;
        told += done.pages;
    };
    thread::scope(|scope| {
        let writer = |writer: usize| {
            let (memory, slots, log) = (&memory, &slots, &log);
            move || {
                let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(writer as u64 + 1);
                for value in 1..=writes {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    // Mostly a few hot pages, whose marks are often set already.
                    let among = if random.is_multiple_of(4) { PAGES } else { 5 };
                    let page = (random >> 8) as usize % among;
                    slots[writer].fetch_add(1, Ordering::Relaxed);
                    fence(Ordering::SeqCst);
                    for cell in &memory[page * CELLS..][..CELLS] {
                        cell.store(value << 8 | writer as u64, Ordering::Relaxed);
                    }
                    log.mark(Iova::new((page as u64 + 7) * PAGE + 100), 32);
                    slots[writer].fetch_add(1, Ordering::Release);
                }
            }
        };
        let writers: Vec<_> = (0..WRITERS).map(|number| scope.spawn(writer(number))).collect();
        while !stop.load(Ordering::Relaxed) {
            collect();
            stop.store(
                writers.iter().all(thread::ScopedJoinHandle::is_finished),
                Ordering::Relaxed,
            );
        }
        for writer in writers {
            writer.join().unwrap();
        }
    });
    collect();
    let now: Vec<u64> = memory.iter().map(|cell| cell.load(Ordering::Relaxed)).collect();
    assert_eq!(copy, now, "a write was lost");
    println!("{collections} collections reported {told} pages");
    assert!(told > 0 && log.count(log.covers()) == 0);
}
