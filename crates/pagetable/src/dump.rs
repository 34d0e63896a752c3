//! A tree that a person can read.
//!
//! ```text
//! Arm LPAE stage 1, root 0x200000 of level 3
//! [0] 0x0: table 0x201000 of level 2
//!   [1] 0x40000000: table 0x202000 of level 1
//!     [0..=1] 0x40000000: 2 x 2 MiB -> 0x80000000 rw----
//! ```

use core::fmt;

use longshore_mem::{BusAddr, Granule, Iova};

use crate::cache_sync::CacheSync;
use crate::format::{Entry, Format};
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
}

impl<'a, F: Format, I: Image + ?Sized> Dump<'a, F, I> {
    /// Of the tables whose root is at `root` of `image`.
    pub const fn new(format: &'a F, image: &'a I, root: TableAddr) -> Self {
        Self { format, image, root }
    }
}

impl<F: Format, M: TableMemory, S: CacheSync> PageTable<F, M, S> {
    /// A tree that a person can read, for [`Display`](fmt::Display).
    pub fn dump(&self) -> Dump<'_, F, Self> {
        Dump::new(&self.format, self, self.root)
    }
}

/// Adjacent leaves of one size that continue each other.
struct Leaves {
    first: usize,
    last: usize,
    va: u64,
    bus: u64,
    page_log2: u32,
    pages: u64,
    prot: Prot,
    dirty: bool,
}

impl<F: Format, I: Image + ?Sized> fmt::Display for Dump<'_, F, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = self.format.geometry().root_level();
        writeln!(f, "{}, root {:#x} of level {level}", F::NAME, self.root.raw())?;
        self.table(f, self.root, level, 0)
    }
}

impl<F: Format, I: Image + ?Sized> Dump<'_, F, I> {
    fn table(
        &self,
        f: &mut fmt::Formatter<'_>,
        table: TableAddr,
        level: u32,
        va: u64,
    ) -> fmt::Result {
        let geometry = self.format.geometry();
        let indent = (geometry.root_level() - level) as usize * 2;
        let mut leaves: Option<Leaves> = None;
        let mut index = 0;
        while index < geometry.slots(level) {
            let slot_va = va + ((index as u64) << geometry.shift(level));
            let entry = self.image.entry(table, index);
            let decoded = entry.map(|entry| self.format.decode(level, entry));
            let mut width = 1;
            if let (Some(entry), Some(Entry::Leaf(leaf))) = (entry, decoded) {
                let page_log2 = geometry.shift(level) + leaf.run_log2;
                width = 1 << leaf.run_log2;
                let bus = leaf.bus.raw() & (u64::MAX << page_log2);
                let prot = self.format.prot(entry);
                let dirty = self.format.dirty_test().is_some_and(|test| test.matches(entry));
                match &mut leaves {
                    Some(run)
                        if run.page_log2 == page_log2
                            && run.prot == prot
                            && run.dirty == dirty
                            && run.last + 1 == index
                            && run.bus + (run.pages << page_log2) == bus =>
                    {
                        run.pages += 1;
                        run.last = index + width - 1;
                    }
                    _ => {
                        self.leaves(f, indent, leaves.take())?;
                        let (first, last) = (index, index + width - 1);
                        let pages = 1;
                        let va = slot_va;
                        leaves =
                            Some(Leaves { first, last, va, bus, page_log2, pages, prot, dirty });
                    }
                }
            } else {
                self.leaves(f, indent, leaves.take())?;
            }
            let iova: Iova = geometry.iova(slot_va);
            match decoded {
                Some(Entry::Table(child)) if level > 0 => {
                    let (child_raw, below) = (child.raw(), level - 1);
                    let at = format_args!("[{index}] {iova:#x}: ");
                    writeln!(f, "{:indent$}{at}table {child_raw:#x} of level {below}", "")?;
                    self.table(f, child, below, slot_va)?;
                }
                Some(Entry::Reserved | Entry::Table(_)) => {
                    writeln!(
                        f,
                        "{:indent$}[{index}] {iova:#x}: reserved {:#x}",
                        "",
                        entry.unwrap_or(0)
                    )?;
                }
                _ => {}
            }
            index += width;
        }
        self.leaves(f, indent, leaves)
    }

    fn leaves(
        &self,
        f: &mut fmt::Formatter<'_>,
        indent: usize,
        leaves: Option<Leaves>,
    ) -> fmt::Result {
        let Some(leaves) = leaves else { return Ok(()) };
        write!(f, "{:indent$}[{}", "", leaves.first)?;
        if leaves.last != leaves.first {
            write!(f, "..={}", leaves.last)?;
        }
        let iova = self.format.geometry().iova(leaves.va);
        write!(f, "] {iova:#x}: ")?;
        if leaves.pages > 1 {
            write!(f, "{} x ", leaves.pages)?;
        }
        match Granule::new(1 << leaves.page_log2) {
            Ok(size) => write!(f, "{size}")?,
            Err(_) => write!(f, "2^{}", leaves.page_log2)?,
        }
        let dirty = if leaves.dirty { " dirty" } else { "" };
        writeln!(f, " -> {:#x} {}{dirty}", BusAddr::new(leaves.bus), leaves.prot)
    }
}
