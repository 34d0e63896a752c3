//! One walk step by step, for people who want to know why an address is translated as it is.

use longshore_mem::Iova;

use crate::error::Error;
use crate::format::{Entry, Format};
use crate::table_memory::TableAddr;
use crate::walk::Image;

/// One entry that a walk read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceStep {
    /// The level of the table; 0 is the level of pages.
    pub level: u32,
    /// The address of the table.
    pub table: TableAddr,
    /// The index of the entry in the table.
    pub index: usize,
    /// The raw entry and its meaning, or `None` if the image has no memory at that address.
    pub entry: Option<(u64, Entry)>,
}

/// The steps of one walk, from the root downwards. The last one is a leaf, or shows why there is
/// none.
#[derive(Clone, Copy, Debug)]
pub struct Trace<'a, F, I: ?Sized> {
    format: &'a F,
    image: &'a I,
    va: u64,
    next: Option<(u32, TableAddr)>,
}

impl<'a, F: Format, I: Image + ?Sized> Trace<'a, F, I> {
    /// Returns the walk for `iova` through the tables whose root is at `root` of `image`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if `iova` is outside the input range of the format.
    pub fn new(format: &'a F, image: &'a I, root: TableAddr, iova: Iova) -> Result<Self, Error> {
        let geometry = format.geometry();
        let va = geometry.va(iova).ok_or(Error::OutOfRange { iova, len_bytes: 1 })?;
        Ok(Self { format, image, va, next: Some((geometry.root_level(), root)) })
    }
}

impl<F: Format, I: Image + ?Sized> Iterator for Trace<'_, F, I> {
    type Item = TraceStep;

    fn next(&mut self) -> Option<TraceStep> {
        let (level, table) = self.next.take()?;
        let index = self.format.geometry().index(level, self.va);
        let entry = self.image.entry(table, index);
        let entry = entry.map(|entry| (entry, self.format.decode(level, entry)));
        if let Some((_, Entry::Table(child))) = entry
            && level > 0
        {
            self.next = Some((level - 1, child));
        }
        Some(TraceStep { level, table, index, entry })
    }
}
