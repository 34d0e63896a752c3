//! Cursors over missing memory: real faults, at every place and on either side.
#![cfg(not(miri))]
#![expect(unsafe_code, reason = "maps memory and removes pages during copies")]

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::{self, NonNull};

use longshore_iov::checksum::Checksum;
use longshore_iov::copy::Engine;
use longshore_iov::crc32c::Crc32c;
use longshore_iov::{Cursor, Dest, Error, SegmentList, SegmentSource, Source, copy};
use longshore_mem::copy::STREAM_MIN_BYTES;
use longshore_mem::fault::{FaultCause, FaultGuard};
use longshore_mem::{VolatileSlice, VolatileSliceMut};

const PAGE: usize = 4096;

/// A mapped file that was truncated: only the first pages of the mapping are backed.
struct Truncated {
    _file: File,
    start: NonNull<u8>,
    mapped_bytes: usize,
    backed_bytes: usize,
}

impl Truncated {
    fn new(mapped_pages: usize, backed_pages: usize) -> Self {
        // SAFETY: creates a descriptor; the name is a C string.
        let fd = unsafe { libc::memfd_create(c"longshore-test".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: the descriptor is new and has no other owner.
        let file = unsafe { File::from_raw_fd(fd) };
        let mapped_bytes = mapped_pages * PAGE;
        let backed_bytes = backed_pages * PAGE;
        file.set_len(mapped_bytes as u64).unwrap();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                mapped_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        let start = NonNull::new(start.cast::<u8>()).unwrap();
        for at in 0..backed_bytes {
            // SAFETY: within the mapping.
            let byte = unsafe { start.add(at) };
            // SAFETY: no other code has the mapping yet.
            unsafe { byte.write(byte_at(at)) };
        }
        file.set_len(backed_bytes as u64).unwrap();
        Self { _file: file, start, mapped_bytes, backed_bytes }
    }

    /// Returns the range from `before` bytes before the end of the backed pages to the end of the
    /// mapping.
    fn around_the_end(&self, before: usize) -> VolatileSlice<'_> {
        let from = self.backed_bytes - before;
        // SAFETY: inside the mapping.
        let start = unsafe { self.start.add(from) };
        // SAFETY: mapped for as long as `self` lives; the test expects its faults.
        unsafe { VolatileSlice::from_raw_parts(start, self.mapped_bytes - from) }
    }

    fn around_the_end_mut(&mut self, before: usize) -> VolatileSliceMut<'_> {
        let from = self.backed_bytes - before;
        // SAFETY: inside the mapping.
        let start = unsafe { self.start.add(from) };
        // SAFETY: as above; borrowed exclusively.
        unsafe { VolatileSliceMut::from_raw_parts(start, self.mapped_bytes - from) }
    }
}

impl Drop for Truncated {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.mapped_bytes) };
    }
}

fn byte_at(offset: usize) -> u8 {
    (offset.wrapping_mul(167) ^ (offset >> 7)) as u8
}

/// The numbers of bytes before the fault, around every size that a kernel distinguishes.
const BEFORE: [usize; 16] =
    [0, 1, 2, 7, 31, 63, 64, 65, 129, 255, 256, 257, 700, 2047, 2049, 2 * PAGE];

fn assert_fault<T: std::fmt::Debug>(outcome: Result<T, Error>, before: usize, case: &str) {
    match outcome {
        Err(Error::Fault { done_bytes, fault }) => {
            assert_eq!(done_bytes, before, "{case}");
            assert_eq!(fault.cause, FaultCause::NotBacked, "{case}");
        }
        other => panic!("{case}: {other:?}"),
    }
}

