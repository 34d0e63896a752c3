//! Memory of every kind, in any shape, for the tests.
#![allow(dead_code, reason = "each test program uses some of it")]
#![expect(unsafe_code, reason = "makes views of the tests' own memory")]

use std::io::{IoSlice, IoSliceMut};
use std::ptr::NonNull;

use longshore_iov::{
    Cursor, Dest, Segment, SegmentList, Source,
    kinds::{PageIndex, PageQueue, PageSegment, SparsePages},
};
use longshore_mem::{Page, VolatileSlice, VolatileSliceMut};

/// Small, so that short tests cross many pages.
pub(crate) const PAGE_LOG2: u32 = 6;
pub(crate) const PAGE_BYTES: usize = 1 << PAGE_LOG2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KindOf {
    ForeignBuf,
    ForeignVec,
    OwnVec,
    PageVec,
    SparsePages,
    PageQueue,
}

pub(crate) const KINDS: [KindOf; 6] = [
    KindOf::ForeignBuf,
    KindOf::ForeignVec,
    KindOf::OwnVec,
    KindOf::PageVec,
    KindOf::SparsePages,
    KindOf::PageQueue,
];

#[derive(Clone)]
#[repr(align(64))]
struct AlignedPage([u8; PAGE_BYTES]);

/// The lengths of segments. For the kinds with pages, a segment is a part of a page and is cut to
/// the page size; sparse pages have an offset in the first page only.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) lens: Vec<usize>,
}

impl Shape {
    /// Returns the lengths that `kind` uses.
    fn lens_of(&self, kind: KindOf) -> Vec<usize> {
        let cut = |len: &usize| len % (PAGE_BYTES + 1);
        match kind {
            KindOf::ForeignBuf => vec![self.lens.iter().sum()],
            KindOf::ForeignVec | KindOf::OwnVec => self.lens.clone(),
            KindOf::PageVec | KindOf::PageQueue => self.lens.iter().map(cut).collect(),
            KindOf::SparsePages => {
                let start = self.sparse_start();
                let whole = self.lens.iter().sum::<usize>();
                let first = whole.min(PAGE_BYTES - start);
                let mut lens = vec![first];
                let mut left = whole - first;
                while left > 0 {
                    lens.push(left.min(PAGE_BYTES));
                    left -= left.min(PAGE_BYTES);
                }
                lens
            }
        }
    }

    fn sparse_start(&self) -> usize {
        self.lens.first().map_or(0, |len| len % PAGE_BYTES)
    }

    /// Returns the number of bytes that a cursor of the kind walks.
    pub(crate) fn len_bytes(&self, kind: KindOf) -> usize {
        self.lens_of(kind).iter().sum()
    }

    /// Returns the offset of a part of `len` bytes in its page.
    fn offset_of(len: usize, index: usize) -> usize {
        if len == PAGE_BYTES { 0 } else { (index * 13) % (PAGE_BYTES - len) }
    }
}

fn view(bytes: &[u8]) -> VolatileSlice<'_> {
    let start = NonNull::from(bytes).cast();
    // SAFETY: the bytes are borrowed for as long as the view lives.
    unsafe { VolatileSlice::from_raw_parts(start, bytes.len()) }
}

fn view_mut(bytes: &mut [u8]) -> VolatileSliceMut<'_> {
    let len_bytes = bytes.len();
    let start = NonNull::from(bytes).cast();
    // SAFETY: the bytes are borrowed exclusively for as long as the view lives.
    unsafe { VolatileSliceMut::from_raw_parts(start, len_bytes) }
}

