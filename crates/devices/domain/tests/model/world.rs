//! Runs operations on a domain and on its model.

use std::ops::Range;
use std::slice;
use std::time::Duration;

use longshore_domain::iova::IovaError;
use longshore_domain::{
    Batch, Coherent, Direction, Domain, Error, Failed, Local, Mapping, PoolError,
};
use longshore_mem::{DmaMemory, Iova};
use longshore_pagetable::Prot;

use crate::backend::CHUNK;
use crate::books::Books;
use crate::device::around;
use crate::memory::{Memory, PAGE, Place};
use crate::ops::{End, Op, Part};
use crate::oracle::{Route, Shape, Transfer};

/// A mapping of any handle.
enum Held<'d> {
    Domain(Mapping<'d, Memory>),
    Local(Mapping<'d, Memory, Local<'d>>),
}

macro_rules! of {
    ($held:expr, $mapping:ident => $then:expr) => {
        match $held {
            Held::Domain($mapping) => $then,
            Held::Local($mapping) => $then,
        }
    };
}

pub(crate) struct Shared<'d> {
    coherent: Coherent<'d>,
    pub(crate) iova: u64,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) struct World<'d, 'b> {
    domain: &'d Domain,
    handles: &'d [Local<'d>; 2],
    pub(crate) books: &'b mut Books,
    live: Vec<(Held<'d>, u64)>,
    batch: Batch<'d, Memory>,
    batches: [Batch<'d, Memory, Local<'d>>; 2],
    deferred: [Vec<u64>; 3],
    pub(crate) coherent: Vec<Shared<'d>>,
}

