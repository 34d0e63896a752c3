//! A tree that a person can read.
//!
//! ```text
//! Arm LPAE stage 1, root 0x200000 of level 3
//! [0] 0x0: table 0x201000 of level 2
//!   [1] 0x40000000: table 0x202000 of level 1
//!     [0..=1] 0x40000000: 2 x 2 MiB -> 0x80000000 rw----
//! ```
//!
//! Permissions are those of the leaf itself; what entries on the way take from them is not.

use core::fmt;
use core::ops::{ControlFlow, RangeInclusive};

use longshore_mem::{BusAddr, Granule, Iova};

use crate::cache_sync::CacheSync;
use crate::format::{Entry, Format};
use crate::geometry::Span;
use crate::prot::Prot;
use crate::table::PageTable;
use crate::table_memory::{TableAddr, TableMemory};
use crate::walk::Image;

/// Prints the tables of any image. Made by [`PageTable::dump`], or from an image by
/// [`Dump::new`].
#[derive(Clone, Copy, Debug)]
pub struct Dump<'a, F, I: ?Sized> {
    format: &'a F,
    image: &'a I,
    root: TableAddr,
    span: Span,
}

/// One line of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// A slot that leads to a table, which is told next unless the visitor passes over it.
    Table {
        /// The level of the slot; 0 is that of the smallest pages.
        level: u32,
        /// The slot.
        index: usize,
        /// The first address that it stands for.
        iova: Iova,
        /// The table, of the level below.
        table: TableAddr,
    },
    /// Adjacent leaves of one size and kind that continue each other.
    Leaves(Leaves),
    /// A slot whose content the format reserves.
    Reserved {
        /// The level of the slot; 0 is that of the smallest pages.
        level: u32,
        /// The slot.
        index: usize,
        /// The first address that it stands for.
        iova: Iova,
        /// What it holds.
        entry: u64,
    },
    /// A table that the image has no memory for, or not for all of it.
    Missing {
        /// The level of the table.
        level: u32,
        /// The first slot that is not there.
        index: usize,
        /// The first address that it stands for.
        iova: Iova,
        /// The table.
        table: TableAddr,
    },
}

/// Adjacent leaves of one size and kind that continue each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leaves {
    /// The level of their slots.
    pub level: u32,
    /// The first slot.
    pub first: usize,
    /// The last slot.
    pub last: usize,
    /// The first address.
    pub iova: Iova,
    /// Where it leads.
    pub bus: BusAddr,
    /// The size of each, as a logarithm.
    pub page_log2: u32,
    /// How many there are.
    pub pages: u64,
    /// What a device may do with them.
    pub prot: Prot,
    /// Whether they are dirty. Of contiguous runs, whether their first entry is.
    pub dirty: bool,
}

/// What a visitor wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// What follows, the content of a table first.
    Into,
    /// What follows the table.
    Over,
}

impl<'a, F: Format, I: Image + ?Sized> Dump<'a, F, I> {
    /// Of the tables whose root is at `root` of `image`.
    pub fn new(format: &'a F, image: &'a I, root: TableAddr) -> Self {
        Self { format, image, root, span: format.geometry().all() }
    }

    /// The same of the slots only that stand for a part of `len_bytes` from `iova`; `None` where
    /// that is empty or not inside what is translated.
    #[must_use]
    pub fn of_range(self, iova: Iova, len_bytes: u64) -> Option<Self> {
        Some(Self { span: self.format.geometry().span(iova, len_bytes)?, ..self })
    }

    /// Calls `visitor` with each line of the tree, until it breaks.
    ///
    /// It ends on any content, but tables that lead to themselves can make it as long as there are
    /// addresses: a visitor that meets images of others passes over what it has seen.
    pub fn visit<B>(
        &self,
        mut visitor: impl FnMut(Node) -> ControlFlow<B, Next>,
    ) -> ControlFlow<B> {
        self.table(self.root, self.format.geometry().root_level(), self.span, &mut visitor)
    }

