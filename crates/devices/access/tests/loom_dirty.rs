//! Explores every interleaving of writers and a collector of a dirty log with loom: `RUSTFLAGS="--cfg
//! loom" cargo test -p longshore-access --release --test loom_dirty`.
//!
//! Each page is one cell, which is written and read `Relaxed`, so that a store may become visible as
//! late as the language allows. Like a migration, the collector keeps a copy of the memory: it copies
//! each reported page. After a last collection the copy must equal the memory.
#![cfg(loom)]

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use dirty::DirtyLog;
use longshore_mem::{AddrRange, Granule, Iova};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use loom::thread;

#[expect(dead_code, unreachable_pub, unused_imports, reason = "the library uses more of it")]
#[path = "../src/dirty/mod.rs"]
mod dirty;

const PAGE: u64 = 4096;

/// The memory of some pages, its log, and a slot for each writer.
struct Model {
    log: DirtyLog<Iova>,
    pages: Vec<u64>,
    memory: Vec<AtomicU64>,
    slots: Vec<AtomicBool>,
}

impl Model {
    /// Makes a model whose memory has `pages`. The log covers all pages up to the last.
    fn new(pages: &[u64], writers: usize) -> Arc<Self> {
        let range = AddrRange::new(Iova::new(0), (pages[pages.len() - 1] + 1) * PAGE).unwrap();
        Arc::new(Self {
            log: DirtyLog::new(Granule::SIZE_4K, range).unwrap(),
            pages: pages.to_vec(),
            memory: pages.iter().map(|_| AtomicU64::new(0)).collect(),
            slots: (0..writers).map(|_| AtomicBool::new(false)).collect(),
        })
    }

    /// Writes like a session: enters the slot, copies, marks, leaves the slot.
    fn write(&self, writer: usize, at: usize, value: u64) {
        self.slots[writer].store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.memory[at].store(value, Ordering::Relaxed);
        self.log.mark(Iova::new(self.pages[at] * PAGE + 8), 8);
        self.slots[writer].store(false, Ordering::Release);
    }

    /// Waits until every slot that is busy has been left.
    fn grace(&self) {
        fence(Ordering::SeqCst);
        for slot in &self.slots {
            while slot.load(Ordering::Acquire) {
                thread::yield_now();
            }
        }
    }

    /// Collects the marks, copies the reported pages, and returns their numbers.
    fn collect(&self, copy: &mut [u64], grace: impl FnMut()) -> BTreeSet<u64> {
        let mut told = BTreeSet::new();
        self.log.collect(self.log.covers(), grace, |run| {
            let first = run.start().raw() / PAGE;
            for page in first..first + run.len() / PAGE {
                assert!(told.insert(page));
                if let Some(at) = self.pages.iter().position(|&known| known == page) {
                    copy[at] = self.memory[at].load(Ordering::Relaxed);
                }
            }
        });
        told
    }

    /// Collects once more after all writers have ended, and checks that the copy equals the memory.
    fn compare(&self, mut copy: Vec<u64>) {
        self.collect(&mut copy, || self.grace());
        for (at, &copied) in copy.iter().enumerate() {
            let written = self.memory[at].load(Ordering::Relaxed);
            assert_eq!(copied, written, "page {} was lost", self.pages[at]);
        }
        assert_eq!(self.log.count(self.log.covers()), 0);
    }
}

/// Runs a model with a bound on the preemptions that loom tries, for models with more than two threads
/// or many steps.
fn with_preemptions(bound: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.check(model);
}

/// Returns `true` if loom finds an interleaving in which `model` panics.
fn fails(model: impl Fn() + Sync + Send + 'static) -> bool {
    catch_unwind(AssertUnwindSafe(|| loom::model(model))).is_err()
}

/// One writer writes a page twice, so that it finds its own mark.
fn one_page_twice(grace: impl Fn(&Model) + Sync + Send + 'static) {
    let model = Model::new(&[0], 1);
    let other = Arc::clone(&model);
    let writer = thread::spawn(move || {
        for value in 1..=2 {
            other.write(0, 0, value);
        }
    });
    let mut copy = vec![0];
    model.collect(&mut copy, || grace(&model));
    writer.join().unwrap();
    model.compare(copy);
}