/// Runs `test` on a cursor of `kind` over memory that has this shape and holds `content`.
pub(crate) fn with_source(
    kind: KindOf,
    shape: &Shape,
    content: &[u8],
    test: &mut dyn FnMut(&mut Cursor<'_, Source>),
) {
    let lens = shape.lens_of(kind);
    let mut rest = content;
    let mut parts: Vec<&[u8]> = Vec::new();
    for len in &lens {
        let (part, after) = rest.split_at(*len);
        parts.push(part);
        rest = after;
    }
    match kind {
        KindOf::ForeignBuf => test(&mut Cursor::<Source>::foreign_buf(view(parts[0]))),
        KindOf::ForeignVec => {
            let list = SegmentList::new(parts.iter().map(|part| view(part))).unwrap();
            test(&mut Cursor::<Source>::foreign_vec(&list));
        }
        KindOf::OwnVec => {
            let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
            test(&mut Cursor::<Source>::own_vec(&slices));
        }
        KindOf::PageVec | KindOf::PageQueue => {
            let mut memory = vec![AlignedPage([0xee; PAGE_BYTES]); parts.len()];
            for (index, (page, part)) in memory.iter_mut().zip(&parts).enumerate() {
                let offset = Shape::offset_of(part.len(), index);
                page.0[offset..offset + part.len()].copy_from_slice(part);
            }
            let pages: Vec<Page<'_>> =
                memory.iter_mut().map(|page| Page::new(view_mut(&mut page.0)).unwrap()).collect();
            let segments: Vec<PageSegment<'_, Source>> = pages
                .iter()
                .zip(&parts)
                .enumerate()
                .map(|(index, (page, part))| {
                    let offset = Shape::offset_of(part.len(), index);
                    PageSegment::new(page, offset, part.len()).unwrap()
                })
                .collect();
            if kind == KindOf::PageVec {
                test(&mut Cursor::<Source>::page_vec(&segments));
            } else {
                let (mut appender, queue) = PageQueue::new();
                segments.into_iter().for_each(|segment| appender.append(segment));
                test(&mut Cursor::<Source>::page_queue(&queue, queue.len_bytes()));
            }
        }
        KindOf::SparsePages => {
            let start = shape.sparse_start();
            let mut memory = vec![AlignedPage([0xee; PAGE_BYTES]); parts.len()];
            for (index, (page, part)) in memory.iter_mut().zip(&parts).enumerate() {
                let offset = if index == 0 { start } else { 0 };
                page.0[offset..offset + part.len()].copy_from_slice(part);
            }
            let pages: Vec<Page<'_>> =
                memory.iter_mut().map(|page| Page::new(view_mut(&mut page.0)).unwrap()).collect();
            let mut index = PageIndex::new(PAGE_LOG2).unwrap();
            for (at, page) in pages.iter().enumerate().rev() {
                index.insert(FIRST_PAGE + at as u64, page).unwrap();
            }
            let start = FIRST_PAGE * PAGE_BYTES as u64 + start as u64;
            let len_bytes = lens.iter().sum();
            test(&mut Cursor::<Source>::sparse_pages(&index, start, len_bytes).unwrap());
        }
    }
}

pub(crate) type OfSparsePages<'m> = Cursor<'m, Source, SparsePages<'m, Source>>;

/// Runs `test` on a cursor of sparse pages whose last page is the last below 2^64, `below_the_top`
/// bytes before byte 2^64 - 1, which ends every walk. It claims to have `len_bytes` bytes. The byte
/// at address `at` holds `at as u8`; page 0, which must not be reached, holds zeros.
pub(crate) fn at_the_top(
    below_the_top: u8,
    len_bytes: usize,
    test: &mut dyn for<'m> FnMut(&mut OfSparsePages<'m>),
) {
    let mut memory = vec![AlignedPage([0; PAGE_BYTES]); 6];
    let (first, last) = memory.split_first_mut().expect("there are six");
    let bytes = last.iter_mut().flat_map(|page| &mut page.0);
    bytes.rev().zip(0..).for_each(|(byte, at)| *byte = (u64::MAX - at) as u8);
    let first = Page::new(view_mut(&mut first.0)).unwrap();
    let last: Vec<Page<'_>> =
        last.iter_mut().map(|page| Page::new(view_mut(&mut page.0)).unwrap()).collect();
    let mut index = PageIndex::new(PAGE_LOG2).unwrap();
    index.insert(0, &first).unwrap();
    for (at, page) in last.iter().rev().enumerate() {
        index.insert((u64::MAX >> PAGE_LOG2) - at as u64, page).unwrap();
    }
    let start = u64::MAX - u64::from(below_the_top);
    test(&mut Cursor::from_kind(SparsePages::<Source>::new(&index, start), len_bytes));
}

/// Near the end of a leaf, so that short tests cross one.
const FIRST_PAGE: u64 = 126;

