//! One copy in memory by two threads: what no load out of the page cache can be faster than.
#![expect(unsafe_code, reason = "copies into windows of memory whose pages are made on the way")]

use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Result, ensure};
use longshore_heap::{Buffer, Heap, Reservation};

use super::{Finished, Prepared};
use crate::load::data::DataFile;

const THREADS: usize = 2;
const PIECE_BYTES: usize = 8 << 20;
const PAGE_BYTES: usize = 2 << 20;
/// One call of the C library's copy: what it moves while it is in the cache.
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
            ensure!(*source.read()? == *copy.read()?, "the copy is none");
            Ok(())
        }),
        note,
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

/// Each thread takes the next piece until there is none, so that one which the machine holds up
/// does not hold up the other.
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

/// Each thread makes the next huge page and copies into it at once, while it is in the cache.
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
                // SAFETY: the view is as long as `from`, and lies in memory of its own that nobody
                // else looks at yet.
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
