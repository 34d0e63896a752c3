//! Reading tables: looking up one address, and visiting all leaves of a range.

use core::fmt;
use core::ops::ControlFlow;

use longshore_mem::{BusAddr, Iova};

use crate::error::Error;
use crate::format::{Entry, Format};
use crate::geometry::Span;
use crate::prot::{Narrowing, Prot};
use crate::table_memory::TableAddr;

/// Memory that tables can be read from: live memory, a dump, or the memory of a guest.
pub trait Image {
    /// Returns the entry with number `index` of the table at `table`, which is `8 * index` bytes
    /// after `table`. Returns `None` if there is no memory at that address, or if the address is
    /// not a multiple of 8 or not below 2^64. Callers may pass any `table` and `index`.
    fn entry(&self, table: TableAddr, index: usize) -> Option<u64>;
}

impl<I: Image + ?Sized> Image for &I {
    #[inline]
    fn entry(&self, table: TableAddr, index: usize) -> Option<u64> {
        (**self).entry(table, index)
    }
}

/// A leaf: a page, a block or a contiguous run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mapping {
    /// The first address.
    pub iova: Iova,
    /// The bus address that the first address is translated to.
    pub bus: BusAddr,
    /// The size in bytes, as a logarithm.
    pub page_log2: u32,
    /// The permissions and attributes.
    pub prot: Prot,
    /// `true` if the leaf was written since it was mapped or since its dirty bit was cleared; for a
    /// contiguous run, if any part of it was. Always `false` if dirty pages are not tracked.
    pub dirty: bool,
}

impl Mapping {
    /// Returns the bus address for `iova`, or `None` if `iova` is outside this mapping.
    #[inline]
    pub const fn translate(&self, iova: Iova) -> Option<BusAddr> {
        let offset = iova.raw().wrapping_sub(self.iova.raw());
        if offset >> self.page_log2 == 0 { self.bus.checked_add(offset) } else { None }
    }

    /// Returns the last address mapped.
    pub const fn last(&self) -> Iova {
        Iova::new(self.iova.raw() | ((1 << self.page_log2) - 1))
    }
}

/// Writes `0x40000000 + 2 MiB -> 0x80000000 rw----`.
impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} + ", self.iova)?;
        match longshore_mem::Granule::new(1 << self.page_log2) {
            Ok(size) => write!(f, "{size}")?,
            Err(_) => write!(f, "2^{}", self.page_log2)?,
        }
        let dirty = if self.dirty { " dirty" } else { "" };
        write!(f, " -> {:#x} {}{dirty}", self.bus, self.prot)
    }
}

/// Reads tables of the format `F` from an image.
///
/// It does not trust the image: reserved entries, and tables that are not in the image, end a walk
/// just as absent entries do. Restrictions in entries that lead to tables apply to the mappings
/// below. Every walk ends, whatever the image contains, but tables that lead to themselves can make
/// it visit every page of the range.
///
/// It considers nothing but the tables. A leaf is reported as mapped whatever its access flag, its
/// target and its reserved bits are. Entries of AMD tables that skip levels, which this crate never
/// writes, are treated as reserved.
#[derive(Clone, Copy, Debug)]
pub struct Walker<'a, F, I: ?Sized> {
    format: &'a F,
    image: &'a I,
    root: TableAddr,
}

impl<'a, F: Format, I: Image + ?Sized> Walker<'a, F, I> {
    /// Returns a reader of the tables whose root is at `root` of `image`.
    #[inline]
    pub const fn new(format: &'a F, image: &'a I, root: TableAddr) -> Self {
        Self { format, image, root }
    }

    /// Returns the mapping that contains `iova`, or `None` if there is none.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if `iova` is outside the input range of the format.
    #[inline]
    pub fn lookup(&self, iova: Iova) -> Result<Option<Mapping>, Error> {
        let geometry = self.format.geometry();
        let va = geometry.va(iova).ok_or(Error::OutOfRange { iova, len_bytes: 1 })?;
        let (mut table, mut step) = (self.root, geometry.root_step());
        let mut narrowing = Narrowing::NONE;
        loop {
            let Some(entry) = self.image.entry(table, step.index(va)) else { return Ok(None) };
            match self.format.decode(step.level, entry) {
                Entry::Table(child) if step.level > 0 => {
                    narrowing = narrowing.and(self.format.narrowing(entry));
                    table = child;
                    step = geometry.below(step);
                }
                _ => {
                    let mut mapping = self.mapping(iova, table, step.level, step.shift, entry);
                    if let Some(mapping) = &mut mapping {
                        mapping.prot = narrowing.apply(mapping.prot);
                    }
                    return Ok(mapping);
                }
            }
        }
    }