impl<'d, 'b> World<'d, 'b> {
    pub(crate) fn new(
        domain: &'d Domain,
        handles: &'d [Local<'d>; 2],
        books: &'b mut Books,
    ) -> Self {
        Self {
            domain,
            handles,
            books,
            live: Vec::new(),
            batch: domain.batch(),
            batches: [handles[0].batch(), handles[1].batch()],
            deferred: [Vec::new(), Vec::new(), Vec::new()],
            coherent: Vec::new(),
        }
    }

    /// Returns memory with bytes that no other memory has.
    fn memory(&mut self, skip: usize, len: usize) -> (Memory, Vec<u8>) {
        let memory = Memory::new(skip, len);
        let place = memory.place();
        let tag = self.books.next.wrapping_mul(0x9e37_79b9);
        let byte = |at: usize| 0x80 | (at.wrapping_mul(0x9e37_79b1 + tag as usize) >> 9) as u8;
        let bytes: Vec<u8> = (0..place.len).map(byte).collect();
        place.fill(&bytes);
        (memory, bytes)
    }

    fn add(&mut self, transfer: Transfer) -> u64 {
        let (start, len) = transfer.window();
        let windows = self.books.transfers.values().chain(&self.books.lost).map(Transfer::window);
        let shared = self.coherent.iter().map(|one| (one.iova, one.bytes.len() as u64));
        for (other, other_len) in windows.chain(shared) {
            assert!(
                start + len <= other || other + other_len <= start,
                "{start:#x} is mapped twice"
            );
        }
        self.books.next += 1;
        self.books.transfers.insert(self.books.next, transfer);
        self.books.next
    }

    fn pick(&self, which: usize) -> Option<(usize, u64)> {
        let at = which.checked_rem(self.live.len())?;
        Some((at, self.live[at].1))
    }

    /// Adds a new mapping to the model, or checks that an error was possible.
    fn made(
        &mut self,
        result: Result<Held<'d>, Failed<Memory>>,
        (bytes, first, place): (Vec<u8>, usize, Place),
        (direction, is_reported): (Direction, bool),
        route: Route,
        refused_before: u32,
    ) {
        let refused = self.books.script().refused - refused_before;
        let pool_bytes = self.domain.counters().pool_bytes;
        let is_full = pool_bytes.saturating_add(CHUNK) > self.books.pool_limit;
        // If pools are full, idle chunks are unmapped first.
        let lost_chunk = self.books.script().lost_chunk;
        self.books.is_stuck |= lost_chunk;
        let held = match result {
            Ok(held) => held,
            Err(Failed { error, value }) => {
                assert_eq!(value.place().bytes(), bytes, "it is given back unchanged");
                let else_direct = matches!(route, Route::Slot { else_direct: true });
                match *error {
                    Error::Backend { .. } => assert_ne!(refused, 0),
                    Error::Pool(PoolError::Limit { held_bytes, limit_bytes }) => {
                        assert!(is_full && !else_direct);
                        assert_eq!((held_bytes, limit_bytes), (pool_bytes, self.books.pool_limit));
                    }
                    Error::Pool(PoolError::Backend(_)) => assert!(refused != 0 && !else_direct),
                    Error::Pool(PoolError::Iova(_)) => {
                        assert!(self.books.is_narrow && !else_direct);
                    }
                    Error::Iova(IovaError::Full { len_bytes, longest_bytes, .. }) => {
                        assert!(self.books.is_narrow && longest_bytes < len_bytes);
                    }
                    Error::Empty { .. } => assert!(value.host().is_empty()),
                    other => panic!("{other}"),
                }
                if self.domain.counters().leaked != self.books.counts.leaked {
                    // The pieces that were mapped before the refusal could not be unmapped.
                    assert!(route == Route::Unaligned && refused >= 2);
                    self.books.counts.leaked += 1;
                    self.books.is_stuck = true;
                }
                let copied = self.domain.counters().copied_bytes;
                assert!(copied - self.books.counts.copied < 2 * PAGE);
                self.books.counts.copied = copied;
                return;
            }
        };
        let (iova, len, is_bounced) =
            of!(&held, mapping => (mapping.iova().raw(), mapping.len(), mapping.is_bounced()));
        let route = match route {
            Route::Slot { else_direct } if !is_bounced => {
                assert!(else_direct && (is_full || self.books.is_narrow || refused != 0));
                Route::Direct
            }
            route => route,
        };
        assert_eq!(is_bounced, route != Route::Direct);
        let rights = self.books.rules.rights(direction);
        let memory = (bytes, first, place);
        let transfer = Transfer::new([iova, len], direction, rights, is_reported, route, memory);
        if !matches!(route, Route::Slot { .. }) {
            assert_eq!(iova % PAGE, first as u64 % PAGE);
        }
        self.count_map(&transfer);
        let (start, all) = transfer.window();
        let id = self.add(transfer);
        self.live.push((held, id));
        // All bytes that it can access, also around the transfer.
        if rights.contains(Prot::READ) {
            self.access(0, start, all as usize, None);
        }
    }

    fn count_map(&mut self, transfer: &Transfer) {
        let counts = &mut self.books.counts;
        counts.maps += 1;
        counts.bounced += u64::from(!matches!(transfer.shape, Shape::Direct));
        if !transfer.is_reported {
            counts.copied += transfer.copied(0..transfer.len);
        }
    }

    fn map(
        &mut self,
        handle: usize,
        skip: usize,
        len: usize,
        direction: Direction,
        reported: bool,
    ) {
        let is_reported = reported && direction == Direction::FromDevice;
        let (memory, bytes) = self.memory(skip, len);
        let (place, first) = (memory.place(), memory.first);
        let route = self.books.rules.route((first % PAGE as usize) as u64, len as u64);
        let before = self.books.script().refused;
        let result = match (handle.checked_sub(1), is_reported) {
            (None, false) => self.domain.map(memory, direction).map(Held::Domain),
            (None, true) => self.domain.map_reported(memory).map(Held::Domain),
            (Some(nth), false) => self.handles[nth].map(memory, direction).map(Held::Local),
            (Some(nth), true) => self.handles[nth].map_reported(memory).map(Held::Local),
        };
        self.made(result, (bytes, first, place), (direction, is_reported), route, before);
    }

    fn map_at(&mut self, page: u64, skip: usize, pages: usize, direction: Direction) {
        let (memory, bytes) = self.memory(skip, pages * PAGE as usize);
        let (place, first) = (memory.place(), memory.first);
        let before = self.books.script().refused;
        let iova = Iova::new(page * PAGE);
        match self.domain.map_at(iova, memory, direction) {
            Ok(mapping) => {
                assert!(mapping.iova() == iova && page != 0);
                let held = Ok(Held::Domain(mapping));
                let memory = (bytes, first, place);
                self.made(held, memory, (direction, false), Route::Direct, before);
            }
            Err(Failed { error, value }) => {
                assert_eq!(value.place().bytes(), bytes);
                match *error {
                    Error::Unaligned { .. } => assert_ne!(skip, 0),
                    Error::Empty { .. } => assert_eq!(pages, 0),
                    // In use by a transfer, or cached by a handle.
                    Error::Iova(IovaError::NotFree { start, .. }) => assert_eq!(start, iova),
                    Error::Backend { .. } => assert_ne!(self.books.script().refused, before),
                    other => panic!("{other}"),
                }
            }
        }
    }

    /// Returns the range of `part`.
    fn part(transfer: &Transfer, part: &Part) -> Range<u64> {
        let start = transfer.len * part.start / 1000;
        let len = if part.len == u64::MAX { transfer.len - start } else { part.len };
        start..start + len
    }

    fn on_part(
        &mut self,
        which: usize,
        part: &Part,
        then: impl FnOnce(&mut Self, usize, u64, Range<u64>),
    ) {
        let Some((at, id)) = self.pick(which) else { return };
        let bytes = Self::part(&self.books.transfers[&id], part);
        then(self, at, id, bytes);
    }

    fn transfer(&mut self, id: u64) -> &mut Transfer {
        self.books.transfers.get_mut(&id).expect("a transfer that lives")
    }

    /// Returns true if the bytes lie in the transfer, and asserts that the outcome is an error if not.
    fn is_inside(&self, id: u64, bytes: &Range<u64>, outcome: Result<(), Error>) -> bool {
        match outcome {
            Ok(()) => assert!(bytes.end <= self.books.transfers[&id].len),
            Err(Error::Outside { start, end, .. }) => {
                assert_eq!((start, end), (bytes.start, bytes.end));
                assert!(bytes.end > self.books.transfers[&id].len);
                return false;
            }
            Err(other) => panic!("{other}"),
        }
        true
    }

    fn sync(&mut self, at: usize, id: u64, bytes: Range<u64>, for_cpu: bool) {
        let transfer = &self.books.transfers[&id];
        let is_inside = bytes.end <= transfer.len;
        let one_way = match for_cpu {
            true => transfer.direction == Direction::ToDevice,
            false => transfer.is_reported,
        };
        // If a device reports the length that it has written, only known bytes are synchronised.
        if is_inside && for_cpu && !one_way && !transfer.is_known(bytes.clone()) {
            return;
        }
        let held = &mut self.live[at].0;
        let outcome = match for_cpu {
            true => of!(held, mapping => mapping.sync_for_cpu(bytes.clone())),
            false => of!(held, mapping => mapping.sync_for_device(bytes.clone())),
        };
        if self.is_inside(id, &bytes, outcome) && !one_way {
            let transfer = self.transfer(id);
            if for_cpu {
                transfer.copy_to_memory(bytes.clone());
            } else {
                transfer.copy_to_device(bytes.clone());
            }
            self.books.counts.copied += self.books.transfers[&id].copied(bytes);
            self.transfer(id).check_memory();
        }
    }

    fn end(&mut self, which: usize, how: &End) {
        let Some((at, id)) = self.pick(which) else { return };
        let (held, _) = self.live.swap_remove(at);
        let transfer = &self.books.transfers[&id];
        let (len, is_reported) = (transfer.len, transfer.is_reported);
        let before = self.books.script().refused;
        let unwritten = if is_reported { 0 } else { len };
        let (written, result) = match how {
            End::Unmap => (unwritten, Self::unmap(held)),
            End::Complete(part, more) => {
                let written = len * part / 1000 + more;
                if written > len {
                    let failed = of!(held, mapping => match mapping.complete(written) {
                        Err(Failed { error, value }) => (error, Held::from(value)),
                        Ok(_) => panic!("{written} bytes of {len} were written"),
                    });
                    assert!(matches!(*failed.0, Error::Reported { .. }), "{}", failed.0);
                    self.live.push((failed.1, id));
                    return;
                }
                (written, Self::complete(held, written))
            }
            End::Drop => {
                of!(held, mapping => drop(mapping));
                self.dropped(id, before);
                return;
            }
            End::Defer { handle } => return self.defer(held, id, *handle),
        };
        match result {
            Ok(memory) => {
                self.forget(id, written, true);
                drop(memory);
            }
            Err((error, held)) => {
                assert!(matches!(*error, Error::Backend { .. }), "{error}");
                assert_ne!(self.books.script().refused, before);
                self.stays(&[id]);
                self.live.push((held, id));
            }
        }
    }

    fn unmap(held: Held<'d>) -> Result<Memory, (Box<Error>, Held<'d>)> {
        of!(held, mapping => mapping.unmap().map_err(|failed| (failed.error, failed.value.into())))
    }

    fn complete(held: Held<'d>, written: u64) -> Result<Memory, (Box<Error>, Held<'d>)> {
        of!(held, mapping => {
            mapping.complete(written).map_err(|failed| (failed.error, failed.value.into()))
        })
    }

    /// Records that an unmapping was refused. The list of the backend shows if it is still mapped.
    fn stays(&mut self, ids: &[u64]) {
        for id in ids {
            let (start, len) = self.books.transfers[id].window();
            let is_whole = {
                let script = self.books.script();
                (start..start + len).step_by(PAGE as usize).all(|at| around(&script, at).is_some())
            };
            self.transfer(*id).is_shaky |= !is_whole;
        }
    }

    /// Records that a transfer has ended, of which the device has written `written` bytes.
    fn forget(&mut self, id: u64, written: u64, is_flushed: bool) {
        let mut transfer = self.books.transfers.remove(&id).expect("a transfer that lives");
        if transfer.direction != Direction::ToDevice && written != 0 {
            transfer.copy_to_memory(0..written);
            self.books.counts.copied += transfer.copied(0..written);
        }
        let has_ranges = !matches!(transfer.shape, Shape::Slot(_));
        self.books.counts.flushes += u64::from(is_flushed && has_ranges);
        self.books.counts.unmaps += 1;
        if transfer.place.is_alive() {
            transfer.check_memory();
        }
        self.books.past.push(transfer.iova);
        if self.books.past.len() > 16 {
            self.books.past.remove(0);
        }
    }

    fn dropped(&mut self, id: u64, refused_before: u32) {
        let is_refused = self.books.script().refused != refused_before;
        assert_eq!(self.books.transfers[&id].place.is_alive(), is_refused);
        if !is_refused {
            return self.forget(id, 0, true);
        }
        let mut transfer = self.books.transfers.remove(&id).expect("a transfer that lives");
        transfer.is_shaky = true;
        self.books.counts.leaked += 1;
        self.books.is_stuck = true;
        self.books.lost.push(transfer);
    }

    fn defer(&mut self, held: Held<'d>, id: u64, handle: usize) {
        let failed = match (held, handle.checked_sub(1)) {
            (Held::Domain(mapping), _) => {
                mapping.unmap_deferred(&mut self.batch).unwrap();
                self.deferred[0].push(id);
                return;
            }
            (Held::Local(mapping), nth) => {
                let nth = nth.unwrap_or(0);
                match mapping.unmap_deferred(&mut self.batches[nth]) {
                    Ok(()) => return self.deferred[nth + 1].push(id),
                    Err(failed) => failed,
                }
            }
        };
        assert!(matches!(*failed.error, Error::OtherHandle { .. }), "{failed}");
        self.live.push((failed.value.into(), id));
    }

    fn flush(&mut self, handle: usize) {
        let before = self.books.script().refused;
        let ids = std::mem::take(&mut self.deferred[handle]);
        let mut back = Vec::new();
        let outcome = match handle.checked_sub(1) {
            None => self.batch.flush(|memory| back.push(memory)),
            Some(nth) => self.batches[nth].flush(|memory| back.push(memory)),
        };
        if let Err(error) = outcome {
            assert!(matches!(error, Error::Backend { .. }), "{error}");
            assert!(back.is_empty() && self.books.script().refused != before);
            self.stays(&ids);
            self.deferred[handle] = ids;
            return;
        }
        assert_eq!(back.len(), ids.len());
        let is_direct = |id: &u64| !matches!(self.books.transfers[id].shape, Shape::Slot(_));
        let has_ranges = ids.iter().any(is_direct);
        self.books.counts.flushes += u64::from(has_ranges);
        for (id, memory) in ids.into_iter().zip(back) {
            let transfer = &self.books.transfers[&id];
            assert_eq!(memory.place().start, transfer.place.start, "other memory came back");
            let written = if transfer.is_reported { 0 } else { transfer.len };
            self.forget(id, written, false);
        }
    }

    #[allow(unsafe_code, reason = "lends bytes that the model reads")]
    fn lend(&mut self, handle: usize, skip: usize, len: usize, direction: Direction, part: &Part) {
        // The process is aborted if lent bytes cannot be unmapped.
        self.books.script().relent();
        let (memory, bytes) = self.memory(skip, len);
        let (place, first) = (memory.place(), memory.first);
        let rules = self.books.rules;
        let route = rules.route((first % PAGE as usize) as u64, len as u64);
        // SAFETY: the memory lives until the end, and no other code accesses it in between.
        let lent = unsafe { slice::from_raw_parts_mut(memory.host().cast().as_ptr(), len) };
        let (domain, handles) = (self.domain, self.handles);
        let world = &mut *self;
        let work = |iova: Iova| {
            let range = place.start.addr().get()..place.start.addr().get() + place.len;
            let around = around(&world.books.script(), iova.raw());
            let is_own = around.is_some_and(|entry| range.contains(&(entry.host as usize)));
            let route = match route {
                Route::Slot { else_direct: true } if is_own => Route::Direct,
                route => route,
            };
            let memory = (bytes, first, place.clone());
            let rights = rules.rights(direction);
            let place = [iova.raw(), len as u64];
            let transfer = Transfer::new(place, direction, rights, false, route, memory);
            world.count_map(&transfer);
            let id = world.add(transfer);
            let part = Self::part(&world.books.transfers[&id], part);
            let count = (part.end - part.start) as usize;
            world.access(0, iova.raw() + part.start, count, Some(0x33));
            world.access(1, iova.raw(), len.min(10_000), None);
            id
        };
        let outcome = match handle.checked_sub(1) {
            None if direction == Direction::ToDevice => domain.lend(lent, work),
            None => domain.lend_mut(lent, direction, work),
            Some(nth) if direction == Direction::ToDevice => handles[nth].lend(lent, work),
            Some(nth) => handles[nth].lend_mut(lent, direction, work),
        };
        match outcome {
            Ok(id) => self.forget(id, len as u64, true),
            Err(Error::Empty { .. }) => assert_eq!(len, 0),
            Err(Error::Pool(PoolError::Limit { .. })) => {
                assert!(self.domain.counters().pool_bytes + CHUNK > self.books.pool_limit);
            }
            Err(Error::Iova(IovaError::Full { .. }) | Error::Pool(PoolError::Iova(_))) => {
                assert!(self.books.is_narrow);
            }
            Err(other) => panic!("{other}"),
        }
        drop(memory);
    }

    fn share(&mut self, len: u64) {
        let before = self.books.script().refused;
        match self.domain.alloc_coherent(len) {
            Err(Error::Empty { .. }) => assert_eq!(len, 0),
            Ok(coherent) => {
                let (iova, all) = (coherent.iova().raw(), coherent.len());
                assert_eq!(all, len.next_multiple_of(PAGE));
                self.books.counts.maps += 1;
                self.coherent.push(Shared { coherent, iova, bytes: vec![0; all as usize] });
            }
            Err(Error::Backend { .. }) => assert_ne!(self.books.script().refused, before),
            Err(Error::Iova(IovaError::Full { .. })) => assert!(self.books.is_narrow),
            Err(other) => panic!("{other}"),
        }
    }

    fn unshare(&mut self, which: usize) {
        let Some(at) = which.checked_rem(self.coherent.len()) else { return };
        let before = self.books.script().refused;
        let Shared { coherent, iova, .. } = self.coherent.swap_remove(at);
        drop(coherent);
        let is_unmapped = self.books.script().refused == before;
        let counts = &mut self.books.counts;
        if is_unmapped {
            counts.unmaps += 1;
            counts.flushes += 1;
            self.books.past.push(iova);
        } else {
            counts.leaked += 1;
            self.books.lost_shares += 1;
            self.books.is_stuck = true;
        }
    }

    fn touch(&mut self, which: usize, at: u64, byte: u8) {
        let Some(nth) = which.checked_rem(self.coherent.len()) else { return };
        let Shared { coherent, bytes, .. } = &mut self.coherent[nth];
        let at = (at % coherent.len()) as usize;
        let mut seen = vec![0; bytes.len()];
        coherent.view().read(0, &mut seen).unwrap();
        assert!(seen == *bytes, "coherent memory");
        coherent.view_mut().write(at, &[byte]).unwrap();
        bytes[at] = byte;
    }

    fn shrink(&mut self) {
        let before = self.books.script().refused;
        let is_idle = |transfer: &Transfer| matches!(transfer.shape, Shape::Direct);
        let is_idle = self.books.transfers.values().all(is_idle);
        match self.domain.shrink(Duration::ZERO) {
            Ok(_) if is_idle && !self.books.is_stuck => {
                assert_eq!(self.domain.counters().pool_bytes, 0);
            }
            Ok(_) => {}
            Err(_) => {
                assert_ne!(self.books.script().refused, before);
                self.books.is_stuck = true;
            }
        }
    }

    pub(crate) fn apply(&mut self, op: Op) {
        match op {
            Op::Map { handle, skip, len, direction, is_reported } => {
                self.map(handle, skip, len, direction, is_reported);
            }
            Op::MapAt { page, skip, pages, direction } => self.map_at(page, skip, pages, direction),
            Op::Access { session, at, len, byte } => {
                let at = self.address(&at);
                self.access(session, at, len, byte);
            }
            Op::SyncForCpu { which, part } => {
                self.on_part(which, &part, |world, at, id, bytes| world.sync(at, id, bytes, true));
            }
            Op::SyncForDevice { which, part } => {
                self.on_part(which, &part, |world, at, id, bytes| world.sync(at, id, bytes, false));
            }
            Op::Look { which, part } => self.on_part(which, &part, Self::look),
            Op::Put { which, part, byte } => self.on_part(which, &part, |world, at, id, bytes| {
                world.put(at, id, bytes, byte);
            }),
            Op::End { which, how } => self.end(which, &how),
            Op::Flush { handle, refused } => {
                if let Some(partly) = refused {
                    self.books.script().refuse_unmap = Some((0, partly));
                }
                self.flush(handle);
            }
            Op::Lend { handle, skip, len, direction, part } => {
                self.lend(handle, skip, len, direction, &part);
            }
            Op::Coherent { len } => self.share(len),
            Op::CoherentPut { which, at, byte } => self.touch(which, at, byte),
            Op::CoherentDrop { which } => self.unshare(which),
            Op::Bounce(bounce) => {
                self.domain.set_bounce(bounce);
                self.books.rules.bounce = bounce;
            }
            Op::Shrink => self.shrink(),
            Op::RefuseMap { nth } => self.books.script().refuse_map = Some(nth),
            Op::RefuseUnmap { nth, partly } => {
                self.books.script().refuse_unmap = Some((nth, partly));
            }
        }
    }

    fn look(&mut self, at: usize, id: u64, bytes: Range<u64>) {
        let mut seen = vec![0xee; (bytes.end - bytes.start) as usize];
        let outcome = of!(&self.live[at].0, mapping => mapping.read(bytes.start, &mut seen));
        if self.is_inside(id, &bytes, outcome) {
            let transfer = self.transfer(id);
            transfer.check_memory();
            let from = transfer.first + bytes.start as usize;
            assert!(transfer.memory[from..from + seen.len()] == seen);
        }
    }

    fn put(&mut self, at: usize, id: u64, bytes: Range<u64>, byte: u8) {
        let new = vec![byte; (bytes.end - bytes.start) as usize];
        let held = &mut self.live[at].0;
        let outcome = of!(held, mapping => mapping.write(bytes.start, &new));
        if self.is_inside(id, &bytes, outcome) {
            let transfer = self.transfer(id);
            let from = transfer.first + bytes.start as usize;
            transfer.memory[from..from + new.len()].copy_from_slice(&new);
            transfer.check_memory();
        }
    }

    pub(crate) fn check(&self) {
        let shared = self.coherent.iter().map(|one| (one.iova, one.bytes.len() as u64));
        self.books.check(self.domain, shared);
    }

    /// Ends all mappings.
    pub(crate) fn finish(mut self) {
        self.books.script().relent();
        (0..3).for_each(|handle| self.flush(handle));
        while !self.live.is_empty() {
            self.end(0, &End::Unmap);
        }
        while !self.coherent.is_empty() {
            self.touch(0, 0, 1);
            self.unshare(0);
        }
        self.check();
    }
}

impl<'d> From<Mapping<'d, Memory>> for Held<'d> {
    fn from(mapping: Mapping<'d, Memory>) -> Self {
        Self::Domain(mapping)
    }
}

impl<'d> From<Mapping<'d, Memory, Local<'d>>> for Held<'d> {
    fn from(mapping: Mapping<'d, Memory, Local<'d>>) -> Self {
        Self::Local(mapping)
    }
}
