//! The same bytes through each kind of memory, as in the published table.
#![expect(unsafe_code, reason = "makes views of one memory as slices, foreign ranges and pages")]

use std::hint::black_box;
use std::io::IoSlice;
use std::ptr::NonNull;

use anyhow::Result;
use longshore_iov::{
    Cursor, SegmentList, Source, copy,
    kinds::{PageIndex, PageQueue, PageSegment},
};
use longshore_mem::{Page, VolatileSlice, VolatileSliceMut};

use super::bytes_per_clock::TARGET_SKEW;
use super::published::{self, OWN};
use super::timed::{Repeat, Unit};
use crate::harness::metric::TIME_US;
use crate::harness::{Against, Candidate, CommonOptions, Session};

const BYTES: usize = 256 << 20;
const QUICK_BYTES: usize = 4 << 20;
/// The bytes of a pool of pages that fits in the second-level cache. It is walked until all bytes were
/// copied.
const POOL_BYTES: usize = 256 << 10;
const PAGE_LOG2: u32 = 12;
const PAGE_BYTES: usize = 1 << PAGE_LOG2;
/// The size of a contiguous range, the segment if segments are not split.
const RUN_LOG2: u32 = 18;
const MEMCPY: &str = "memcpy, by page";

/// Memory that is read through every kind, and never written.
pub(super) struct Memory {
    aligned: Vec<Aligned>,
}

#[derive(Clone)]
#[repr(align(262144))]
struct Aligned(#[expect(dead_code, reason = "read as bytes")] [u8; 1 << RUN_LOG2]);

impl Memory {
    pub(super) fn new(len_bytes: usize) -> Self {
        let runs = len_bytes.div_ceil(1 << RUN_LOG2);
        let mut aligned = Vec::with_capacity(runs);
        for run in 0..runs {
            aligned.push(Aligned([run as u8 | 1; 1 << RUN_LOG2]));
        }
        Self { aligned }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        let start = self.aligned.as_ptr().cast();
        // SAFETY: a run is an array of bytes without padding, and the runs of a vector are adjacent.
        unsafe { std::slice::from_raw_parts(start, self.aligned.len() << RUN_LOG2) }
    }

    pub(super) fn view(&self) -> VolatileSlice<'_> {
        let bytes = self.bytes();
        // SAFETY: the bytes are borrowed for as long as the view lives.
        unsafe { VolatileSlice::from_raw_parts(NonNull::from(bytes).cast(), bytes.len()) }
    }

    pub(super) fn views(&self, len_bytes: usize) -> impl Iterator<Item = VolatileSlice<'_>> {
        let whole = self.view();
        (0..whole.len())
            .step_by(len_bytes)
            .map(move |at| whole.subslice(at, len_bytes).expect("the length divides the whole"))
    }

    /// Returns pages that are only read.
    pub(super) fn pages(&self, size_log2: u32) -> Vec<Page<'_>> {
        self.views(1 << size_log2)
            .map(|view| {
                // SAFETY: no code writes through it, here or elsewhere.
                let view = unsafe { VolatileSliceMut::from_raw_parts(view.start(), view.len()) };
                Page::new(view).expect("a run is aligned to its size")
            })
            .collect()
    }
}

pub(super) fn run(options: &CommonOptions, session: &mut Session) -> Result<()> {
    for (case, memory_bytes) in [("kinds, DRAM", whole_bytes(options)), ("kinds, pool", POOL_BYTES)]
    {
        if options.wants(case) {
            one(case, memory_bytes, options, session)?;
        }
    }
    Ok(())
}

fn whole_bytes(options: &CommonOptions) -> usize {
    if options.quick { QUICK_BYTES } else { BYTES }
}

