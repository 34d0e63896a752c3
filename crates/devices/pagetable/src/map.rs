//! Mapping, in two passes.
//!
//! 1. *Prepare* checks every slot that will change, and builds each missing subtree where no walker
//!    can see it. Only this pass can fail; it then frees the new subtrees.
//! 2. *Commit* first issues a fence if anything was built. It links the subtrees, writes leaves
//!    into tables that existed before, and ends with another fence.
//!
//! Between the passes the subtrees are on a list that is linked through their tables'
//! [`TableMeta`], in the order of their addresses.
//!
//! [`TableMeta`]: crate::table_memory::TableMeta

use longshore_mem::{BusAddr, Granule, Iova};

use crate::cache_sync::CacheSync;
use crate::error::Error;
use crate::format::{Entry, Format};
use crate::geometry::{Part, Span};
use crate::prot::Prot;
use crate::simd;
use crate::sync::{AtomicU64, Ordering};
use crate::table::{PageTable, Touched};
use crate::table_memory::{TableAddr, TableMemory};

/// A mapping without its input addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// The number to add to a va, wrapping, for its bus address.
    pub(crate) delta: u64,
    pub(crate) attributes: u64,
    /// The largest page to use, as a logarithm.
    pub(crate) page_log2_max: u32,
}

impl Target {
    #[inline]
    fn bus(&self, va: u64) -> u64 {
        va.wrapping_add(self.delta)
    }
}

/// Subtrees that were built but not linked yet.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    pub(crate) first: Option<TableAddr>,
    last: Option<TableAddr>,
    /// The subtrees that were linked since then, in a list of their own.
    pub(crate) linked: Option<TableAddr>,
}

impl<F: Format, M: TableMemory, S: CacheSync> PageTable<F, M, S> {
    /// Maps `len_bytes` from `iova` to the bus addresses from `bus` on, in the largest pages that
    /// fit.
    ///
    /// If there already is a table where a block would fit, smaller leaves are written to that
    /// table, even if it is empty. [`reclaim`](Self::reclaim) detaches empty tables that earlier
    /// unmapping left behind.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::OutOfMemory`], [`Error::Misaligned`], [`Error::OutOfRange`],
    /// [`Error::BusOutOfRange`], [`Error::Prot`]. Nothing has changed then, not even for a moment.
    pub fn map(&self, iova: Iova, bus: BusAddr, len_bytes: u64, prot: Prot) -> Result<(), Error> {
        self.map_up_to(iova, bus, len_bytes, prot, u64::BITS)
    }

    /// Maps `count` pages of `page` bytes each, in leaves of that size. If a table that earlier
    /// unmapping left behind is in the way of a leaf, smaller leaves are used there;
    /// [`reclaim`](Self::reclaim) detaches such tables.
    ///
    /// # Errors
    /// As [`map`](Self::map), and [`Error::PageSize`] if the format has no pages of that size.
    pub fn map_pages(
        &self,
        iova: Iova,
        bus: BusAddr,
        page: Granule,
        count: u64,
        prot: Prot,
    ) -> Result<(), Error> {
        let len_bytes = self.pages_len(iova, page, count)?;
        let page_log2 = u32::from(page.log2());
        if bus.raw() & (page.bytes() - 1) != 0 {
            return Err(Error::Misaligned { value: bus.raw(), page_log2 });
        }
        self.map_up_to(iova, bus, len_bytes, prot, page_log2)
    }

    /// Returns the length of `count` pages at `iova`, if the format has such pages and `iova` is
    /// aligned.
    pub(crate) fn pages_len(&self, iova: Iova, page: Granule, count: u64) -> Result<u64, Error> {
        let page_log2 = u32::from(page.log2());
        if self.format.geometry().page_sizes() & page.bytes() == 0 {
            return Err(Error::PageSize { page_log2 });
        }
        if !iova.is_aligned(page) {
            return Err(Error::Misaligned { value: iova.raw(), page_log2 });
        }
        let too_long = Error::OutOfRange { iova, len_bytes: u64::MAX };
        count.checked_mul(page.bytes()).ok_or(too_long)
    }

