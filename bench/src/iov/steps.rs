//! What a segment costs when nothing is done with it.
#![expect(unsafe_code, reason = "a step that no compiler leaves out")]

use std::hint::black_box;
use std::io::IoSlice;

use anyhow::Result;
use longshore_iov::kinds::{Kind, QueuedPages, SparsePages};
use longshore_iov::{
    Cursor, Segment, SegmentList, SegmentSource, Source,
    kinds::{ForeignBuf, ForeignVec, OwnVec, PageIndex, PageQueue, PageSegment, PageVec},
};
use longshore_mem::Page;

use super::kinds::Memory;
use super::timed::{Repeated, Unit, boxed};
use crate::harness::metric::CORE_CYCLES;
use crate::harness::{Against, Candidate, CommonOptions, Session};

const CASE: &str = "empty step";
/// As many as one list may have.
const SEGMENTS: usize = 1024;
const PAGE_LOG2: u32 = 12;
const THROUGH_A_POINTER: &str = ", through a pointer";

pub(super) fn run(options: &CommonOptions, session: &mut Session) -> Result<()> {
    if !options.wants(CASE) {
        return Ok(());
    }
    let memory = Memory::new(SEGMENTS << PAGE_LOG2);
    let bytes = memory.bytes().to_vec();
    let chunks = || bytes.chunks(1 << PAGE_LOG2);
    let slices: Vec<IoSlice<'_>> = chunks().map(IoSlice::new).collect();
    let whole = memory.view();
    let list = SegmentList::new(memory.views(1 << PAGE_LOG2))?;
    let pages: Vec<Page<'_>> = memory.pages(PAGE_LOG2);
    let parts = || pages.iter().map(|page| PageSegment::new(page, 0, 1 << PAGE_LOG2));
    let page_list: Vec<PageSegment<'_, Source>> = parts().collect::<Result<_, _>>()?;
    let mut index = PageIndex::new(PAGE_LOG2)?;
    let (mut appender, queue) = PageQueue::new();
    for (at, page) in pages.iter().enumerate() {
        index.insert(at as u64, page)?;
    }
    for part in parts() {
        appender.append(part?);
    }
    let len_bytes = SEGMENTS << PAGE_LOG2;
    let mut candidates = Vec::new();
    let all = &mut candidates;
    push("OwnVec", || Cursor::from_kind(OwnVec::<Source>::new(&slices), len_bytes), SEGMENTS, all);
    push(
        "ForeignVec",
        || Cursor::from_kind(ForeignVec::<Source>::new(&list), len_bytes),
        SEGMENTS,
        all,
    );
    push(
        "PageVec",
        || Cursor::from_kind(PageVec::<Source>::new(&page_list), len_bytes),
        SEGMENTS,
        all,
    );
    let sparse = || Cursor::from_kind(SparsePages::<Source>::new(&index, 0), len_bytes);
    push("SparsePages", sparse, SEGMENTS, all);
    push(
        "PageQueue",
        || Cursor::from_kind(QueuedPages::<Source>::new(&queue), len_bytes),
        SEGMENTS,
        all,
    );
    push("ForeignBuf", || Cursor::from_kind(ForeignBuf::<Source>::new(whole), len_bytes), 1, all);
    let measured = session.run(CASE, candidates);
    let against = [Against { metric: CORE_CYCLES, baseline: "OwnVec", only: None }];
    session.publish(measured.rows(session.bench(), &against))
}

/// The walk with the step inlined, and with one that is called.
fn push<'a, K: Kind<Source> + 'a>(
    name: &str,
    cursor: impl Fn() -> Cursor<'a, Source, K> + Copy + 'a,
    segments: usize,
    candidates: &mut Vec<Box<dyn Candidate + 'a>>,
) {
    let unit = Unit::CyclesEach(segments);
    candidates.push(boxed(Repeated::ours(name, unit, move || {
        let mut cursor = black_box(cursor());
        black_box(cursor.iterate(usize::MAX, |segment, done| step(&segment, done)));
    })));
    candidates.push(boxed(Repeated::ours(format!("{name}{THROUGH_A_POINTER}"), unit, move || {
        let mut cursor = black_box(cursor());
        let mut step = |segment: Segment<'_, Source>, done: usize| step(&segment, done);
        let step: &mut dyn FnMut(Segment<'_, Source>, usize) -> usize = &mut step;
        black_box(cursor.iterate(usize::MAX, black_box(step)));
    })));
}

/// Has what it is given in registers, and does nothing with it.
#[inline(always)]
fn step(segment: &Segment<'_, Source>, done: usize) -> usize {
    // SAFETY: no instruction.
    unsafe {
        std::arch::asm!(
            "/* {start} {len} {done} */",
            start = in(reg) segment.start().addr().get(),
            len = in(reg) segment.len(),
            done = in(reg) done,
            options(nomem, nostack, preserves_flags),
        );
    }
    0
}
