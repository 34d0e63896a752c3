//! A place in a list of segments, which three kinds share.

use std::ptr;

use crate::direction::Direction;
use crate::segment::Segment;

/// An item of a list that can be walked.
pub(super) trait Item<D> {
    fn len_bytes(&self) -> usize;

    /// Returns the `len_bytes` bytes at `offset`, which must lie inside the item.
    ///
    /// The caller must use one part of a [`Dest`](crate::Dest) at a time.
    fn part(&self, offset: usize, len_bytes: usize) -> Segment<'_, D>;
}

/// A place in a list: `offset` bytes into the item at `index`. Empty items are skipped.
#[derive(Debug)]
pub(super) struct List<'m, T> {
    items: &'m [T],
    index: usize,
    offset: usize,
}

impl<'m, T> List<'m, T> {
    pub(super) const fn new(items: &'m [T]) -> Self {
        Self { items, index: 0, offset: 0 }
    }

    pub(super) const fn duplicate(&self) -> Self {
        Self { ..*self }
    }

    pub(super) fn is_in_memory_of(&self, other: &Self) -> bool {
        ptr::eq(self.items, other.items)
    }

    pub(super) fn segment<D: Direction>(&mut self, len_max: usize) -> Option<Segment<'_, D>>
    where
        T: Item<D>,
    {
        loop {
            let item = self.items.get(self.index)?;
            let left = item.len_bytes() - self.offset;
            if left > 0 {
                return Some(item.part(self.offset, left.min(len_max)));
            }
            self.index += 1;
            self.offset = 0;
        }
    }

    pub(super) fn advance<D: Direction>(&mut self, len_bytes: usize) -> usize
    where
        T: Item<D>,
    {
        let mut left = len_bytes;
        while let Some(item) = self.items.get(self.index) {
            let here = item.len_bytes() - self.offset;
            if left < here {
                self.offset += left;
                return len_bytes;
            }
            left -= here;
            self.index += 1;
            self.offset = 0;
        }
        len_bytes - left
    }

    pub(super) fn retreat<D: Direction>(&mut self, len_bytes: usize)
    where
        T: Item<D>,
    {
        let mut left = len_bytes;
        while left > self.offset {
            left -= self.offset;
            self.offset = 0;
            let Some(before) = self.index.checked_sub(1) else { return };
            self.index = before;
            self.offset = self.items[before].len_bytes();
        }
        self.offset -= left;
    }

    #[inline(always)]
    pub(super) fn iterate<D: Direction>(
        &mut self,
        len_bytes: usize,
        mut step: impl FnMut(Segment<'_, D>, usize) -> usize,
    ) -> usize
    where
        T: Item<D>,
    {
        let (mut index, mut offset) = (self.index, self.offset);
        let mut done = 0;
        while done < len_bytes
            && let Some(item) = self.items.get(index)
        {
            let here = item.len_bytes() - offset;
            let part = here.min(len_bytes - done);
            if part > 0 {
                let stepped = part.saturating_sub(step(item.part(offset, part), done));
                done += stepped;
                if stepped < here {
                    offset += stepped;
                    break;
                }
            }
            index += 1;
            offset = 0;
        }
        (self.index, self.offset) = (index, offset);
        done
    }
}
