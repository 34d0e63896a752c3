//! Pages by index.
#![expect(unsafe_code, reason = "makes segments of parts of pages")]

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use super::kind::Kind;
use super::walk::{Key, Walk};
use crate::direction::{Dest, Direction, Source};
use crate::error::Error;
use crate::segment::Segment;

/// The number of slots in a leaf, as a binary logarithm. A leaf takes 1 KiB, and a walk looks it up
/// once for all of its pages.
const LEAF_LOG2: u32 = 7;
const LEAF_SLOTS: usize = 1 << LEAF_LOG2;

/// An index of pages of one size, of which any may be missing: a page cache, or the memory of a
/// guest.
///
/// It has two levels: a tree of leaves, and leaves of 128 slots.
pub struct PageIndex<'m, D> {
    leaves: BTreeMap<u64, Box<Leaf>>,
    page_log2: u32,
    memory: PhantomData<Segment<'m, D>>,
}

type Leaf = [Option<NonNull<u8>>; LEAF_SLOTS];

// SAFETY: the index owns its segments, and segments are `Send`.
unsafe impl<D: Direction> Send for PageIndex<'_, D> {}
// SAFETY: the index owns its segments, and segments are `Sync`.
unsafe impl<D: Direction> Sync for PageIndex<'_, D> {}

impl<'m, D: Direction> PageIndex<'m, D> {
    /// Returns an empty index for pages of 2^`page_log2` bytes.
    ///
    /// # Errors
    /// [`Error::PageSize`] if such a page does not fit into the address space.
    pub const fn new(page_log2: u32) -> Result<Self, Error> {
        if page_log2 >= usize::BITS - 1 {
            return Err(Error::PageSize { page_log2, index_log2: usize::BITS - 2 });
        }
        Ok(Self { leaves: BTreeMap::new(), page_log2, memory: PhantomData })
    }

    /// Inserts a whole page at `index`: a `&Page` to read from, a `&mut Page` to write to. Returns
    /// the page that was there before.
    ///
    /// # Errors
    /// [`Error::PageSize`] if the page has another size.
    pub fn insert(
        &mut self,
        index: u64,
        page: impl Into<Segment<'m, D>>,
    ) -> Result<Option<Segment<'m, D>>, Error> {
        let page = page.into();
        if page.len() != 1 << self.page_log2 {
            let page_log2 = page.len().checked_ilog2().unwrap_or(0);
            return Err(Error::PageSize { page_log2, index_log2: self.page_log2 });
        }
        let leaf = self.leaves.entry(index >> LEAF_LOG2);
        let leaf = leaf.or_insert_with(|| Box::new([None; LEAF_SLOTS]));
        let before = leaf[slot_of(index)].replace(page.start());
        Ok(before.map(|start| self.whole(start)))
    }

    /// Removes the page at `index` and returns it.
    pub fn remove(&mut self, index: u64) -> Option<Segment<'m, D>> {
        let leaf = self.leaves.get_mut(&(index >> LEAF_LOG2))?;
        let start = leaf[slot_of(index)].take()?;
        if leaf.iter().all(Option::is_none) {
            self.leaves.remove(&(index >> LEAF_LOG2));
        }
        Some(self.whole(start))
    }

    /// Returns the size of the pages, as a binary logarithm.
    pub const fn page_log2(&self) -> u32 {
        self.page_log2
    }

    fn whole(&self, start: NonNull<u8>) -> Segment<'m, D> {
        // SAFETY: `start` is the start of a segment of `'m` that was inserted and has the page size
        // of the index; the index no longer contains it.
        unsafe { Segment::from_raw(start, 1 << self.page_log2) }
    }

    fn leaf(&self, index: u64) -> Option<&Leaf> {
        self.leaves.get(&(index >> LEAF_LOG2)).map(|leaf| &**leaf)
    }
}

const fn slot_of(index: u64) -> usize {
    (index % LEAF_SLOTS as u64) as usize
}

impl<D> fmt::Debug for PageIndex<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageIndex({} leaves, pages of 2^{} bytes)", self.leaves.len(), self.page_log2)
    }
}