    fn map_up_to(
        &self,
        iova: Iova,
        bus: BusAddr,
        len_bytes: u64,
        prot: Prot,
        page_log2_max: u32,
    ) -> Result<(), Error> {
        let span = self.span(iova, len_bytes)?;
        let geometry = self.format.geometry();
        let page_log2 = geometry.granule_log2();
        if bus.raw() & ((1 << page_log2) - 1) != 0 {
            return Err(Error::Misaligned { value: bus.raw(), page_log2 });
        }
        let bus_last = bus.raw().checked_add(len_bytes - 1);
        if bus_last.is_none_or(|last| last >> geometry.output_bits() != 0) {
            return Err(Error::BusOutOfRange { bus, len_bytes });
        }
        let attributes = self.format.attributes(prot).ok_or(Error::Prot { prot })?;
        let delta = bus.raw().wrapping_sub(span.first);
        self.map_span(span, &Target { delta, attributes, page_log2_max })
    }

    #[inline]
    fn map_span(&self, span: Span, target: &Target) -> Result<(), Error> {
        let (level, table) = self.descend_to_map(span)?;
        if level > 0 {
            return self.map_in(level, table, span, target);
        }
        let slots = self.pages(table, span);
        match slots {
            [slot] if slot.load(Ordering::Relaxed) & self.format.present_mask() != 0 => {
                return Err(Error::Exists { at: self.iova(span.first) });
            }
            [_] => {}
            _ => self.prepare_pages(slots, span)?,
        }
        self.fill_leaves(slots, 0, span.first, target);
        self.sync.clean(slots);
        self.sync.fence();
        Ok(())
    }

    /// Maps a span that is not just a part of one existing table of pages.
    #[inline(never)]
    fn map_in(
        &self,
        level: u32,
        table: TableAddr,
        span: Span,
        target: &Target,
    ) -> Result<(), Error> {
        let mut pending = Pending::default();
        let prepared = self.prepare(level, table, span, target, &mut pending);
        if prepared.is_err() {
            self.discard(pending.first);
            return prepared;
        }
        if pending.first.is_some() {
            self.sync.fence();
        }
        let committed = self.commit(level, table, span, target, &mut pending);
        self.sync.fence();
        if committed.is_err() {
            // Only if another thread has mapped the same range meanwhile.
            self.discard(pending.first);
            return committed;
        }
        if !S::COHERENT {
            self.settle(pending.linked);
        }
        Ok(())
    }

    /// Returns the lowest table that contains `span`.
    #[inline]
    fn descend_to_map(&self, span: Span) -> Result<(u32, TableAddr), Error> {
        let geometry = self.format.geometry();
        if S::COHERENT
            && geometry.is_in_pages_table(span)
            && let Some(table) = self.pages_table_512(span.first)
        {
            return Ok((0, table));
        }
        let (mut step, mut table) = (geometry.root_step(), self.root);
        let live = self.live();
        while step.level > 0 && span.first >> step.shift == span.last >> step.shift {
            let slot = live.slot_in_use(table, step.index(span.first));
            match self.decode(step.level, slot) {
                Entry::Table(child) => {
                    self.settle_path(slot, child);
                    table = child;
                    step = geometry.below(step);
                }
                Entry::Absent => break,
                Entry::Leaf(_) | Entry::Reserved => {
                    return Err(Error::Exists { at: self.iova(span.first) });
                }
            }
        }
        Ok((step.level, table))
    }

    /// Cleans the entry for a table that another thread has linked, if that thread may not have
    /// reached its last fence. Our own fence then makes the entry visible to the walker, before
    /// mappings that depend on it.
    #[inline]
    fn settle_path(&self, slot: &AtomicU64, child: TableAddr) {
        if !S::COHERENT && !self.memory.meta(child).is_settled() {
            self.sync.clean(core::slice::from_ref(slot));
        }
    }

    /// Marks these tables as reachable for walkers: a fence has followed their linking.
    pub(crate) fn settle(&self, mut next: Option<TableAddr>) {
        while let Some(table) = next {
            let meta = self.memory.meta(table);
            next = meta.next();
            meta.set_settled(true);
        }
    }

