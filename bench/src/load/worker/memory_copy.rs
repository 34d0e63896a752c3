//! One memory copy by two threads: the upper limit of a load from the page cache.
#![expect(
    unsafe_code,
    reason = "copies into windows of memory whose pages are populated during the copy"
)]

use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Result, ensure};
use longshore_heap::{Buffer, Heap, Reservation};

use super::finished::{Finished, Prepared};
use crate::load::data::DataFile;

const THREADS: usize = 2;
const PIECE_BYTES: usize = 8 << 20;
const PAGE_BYTES: usize = 2 << 20;
/// The bytes of one call of the C library's copy, which fit in the cache.
const CALL_BYTES: usize = 64 << 10;

pub(super) fn prepare(file: &DataFile, fresh: bool) -> Result<Prepared> {
    let len_bytes = file.len_bytes;
    let mut source = Heap::Memfd.allocate(len_bytes)?;
    for (page, bytes) in source.write()?.chunks_mut(4096).enumerate() {
        let mark = (page as u64 + 1).to_le_bytes();
        let len = bytes.len().min(mark.len());
        bytes[..len].copy_from_slice(&mark[..len]);
    }
    let note = Some(format!("two threads, {} pages", source.page_report()));
    let checked = move |source: Buffer, copy: Buffer| Finished {
        check: Box::new(move || {
            ensure!(*source.read()? == *copy.read()?, "the copy differs from the source");
            Ok(())
        }),
        note,
        streamed: None,
    };
    if fresh {
        return Ok(Box::new(move || {
            let copy = copy_into_fresh(&source)?.finish()?;
            Ok(checked(source, copy))
        }));
    }
    let mut copy = Heap::Memfd.allocate(len_bytes)?;
    Ok(Box::new(move || {
        copy_into_populated(&source, &mut copy)?;
        Ok(checked(source, copy))
    }))
}

/// Copies with both threads. Each takes the next piece until none is left, so that a delayed thread does
/// not delay the other.
fn copy_into_populated(source: &Buffer, copy: &mut Buffer) -> Result<()> {
    let source = source.read()?;
    let mut copy = copy.write()?;
    let pieces = Mutex::new(copy.chunks_mut(PIECE_BYTES).zip(source.chunks(PIECE_BYTES)));
    let work = || {
        loop {
            let piece = pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((to, from)) = piece else { return };
            for (to, from) in to.chunks_mut(CALL_BYTES).zip(from.chunks(CALL_BYTES)) {
                to.copy_from_slice(from);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(work);
        }
    });
    Ok(())
}

/// Copies with both threads. Each populates the next huge page and copies into it at once, while the
/// page is in the cache.
fn copy_into_fresh(source: &Buffer) -> Result<Reservation> {
    let copy = Heap::Memfd.reserve(source.len())?;
    let source = source.read()?;
    let pieces = Mutex::new((0u64..).step_by(PAGE_BYTES).zip(source.chunks(PAGE_BYTES)));
    let work = || -> Result<()> {
        loop {
            let piece = pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((start, from)) = piece else { return Ok(()) };
            let range = start..start + from.len() as u64;
            copy.populate(range.clone())?;
            // SAFETY: each piece is taken by one thread, and pieces do not overlap.
            let mut window = unsafe { copy.window(range) }?;
            for (call, from) in from.chunks(CALL_BYTES).enumerate() {
                let mut to = window.subslice_mut(call * CALL_BYTES, from.len())?;
                // SAFETY: the view is as long as `from`, and this thread is the only one that accesses
                // that memory.
                unsafe { to.as_mut_ptr().copy_from_nonoverlapping(from.as_ptr(), from.len()) };
            }
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })?;
    Ok(copy)
}
