//! The whole tree of tables as text.
//!
//! ```text
//! Arm LPAE stage 1, root 0x200000 of level 3
//! [0] 0x0: table 0x201000 of level 2
//!   [1] 0x40000000: table 0x202000 of level 1
//!     [0..=1] 0x40000000: 2 x 2 MiB -> 0x80000000 rw----
//! ```
//!
//! The permissions are those of the leaf itself, without the restrictions in entries that lead to
//! tables.

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

/// Prints the tables of any image. [`PageTable::dump`] makes one for live tables, [`Dump::new`] for
/// an image.
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
    /// A slot that leads to a table. The content of the table follows unless the visitor skips it.
    Table {
        /// The level of the slot; 0 is the level of the smallest pages.
        level: u32,
        /// The slot.
        index: usize,
        /// The first address that the slot translates.
        iova: Iova,
        /// The address of the table, which is of the level below.
        table: TableAddr,
    },
    /// Adjacent leaves of the same size, permissions and dirty bit, with adjacent bus addresses.
    Leaves(Leaves),
    /// A slot with an entry that the format reserves.
    Reserved {
        /// The level of the slot; 0 is the level of the smallest pages.
        level: u32,
        /// The slot.
        index: usize,
        /// The first address that the slot translates.
        iova: Iova,
        /// The raw entry.
        entry: u64,
    },
    /// A table that is not, or not completely, in the memory of the image.
    Missing {
        /// The level of the table.
        level: u32,
        /// The first slot without memory.
        index: usize,
        /// The first address that the slot translates.
        iova: Iova,
        /// The table.
        table: TableAddr,
    },
}

/// Adjacent leaves of the same size, permissions and dirty bit, with adjacent bus addresses.
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
    /// The bus address that the first address is translated to.
    pub bus: BusAddr,
    /// The size of each leaf in bytes, as a logarithm.
    pub page_log2: u32,
    /// The number of leaves.
    pub pages: u64,
    /// The permissions and attributes.
    pub prot: Prot,
    /// `true` if they are dirty. For contiguous runs, only the first entry in the range is read.
    pub dirty: bool,
}

/// The node that a visitor wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The next node; after a slot that leads to a table, the content of that table.
    Into,
    /// The node after the table.
    Over,
}

impl<'a, F: Format, I: Image + ?Sized> Dump<'a, F, I> {
    /// Returns the tree of the tables whose root is at `root` of `image`.
    pub fn new(format: &'a F, image: &'a I, root: TableAddr) -> Self {
        Self { format, image, root, span: format.geometry().all() }
    }

    /// Restricts the tree to the slots that translate any of `len_bytes` from `iova`. Returns
    /// `None` if the range is empty or not inside the input range of the format.
    #[must_use]
    pub fn of_range(self, iova: Iova, len_bytes: u64) -> Option<Self> {
        Some(Self { span: self.format.geometry().span(iova, len_bytes)?, ..self })
    }

    /// Calls `visitor` with each node of the tree, until it breaks.
    ///
    /// Every visit ends, whatever the image contains, but tables that lead to themselves can make
    /// it as long as the input range. A visitor of an untrusted image should skip tables that it
    /// has already seen.
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
        // Slots before this one belong to a run that was already reported.
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

    /// Returns the leaf that the slot `index` belongs to.
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

    /// Returns the indexes of the slots.
    pub const fn slots(&self) -> RangeInclusive<usize> {
        self.first..=self.last
    }
}

impl<F: Format, M: TableMemory, S: CacheSync> PageTable<F, M, S> {
    /// Returns the whole tree, to print with [`Display`](fmt::Display).
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

/// Writes `[0..=1] 0x40000000: 2 x 2 MiB -> 0x80000000 rw----`.
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