#[test]
fn reads_end_at_the_exact_byte_and_digests_cover_the_bytes_read() {
    let _guard = FaultGuard::install().unwrap();
    let memory = Truncated::new(4, 2);
    for engine in Engine::all() {
        for before in BEFORE {
            let case = format!("{before} before, {}", engine.isa());
            let from = memory.backed_bytes - before;
            let expected: Vec<u8> = (from..from + before).map(byte_at).collect();
            let mut into = vec![0xee; before + 600];

            let mut cursor = Cursor::<Source>::foreign_buf(memory.around_the_end(before));
            assert_fault(engine.read(&mut cursor, &mut into), before, &case);
            assert_eq!(cursor.walked(), before, "{case}");
            assert_eq!(&into[..before], &expected[..], "{case}");
            assert!(into[before..].iter().all(|byte| *byte == 0xee), "{case}");

            cursor.revert(before).unwrap();
            into.fill(0xee);
            let mut checksum = Checksum::new();
            let done = engine.read_into(&mut cursor, &mut into, &mut checksum);
            assert_fault(done, before, &case);
            assert_eq!(&into[..before], &expected[..], "{case}");
            assert!(into[before..].iter().all(|byte| *byte == 0xee), "{case}");
            assert_eq!(checksum.finish(), longshore_iov::checksum::of(&expected), "{case}");

            cursor.revert(before).unwrap();
            into.fill(0xee);
            let mut crc = Crc32c::new();
            assert_fault(engine.read_into(&mut cursor, &mut into, &mut crc), before, &case);
            assert_eq!(&into[..before], &expected[..], "{case}");
            assert!(into[before..].iter().all(|byte| *byte == 0xee), "{case}");
            assert_eq!(crc.finish(), longshore_iov::crc32c::of(&expected), "{case}");

            cursor.revert(before).unwrap();
            let mut checksum = Checksum::new();
            assert_fault(engine.walk_into(&mut cursor, 3 * PAGE, &mut checksum), before, &case);
            assert_eq!(checksum.finish(), longshore_iov::checksum::of(&expected), "{case}");

            cursor.revert(before).unwrap();
            let mut crc = Crc32c::new();
            assert_fault(engine.walk_into(&mut cursor, 3 * PAGE, &mut crc), before, &case);
            assert_eq!(crc.finish(), longshore_iov::crc32c::of(&expected), "{case}");

            cursor.revert(before).unwrap();
            let mut seen = Vec::new();
            let fed = copy::read_into(&mut cursor, &mut into, &mut |bytes: &[u8]| {
                seen.extend_from_slice(bytes);
            });
            assert_fault(fed, before, &case);
            assert_eq!(seen, expected, "{case}");
        }
    }
}

#[test]
fn writes_end_at_the_exact_byte_and_digests_cover_the_bytes_written() {
    let _guard = FaultGuard::install().unwrap();
    let mut memory = Truncated::new(4, 2);
    let content: Vec<u8> = (0..3 * PAGE).map(|at| byte_at(at + 99)).collect();
    for engine in Engine::all() {
        for before in BEFORE {
            let case = format!("{before} before, {}", engine.isa());
            let start = memory.start;
            let from = memory.backed_bytes - before;
            let read = |at| {
                // SAFETY: within the mapping.
                let byte = unsafe { start.add(at) };
                // SAFETY: the bytes before the end of the file are backed.
                unsafe { byte.read_volatile() }
            };
            let written = || -> Vec<u8> { (from..from + before).map(read).collect() };
            let mut cursor = Cursor::<Dest>::foreign_buf(memory.around_the_end_mut(before));
            assert_fault(engine.write(&mut cursor, &content), before, &case);
            assert_eq!(written(), &content[..before], "{case}");

            cursor.revert(before).unwrap();
            assert_fault(engine.fill(&mut cursor, 0x44, 3 * PAGE), before, &case);
            assert!(written().iter().all(|byte| *byte == 0x44), "{case}");

            cursor.revert(before).unwrap();
            let mut crc = Crc32c::new();
            assert_fault(engine.write_into(&mut cursor, &content, &mut crc), before, &case);
            assert_eq!(crc.finish(), longshore_iov::crc32c::of(&content[..before]), "{case}");
            assert_eq!(written(), &content[..before], "{case}");

            cursor.revert(before).unwrap();
            let mut checksum = Checksum::new();
            let done = engine.write_into(&mut cursor, &content, &mut checksum);
            assert_fault(done, before, &case);
            let expected = longshore_iov::checksum::of(&content[..before]);
            assert_eq!(checksum.finish(), expected, "{case}");
        }
    }
}