fn one(
    case: &str,
    memory_bytes: usize,
    options: &CommonOptions,
    session: &mut Session,
) -> Result<()> {
    let whole = whole_bytes(options);
    let memory = Memory::new(memory_bytes);
    let mut target = vec![1u8; TARGET_SKEW + memory_bytes];
    let target = std::cell::RefCell::new(&mut target[TARGET_SKEW..]);
    let rounds = whole / memory_bytes;
    // A list has at most 1,024 segments; larger memory is walked with several lists.
    let slices: Vec<IoSlice<'_>> = memory.bytes().chunks(PAGE_BYTES).map(IoSlice::new).collect();
    let views: Vec<VolatileSlice<'_>> = memory.views(PAGE_BYTES).collect();
    let lists: Vec<SegmentList<'_, Source>> = views
        .chunks(1024)
        .map(|views| SegmentList::new(views.iter().copied()))
        .collect::<Result<_, _>>()?;
    let pages = memory.pages(PAGE_LOG2);
    let runs = memory.pages(RUN_LOG2);
    let split: Vec<PageSegment<'_, Source>> =
        pages.iter().map(|page| PageSegment::new(page, 0, PAGE_BYTES)).collect::<Result<_, _>>()?;
    let contiguous: Vec<PageSegment<'_, Source>> = runs
        .iter()
        .map(|page| PageSegment::new(page, 0, 1 << RUN_LOG2))
        .collect::<Result<_, _>>()?;
    let mut index = PageIndex::new(PAGE_LOG2)?;
    let (mut appender, queue) = PageQueue::new();
    for (at, page) in pages.iter().enumerate() {
        index.insert(at as u64, page)?;
        appender.append(PageSegment::new(page, 0, PAGE_BYTES)?);
    }
    let read = |cursor: &mut Cursor<'_, Source>, into: &mut [u8]| {
        let done = copy::read(cursor, into);
        assert_eq!(done, Ok(into.len()), "own memory does not fault");
    };
    let repeat = Repeat::new(options, Unit::Time);
    let mut candidates: Vec<Candidate<'_>> = vec![
        repeat.of(MEMCPY, || {
            let mut target = target.borrow_mut();
            for _ in 0..rounds {
                let pages = memory.bytes().chunks(PAGE_BYTES);
                for (from, to) in black_box(pages).zip(target.chunks_mut(PAGE_BYTES)) {
                    to.copy_from_slice(black_box(from));
                }
            }
        }),
        repeat.of("memcpy, whole", || {
            for _ in 0..rounds {
                target.borrow_mut().copy_from_slice(black_box(memory.bytes()));
            }
        }),
    ];
    macro_rules! walk {
        ($name:expr, |$into:ident| $cursor:expr) => {
            walk!($name, $into, read(&mut $cursor, $into));
        };
        ($name:expr, $into:ident, $walk:expr) => {
            let walk = |$into: &mut [u8]| $walk;
            let copy = || {
                let mut target = target.borrow_mut();
                (0..rounds).for_each(|_| walk(black_box(&mut target)));
            };
            candidates.push(repeat.of($name, copy).ours());
        };
    }
    walk!("ForeignBuf", |into| Cursor::<Source>::foreign_buf(memory.view()));
    walk!("ForeignVec", into, {
        for (list, into) in lists.iter().zip(into.chunks_mut(1024 * PAGE_BYTES)) {
            read(&mut Cursor::<Source>::foreign_vec(list), into);
        }
    });
    walk!("PageVec", |into| Cursor::<Source>::page_vec(&contiguous));
    walk!("PageVec, split", |into| Cursor::<Source>::page_vec(&split));
    walk!(OWN, |into| Cursor::<Source>::own_vec(&slices));
    walk!("SparsePages", |into| {
        Cursor::<Source>::sparse_pages(&index, 0, into.len()).expect("it is short")
    });
    walk!("PageQueue", |into| Cursor::<Source>::page_queue(&queue, into.len()));
    let against = [Against::new(TIME_US, MEMCPY), Against::new(TIME_US, OWN)];
    session.compare(case, candidates, &against)?;
    session.publish(published::kinds(case)?)
}
