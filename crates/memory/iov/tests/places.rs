//! Places near the ends of memory and address space, lent parts, and extracted bytes.

use std::io::{IoSlice, IoSliceMut};

use longshore_iov::{
    Cursor, Dest, Error, SegmentSource, Source, copy,
    kinds::{PageIndex, PageQueue, PageSegment, SparsePages},
};
use longshore_mem::{NotAPage, Page, VolatileSliceMut};

const PAGE_LOG2: u32 = 6;
const PAGE_BYTES: usize = 1 << PAGE_LOG2;

#[repr(align(64))]
struct Pages<const N: usize>([[u8; PAGE_BYTES]; N]);

impl<const N: usize> Pages<N> {
    /// Returns pages that are filled with their number, from one on.
    fn new() -> Self {
        Self(std::array::from_fn(|page| [page as u8 + 1; PAGE_BYTES]))
    }

    fn as_pages(&mut self) -> [Page<'_>; N] {
        self.0.each_mut().map(|page| Page::new(VolatileSliceMut::from(&mut page[..])).unwrap())
    }
}

#[test]
fn a_walk_of_sparse_pages_ends_at_the_top_of_the_address_space() {
    let mut memory = Pages::<3>::new();
    let pages = memory.as_pages();
    let last_page = u64::MAX >> PAGE_LOG2;
    let mut index = PageIndex::<Source>::new(PAGE_LOG2).unwrap();
    for (at, page) in [0, last_page, last_page + 1].into_iter().zip(&pages) {
        index.insert(at, page).unwrap();
    }
    let start = u64::MAX - 15;
    let at_the_top =
        || Cursor::<Source, _>::from_kind(SparsePages::<Source>::new(&index, start), 100);
    let mut bytes = [0; 100];
    let mut cursor = at_the_top();
    assert_eq!(copy::read(&mut cursor, &mut bytes), Ok(15));
    assert_eq!(bytes[..16], [[2; 15].as_slice(), &[0]].concat());
    assert!(cursor.next_segment(100).is_none());
    assert_eq!((cursor.walked(), cursor.segments()), (15, 0));
    cursor.advance(100);
    assert_eq!(cursor.walked(), 15);
    cursor.revert(15).unwrap();
    assert_eq!(copy::read(&mut cursor, &mut bytes), Ok(15));
    let mut by_steps = at_the_top();
    assert_eq!(by_steps.iterate_dyn(100, &mut |_, _| 0), 15);
    let mut advanced = at_the_top();
    advanced.advance(usize::MAX);
    assert_eq!((advanced.walked(), advanced.next_segment(1).is_none()), (15, true));
}

#[test]
fn pages_of_any_size_can_be_counted() {
    let slices = [IoSlice::new(&[1; 10]), IoSlice::new(&[2; 10])];
    let cursor = Cursor::<Source>::own_vec(&slices);
    assert_eq!(cursor.pages(0), 20);
    for page_log2 in [63, 64, 65, 127, 128, u32::MAX] {
        assert_eq!(cursor.pages(page_log2), 2, "2^{page_log2} bytes");
    }
}

#[test]
fn pages_that_are_too_large_for_a_list_are_refused() {
    let slices = [IoSlice::new(&[1; 10])];
    let mut cursor = Cursor::<Source>::own_vec(&slices);
    for page_log2 in [32, 64, u32::MAX] {
        let expected = Err(Error::PageTooLarge { page_log2, max_log2: 31 });
        assert_eq!(cursor.next_pages(10, page_log2, 10, &mut Vec::new()), expected);
        assert_eq!(cursor.extract_pages(10, page_log2, 10, &mut Vec::new()), expected);
    }
    assert_eq!(cursor.walked(), 0);
}