/// Runs `test` on a destination of `kind` with this shape, and returns the content of the memory
/// afterwards. Every byte was `before` at first; bytes beside the segments must still be.
pub(crate) fn with_dest(
    kind: KindOf,
    shape: &Shape,
    before: u8,
    test: &mut dyn FnMut(&mut Cursor<'_, Dest>),
) -> Vec<u8> {
    let lens = shape.lens_of(kind);
    let mut bytes = vec![before; lens.iter().sum()];
    match kind {
        KindOf::ForeignBuf => test(&mut Cursor::<Dest>::foreign_buf(view_mut(&mut bytes))),
        KindOf::ForeignVec | KindOf::OwnVec => {
            let mut rest = &mut bytes[..];
            let mut parts = Vec::new();
            for len in &lens {
                let (part, after) = rest.split_at_mut(*len);
                parts.push(part);
                rest = after;
            }
            if kind == KindOf::OwnVec {
                let mut slices: Vec<IoSliceMut<'_>> =
                    parts.into_iter().map(IoSliceMut::new).collect();
                test(&mut Cursor::<Dest>::own_vec(&mut slices));
            } else {
                let mut list = SegmentList::new(parts.into_iter().map(view_mut)).unwrap();
                test(&mut Cursor::<Dest>::foreign_vec(&mut list));
            }
        }
        KindOf::PageVec | KindOf::PageQueue | KindOf::SparsePages => {
            let mut memory = vec![AlignedPage([before; PAGE_BYTES]); lens.len()];
            let offsets: Vec<usize> = lens
                .iter()
                .enumerate()
                .map(|(index, len)| match kind {
                    KindOf::SparsePages if index == 0 => shape.sparse_start(),
                    KindOf::SparsePages => 0,
                    _ => Shape::offset_of(*len, index),
                })
                .collect();
            let mut pages: Vec<Page<'_>> =
                memory.iter_mut().map(|page| Page::new(view_mut(&mut page.0)).unwrap()).collect();
            if kind == KindOf::SparsePages {
                let mut index: PageIndex<'_, Dest> = PageIndex::new(PAGE_LOG2).unwrap();
                for (at, page) in pages.iter_mut().enumerate() {
                    index.insert(FIRST_PAGE + at as u64, page).unwrap();
                }
                let start = FIRST_PAGE * PAGE_BYTES as u64 + shape.sparse_start() as u64;
                let len_bytes = lens.iter().sum();
                let cursor = Cursor::<Dest>::sparse_pages(&mut index, start, len_bytes);
                test(&mut cursor.unwrap());
            } else {
                let mut segments: Vec<PageSegment<'_, Dest>> = pages
                    .iter_mut()
                    .zip(lens.iter().zip(&offsets))
                    .map(|(page, (len, offset))| PageSegment::new(page, *offset, *len).unwrap())
                    .collect();
                if kind == KindOf::PageVec {
                    test(&mut Cursor::<Dest>::page_vec(&mut segments));
                } else {
                    let (mut appender, mut queue) = PageQueue::new();
                    segments.into_iter().for_each(|segment| appender.append(segment));
                    let len_bytes = queue.len_bytes();
                    test(&mut Cursor::<Dest>::page_queue(&mut queue, len_bytes));
                }
            }
            drop(pages);
            bytes.clear();
            for (page, (len, offset)) in memory.iter().zip(lens.iter().zip(&offsets)) {
                let (low, rest) = page.0.split_at(*offset);
                let (part, high) = rest.split_at(*len);
                assert!(low.iter().chain(high).all(|byte| *byte == before), "written beside");
                bytes.extend_from_slice(part);
            }
        }
    }
    bytes
}

/// Returns the bytes of a segment.
pub(crate) fn bytes_of(segment: &Segment<'_, Source>) -> Vec<u8> {
    let mut bytes = vec![0; segment.len()];
    segment.view().read(0, &mut bytes).unwrap();
    bytes
}

pub(crate) fn pattern(len_bytes: usize) -> Vec<u8> {
    (0..len_bytes).map(|at| (at.wrapping_mul(2_654_435_761) >> 9) as u8 | 1).collect()
}