    fn table<B>(
        &self,
        table: TableAddr,
        level: u32,
        span: Span,
        visitor: &mut impl FnMut(Node) -> ControlFlow<B, Next>,
    ) -> ControlFlow<B> {
        let geometry = self.format.geometry();
        let mut leaves: Option<Leaves> = None;
        // Slots before this one belong to a run that was told.
        let mut next = 0;
        for part in geometry.parts(level, span) {
            let index = part.index;
            if index < next {
                continue;
            }
            let slot_va = part.span.first >> geometry.shift(level) << geometry.shift(level);
            let iova = geometry.iova(slot_va);
            let Some(entry) = self.image.entry(table, index) else {
                if let Some(leaves) = leaves.take() {
                    visitor(Node::Leaves(leaves))?;
                }
                visitor(Node::Missing { level, index, iova, table })?;
                break;
            };
            let decoded = self.format.decode(level, entry);
            if let Entry::Leaf(leaf) = decoded {
                let slots = 1 << leaf.run_log2;
                next = (index >> leaf.run_log2 << leaf.run_log2) + slots;
                let found = self.leaves(level, index, slot_va, entry, leaf.run_log2, leaf.bus);
                match &mut leaves {
                    Some(run) if run.continued_by(&found) => {
                        run.pages += 1;
                        run.last = found.last;
                    }
                    _ => {
                        if let Some(leaves) = leaves.replace(found) {
                            visitor(Node::Leaves(leaves))?;
                        }
                    }
                }
                continue;
            }
            if let Some(leaves) = leaves.take() {
                visitor(Node::Leaves(leaves))?;
            }
            match decoded {
                Entry::Table(child) if level > 0 => {
                    let node = Node::Table { level, index, iova, table: child };
                    if visitor(node)? == Next::Into {
                        self.table(child, level - 1, part.span, visitor)?;
                    }
                }
                Entry::Reserved | Entry::Table(_) => {
                    visitor(Node::Reserved { level, index, iova, entry })?;
                }
                Entry::Absent | Entry::Leaf(_) => {}
            }
        }
        if let Some(leaves) = leaves {
            visitor(Node::Leaves(leaves))?;
        }
        ControlFlow::Continue(())
    }

    /// The leaf that the slot `index` is a part of.
    fn leaves(
        &self,
        level: u32,
        index: usize,
        slot_va: u64,
        entry: u64,
        run_log2: u32,
        bus: BusAddr,
    ) -> Leaves {
        let geometry = self.format.geometry();
        let page_log2 = geometry.shift(level) + run_log2;
        let first = index >> run_log2 << run_log2;
        Leaves {
            level,
            first,
            last: first + (1 << run_log2) - 1,
            iova: geometry.iova(slot_va & (u64::MAX << page_log2)),
            bus: BusAddr::new(bus.raw() & (u64::MAX << page_log2)),
            page_log2,
            pages: 1,
            prot: self.format.prot(entry),
            dirty: self.format.dirty_test().is_some_and(|test| test.matches(entry)),
        }
    }
}

impl Leaves {
    fn continued_by(&self, next: &Self) -> bool {
        self.page_log2 == next.page_log2
            && self.prot == next.prot
            && self.dirty == next.dirty
            && self.last + 1 == next.first
            && self.bus.raw().wrapping_add(self.pages << self.page_log2) == next.bus.raw()
    }

    /// Their slots.
    pub const fn slots(&self) -> RangeInclusive<usize> {
        self.first..=self.last
    }
}

impl<F: Format, M: TableMemory, S: CacheSync> PageTable<F, M, S> {
    /// A tree that a person can read, for [`Display`](fmt::Display).
    pub fn dump(&self) -> Dump<'_, F, Self> {
        Dump::new(&self.format, self, self.root)
    }
}

impl<F: Format, I: Image + ?Sized> fmt::Display for Dump<'_, F, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let root_level = self.format.geometry().root_level();
        writeln!(f, "{}, root {:#x} of level {root_level}", F::NAME, self.root.raw())?;
        let done = self.visit(|node| match write_node(f, root_level, node) {
            Ok(()) => ControlFlow::Continue(Next::Into),
            Err(error) => ControlFlow::Break(error),
        });
        match done {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(error) => Err(error),
        }
    }
}

fn write_node(f: &mut fmt::Formatter<'_>, root_level: u32, node: Node) -> fmt::Result {
    let indent = |level: u32| 2 * (root_level - level) as usize;
    match node {
        Node::Table { level, index, iova, table } => {
            let (indent, below) = (indent(level), level - 1);
            let raw = table.raw();
            writeln!(f, "{:indent$}[{index}] {iova:#x}: table {raw:#x} of level {below}", "")
        }
        Node::Leaves(leaves) => {
            writeln!(f, "{:indent$}{leaves}", "", indent = indent(leaves.level))
        }
        Node::Reserved { level, index, iova, entry } => {
            let indent = indent(level);
            writeln!(f, "{:indent$}[{index}] {iova:#x}: reserved {entry:#x}", "")
        }
        Node::Missing { level, index, iova, table } => {
            let (indent, raw) = (indent(level), table.raw());
            writeln!(f, "{:indent$}[{index}…] {iova:#x}: no memory for table {raw:#x}", "")
        }
    }
}

/// `[0..=1] 0x40000000: 2 x 2 MiB -> 0x80000000 rw----`.
impl fmt::Display for Leaves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}", self.first)?;
        if self.last != self.first {
            write!(f, "..={}", self.last)?;
        }
        write!(f, "] {:#x}: ", self.iova)?;
        if self.pages > 1 {
            write!(f, "{} x ", self.pages)?;
        }
        match Granule::new(1 << self.page_log2) {
            Ok(size) => write!(f, "{size}")?,
            Err(_) => write!(f, "2^{}", self.page_log2)?,
        }
        let dirty = if self.dirty { " dirty" } else { "" };
        write!(f, " -> {:#x} {}{dirty}", self.bus, self.prot)
    }
}
