//! x86-64, as walked by CPUs and by AMD's IOMMU (its version 2 tables).
//!
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 3A, section 4.5
//! "4-Level Paging and 5-Level Paging"; AMD I/O Virtualization Technology Specification (48882),
//! section 2.2.6 for the same tables walked for a device.
//!
//! ```text
//!   63   62 … 52   51 … 12            8  7  6 5 4   3   2   1   0
//!   ┌──┬─────────┬──────────────────┬──┬──┬─┬─┬───┬───┬───┬───┬───┐
//!   │XD│ ignored │ address          │ G│PS│D│A│PCD│PWT│U/S│R/W│ P │
//!   └──┴─────────┴──────────────────┴──┴──┴─┴─┴───┴───┴───┴───┴───┘
//! ```
//!
//! Memory is coherent with or without [`Prot::COHERENT`]. [`Prot::DEVICE`] sets PCD and PWT, which
//! is uncacheable with the default PAT.

use longshore_mem::BusAddr;

use super::fields::{Field, Fields, bit, flag, range};
use super::{DirtyTest, Entry, Format, LeafEntry, Unsupported, UnsupportedReason, bits, when};
use crate::geometry::{Geometry, LEVELS_MAX, Shape, Window};
use crate::prot::{Narrowing, Prot};
use crate::table_memory::TableAddr;

const PRESENT: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const PWT: u64 = 1 << 3;
const PCD: u64 = 1 << 4;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const PAGE_SIZE: u64 = 1 << 7;
const ADDRESS: u64 = bits(51, 12);
const EXECUTE_DISABLE: u64 = 1 << 63;

const SHARED_FIELDS: &[Field] = &[
    flag("P", 0, &["not present", "present"]),
    flag("R/W", 1, &["read-only", "read/write"]),
    flag("U/S", 2, &["supervisor", "user"]),
    bit("PWT", 3),
    bit("PCD", 4),
    flag("A", 5, &["", "accessed"]),
    flag("XD", 63, &["", "execute disable"]),
];
const LEAF_FIELDS: &[Field] = &[
    flag("D", 6, &["", "dirty"]),
    flag("G", 8, &["", "global"]),
    range("ignored", 11, 9),
    range("ignored (high)", 58, 52),
    range("protection key", 62, 59),
];
/// In a 4 KiB page, bit 7 is the PAT bit, and there is no PS bit.
const PAGE_FIELDS: &[Field] = &[bit("PAT", 7), range("address", 51, 12)];
const BLOCK_FIELDS: &[Field] =
    &[flag("PS", 7, &["table", "page"]), bit("PAT", 12), range("address", 51, 13)];
const TABLE_FIELDS: &[Field] = &[
    bit("ignored (6)", 6),
    flag("PS", 7, &["table", "page"]),
    range("ignored", 11, 8),
    range("address (next table)", 51, 12),
    range("ignored (high)", 62, 52),
];

/// The configuration of an x86-64 table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct X86_64Config {
    five_levels: bool,
    output_bits: u32,
    pages_1g: bool,
    dirty: bool,
}

impl X86_64Config {
    /// Returns the configuration with four levels, 52 output bits, all page sizes and no dirty
    /// tracking.
    pub const fn new() -> Self {
        Self { five_levels: false, output_bits: 52, pages_1g: true, dirty: false }
    }

    /// Sets whether the table has five levels (57 bits, LA57) or four (48 bits).
    #[must_use]
    pub const fn with_five_levels(mut self, five_levels: bool) -> Self {
        self.five_levels = five_levels;
        self
    }

    /// Sets the number of bits of a physical address: 32 to 52.
    #[must_use]
    pub const fn with_output_bits(mut self, output_bits: u32) -> Self {
        self.output_bits = output_bits;
        self
    }

    /// Sets whether 1 GiB pages are used.
    #[must_use]
    pub const fn with_pages_1g(mut self, pages_1g: bool) -> Self {
        self.pages_1g = pages_1g;
        self
    }

    /// Sets whether the hardware sets the dirty bit. If not, writable pages are mapped with the bit
    /// set.
    #[must_use]
    pub const fn with_dirty_tracking(mut self, dirty: bool) -> Self {
        self.dirty = dirty;
        self
    }
}

impl Default for X86_64Config {
    fn default() -> Self {
        Self::new()
    }
}

/// The x86-64 format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct X86_64 {
    geometry: Geometry,
    dirty: bool,
}