    /// Frees the subtrees on a list, which will not be linked.
    pub(crate) fn discard(&self, mut next: Option<TableAddr>) {
        while let Some(table) = next {
            let meta = self.memory.meta(table);
            next = meta.next();
            self.free_subtree(meta.level(), table);
        }
    }

    /// Returns `true` if the slot can be a leaf: its whole range is mapped, to an aligned bus
    /// address.
    #[inline]
    fn leaf_fits(&self, level: u32, part: Part, target: &Target) -> bool {
        let geometry = self.format.geometry();
        let shift = geometry.shift(level);
        part.whole
            && geometry.runs(level) != 0
            && shift <= target.page_log2_max
            && target.bus(part.span.first) & ((1 << shift) - 1) == 0
    }

    fn prepare(
        &self,
        level: u32,
        table: TableAddr,
        span: Span,
        target: &Target,
        pending: &mut Pending,
    ) -> Result<(), Error> {
        let geometry = self.format.geometry();
        if level == 0 {
            return self.prepare_pages(self.pages(table, span), span);
        }
        let entries = self.entries(level, table);
        for part in geometry.parts(level, span) {
            let slot = &entries[part.index];
            match self.decode(level, slot) {
                Entry::Table(child) => {
                    self.settle_path(slot, child);
                    self.prepare(level - 1, child, part.span, target, pending)?;
                }
                Entry::Leaf(_) | Entry::Reserved => {
                    return Err(Error::Exists { at: self.iova(part.span.first) });
                }
                Entry::Absent if self.leaf_fits(level, part, target) => {}
                Entry::Absent => {
                    let built = self.build(level - 1, part.span, target)?;
                    self.push_pending(pending, level - 1, part.span.first, built);
                }
            }
        }
        Ok(())
    }

    /// Puts `built`, a table of `level` for the addresses from `va` on, on the list of subtrees to
    /// link.
    pub(crate) fn push_pending(
        &self,
        pending: &mut Pending,
        level: u32,
        va: u64,
        built: TableAddr,
    ) {
        let meta = self.memory.meta(built);
        meta.note(level, va);
        meta.set_next(None);
        if !S::COHERENT {
            meta.set_settled(false);
        }
        match pending.last.replace(built) {
            Some(last) => self.memory.meta(last).set_next(Some(built)),
            None => pending.first = Some(built),
        }
    }

    /// Checks that no page is mapped in `slots`, which translate `span`.
    #[inline]
    fn prepare_pages(&self, slots: &[AtomicU64], span: Span) -> Result<(), Error> {
        match simd::find_different(self.token, slots, self.format.present_mask(), 0) {
            None => Ok(()),
            Some(at) => {
                let va = span.first + ((at as u64) << self.format.geometry().granule_log2());
                Err(Error::Exists { at: self.iova(va) })
            }
        }
    }

    /// Builds a table of `level` that maps `span`, and the tables below it. No walker can see them
    /// yet. Every entry is written once, and every line is cleaned once.
    pub(crate) fn build(
        &self,
        level: u32,
        span: Span,
        target: &Target,
    ) -> Result<TableAddr, Error> {
        let table = self.alloc_table(level)?;
        match self.build_in(level, table, span, target) {
            Ok(()) => Ok(table),
            Err(error) => {
                self.free_table(level, table);
                Err(error)
            }
        }
    }

