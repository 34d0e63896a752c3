//! Threads that meet, and calls in the middle of other calls.
//!
//! There are two kinds of races: threads meet at a [`Meet`] and then run freely, many times; or a
//! call runs in the middle of another one, at a chosen step ([`at_every_step`]) and in the same
//! thread, so that every run is the same.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use longshore_mem::BusAddr;
use longshore_pagetable::Prot;
use longshore_pagetable::cache_sync::CacheSync;
use longshore_pagetable::format::{
    DirtyTest, Entry, Fields, Format, Geometry, LEVELS_MAX, Narrowing,
};
use longshore_pagetable::table_memory::{HostPages, TableAddr, TableMemory, TableMeta};

/// A barrier that does not wait for a thread that has panicked: the waiting threads panic too, so
/// that the test fails instead of hanging.
pub(crate) struct Meet {
    threads: usize,
    state: Mutex<Meeting>,
    changed: Condvar,
}

struct Meeting {
    arrived: usize,
    round: u64,
    broken: bool,
}

/// A thread that takes part in a [`Meet`], held as long as other threads may wait for it.
pub(crate) struct Member<'a>(&'a Meet);

impl Meet {
    pub(crate) fn new(threads: usize) -> Self {
        let state = Meeting { arrived: 0, round: 0, broken: false };
        Self { threads, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(crate) fn join(&self) -> Member<'_> {
        Member(self)
    }

    fn lock(&self) -> MutexGuard<'_, Meeting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all threads have arrived.
    pub(crate) fn wait(&self) {
        let mut state = self.lock();
        state.arrived += 1;
        if state.arrived == self.threads {
            state.arrived = 0;
            state.round += 1;
            self.changed.notify_all();
            return;
        }
        let round = state.round;
        while state.round == round {
            assert!(!state.broken, "another thread has panicked");
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.lock().broken = true;
            self.0.changed.notify_all();
        }
    }
}

/// Sets a flag when it is dropped, also by a panic.
pub(crate) struct Says<'a>(pub(crate) &'a AtomicBool);

impl Drop for Says<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A call to make at a later step.
struct Plan {
    steps_left: u64,
    then: Box<dyn FnOnce()>,
}

thread_local! {
    static PLAN: RefCell<Option<Plan>> = const { RefCell::new(None) };
}

/// Counts a step of the running call of this thread.
fn step() {
    let due = PLAN.with(|plan| {
        let mut plan = plan.borrow_mut();
        match plan.as_mut() {
            Some(next) if next.steps_left > 0 => {
                next.steps_left -= 1;
                None
            }
            _ => plan.take(),
        }
    });
    if let Some(plan) = due {
        (plan.then)();
    }
}

/// Runs `call` with `other` in the middle of it, before the step `nth`. Returns the result of
/// `call`, and `true` if it had that many steps.
pub(crate) fn at_step<R>(
    nth: u64,
    other: impl FnOnce() + 'static,
    call: impl FnOnce() -> R,
) -> (R, bool) {
    PLAN.set(Some(Plan { steps_left: nth, then: Box::new(other) }));
    let done = call();
    (done, PLAN.take().is_none())
}

/// The number of steps that are all tried; after them, only one of seven is, because entry by entry
/// they repeat.
const ALL_STEPS: u64 = 48;

/// Runs `call` on a new value of `fresh`, with `other` in the middle, at each of its steps in turn,
/// and then runs `check` with both results. Returns the number of steps, or a few more.
pub(crate) fn at_every_step<T: 'static, A, B: 'static>(
    fresh: impl Fn() -> T,
    call: impl Fn(&T) -> A,
    other: impl Fn(&T) -> B + Copy + 'static,
    check: impl Fn(T, A, B),
) -> u64 {
    let mut nth = 0;
    loop {
        let made = Rc::new(fresh());
        let returned = Rc::new(RefCell::new(None));
        let (theirs, slot) = (Rc::clone(&made), Rc::clone(&returned));
        let then = move || *slot.borrow_mut() = Some(other(&theirs));
        let (done, met) = at_step(nth, then, || call(&made));
        if !met {
            assert!(nth > 0, "a call without any step");
            return nth;
        }
        let returned = returned.take().expect("the other call has returned");
        let made = Rc::into_inner(made).expect("the other call is gone");
        check(made, done, returned);
        nth += if nth < ALL_STEPS { 1 } else { 7 };
    }
}

/// A format, a memory or a cache maintenance that counts each of its uses as a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stepping<T>(pub(crate) T);

