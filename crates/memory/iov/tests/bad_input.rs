//! Invalid input is answered with an error or a defined short count.
#![expect(unsafe_code, reason = "makes views of the tests' own memory")]

mod memory;

use std::io::{IoSlice, IoSliceMut};
use std::ptr::NonNull;
use std::thread;

use longshore_iov::{
    Cursor, Dest, Error, Segment, SegmentList, SegmentSource, Source, checksum, copy, crc32c,
    kinds::{AnyKind, Discard, PageIndex, PageQueue, PageSegment},
};
use longshore_mem::{Page, VolatileSlice, VolatileSliceMut};
use memory::{KINDS, Shape, pattern, with_dest, with_source};

fn view_of(bytes: &mut [u8]) -> (VolatileSlice<'_>, NonNull<u8>) {
    let start = NonNull::from(&mut *bytes).cast();
    // SAFETY: the bytes are borrowed for as long as the view lives.
    (unsafe { VolatileSlice::from_raw_parts(start, bytes.len()) }, start)
}

#[test]
fn overlap_of_source_and_destination_is_an_error_at_the_overlapping_segment() {
    let mut memory = pattern(100);
    let before = memory.clone();
    let (whole, start) = view_of(&mut memory);
    for (from, to, len) in [(0, 10, 50), (10, 0, 50), (20, 20, 30), (0, 49, 50)] {
        let source = whole.subslice(from, len).unwrap();
        // SAFETY: inside the memory; the overlap with the source is the point of this test.
        let at = unsafe { start.add(to) };
        // SAFETY: as above.
        let dest = unsafe { VolatileSliceMut::from_raw_parts(at, len) };
        let mut source = Cursor::<Source>::foreign_buf(source);
        let mut dest = Cursor::<Dest>::foreign_buf(dest);
        let expected = Err(Error::Overlap { done_bytes: 0 });
        assert_eq!(copy::transfer(&mut source, &mut dest, len), expected, "{from} to {to}");
        let mut sum = checksum::Checksum::new();
        assert_eq!(copy::transfer_into(&mut source, &mut dest, len, &mut sum), expected);
        assert_eq!(sum, checksum::Checksum::new());
        let mut crc = crc32c::Crc32c::new();
        assert_eq!(copy::transfer_into(&mut source, &mut dest, len, &mut crc), expected);
        assert_eq!(
            copy::transfer_into(&mut source, &mut dest, len, &mut |_: &[u8]| unreachable!()),
            expected
        );
        assert_eq!((source.walked(), dest.walked()), (0, 0));
    }
    // Adjacent ranges do not overlap.
    // SAFETY: inside the memory, behind the range of the source.
    let at = unsafe { start.add(50) };
    // SAFETY: as above.
    let behind = unsafe { VolatileSliceMut::from_raw_parts(at, 50) };
    let mut source = Cursor::<Source>::foreign_buf(whole.subslice(0, 50).unwrap());
    let mut dest = Cursor::<Dest>::foreign_buf(behind);
    assert_eq!(copy::transfer(&mut source, &mut dest, 50), Ok(50));
    assert_eq!(memory[50..], before[..50]);
}

#[test]
fn a_step_that_leaves_more_than_it_got_leaves_the_whole_segment() {
    let shape = Shape { lens: vec![10, 20, 30] };
    for kind in KINDS {
        let content = pattern(shape.len_bytes(kind));
        with_source(kind, &shape, &content, &mut |source| {
            let mut calls = 0;
            let step = |segment: Segment<'_, Source>, _| {
                calls += 1;
                if calls == 1 { 3 } else { segment.len() + 1000 }
            };
            let first = source.segment_len_bytes();
            assert_eq!(source.iterate(60, step), first - 3, "{kind:?}: ends at the short step");
            assert_eq!(source.iterate(60, |_, _| usize::MAX), 0);
            assert_eq!(source.walked(), first - 3);
            assert_eq!(source.iterate_dyn(60, &mut |_, _| usize::MAX), 0);
        });
        with_dest(kind, &shape, 0, &mut |dest| {
            assert_eq!(dest.iterate(60, |_, _| usize::MAX), 0);
            assert_eq!(dest.walked(), 0);
        });
    }
}