impl X86_64 {
    /// Returns the format for `config`.
    ///
    /// # Errors
    /// [`Unsupported`] if the architecture does not have this configuration.
    pub fn new(config: X86_64Config) -> Result<Self, Unsupported> {
        if !(32..=52).contains(&config.output_bits) {
            let output_bits = config.output_bits;
            let reason = UnsupportedReason::OutputBits { output_bits, fewest: 32, most: 52 };
            return Err(Unsupported::new(Self::NAME, reason));
        }
        let levels = if config.five_levels { 5 } else { 4 };
        let geometry = Geometry::new(Shape {
            granule_log2: 12,
            index_log2: 9,
            levels,
            input_bits: 12 + 9 * levels,
            output_bits: config.output_bits,
            window: Window::Signed,
            runs: [1, 1, u32::from(config.pages_1g), 0, 0, 0],
            linear_log2: 64,
        });
        Ok(Self { geometry, dirty: config.dirty })
    }
}

impl Format for X86_64 {
    const NAME: &'static str = "x86-64";
    const LEVEL_NAMES: [&'static str; LEVELS_MAX] = ["PTE", "PDE", "PDPTE", "PML4E", "PML5E", ""];
    const RUNS_REPEAT: bool = false;
    const READ_ONLY_KEEPS_DIRTY: bool = true;

    #[inline]
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    #[inline]
    fn present_mask(&self) -> u64 {
        PRESENT
    }

    #[inline]
    fn decode(&self, level: u32, entry: u64) -> Entry {
        if entry & PRESENT == 0 {
            return Entry::Absent;
        }
        if level > 0 && entry & PAGE_SIZE == 0 {
            return Entry::Table(TableAddr::new(entry & ADDRESS));
        }
        if level > 0 && self.geometry.runs(level) == 0 {
            return Entry::Reserved;
        }
        let bus = entry & ADDRESS & (u64::MAX << self.geometry.shift(level));
        Entry::Leaf(LeafEntry { bus: BusAddr::new(bus), run_log2: 0 })
    }

    #[inline]
    fn attributes(&self, prot: Prot) -> Option<u64> {
        if !prot.contains(Prot::READ) || prot.contains(Prot::COHERENT | Prot::DEVICE) {
            return None;
        }
        Some(
            PRESENT
                | ACCESSED
                | when(prot.contains(Prot::WRITE), WRITE | when(!self.dirty, DIRTY))
                | when(!prot.contains(Prot::PRIVILEGED), USER)
                | when(!prot.contains(Prot::EXECUTE), EXECUTE_DISABLE)
                | when(prot.contains(Prot::DEVICE), PCD | PWT),
        )
    }

    #[inline]
    fn prot(&self, leaf: u64) -> Prot {
        let device = leaf & (PCD | PWT) == PCD | PWT;
        Prot::READ
            | Prot::WRITE.when(leaf & WRITE != 0)
            | Prot::PRIVILEGED.when(leaf & USER == 0)
            | Prot::EXECUTE.when(leaf & EXECUTE_DISABLE == 0)
            | if device { Prot::DEVICE } else { Prot::COHERENT }
    }

    #[inline]
    fn narrowing(&self, entry: u64) -> Narrowing {
        Narrowing {
            denied: Prot::WRITE.when(entry & WRITE == 0)
                | Prot::EXECUTE.when(entry & EXECUTE_DISABLE != 0),
            demanded: Prot::PRIVILEGED.when(entry & USER == 0),
        }
    }

    #[inline]
    fn attributes_of(&self, leaf: u64) -> u64 {
        leaf & !(ADDRESS | PAGE_SIZE)
    }

    #[inline]
    fn leaf(&self, level: u32, _run_log2: u32, bus: BusAddr, attributes: u64) -> u64 {
        bus.raw() | attributes | when(level > 0, PAGE_SIZE)
    }

    #[inline]
    fn table(&self, _level: u32, table: TableAddr) -> u64 {
        table.raw() | PRESENT | WRITE | USER | ACCESSED
    }

    #[inline]
    fn dirty_test(&self) -> Option<DirtyTest> {
        let all = PRESENT | DIRTY;
        self.dirty.then_some(DirtyTest { mask: all, value: all })
    }

    #[inline]
    fn with_dirty(&self, leaf: u64, dirty: bool) -> u64 {
        leaf & !DIRTY | when(dirty, DIRTY)
    }

    fn fields(&self, level: u32, entry: u64) -> Fields {
        match (level, entry & PAGE_SIZE != 0) {
            (0, _) => &[SHARED_FIELDS, LEAF_FIELDS, PAGE_FIELDS],
            (_, true) => &[SHARED_FIELDS, LEAF_FIELDS, BLOCK_FIELDS],
            (_, false) => &[SHARED_FIELDS, TABLE_FIELDS],
        }
    }

    #[inline]
    fn needs_break_before_make(&self) -> bool {
        false
    }
}