impl<F: Format> Format for Stepping<F> {
    const NAME: &'static str = F::NAME;
    const RUNS_REPEAT: bool = F::RUNS_REPEAT;
    const READ_ONLY_KEEPS_DIRTY: bool = F::READ_ONLY_KEEPS_DIRTY;
    const LEVEL_NAMES: [&'static str; LEVELS_MAX] = F::LEVEL_NAMES;

    fn geometry(&self) -> &Geometry {
        self.0.geometry()
    }

    fn present_mask(&self) -> u64 {
        self.0.present_mask()
    }

    fn decode(&self, level: u32, entry: u64) -> Entry {
        step();
        self.0.decode(level, entry)
    }

    fn attributes(&self, prot: Prot) -> Option<u64> {
        self.0.attributes(prot)
    }

    fn prot(&self, leaf: u64) -> Prot {
        step();
        self.0.prot(leaf)
    }

    fn narrowing(&self, entry: u64) -> Narrowing {
        self.0.narrowing(entry)
    }

    fn attributes_of(&self, leaf: u64) -> u64 {
        step();
        self.0.attributes_of(leaf)
    }

    fn leaf(&self, level: u32, run_log2: u32, bus: BusAddr, attributes: u64) -> u64 {
        step();
        self.0.leaf(level, run_log2, bus, attributes)
    }

    fn step(&self, level: u32) -> u64 {
        self.0.step(level)
    }

    fn table(&self, level: u32, table: TableAddr) -> u64 {
        step();
        self.0.table(level, table)
    }

    fn dirty_test(&self) -> Option<DirtyTest> {
        self.0.dirty_test()
    }

    fn with_dirty(&self, leaf: u64, dirty: bool) -> u64 {
        step();
        self.0.with_dirty(leaf, dirty)
    }

    fn fields(&self, level: u32, entry: u64) -> Fields {
        self.0.fields(level, entry)
    }

    fn with_level_on_top(&self) -> Option<Self> {
        self.0.with_level_on_top().map(Self)
    }

    fn needs_break_before_make(&self) -> bool {
        self.0.needs_break_before_make()
    }

    fn fixed_while_live(&self) -> Prot {
        self.0.fixed_while_live()
    }
}

impl<M: TableMemory> TableMemory for Stepping<M> {
    fn alloc(&self, size_log2: u32) -> Option<TableAddr> {
        step();
        self.0.alloc(size_log2)
    }

    fn free(&self, table: TableAddr, size_log2: u32) {
        step();
        self.0.free(table, size_log2);
    }

    fn entries(&self, table: TableAddr) -> &[AtomicU64] {
        self.0.entries(table)
    }

    fn meta(&self, table: TableAddr) -> &TableMeta {
        self.0.meta(table)
    }
}

/// A memory that several tables use one after another, because making one takes longer than most
/// tests.
#[derive(Clone, Debug)]
pub(crate) struct Shared(Rc<HostPages>);

impl Shared {
    pub(crate) fn new() -> Self {
        Self(Rc::new(HostPages::new()))
    }

    pub(crate) fn used(&self) -> u64 {
        self.0.used()
    }
}

impl TableMemory for Shared {
    fn alloc(&self, size_log2: u32) -> Option<TableAddr> {
        self.0.alloc(size_log2)
    }

    fn free(&self, table: TableAddr, size_log2: u32) {
        self.0.free(table, size_log2);
    }

    fn entries(&self, table: TableAddr) -> &[AtomicU64] {
        self.0.entries(table)
    }

    fn meta(&self, table: TableAddr) -> &TableMeta {
        self.0.meta(table)
    }
}

impl<S: CacheSync> CacheSync for Stepping<S> {
    const COHERENT: bool = S::COHERENT;

    fn clean(&self, entries: &[AtomicU64]) {
        step();
        self.0.clean(entries);
    }

    fn fence(&self) {
        step();
        self.0.fence();
    }
}

/// If a thread panics, its test fails, and does not wait for that thread forever.
#[test]
fn a_panicked_thread_does_not_block_the_others() {
    let meet = Meet::new(2);
    let said = AtomicBool::new(false);
    let (panics, waits) = thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let _member = meet.join();
            meet.wait();
        });
        let panics = scope.spawn(|| {
            let _says = Says(&said);
            let _member = meet.join();
            panic!("on purpose");
        });
        (panics.join(), waits.join())
    });
    assert!(panics.is_err() && waits.is_err() && said.load(Ordering::Acquire));
}