/// A place in the pages of an index, which are walked in order. A missing page ends the walk, and
/// so does byte 2^64 - 1, which is never reached.
#[doc(alias = "xarray")]
#[derive(Debug)]
pub struct SparsePages<'m, D> {
    pages: &'m PageIndex<'m, D>,
    /// The place, in bytes from the start of page 0.
    at: u64,
}

impl<'m> SparsePages<'m, Source> {
    /// Returns the place `start` bytes from the start of page 0.
    pub const fn new(pages: &'m PageIndex<'_, Source>, start: u64) -> Self {
        Self { pages, at: start }
    }
}

impl<'m> SparsePages<'m, Dest> {
    /// Returns the place `start` bytes from the start of page 0.
    pub const fn new(pages: &'m mut PageIndex<'_, Dest>, start: u64) -> Self {
        Self { pages, at: start }
    }
}

impl<'m, D: Direction> SparsePages<'m, D> {
    /// Returns the index of the page, and the offset in it.
    const fn place(&self) -> (u64, usize) {
        let page_log2 = self.pages.page_log2;
        (self.at >> page_log2, (self.at & ((1 << page_log2) - 1)) as usize)
    }

    /// Returns how many of `len_bytes` bytes lie below byte 2^64 - 1.
    fn up_to_the_top(&self, len_bytes: usize) -> usize {
        usize::try_from(u64::MAX - self.at).map_or(len_bytes, |room| len_bytes.min(room))
    }

    #[inline(always)]
    fn part(start: NonNull<u8>, offset: usize, len_bytes: usize) -> Segment<'m, D> {
        // SAFETY: the offset is inside the page.
        let start = unsafe { start.add(offset) };
        // SAFETY: the page is valid for `'m`; a walk lends one part at a time.
        unsafe { Segment::from_raw(start, len_bytes) }
    }
}

impl<D: Direction> Kind<D> for SparsePages<'_, D> {
    fn name(&self) -> &'static str {
        "SparsePages"
    }

    fn can_fault(&self) -> bool {
        false
    }
}

impl<D: Direction> Walk<D> for SparsePages<'_, D> {
    fn segment(&mut self, _: Key, len_max: usize) -> Option<Segment<'_, D>> {
        let (index, offset) = self.place();
        let start = self.pages.leaf(index)?[slot_of(index)]?;
        let here = (1 << self.pages.page_log2) - offset;
        let len_bytes = here.min(self.up_to_the_top(len_max));
        (len_bytes > 0).then(|| Self::part(start, offset, len_bytes))
    }

    fn advance(&mut self, _: Key, len_bytes: usize) -> usize {
        let len_bytes = self.up_to_the_top(len_bytes);
        self.at += len_bytes as u64;
        len_bytes
    }

    fn retreat(&mut self, _: Key, len_bytes: usize) {
        self.at = self.at.saturating_sub(len_bytes as u64);
    }

    unsafe fn duplicate(&self, _: Key) -> Self {
        Self { pages: self.pages, at: self.at }
    }

    fn is_in_memory_of(&self, _: Key, other: &Self) -> bool {
        ptr::eq(self.pages, other.pages)
    }

    #[inline(always)]
    fn iterate(
        &mut self,
        _: Key,
        len_bytes: usize,
        mut step: impl FnMut(Segment<'_, D>, usize) -> usize,
    ) -> usize {
        let len_bytes = self.up_to_the_top(len_bytes);
        let page_bytes = 1usize << self.pages.page_log2;
        let (mut index, mut offset) = self.place();
        let mut done = 0;
        'leaves: while done < len_bytes
            && let Some(leaf) = self.pages.leaf(index)
        {
            for slot in &leaf[slot_of(index)..] {
                let Some(start) = *slot else { break 'leaves };
                let here = page_bytes - offset;
                let part = here.min(len_bytes - done);
                let stepped = part.saturating_sub(step(Self::part(start, offset, part), done));
                done += stepped;
                offset = 0;
                if stepped < here || done == len_bytes {
                    break 'leaves;
                }
            }
            // After the last leaf, `done` has reached `len_bytes`.
            index = ((index >> LEAF_LOG2) + 1) << LEAF_LOG2;
        }
        self.at += done as u64;
        done
    }
}