#[test]
fn digests_with_non_temporal_stores_are_right_and_end_at_the_exact_byte() {
    let _guard = FaultGuard::install().unwrap();
    let pages = STREAM_MIN_BYTES / PAGE;
    let source = Truncated::new(pages + 4, pages + 2);
    let mut target = Truncated::new(pages + 4, pages + 1);
    for (before_source, before_target) in [(source.backed_bytes - 77, pages * PAGE - 3), (5, 3)] {
        let from = source.backed_bytes - before_source;
        let to = target.backed_bytes - before_target;
        let done = before_source.min(before_target);
        let expected: Vec<u8> = (from..from + done).map(byte_at).collect();
        let checksum_expected = longshore_iov::checksum::of(&expected);
        let crc_expected = longshore_iov::crc32c::of(&expected);
        for engine in Engine::all() {
            let case = format!("{done} before, {}", engine.isa());
            let start = target.start;
            let mut dest = Cursor::<Dest>::foreign_buf(target.around_the_end_mut(before_target));
            let mut cursor = Cursor::<Source>::foreign_buf(source.around_the_end(before_source));
            let byte = |at| {
                // SAFETY: within the mapping.
                let byte = unsafe { start.add(to + at) };
                // SAFETY: the bytes before the end of the file are backed.
                unsafe { byte.read_volatile() }
            };
            let written = || -> Vec<u8> { (0..done).map(byte).collect() };
            engine.fill(&mut dest, 0, done).unwrap();
            dest.revert(done).unwrap();
            let mut checksum = Checksum::new();
            let outcome = engine.transfer_into(&mut cursor, &mut dest, usize::MAX, &mut checksum);
            assert_fault(outcome, done, &case);
            assert_eq!(checksum.finish(), checksum_expected, "{case}");
            assert!(written() == expected, "{case}");

            cursor.revert(done).unwrap();
            dest.revert(done).unwrap();
            engine.fill(&mut dest, 0, done).unwrap();
            dest.revert(done).unwrap();
            let mut crc = Crc32c::new();
            let outcome = engine.transfer_into(&mut cursor, &mut dest, usize::MAX, &mut crc);
            assert_fault(outcome, done, &case);
            assert_eq!(crc.finish(), crc_expected, "{case}");
            assert!(written() == expected, "{case}");
        }
    }
}

#[test]
fn both_cursors_of_a_transfer_stand_at_the_fault() {
    let _guard = FaultGuard::install().unwrap();
    let memory = Truncated::new(4, 2);
    let mut target = Truncated::new(4, 1);
    for (before_source, before_dest) in [(100, 3000), (3000, 100), (4096, 4096), (5, 5)] {
        let before = before_source.min(before_dest);
        let head = [7u8; 50];
        let view = {
            let start = NonNull::from(&head[..]).cast();
            // SAFETY: borrowed for as long as the list.
            unsafe { VolatileSlice::from_raw_parts(start, head.len()) }
        };
        let list = SegmentList::new([view, memory.around_the_end(before_source)]).unwrap();
        let mut source = Cursor::<Source>::foreign_vec(&list);
        source.advance(50);
        let mut dest = Cursor::<Dest>::foreign_buf(target.around_the_end_mut(before_dest));
        assert_fault(copy::transfer(&mut source, &mut dest, 2 * PAGE), before, "transfer");
        assert_eq!((source.walked(), dest.walked()), (50 + before, before));
        // In full or not at all.
        let mark = source.save();
        dest.revert(before).unwrap();
        source.revert(before).unwrap();
        let outcome = copy::transfer_full(&mut source, &mut dest, before + 1);
        assert_fault(outcome, before, "in full");
        assert_eq!((source.walked(), dest.walked()), (50, 0));
        source.restore(&mark).unwrap();
    }
}

#[test]
fn private_memory_can_be_read_after_a_fault() {
    let _guard = FaultGuard::install().unwrap();
    let memory = Truncated::new(2, 1);
    let list = SegmentList::new((0..4).map(|_| memory.around_the_end(10))).unwrap();
    let mut source = Cursor::<Source>::foreign_vec(&list);
    let mut into = vec![0; 100];
    assert_fault(copy::read_full(&mut source, &mut into), 10, "in full");
    assert_eq!(source.walked(), 0);
    let slices = [IoSlice::new(&into)];
    let mut own = Cursor::<Source>::own_vec(&slices);
    assert_eq!(copy::read(&mut own, &mut [0; 100]), Ok(100));
}
