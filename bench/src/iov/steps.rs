//! The cost of a segment with an empty step.
#![expect(unsafe_code, reason = "a step that the compiler cannot remove")]

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
use super::timed::{Repeat, Unit};
use crate::harness::metric::CORE_CYCLES;
use crate::harness::{Against, Candidate, CommonOptions, Session};

const CASE: &str = "empty step";
/// The maximum of a list.
const SEGMENTS: usize = 1024;
const PAGE_LOG2: u32 = 12;

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
    let each = Repeat::new(options, Unit::CyclesEach(SEGMENTS));
    let one = Repeat::new(options, Unit::CyclesEach(1));
    macro_rules! walk {
        ($name:literal, $repeat:expr, $kind:expr) => {
            walk($name, $repeat, || Cursor::from_kind($kind, len_bytes))
        };
    }
    let candidates = vec![
        walk!("OwnVec", each, OwnVec::<Source>::new(&slices)),
        walk!("ForeignVec", each, ForeignVec::<Source>::new(&list)),
        walk!("PageVec", each, PageVec::<Source>::new(&page_list)),
        walk!("SparsePages", each, SparsePages::<Source>::new(&index, 0)),
        walk!("PageQueue", each, QueuedPages::<Source>::new(&queue)),
        walk!("ForeignBuf", one, ForeignBuf::<Source>::new(whole)),
    ];
    let against = [Against::new(CORE_CYCLES, "OwnVec")];
    session.compare(CASE, candidates, &against)
}

fn walk<'a, K: Kind<Source> + 'a>(
    name: &str,
    repeat: Repeat,
    cursor: impl Fn() -> Cursor<'a, Source, K> + 'a,
) -> Candidate<'a> {
    let walk = move || {
        let mut cursor = black_box(cursor());
        black_box(cursor.iterate(usize::MAX, |segment, done| step(&segment, done)));
    };
    repeat.of(name, walk).ours()
}

/// A step that needs its arguments in registers, and does nothing with them.
#[inline(always)]
fn step(segment: &Segment<'_, Source>, done: usize) -> usize {
    // SAFETY: the block contains no instruction.
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