#[test]
fn a_part_of_a_page_has_its_address_and_offset_and_prints_them() {
    let mut memory = Pages::<1>::new();
    let [page] = memory.as_pages();
    let start = page.view().start();
    let part = PageSegment::<Source>::new(&page, 8, 16).unwrap();
    assert_eq!(part.start().addr().get(), start.addr().get() + 8);
    assert_eq!((part.offset(), part.len(), part.page_log2()), (8, 16, PAGE_LOG2));
    let address = start.addr().get() + 8;
    assert_eq!(
        format!("{part:?}"),
        format!("PageSegment({address:#x} + 0x10, at 0x8 of a page of 2^6 bytes)")
    );
}

#[test]
fn memory_not_aligned_to_its_length_is_not_a_page() {
    let mut memory = Pages::<2>::new();
    let addr = memory.0.as_ptr().addr() + 8;
    let bytes = memory.0.as_flattened_mut();
    for len_bytes in [64, 48] {
        let view = VolatileSliceMut::from(&mut bytes[8..8 + len_bytes]);
        let expected = Error::NotAPage(NotAPage { addr, len_bytes });
        assert_eq!(PageSegment::<Dest>::new(view, 0, 8).unwrap_err(), expected);
    }
}

#[test]
fn a_lent_part_has_its_own_end_and_leaves_the_cursor_at_its_place() {
    let bytes: Vec<u8> = (0..100).collect();
    let slices = [IoSlice::new(&bytes)];
    let mut cursor = Cursor::<Source>::own_vec(&slices);
    cursor.advance(10);
    cursor.truncate(50);
    let mut into = [0; 100];

    // The part has neither the bytes behind it, hidden ones included, nor the bytes before it.
    let mut part = cursor.take(20);
    assert_eq!(part.clone().reexpand(21).unwrap_err(), out_of_range(21, 20));
    assert_eq!(part.revert(1), Err(out_of_range(1, 0)));
    assert_eq!(copy::read(&mut part, &mut into), Ok(20));
    assert_eq!(part.revert(21), Err(out_of_range(21, 20)));
    assert_eq!(part.revert(15), Ok(()));
    drop(part);
    assert_eq!(into[..20], bytes[10..30]);
    assert_eq!((cursor.walked(), cursor.remaining()), (15, 45));
    assert_eq!(cursor.reexpand(85), Ok(()), "hidden bytes are still hidden");

    let before = cursor.save();
    let mut part = cursor.take(20);
    part.advance(3);
    let inside = part.save();
    part.advance(17);
    assert!(part.restore(&before).is_err());
    assert_eq!(part.restore(&inside), Ok(()));
    assert_eq!(part.remaining(), 17);
    drop(part);
    assert_eq!((cursor.walked(), cursor.remaining()), (18, 82));
    assert_eq!(cursor.restore(&inside).unwrap_err(), out_of_range(18, 100));
}

fn out_of_range(asked_bytes: usize, possible_bytes: usize) -> Error {
    Error::OutOfRange { asked_bytes, possible_bytes }
}

#[test]
fn extracted_bytes_of_a_destination_are_not_handed_out_again() {
    let mut memory = [0; 100];
    let mut slices = [IoSliceMut::new(&mut memory)];
    let mut cursor = Cursor::<Dest>::own_vec(&mut slices);
    let start = cursor.save();
    cursor.advance(10);
    let (mut segments, mut pages) = (Vec::new(), Vec::new());
    assert_eq!(cursor.extract_segments(20, 4, &mut segments), 20);
    assert_eq!(cursor.walked(), 30);
    let behind = cursor.save();
    assert_eq!(cursor.restore(&start).unwrap_err(), out_of_range(0, 100));
    assert_eq!(cursor.revert(1), Err(out_of_range(1, 0)));
    assert_eq!(copy::write(&mut cursor, &[3; 10]), Ok(10));
    assert_eq!(cursor.revert(11), Err(out_of_range(11, 10)));
    assert_eq!(cursor.restore(&behind), Ok(()));
    assert_eq!(cursor.extract_pages(20, 3, usize::MAX, &mut pages), Ok(20));
    assert_eq!(cursor.restore(&behind).unwrap_err(), out_of_range(30, 100));
    assert_eq!(cursor.take(5).revert(1), Err(out_of_range(1, 0)));
    assert_eq!((cursor.walked(), cursor.remaining()), (50, 50));

    // All writers are active at once, each on its own bytes.
    assert_eq!(copy::fill(&mut cursor, 5, 50), Ok(50));
    for segment in segments {
        segment.into_view().write(0, &[1; 20]).unwrap();
    }
    let mut parts = Cursor::<Dest>::page_vec(&mut pages);
    assert_eq!(copy::fill(&mut parts, 2, 20), Ok(20));
    assert_eq!(memory.map(usize::from).iter().sum::<usize>(), 20 + 2 * 20 + 5 * 50);
    assert_eq!(memory[..10], [0; 10]);
}

