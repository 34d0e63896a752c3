//! What each lock of the published table costs here, where nobody else wants it.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Mutex, RwLock};
use std::time::Instant;

use anyhow::Result;

use super::cases::{Candidates, effort};
use super::counter::Span;
use super::published;
use super::timed::Effort;
use crate::harness::metric::{CYCLES, TIME_NS};
use crate::harness::{Against, Candidate, CommonOptions, Sample, Session, Trouble};

const MUTEX: &str = "mutex";

pub(super) fn run(options: &CommonOptions, session: &mut Session) -> Result<()> {
    let case = "locks";
    if !options.wants(case) {
        return Ok(());
    }
    let (mutex, rwlock, count) = (Mutex::new(0), RwLock::new(0), AtomicUsize::new(1));
    let lock = |name: &str, work: fn(&Taken<'_>)| -> Box<dyn Candidate + '_> {
        let taken = Taken { mutex: &mutex, rwlock: &rwlock, count: &count };
        Box::new(Lock { name: name.to_owned(), work, taken, effort: effort(options) })
    };
    let candidates: Candidates<'_> = vec![
        lock(MUTEX, |taken| {
            black_box(&*taken.mutex.lock().expect("nobody panicked"));
        }),
        lock("rwlock for reading", |taken| {
            black_box(&*taken.rwlock.read().expect("nobody panicked"));
        }),
        lock("a reference counted up and down", |taken| {
            taken.count.fetch_add(1, Ordering::Relaxed);
            taken.count.fetch_sub(1, Ordering::Release);
        }),
        lock("two full fences, as SRCU", |taken| {
            fence(Ordering::SeqCst);
            black_box(taken.count);
            fence(Ordering::SeqCst);
        }),
    ];
    let measured = session.run(case, candidates);
    let against = [Against { metric: CYCLES, baseline: MUTEX, only: None }];
    let mut rows = measured.rows(session.bench(), &against);
    rows.extend(published::locks(session.bench(), case)?);
    session.publish(rows)
}

struct Taken<'a> {
    mutex: &'a Mutex<u64>,
    rwlock: &'a RwLock<u64>,
    count: &'a AtomicUsize,
}

struct Lock<'a> {
    name: String,
    work: fn(&Taken<'_>),
    taken: Taken<'a>,
    effort: Effort,
}

impl Candidate for Lock<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn measure(&mut self) -> Result<Sample, Trouble> {
        const TIMES: usize = 10_000;
        // A call through a pointer: each pays the same for it.
        let once = || {
            for _ in 0..TIMES {
                black_box(self.work)(&self.taken);
            }
        };
        let until = Instant::now() + self.effort.time;
        let mut best = Span::of(once);
        while Instant::now() < until {
            best = best.best(Span::of(once));
        }
        let each = best.each(TIMES);
        Ok(vec![(CYCLES, each.ticks), (TIME_NS, each.ns)])
    }
}
