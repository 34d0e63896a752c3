//! Foreign memory that one thread writes while another one copies, sums and digests it. Miri
//! reports a data race if an access is not atomic; without Miri, every byte read must have been
//! written.
#![expect(unsafe_code, reason = "makes two views of the same memory")]

use std::io::IoSlice;
use std::ptr::NonNull;
use std::thread;

use longshore_iov::{
    Cursor, Dest, Segment, SegmentList, SegmentSource, Source, checksum, copy, crc32c,
    kinds::PageSegment,
};
use longshore_mem::{Page, VolatileSlice, VolatileSliceMut};

const LEN_BYTES: usize = 64;
const ROUNDS: usize = if cfg!(miri) { 2 } else { 2000 };
const WRITTEN: [u8; 4] = [0, 0x11, 0x22, 0x33];

#[repr(align(64))]
struct Memory([u8; LEN_BYTES]);

#[test]
fn foreign_memory_may_be_written_while_it_is_copied() {
    let mut memory = Memory([0; LEN_BYTES]);
    let start = NonNull::from(&mut memory.0).cast();
    thread::scope(|scope| {
        // SAFETY: the memory outlives the threads, and is accessed by views only while they run.
        let written = unsafe { VolatileSliceMut::from_raw_parts(start, LEN_BYTES) };
        // SAFETY: as above.
        let read = unsafe { VolatileSliceMut::from_raw_parts(start, LEN_BYTES) };
        scope.spawn(move || write_all(written));
        read_all(&Page::new(read).unwrap());
    });
    assert_eq!(memory.0, [WRITTEN[3]; LEN_BYTES]);
}

/// Writes with every operation, one after another.
fn write_all(view: VolatileSliceMut<'_>) {
    let mut dest = Cursor::<Dest>::foreign_buf(view);
    let own = [WRITTEN[2]; LEN_BYTES];
    for _ in 0..ROUNDS {
        assert_eq!(copy::fill(&mut dest, WRITTEN[1], LEN_BYTES), Ok(LEN_BYTES));
        dest.revert(LEN_BYTES).unwrap();
        let mut sum = checksum::Checksum::new();
        assert_eq!(copy::write_into(&mut dest, &own, &mut sum), Ok(LEN_BYTES));
        dest.revert(LEN_BYTES).unwrap();
        let slices = [IoSlice::new(&own[..20]), IoSlice::new(&own[20..])];
        let mut source = Cursor::<Source>::own_vec(&slices);
        let mut crc = crc32c::Crc32c::new();
        let done = copy::transfer_into(&mut source, &mut dest, LEN_BYTES, &mut crc);
        assert_eq!((done, crc.finish()), (Ok(LEN_BYTES), crc32c::of(&own)));
        dest.revert(LEN_BYTES).unwrap();
        assert_eq!(copy::write(&mut dest, &[WRITTEN[3]; LEN_BYTES]), Ok(LEN_BYTES));
        dest.revert(LEN_BYTES).unwrap();
    }
}

/// Reads with every operation. Each sum and digest must be that of the copied bytes.
fn read_all(page: &Page<'_>) {
    let list: SegmentList<'_, Source> = SegmentList::new(
        [page.view().subslice(3, 30), page.view().subslice(40, 17)].map(Result::unwrap),
    )
    .unwrap();
    let parts = [PageSegment::new(page, 1, LEN_BYTES - 1).unwrap()];
    for _ in 0..ROUNDS {
        for mut source in [
            Cursor::<Source>::foreign_buf(page.view()),
            Cursor::<Source>::foreign_vec(&list),
            Cursor::<Source>::page_vec(&parts),
        ] {
            read_each(&mut source);
        }
    }
}

fn read_each(source: &mut Cursor<'_, Source>) {
    let mut into = [0xff; LEN_BYTES];
    let len_bytes = source.remaining();
    let start = source.save();

    assert_eq!(copy::read(source, &mut into), Ok(len_bytes));
    assert_written(&into[..len_bytes]);

    source.restore(&start).unwrap();
    let mut sum = checksum::Checksum::new();
    assert_eq!(copy::read_into(source, &mut into, &mut sum), Ok(len_bytes));
    assert_eq!(sum.finish(), checksum::of(&into[..len_bytes]));

    source.restore(&start).unwrap();
    let mut crc = crc32c::Crc32c::new();
    assert_eq!(copy::read_into(source, &mut into, &mut crc), Ok(len_bytes));
    assert_eq!(crc.finish(), crc32c::of(&into[..len_bytes]));

    source.restore(&start).unwrap();
    let mut hashed = Vec::new();
    let mut update = |bytes: &[u8]| hashed.extend_from_slice(bytes);
    assert_eq!(copy::read_into(source, &mut into, &mut update), Ok(len_bytes));
    assert_eq!(hashed, into[..len_bytes]);

    source.restore(&start).unwrap();
    source.iterate(len_bytes, |segment, _| {
        assert_written(&bytes_of(&segment));
        0
    });
}

fn bytes_of(segment: &Segment<'_, Source>) -> Vec<u8> {
    let view: VolatileSlice<'_> = segment.view();
    let words = view.len() / 8;
    let word_at = |word: usize| view.read_u64_le(8 * word).unwrap();
    (0..words).flat_map(|word| word_at(word).to_le_bytes()).collect()
}

fn assert_written(bytes: &[u8]) {
    assert!(bytes.iter().all(|byte| WRITTEN.contains(byte)), "{bytes:02x?}");
}
