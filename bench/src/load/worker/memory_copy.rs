//! One copy in memory by two threads: what no load out of the page cache can be faster than.
#![expect(unsafe_code, reason = "copies into windows of memory whose pages are made on the way")]

use std::thread;

use anyhow::{Result, anyhow, ensure};
use longshore_heap::{Buffer, Heap, Reservation};

use super::{Finished, Prepared};
use crate::load::data::DataFile;

const THREADS: u64 = 2;
/// One huge page: zeroed and copied into while it is in the core's cache.
const STEP_BYTES: u64 = 2 << 20;

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

/// Each thread copies half, in one call: for so much the C library copies past the cache.
fn copy_into_populated(source: &Buffer, copy: &mut Buffer) -> Result<()> {
    let source = source.read()?;
    let mut copy = copy.write()?;
    let half = source.len() / THREADS as usize;
    let (low, high) = copy.split_at_mut(half);
    thread::scope(|scope| {
        scope.spawn(|| low.copy_from_slice(&source[..half]));
        high.copy_from_slice(&source[half..]);
    });
    Ok(())
}

/// Each thread makes every other huge page and copies into it at once.
fn copy_into_fresh(source: &Buffer) -> Result<Reservation> {
    let copy = Heap::Memfd.reserve(source.len_bytes())?;
    let content = source.read()?;
    let content: &[u8] = &content;
    let half = |thread: u64| -> Result<()> {
        let mut start = thread * STEP_BYTES;
        while start < content.len() as u64 {
            let end = (content.len() as u64).min(start + STEP_BYTES);
            copy.populate(start..end)?;
            // SAFETY: the threads' steps are different ones.
            let mut window = unsafe { copy.window(start..end) }?;
            let from = &content[start as usize..end as usize];
            // SAFETY: the window is as long as `from` and lies in memory of its own; no other
            // view of it exists while it is borrowed.
            unsafe { window.as_mut_ptr().copy_from_nonoverlapping(from.as_ptr(), from.len()) };
            start += THREADS * STEP_BYTES;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| half(1));
        let mine = half(0);
        other.join().map_err(|_| anyhow!("a copying thread panicked"))??;
        mine
    })?;
    Ok(copy)
}