#[test]
fn extracted_bytes_of_a_source_can_be_read_again() {
    let bytes: Vec<u8> = (0..100).collect();
    let slices = [IoSlice::new(&bytes[..40]), IoSlice::new(&bytes[40..])];
    let mut cursor = Cursor::<Source>::own_vec(&slices);
    let start = cursor.save();
    let mut segments = Vec::new();
    assert_eq!(cursor.extract_segments(usize::MAX, 1, &mut segments), 40);
    assert_eq!(cursor.extract_segments(usize::MAX, 1, &mut segments), 60);
    assert_eq!(cursor.extract_segments(usize::MAX, 1, &mut segments), 0);
    assert_eq!(segments.iter().map(longshore_iov::Segment::len).collect::<Vec<_>>(), [40, 60]);
    assert_eq!(cursor.revert(60), Ok(()));
    assert_eq!(cursor.restore(&start), Ok(()));
    let mut into = [0; 100];
    assert_eq!(copy::read(&mut cursor, &mut into), Ok(100));
    assert_eq!(into[..], bytes);
}

#[test]
fn nothing_is_extracted_without_memory() {
    let mut nowhere = Cursor::<Dest>::discard(100);
    assert_eq!(nowhere.extract_segments(100, 10, &mut Vec::new()), 0);
    assert_eq!(nowhere.extract_pages(100, 12, 10, &mut Vec::new()), Ok(0));
    assert_eq!(nowhere.walked(), 0);
    let slices = [IoSlice::new(&[1; 10])];
    let mut cursor = Cursor::<Source>::own_vec(&slices);
    assert_eq!(cursor.extract_segments(10, 0, &mut Vec::new()), 0);
    assert_eq!(cursor.extract_segments(0, 10, &mut Vec::new()), 0);
    assert_eq!(cursor.walked(), 0);
}

#[test]
fn a_step_that_panics_leaves_the_cursor_where_it_was() {
    const PARTS: usize = 40;
    let mut memory = Pages::<PARTS>::new();
    let pages = memory.as_pages();
    let (mut appender, queue) = PageQueue::new();
    for page in &pages {
        appender.append(PageSegment::new(page, 0, PAGE_BYTES).unwrap());
    }
    let mut cursor = Cursor::<Source>::page_queue(&queue, PARTS * PAGE_BYTES);
    cursor.advance(100);
    // In the first batch of pages and, after the walk has entered it, in the second.
    for steps in [1, 2, 35] {
        let walk = std::panic::AssertUnwindSafe(|| {
            cursor.iterate(usize::MAX, |_, done| {
                assert!(done < steps * PAGE_BYTES, "the step panics");
                0
            })
        });
        std::panic::catch_unwind(walk).unwrap_err();
        assert_eq!(cursor.walked(), 100);
        let mut byte = [0];
        copy::read_full(&mut cursor, &mut byte).unwrap();
        assert_eq!(byte, [2], "after {steps} steps");
        cursor.revert(1).unwrap();
    }
}