#[test]
fn no_write_is_lost() {
    with_preemptions(4, || one_page_twice(Model::grace));
}

/// The control: without grace periods, the collector reads the page too early, and no mark is left.
#[test]
fn without_the_grace_period_a_write_is_lost() {
    assert!(fails(|| one_page_twice(|_| {})));
}

/// Shows that the second grace period is the one that is needed, not the first.
#[test]
fn without_the_grace_period_before_the_report_a_write_is_lost() {
    assert!(fails(|| {
        let calls = std::sync::atomic::AtomicU64::new(0);
        one_page_twice(move |model| {
            if calls.fetch_add(1, Ordering::Relaxed) % 2 == 0 {
                model.grace();
            }
        });
    }));
}

/// Two writers write to one page, or to pages that share a page word, a middle word, or only a top word.
fn two_writers(pages: [u64; 2]) {
    with_preemptions(2, move || {
        let pages = if pages[0] == pages[1] { &pages[..1] } else { &pages[..] };
        let model = Model::new(pages, 2);
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let model = Arc::clone(&model);
                let at = writer.min(model.pages.len() - 1);
                thread::spawn(move || model.write(writer, at, 7 + writer as u64))
            })
            .collect();
        let mut copy = vec![0; model.pages.len()];
        model.collect(&mut copy, || model.grace());
        for writer in writers {
            writer.join().unwrap();
        }
        model.compare(copy);
    });
}

#[test]
fn two_writers_of_one_page() {
    two_writers([0, 0]);
}

#[test]
fn two_writers_in_one_word() {
    two_writers([0, 1]);
}

#[test]
fn two_writers_below_one_middle_word() {
    two_writers([0, 64]);
}

#[test]
fn two_writers_below_one_top_word() {
    two_writers([0, 4096]);
}

/// The next collection reports a write that has returned, even if it found the bit set by another writer
/// that had not set the summary bits yet.
fn returned_writes_are_reported(grace: impl Fn(&Model, u64) + Sync + Send + 'static) {
    with_preemptions(2, move || {
        let model = Model::new(&[0], 2);
        let other = Arc::clone(&model);
        let slow = thread::spawn(move || other.write(0, 0, 1));
        let other = Arc::clone(&model);
        let returned = Arc::new(AtomicBool::new(false));
        let tell = Arc::clone(&returned);
        let quick = thread::spawn(move || {
            other.write(1, 0, 2);
            tell.store(true, Ordering::Release);
        });
        let mut copy = vec![0];
        let must = returned.load(Ordering::Acquire);
        let mut calls = 0;
        let told = model.collect(&mut copy, || {
            grace(&model, calls);
            calls += 1;
        });
        assert!(!must || told.contains(&0), "the write had returned");
        slow.join().unwrap();
        quick.join().unwrap();
        model.compare(copy);
    });
}

#[test]
fn writes_that_have_returned_are_reported() {
    returned_writes_are_reported(|model, _| model.grace());
}

#[test]
fn without_the_first_grace_period_a_report_may_be_late() {
    assert!(
        catch_unwind(|| {
            returned_writes_are_reported(|model, call| {
                if call > 0 {
                    model.grace();
                }
            });
        })
        .is_err()
    );
}

/// When a writer that set a page bit returns, all summary bits above it are set, even if another writer
/// is still setting the same summary bits. The test omits the grace period that would wait for the other
/// writer, which writes another page, so that its mark is not needed. All rounds except the last use no
/// grace period at all, and may copy pages too early.
fn a_mark_reaches_the_top_itself(neighbour: u64, rounds: u64) {
    with_preemptions(2, move || {
        let model = Model::new(&[0, neighbour, 64 + neighbour], 2);
        if rounds > 1 {
            // Sets the top bit, which the first round clears.
            model.write(0, 2, 9);
        }
        let other = Arc::clone(&model);
        let returned = Arc::new(AtomicBool::new(false));
        let tell = Arc::clone(&returned);
        let writer = thread::spawn(move || {
            other.write(0, 0, 1);
            tell.store(true, Ordering::Release);
        });
        let other = Arc::clone(&model);
        let beside = thread::spawn(move || other.write(1, 1, 2));
        let mut copy = vec![0; 3];
        let mut told = false;
        for round in 1..=rounds {
            let must = round == rounds && returned.load(Ordering::Acquire);
            let mut calls = 0;
            told |= model
                .collect(&mut copy, || {
                    if round == rounds && calls > 0 {
                        model.grace();
                    }
                    calls += 1;
                })
                .contains(&0);
            assert!(!must || told, "the write had returned");
        }
        writer.join().unwrap();
        beside.join().unwrap();
        if rounds == 1 {
            model.compare(copy);
        }
    });
}