    /// Returns the mapping of `iova` if the walk to it ends with `entry`, of `table` on `level`,
    /// whose slots translate 2^`shift` bytes each.
    #[inline(always)]
    pub(crate) fn mapping(
        &self,
        iova: Iova,
        table: TableAddr,
        level: u32,
        shift: u32,
        entry: u64,
    ) -> Option<Mapping> {
        let Entry::Leaf(leaf) = self.format.decode(level, entry) else { return None };
        let page_log2 = shift + leaf.run_log2;
        let below = (1u64 << page_log2) - 1;
        let index = self.format.geometry().index(level, iova.raw());
        Some(Mapping {
            // The address bits above those of the va are the same for the whole page.
            iova: Iova::new(iova.raw() & !below),
            bus: BusAddr::new(leaf.bus.raw() & !below),
            page_log2,
            prot: self.format.prot(entry),
            dirty: self.is_dirty(table, index, leaf.run_log2, entry),
        })
    }

    /// Returns `true` if any entry of the run that contains the entry `index` is dirty.
    #[inline]
    fn is_dirty(&self, table: TableAddr, index: usize, run_log2: u32, entry: u64) -> bool {
        let Some(test) = self.format.dirty_test() else { return false };
        if run_log2 == 0 {
            return test.matches(entry);
        }
        let first = index >> run_log2 << run_log2;
        let mut run = first..first + (1 << run_log2);
        run.any(|index| self.image.entry(table, index).is_some_and(|entry| test.matches(entry)))
    }

    /// Calls `visitor` with each leaf that maps any of `len_bytes` bytes from `iova`, in ascending
    /// order, until it breaks.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the range is empty or not inside the input range of the format.
    pub fn walk<B>(
        &self,
        iova: Iova,
        len_bytes: u64,
        mut visitor: impl FnMut(Mapping) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>, Error> {
        let geometry = self.format.geometry();
        let span = geometry.span(iova, len_bytes).ok_or(Error::OutOfRange { iova, len_bytes })?;
        Ok(self.walk_span(span, &mut visitor))
    }

    /// As [`walk`](Self::walk), over the whole input range.
    pub fn walk_all<B>(
        &self,
        mut visitor: impl FnMut(Mapping) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        self.walk_span(self.format.geometry().all(), &mut visitor)
    }

    fn walk_span<B>(
        &self,
        span: Span,
        visitor: &mut impl FnMut(Mapping) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let level = self.format.geometry().root_level();
        self.walk_table(self.root, level, span, Narrowing::NONE, visitor)
    }

    fn walk_table<B>(
        &self,
        table: TableAddr,
        level: u32,
        span: Span,
        narrowing: Narrowing,
        visitor: &mut impl FnMut(Mapping) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let geometry = self.format.geometry();
        // Slots before this one belong to a run that was already visited.
        let mut next = 0;
        for part in geometry.parts(level, span) {
            if part.index < next {
                continue;
            }
            let Some(entry) = self.image.entry(table, part.index) else { continue };
            match self.format.decode(level, entry) {
                Entry::Table(child) if level > 0 => {
                    let narrowing = narrowing.and(self.format.narrowing(entry));
                    self.walk_table(child, level - 1, part.span, narrowing, visitor)?;
                }
                Entry::Leaf(leaf) => {
                    let page_log2 = geometry.shift(level) + leaf.run_log2;
                    let below = (1u64 << page_log2) - 1;
                    next = ((part.index >> leaf.run_log2) + 1) << leaf.run_log2;
                    visitor(Mapping {
                        iova: geometry.iova(part.span.first & !below),
                        bus: BusAddr::new(leaf.bus.raw() & !below),
                        page_log2,
                        prot: narrowing.apply(self.format.prot(entry)),
                        dirty: self.is_dirty(table, part.index, leaf.run_log2, entry),
                    })?;
                }
                _ => {}
            }
        }
        ControlFlow::Continue(())
    }
}