#[test]
fn a_mark_of_a_part_is_not_valid_for_the_whole() {
    let shape = Shape { lens: vec![10, 20, 30] };
    for kind in KINDS {
        let len_bytes = shape.len_bytes(kind);
        with_source(kind, &shape, &pattern(len_bytes), &mut |source| {
            source.advance(7);
            let of_a_part = source.take(5).save();
            let refused = Err(Error::OutOfRange { asked_bytes: 7, possible_bytes: len_bytes });
            assert_eq!(source.restore(&of_a_part), refused, "{kind:?}");
            let of_the_whole = source.save();
            let refused = Err(Error::OutOfRange { asked_bytes: 7, possible_bytes: 12 });
            assert_eq!(source.take(5).restore(&of_the_whole), refused, "{kind:?}");
            assert_eq!((source.walked(), source.remaining()), (7, len_bytes - 7));
        });
    }
}

#[test]
fn a_mark_of_other_memory_is_refused() {
    let (mut one, mut two) = ([1; 10], [2; 10]);
    let slices = [&one, &two].map(|bytes| [IoSlice::new(bytes)]);
    let queues = [PageQueue::new().1, PageQueue::new().1];
    let indices = [PageIndex::new(12).unwrap(), PageIndex::new(12).unwrap()];
    let [view, other_view] = [&one, &two].map(|bytes| {
        let start = NonNull::from(bytes).cast();
        // SAFETY: the bytes are borrowed for as long as the views live.
        unsafe { VolatileSlice::from_raw_parts(start, 10) }
    });
    let lists = [view, other_view].map(|view| SegmentList::new([view]).unwrap());
    let parts = [view, other_view].map(|view| {
        let byte = view.subslice(0, 1).unwrap();
        [(); 10].map(|()| PageSegment::new(byte, 0, 1).unwrap())
    });
    let mut sources =
        vec![Cursor::<Source>::foreign_buf(view), Cursor::<Source>::foreign_buf(other_view)];
    for which in 0..2 {
        sources.extend([
            Cursor::<Source>::own_vec(&slices[which]),
            Cursor::<Source>::foreign_vec(&lists[which]),
            Cursor::<Source>::page_vec(&parts[which]),
            Cursor::<Source>::page_queue(&queues[which], 10),
            Cursor::<Source>::sparse_pages(&indices[which], 0, 10).unwrap(),
        ]);
    }
    for at in 0..sources.len() {
        let mark = sources[at].save();
        for (other, source) in sources.iter_mut().enumerate() {
            assert_eq!(source.restore(&mark).is_ok(), at == other, "{source:?} {mark:?}");
        }
    }
    let (mut one, mut two) = ([IoSliceMut::new(&mut one)], [IoSliceMut::new(&mut two)]);
    let mark = Cursor::<Dest>::own_vec(&mut one).save();
    assert!(Cursor::<Dest>::own_vec(&mut two).restore(&mark).is_err());
    assert!(Cursor::<Dest>::discard(10).restore(&mark).is_err());
}

/// A user's kind that reports wrong places and counts.
struct Liar<'m> {
    bytes: VolatileSlice<'m>,
    says: usize,
}