#[test]
fn a_mark_beside_another_in_its_word_reaches_the_top() {
    a_mark_reaches_the_top_itself(1, 1);
}

#[test]
fn a_mark_beside_another_below_its_middle_word_reaches_the_top() {
    a_mark_reaches_the_top_itself(64, 1);
}

#[test]
fn a_mark_reaches_a_top_that_is_being_cleared() {
    a_mark_reaches_the_top_itself(1, 2);
}

/// A collection of a part may leave summary bits without set bits below them. The next one takes them, and
/// finds or leaves the bit that a writer sets meanwhile.
#[test]
fn an_outdated_summary_hides_no_mark() {
    with_preemptions(3, || {
        let model = Model::new(&[0, 1], 1);
        model.write(0, 0, 1);
        let part = AddrRange::new(Iova::new(0), PAGE).unwrap();
        let mut copy = vec![0, 0];
        model.log.collect(part, || model.grace(), |_| copy[0] = 1);
        let other = Arc::clone(&model);
        let writer = thread::spawn(move || other.write(0, 0, 2));
        model.collect(&mut copy, || model.grace());
        writer.join().unwrap();
        model.compare(copy);
    });
}

/// A collection of a part leaves the marks of the rest and their summary bits.
#[test]
fn a_part_is_collected_beside_a_writer_of_the_rest() {
    with_preemptions(3, || {
        let model = Model::new(&[0, 1], 1);
        model.write(0, 0, 1);
        let other = Arc::clone(&model);
        let writer = thread::spawn(move || other.write(0, 1, 2));
        let mut told = 0;
        let part = AddrRange::new(Iova::new(0), PAGE).unwrap();
        model.log.collect(part, || model.grace(), |run| told += run.len());
        assert_eq!(told, PAGE);
        writer.join().unwrap();
        let left = model.collect(&mut [0, 0], || model.grace());
        assert_eq!(left, BTreeSet::from([1]));
    });
}

/// Two collectors: one of them reports each write after it was made.
#[test]
fn two_collectors_share_the_marks() {
    with_preemptions(2, || {
        let model = Model::new(&[0], 1);
        model.write(0, 0, 1);
        let other = Arc::clone(&model);
        let collector = thread::spawn(move || {
            let mut copy = vec![0];
            let told = other.collect(&mut copy, || other.grace());
            (copy, told)
        });
        model.write(0, 0, 2);
        let (mut copy, mut told) = (vec![0], BTreeSet::new());
        told.extend(model.collect(&mut copy, || model.grace()));
        let (copy_of_other, told_to_other) = collector.join().unwrap();
        assert!(told.contains(&0) || told_to_other.contains(&0));
        assert!(copy[0].max(copy_of_other[0]) == 2);
        model.compare(vec![2]);
    });
}

/// The next collection finds the marks that a failed one has put back, while a writer may find the bit set.
#[test]
fn marks_that_are_put_back_are_found() {
    with_preemptions(3, || {
        let model = Model::new(&[0], 1);
        model.write(0, 0, 1);
        let other = Arc::clone(&model);
        let writer = thread::spawn(move || other.write(0, 0, 2));
        let grace = || {
            model.grace();
            Ok(())
        };
        let failed = model.log.try_collect(model.log.covers(), grace, |_| Err(()));
        assert_eq!(failed, Err(()));
        writer.join().unwrap();
        model.compare(vec![0]);
    });
}