    /// Fills a table that no walker can see yet, and builds the tables below it. If it fails, no
    /// table is left below.
    fn build_in(
        &self,
        level: u32,
        table: TableAddr,
        span: Span,
        target: &Target,
    ) -> Result<(), Error> {
        let geometry = self.format.geometry();
        let entries = self.entries(level, table);
        let (first, last) = (geometry.index(level, span.first), geometry.index(level, span.last));
        simd::clear(self.token, &entries[..first]);
        simd::clear(self.token, &entries[last + 1..]);
        if level == 0 {
            self.fill_leaves(&entries[first..=last], 0, span.first, target);
            self.sync.clean(entries);
            return Ok(());
        }
        let mut children = self.alloc_children(level, span, target)?;
        let mut parts = geometry.parts(level, span).peekable();
        while let Some(part) = parts.next() {
            if self.leaf_fits(level, part, target) {
                let mut end = part.index + 1;
                while let Some(more) = parts.next_if(|part| self.leaf_fits(level, *part, target)) {
                    end = more.index + 1;
                }
                self.fill_leaves(&entries[part.index..end], level, part.span.first, target);
                continue;
            }
            let Some(child) = children else { break };
            let meta = self.memory.meta(child);
            children = meta.next();
            if let Err(error) = self.build_in(level - 1, child, part.span, target) {
                self.free_table(level - 1, child);
                self.free_unfilled(level - 1, children);
                self.free_children(level, &entries[first..part.index]);
                return Err(error);
            }
            if !S::COHERENT {
                meta.set_settled(true);
            }
            let entry = self.format.table(level, child);
            entries[part.index].store(entry, Ordering::Relaxed);
        }
        self.sync.clean(entries);
        Ok(())
    }

    /// Allocates the tables that [`build_in`](Self::build_in) needs directly below a table of
    /// `level`, as a list. It allocates all of them before any is filled: each allocation is an
    /// atomic exchange, which would wait for cache lines that are being cleaned.
    fn alloc_children(
        &self,
        level: u32,
        span: Span,
        target: &Target,
    ) -> Result<Option<TableAddr>, Error> {
        let mut taken = None;
        for part in self.format.geometry().parts(level, span) {
            if self.leaf_fits(level, part, target) {
                continue;
            }
            match self.alloc_table(level - 1) {
                Ok(table) => self.memory.meta(table).set_next(taken.replace(table)),
                Err(error) => {
                    self.free_unfilled(level - 1, taken);
                    return Err(error);
                }
            }
        }
        Ok(taken)
    }

    /// Frees a list of tables that were not written to.
    fn free_unfilled(&self, level: u32, mut next: Option<TableAddr>) {
        while let Some(table) = next {
            next = self.memory.meta(table).next();
            self.free_table(level, table);
        }
    }

    /// Fills `slots`, the first of which translates `va`, with the largest leaves that fit.
    #[inline]
    fn fill_leaves(&self, slots: &[AtomicU64], level: u32, va: u64, target: &Target) {
        if let [slot] = slots {
            let bus = BusAddr::new(target.bus(va));
            let leaf = self.format.leaf(level, 0, bus, target.attributes);
            slot.store(leaf, Ordering::Relaxed);
            return;
        }
        self.fill_groups(slots, level, va, target);
    }

    #[inline(never)]
    fn fill_groups(&self, slots: &[AtomicU64], level: u32, va: u64, target: &Target) {
        let geometry = self.format.geometry();
        let shift = geometry.shift(level);
        let mut done = 0;
        while done < slots.len() {
            let va = va + ((done as u64) << shift);
            let (bus, left) = (target.bus(va), slots.len() - done);
            let Some(group) = geometry.leaf_group(level, va, bus, left, target.page_log2_max)
            else {
                break;
            };
            let run = &slots[done..done + group.slots];
            let leaf = |bus| {
                let bus = BusAddr::new(bus);
                self.format.leaf(level, group.run_log2, bus, target.attributes)
            };
            if F::RUNS_REPEAT && group.run_log2 != 0 {
                let page = 1u64 << (shift + group.run_log2);
                for (run, nth) in run.chunks_exact(1 << group.run_log2).zip(0u64..) {
                    simd::fill(self.token, run, leaf(bus + nth * page), 0);
                }
            } else {
                simd::fill(self.token, run, leaf(bus), self.format.step(level));
            }
            done += group.slots;
        }
    }