impl SegmentSource<Source> for Liar<'_> {
    fn remaining(&self) -> usize {
        self.says
    }

    fn next_segment(&mut self, _: usize) -> Option<Segment<'_, Source>> {
        Some(self.bytes.into())
    }

    fn advance(&mut self, _: usize) {}

    fn revert(&mut self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn iterate(
        &mut self,
        _: usize,
        mut step: impl FnMut(Segment<'_, Source>, usize) -> usize,
    ) -> usize {
        // Steps at impossible places, and an impossible count.
        for done in [0, 5, 1000, usize::MAX] {
            step(self.bytes.into(), done);
        }
        usize::MAX
    }
}

#[test]
fn a_lying_kind_cannot_cause_writes_elsewhere() {
    let mut memory = pattern(64);
    let (bytes, _) = view_of(&mut memory);
    let mut into = vec![0; 100];
    let mut liar = Liar { bytes, says: 1000 };
    let _ = copy::read(&mut liar, &mut into);
    assert!(into[69..].iter().all(|byte| *byte == 0), "writes only at reported places that fit");
    let mut sum = checksum::Checksum::new();
    let _ = copy::read_into(&mut liar, &mut into, &mut sum);
    let mut dest = [0; 10];
    let mut slices = [IoSliceMut::new(&mut dest)];
    let mut cursor = Cursor::<Dest>::own_vec(&mut slices);
    let _ = copy::transfer(&mut liar, &mut cursor, 10);
}

/// A destination that reports more bytes than it was given, and grows while it is written.
struct Boaster {
    says: usize,
}

impl SegmentSource<Dest> for Boaster {
    fn remaining(&self) -> usize {
        self.says
    }

    fn next_segment(&mut self, _: usize) -> Option<Segment<'_, Dest>> {
        None
    }

    fn advance(&mut self, _: usize) {}

    fn revert(&mut self, len: usize) -> Result<(), Error> {
        assert_eq!(len, 0, "its own count of walked bytes is zero");
        Ok(())
    }

    fn iterate(&mut self, _: usize, _: impl FnMut(Segment<'_, Dest>, usize) -> usize) -> usize {
        self.says += 10;
        usize::MAX
    }
}

#[test]
fn no_count_exceeds_the_requested_length() {
    let mut memory = pattern(64);
    let (bytes, _) = view_of(&mut memory);
    let mut liar = Liar { bytes, says: 1000 };
    assert_eq!(copy::read(&mut liar, &mut [0; 100]), Ok(100));
    assert_eq!(copy::walk_into(&mut liar, 100, &mut |_: &[u8]| {}), Ok(100));
    let mut boaster = Boaster { says: 1000 };
    assert_eq!(copy::write(&mut boaster, &[0; 100]), Ok(100));
    assert_eq!(copy::fill(&mut boaster, 1, 100), Ok(100));
    let slices = [IoSlice::new(&[1; 40]), IoSlice::new(&[2; 60])];
    let mut source = Cursor::<Source>::own_vec(&slices);
    assert_eq!(copy::transfer(&mut source, &mut boaster, 90), Ok(90));
    assert_eq!(source.walked(), 90);
    let short = Error::TooShort { wanted_bytes: 20, available_bytes: 10 };
    assert_eq!(copy::transfer_full(&mut source, &mut boaster, 20), Err(short));
}

#[test]
fn a_transfer_survives_segments_that_are_too_long_or_empty() {
    let mut memory = pattern(64);
    let (bytes, _) = view_of(&mut memory);
    let nothing = bytes.subslice(0, 0).unwrap();
    for (bytes, expected) in [(bytes, 4), (nothing, 0)] {
        let mut liar = Liar { bytes, says: 1000 };
        let mut dest = [0; 100];
        let mut slices = [IoSliceMut::new(&mut dest)];
        let mut cursor = Cursor::<Dest>::own_vec(&mut slices);
        assert_eq!(copy::transfer(&mut liar, &mut cursor, 4), Ok(expected));
        assert_eq!(cursor.walked(), expected);
        assert!(dest[expected..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn nothing_is_read_from_a_discarding_source() {
    let mut into = [7; 10];
    for mut cursor in [
        Cursor::<Source>::from_kind(AnyKind::Discard(Discard), 10),
        Cursor::<Source>::from_kind(AnyKind::Discard(Discard), 0),
    ] {
        assert_eq!(copy::read(&mut cursor, &mut into), Ok(0));
        cursor.advance(5);
        assert_eq!(cursor.walked(), 0);
    }
    assert_eq!(into, [7; 10]);
}

#[test]
fn parts_outside_their_page_are_refused() {
    #[repr(align(64))]
    struct Aligned([u8; 64]);
    let mut memory = Aligned([0; 64]);
    let start = NonNull::from(&mut memory.0).cast();
    // SAFETY: borrowed for as long as the test.
    let view = unsafe { VolatileSliceMut::from_raw_parts(start, 64) };
    let page = Page::new(view).unwrap();
    for (offset, len_bytes) in [(0, 65), (1, 64), (65, 0), (usize::MAX, 2), (2, usize::MAX)] {
        let expected = Error::OutsidePage { offset, len_bytes, page_bytes: 64 };
        assert_eq!(PageSegment::new(&page, offset, len_bytes).unwrap_err(), expected);
        let mut nowhere = Cursor::<Dest>::discard(100);
        assert_eq!(copy::write_page(&mut nowhere, &page, offset, len_bytes), Err(expected));
    }
    let mut index: PageIndex<'_, Source> = PageIndex::new(12).unwrap();
    let expected = Error::PageSize { page_log2: 6, index_log2: 12 };
    assert_eq!(index.insert(0, &page).unwrap_err(), expected);
    assert!(PageIndex::<Source>::new(64).is_err());
    assert!(Cursor::<Source>::sparse_pages(&index, u64::MAX, 2).is_err());
}

#[test]
fn a_hole_in_sparse_memory_ends_the_walk() {
    #[repr(align(64))]
    struct Aligned([u8; 3 * 64]);
    let mut memory = Aligned([9; 3 * 64]);
    let start = NonNull::from(&mut memory.0).cast();
    // SAFETY: borrowed for as long as the test.
    let view = unsafe { VolatileSliceMut::from_raw_parts(start, 3 * 64) };
    let (one, rest) = view.split_at_mut(64).unwrap();
    let (two, three) = rest.split_at_mut(64).unwrap();
    let pages = [one, two, three].map(|view| Page::new(view).unwrap());
    let mut index = PageIndex::new(6).unwrap();
    for (at, page) in [7, 8, 10].into_iter().zip(&pages) {
        assert!(index.insert(at, page).unwrap().is_none());
    }
    let mut cursor = Cursor::<Source>::sparse_pages(&index, 7 * 64 + 60, 200).unwrap();
    let mut into = [0; 200];
    assert_eq!(copy::read(&mut cursor, &mut into), Ok(68));
    assert_eq!(cursor.remaining(), 132);
    let short = Error::TooShort { wanted_bytes: 10, available_bytes: 0 };
    assert_eq!(copy::read_full(&mut cursor, &mut into[..10]), Err(short));
    // Skip the hole explicitly.
    cursor.advance(64);
    assert_eq!(copy::read(&mut cursor, &mut into), Ok(64));
    assert_eq!(index.remove(8).unwrap().len(), 64);
    assert!(index.remove(8).is_none());
    let mut cursor = Cursor::<Source>::sparse_pages(&index, 7 * 64, 200).unwrap();
    assert_eq!(copy::read(&mut cursor, &mut into), Ok(64));
}

#[test]
fn a_queue_can_grow_while_it_is_walked() {
    const PARTS: usize = if cfg!(miri) { 100 } else { 20_000 };
    let mut memory = pattern(PARTS * 3);
    let expected: Vec<u8> = memory.iter().copied().step_by(3).collect();
    let (whole, _) = view_of(&mut memory);
    let (mut appender, queue) = PageQueue::new();
    let read = thread::scope(|scope| {
        let whole = &whole;
        scope.spawn(move || {
            for part in 0..PARTS {
                // A page of one byte is aligned at any address.
                let byte = whole.subslice(part * 3, 1).unwrap();
                appender.append(PageSegment::new(byte, 0, 1).unwrap());
            }
        });
        let mut cursor = Cursor::<Source>::page_queue(&queue, PARTS);
        let mut into = vec![0; PARTS];
        let mut read = 0;
        while read < PARTS {
            // Reads the parts appended so far; that the others are missing is not an error.
            read += copy::read(&mut cursor, &mut into[read..]).unwrap();
            thread::yield_now();
        }
        into
    });
    assert_eq!(read, expected);
}

#[test]
fn a_slice_listed_several_times_is_walked_each_time() {
    let bytes = pattern(10);
    let slices = [IoSlice::new(&bytes); 50];
    let mut cursor = Cursor::<Source>::own_vec(&slices);
    assert_eq!((cursor.remaining(), cursor.segments()), (500, 50));
    let mut into = vec![0; 600];
    assert_eq!(copy::read(&mut cursor, &mut into), Ok(500));
    let list = SegmentList::<Source>::new(std::iter::empty::<VolatileSlice<'_>>()).unwrap();
    assert!(list.is_empty());
    assert_eq!(copy::read(&mut Cursor::<Source>::foreign_vec(&list), &mut into), Ok(0));
}
