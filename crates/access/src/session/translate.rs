//! From an IOVA to an extent of memory: second probe, walk, merge.
#![expect(unsafe_code, reason = "looks at regions while the slot is entered")]

use std::ops::ControlFlow;
use std::sync::Arc;

use longshore_mem::Iova;
use longshore_pagetable::{Mapping, Prot};

use super::Session;
use crate::fault::Reason;
use crate::region::{Memory, RemoteMemory};
use crate::tlb::{BOTH_FAST, Entry, READ, WINDOW_LOG2, WRITE, WRITE_FAST};
use crate::windows::WINDOWS_START;

/// Leaves that are merged at most, as a logarithm: those of 4 KiB to a window of the TLB.
const MERGE_LOG2: u32 = WINDOW_LOG2 - 12;

/// Where an address leads.
pub(crate) enum Place {
    /// To memory of this process.
    Direct(Entry),
    /// To memory that is asked for: from `offset` on as many bytes as were wanted, or fewer.
    Remote { memory: Arc<dyn RemoteMemory>, offset: u64, len: usize },
}

impl Session {
    /// Where `iova` leads, for an access of kind `want`. The slot must be entered; of a remote region
    /// up to `len` bytes are looked for.
    #[inline]
    pub(crate) fn translate(&self, iova: u64, len: usize, want: u64) -> Result<Place, Reason> {
        match self.private().tlb.find(iova) {
            Some(entry) if entry.permits(want) => Ok(Place::Direct(entry)),
            Some(_) => Err(Reason::Permission),
            None => self.walk(iova, len, want),
        }
    }

    #[inline(never)]
    fn walk(&self, iova: u64, len: usize, want: u64) -> Result<Place, Reason> {
        let inner = &*self.space.inner;
        let leaf = inner.table.lookup(Iova::new(iova)).ok().flatten().ok_or(Reason::Unmapped)?;
        let flags = flags_of(leaf.prot);
        if flags & want != want {
            return Err(Reason::Permission);
        }
        let bus = leaf.bus.raw();
        if bus < WINDOWS_START {
            let run = if cfg!(miri) { Run::of(&leaf) } else { self.merge(&leaf, iova) };
            let host = std::ptr::with_exposed_provenance_mut(run.bus as usize);
            return Ok(Place::Direct(self.remember(iova, &run, host, flags)));
        }
        // SAFETY: its leaf is there and the slot is entered, so it is attached, and stays so until
        // the slot is left.
        let attached = unsafe { inner.windows.get(bus) }.ok_or(Reason::Unmapped)?;
        match attached.region.memory() {
            Memory::Host(start, _) => {
                let run = self.merge(&leaf, iova);
                let host = start.as_ptr().wrapping_add((run.bus - attached.bus) as usize);
                Ok(Place::Direct(self.remember(iova, &run, host, flags)))
            }
            Memory::Remote(memory) => {
                let offset = bus - attached.bus + (iova - leaf.iova.raw());
                let len = self.remote_run(&leaf, iova, len);
                Ok(Place::Remote { memory: Arc::clone(memory), offset, len })
            }
        }
    }

    fn remember(&self, iova: u64, run: &Run, host: *mut u8, flags: u64) -> Entry {
        let entry = Entry { base: run.first, len: run.len, host, bus_flags: run.bus | flags };
        self.private().tlb.insert(iova, &entry);
        entry
    }

    /// The leaf of `iova` and its neighbours, as far as they continue each other, within 16 times its
    /// size.
    fn merge(&self, leaf: &Mapping, iova: u64) -> Run {
        let table = &self.space.inner.table;
        let alone = Run::of(leaf);
        let mask = (1u64 << (leaf.page_log2 + MERGE_LOG2)) - 1;
        let (low, high) = (iova & !mask, iova | mask);
        // What most often continues nothing is asked first.
        let continues_before =
            alone.first > low
                && table.lookup(Iova::new(alone.first - 1)).ok().flatten().is_some_and(|before| {
                    before.prot == leaf.prot && Run::of(&before).joins(&alone)
                });
        let (start, mut run) =
            if continues_before { (low, None) } else { (alone.first + alone.len, Some(alone)) };
        if start > high {
            return alone;
        }
        let _ = table.walk(Iova::new(start), high - start + 1, |next| {
            let next_run = Run::of(&next);
            let fits = next.prot == leaf.prot && next.page_log2 >= leaf.page_log2;
            match &mut run {
                Some(run) if fits && run.joins(&next_run) => run.len += next_run.len,
                Some(run) if run.has(iova) => return ControlFlow::Break(()),
                run => *run = fits.then_some(next_run),
            }
            ControlFlow::Continue(())
        });
        // An entry that changed under the walk may have cut it off.
        run.filter(|run| run.has(iova)).unwrap_or(alone)
    }

    /// How many of `len` bytes from `iova` are adjacent in a remote region.
    fn remote_run(&self, leaf: &Mapping, iova: u64, len: usize) -> usize {
        let mut run = Run::of(leaf);
        let last = iova.saturating_add(len as u64 - 1);
        let end = run.first + run.len;
        if end <= last {
            let walked = self.space.inner.table.walk(Iova::new(end), last - end + 1, |next| {
                if next.prot != leaf.prot || !run.joins(&Run::of(&next)) {
                    return ControlFlow::Break(());
                }
                run.len += Run::of(&next).len;
                ControlFlow::Continue(())
            });
            // What is not translated ends it, and faults by itself.
            let _ = walked;
        }
        (run.first + run.len - iova).min(len as u64) as usize
    }
}

/// Adjacent addresses that lead to adjacent ones.
#[derive(Clone, Copy)]
struct Run {
    first: u64,
    len: u64,
    bus: u64,
}

impl Run {
    const fn of(leaf: &Mapping) -> Self {
        Self { first: leaf.iova.raw(), len: 1 << leaf.page_log2, bus: leaf.bus.raw() }
    }

    const fn has(&self, iova: u64) -> bool {
        iova.wrapping_sub(self.first) < self.len
    }

    const fn joins(&self, next: &Self) -> bool {
        self.first + self.len == next.first && self.bus + self.len == next.bus
    }
}

fn flags_of(prot: Prot) -> u64 {
    let read = if prot.contains(Prot::READ) { READ } else { 0 };
    let write = if prot.contains(Prot::WRITE) { WRITE | WRITE_FAST } else { 0 };
    let both = if prot.contains(Prot::READ_WRITE) { BOTH_FAST } else { 0 };
    read | write | both
}