    fn commit(
        &self,
        level: u32,
        table: TableAddr,
        span: Span,
        target: &Target,
        pending: &mut Pending,
    ) -> Result<(), Error> {
        let geometry = self.format.geometry();
        if level == 0 {
            let slots = self.pages(table, span);
            self.fill_leaves(slots, 0, span.first, target);
            self.sync.clean(slots);
            return Ok(());
        }
        let entries = self.entries(level, table);
        let mut touched = Touched::default();
        let mut parts = geometry.parts(level, span).peekable();
        while let Some(part) = parts.next() {
            let slot = &entries[part.index];
            if let Some(built) = self.next_pending_for(pending, level - 1, part.span.first) {
                let meta = self.memory.meta(built);
                pending.first = meta.next();
                match self.link(level, slot, built, part.span) {
                    Ok(true) => meta.set_next(pending.linked.replace(built)),
                    Ok(false) => {}
                    Err(error) => {
                        self.clean(entries, &mut touched);
                        return Err(error);
                    }
                }
                touched.extend(part.index..part.index + 1);
            } else if let Entry::Table(child) = self.decode(level, slot) {
                self.clean(entries, &mut touched);
                self.commit(level - 1, child, part.span, target, pending)?;
            } else {
                // Prepared as a leaf, and perhaps the next slots as well.
                let mut end = part.index + 1;
                while let Some(more) = parts.next_if(|part| {
                    self.leaf_fits(level, *part, target)
                        && self.decode(level, &entries[part.index]) == Entry::Absent
                }) {
                    end = more.index + 1;
                }
                self.fill_leaves(&entries[part.index..end], level, part.span.first, target);
                touched.extend(part.index..end);
            }
        }
        self.clean(entries, &mut touched);
        Ok(())
    }

    /// Returns the next subtree to link, if it is a table of `level` for the addresses from `va`
    /// on.
    #[inline]
    fn next_pending_for(&self, pending: &Pending, level: u32, va: u64) -> Option<TableAddr> {
        pending.first.filter(|next| {
            let meta = self.memory.meta(*next);
            meta.level() == level && meta.first_va() == va
        })
    }

    /// Links `built`, a table of the level below, which maps `span`, into `slot`. If another thread
    /// has linked a table there meanwhile, moves the entries of `built` to that table and returns
    /// `false`.
    fn link(
        &self,
        level: u32,
        slot: &AtomicU64,
        built: TableAddr,
        span: Span,
    ) -> Result<bool, Error> {
        let mut before = slot.load(Ordering::Acquire);
        loop {
            match self.format.decode(level, before) {
                Entry::Absent => {
                    let entry = self.format.table(level, built);
                    // Release: a walker that reads this entry sees the table filled.
                    match slot.compare_exchange(before, entry, Ordering::AcqRel, Ordering::Acquire)
                    {
                        Ok(_) => return Ok(true),
                        Err(now) => before = now,
                    }
                }
                Entry::Table(live) => {
                    self.move_over(level - 1, built, live, span)?;
                    return Ok(false);
                }
                Entry::Leaf(_) | Entry::Reserved => {
                    self.free_subtree(level - 1, built);
                    return Err(Error::Exists { at: self.iova(span.first) });
                }
            }
        }
    }

    /// Moves the entries for `span` from `built` to `live`, which another thread has linked in its
    /// place, and frees `built`. No walker has seen `built`. Nothing is allocated.
    ///
    /// In `live`, only the slots at the ends of `span` can be in use, and only by tables: all other
    /// slots belong to this call alone.
    fn move_over(
        &self,
        level: u32,
        built: TableAddr,
        live: TableAddr,
        span: Span,
    ) -> Result<(), Error> {
        let (from, to) = (self.entries(level, built), self.entries(level, live));
        for part in self.format.geometry().parts(level, span) {
            let (slot, entry) = (&to[part.index], from[part.index].load(Ordering::Relaxed));
            let Entry::Table(child) = self.format.decode(level, entry) else {
                slot.store(entry, Ordering::Relaxed);
                self.sync.clean(core::slice::from_ref(slot));
                continue;
            };
            self.memory.meta(child).set_settled(false);
            if self.link(level, slot, child, part.span)? {
                self.sync.clean(core::slice::from_ref(slot));
                self.sync.fence();
                self.memory.meta(child).set_settled(true);
            } else if let Entry::Table(live) = self.decode(level, slot) {
                self.settle_path(slot, live);
            }
        }
        self.free_table(level, built);
        Ok(())
    }
}
