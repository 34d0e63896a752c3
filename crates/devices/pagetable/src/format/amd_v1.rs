//! AMD IOMMU, version 1 tables.
//!
//! Source: AMD I/O Virtualization Technology (IOMMU) Specification (48882), section 2.2.3 "I/O Page
//! Tables for Host Translations": page directory and page translation entries, and the encoding of
//! page sizes in the address. The manual's level 1 is level 0 here.
//!
//! ```text
//!   63  62  61  60  59  58 … 52   51 … 12          11 … 9     8 7 6 5 4 … 1  0
//!   ┌──┬───┬───┬───┬───┬────────┬────────────────┬───────────┬───┬─┬─┬──────┬──┐
//!   │  │IW │IR │FC │ U │reserved│ address        │ next level│   │D│A│      │PR│
//!   └──┴───┴───┴───┴───┴────────┴────────────────┴───────────┴───┴─┴─┴──────┴──┘
//! ```
//!
//! In a leaf, the next level is 0 for the page size of its level, or 7. With 7, the lowest clear
//! bit of the address from bit 12 on gives the size (bit 12 for 8 KiB, bit 13 for 16 KiB, …), and
//! all entries of the page are the same.

use longshore_mem::BusAddr;

use super::fields::{Field, Fields, bit, choice, flag, range};
use super::{DirtyTest, Entry, Format, LeafEntry, Unsupported, UnsupportedReason, bits, when};
use crate::geometry::{Geometry, LEVELS_MAX, Shape, Window};
use crate::prot::{Narrowing, Prot};
use crate::table_memory::TableAddr;

const PRESENT: u64 = 1 << 0;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const NEXT_LEVEL_SHIFT: u32 = 9;
const NEXT_LEVEL: u64 = bits(11, 9);
const SIZE_IN_ADDRESS: u64 = 7;
const ADDRESS: u64 = bits(51, 12);
const FORCE_COHERENT: u64 = 1 << 60;
const READ: u64 = 1 << 61;
const WRITE: u64 = 1 << 62;

const SHARED_FIELDS: &[Field] = &[
    flag("PR", 0, &["not present", "present"]),
    range("ignored", 4, 1),
    flag("A", 5, &["", "accessed"]),
    choice(
        "Next Level",
        11,
        9,
        &[
            "page",
            "table of level 1",
            "table of level 2",
            "table of level 3",
            "table of level 4",
            "table of level 5",
            "reserved",
            "page, size in the address",
        ],
    ),
    range("address", 51, 12),
    flag("IR", 61, &["", "read"]),
    flag("IW", 62, &["", "write"]),
    bit("ignored (63)", 63),
];
const LEAF_FIELDS: &[Field] = &[
    flag("D", 6, &["", "dirty"]),
    flag("U", 59, &["", "untranslated accesses"]),
    flag("FC", 60, &["", "force coherent"]),
];

/// The configuration of a version 1 table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmdV1Config {
    levels: u32,
    output_bits: u32,
    intermediate_sizes: bool,
    pages_512g: bool,
    dirty: bool,
}

impl AmdV1Config {
    /// Returns the configuration with four levels (48 input bits), 52 output bits, all page sizes
    /// below 512 GiB and no dirty tracking.
    pub const fn new() -> Self {
        Self {
            levels: 4,
            output_bits: 52,
            intermediate_sizes: true,
            pages_512g: false,
            dirty: false,
        }
    }

    /// Sets the number of levels (the device table entry's mode): 1 to 6.
    #[must_use]
    pub const fn with_levels(mut self, levels: u32) -> Self {
        self.levels = levels;
        self
    }

    /// Sets the number of bits of a translated address: 32 to 52.
    #[must_use]
    pub const fn with_output_bits(mut self, output_bits: u32) -> Self {
        self.output_bits = output_bits;
        self
    }

    /// Sets whether page sizes between those of two levels are used.
    #[must_use]
    pub const fn with_intermediate_sizes(mut self, intermediate_sizes: bool) -> Self {
        self.intermediate_sizes = intermediate_sizes;
        self
    }

    /// Sets whether pages of 512 GiB and more are used. Some hardware translates pages of 512 GiB
    /// wrongly.
    #[must_use]
    pub const fn with_pages_512g(mut self, pages_512g: bool) -> Self {
        self.pages_512g = pages_512g;
        self
    }

    /// Sets whether the hardware tracks dirty pages (`HD` in the device table entry).
    #[must_use]
    pub const fn with_dirty_tracking(mut self, dirty: bool) -> Self {
        self.dirty = dirty;
        self
    }
}

impl Default for AmdV1Config {
    fn default() -> Self {
        Self::new()
    }
}

/// The AMD IOMMU version 1 format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmdV1 {
    geometry: Geometry,
    config: AmdV1Config,
}

impl AmdV1 {
    /// Returns the format for `config`.
    ///
    /// # Errors
    /// [`Unsupported`] if the architecture does not have this configuration.
    pub fn new(config: AmdV1Config) -> Result<Self, Unsupported> {
        let unsupported = |reason| Err(Unsupported::new(Self::NAME, reason));
        if !(1..=6).contains(&config.levels) {
            let levels = config.levels;
            return unsupported(UnsupportedReason::Levels { levels, fewest: 1, most: 6 });
        }
        if !(32..=52).contains(&config.output_bits) {
            let output_bits = config.output_bits;
            return unsupported(UnsupportedReason::OutputBits {
                output_bits,
                fewest: 32,
                most: 52,
            });
        }
        // Sizes of up to half the page of the next level. The topmost level has no pages.
        let run = if config.intermediate_sizes { bits(8, 0) as u32 } else { 1 };
        let large = if config.pages_512g { run } else { 0 };
        let geometry = Geometry::new(Shape {
            granule_log2: 12,
            index_log2: 9,
            levels: config.levels,
            input_bits: (12 + 9 * config.levels).min(64),
            output_bits: config.output_bits,
            window: Window::Low,
            runs: [run, run, run, large, large, 0],
            linear_log2: 64,
        });
        Ok(Self { geometry, config })
    }
}

impl Format for AmdV1 {
    const NAME: &'static str = "AMD v1";
    const LEVEL_NAMES: [&'static str; LEVELS_MAX] = ["1", "2", "3", "4", "5", "6"];
    const RUNS_REPEAT: bool = true;
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
        let (next_level, address) = ((entry & NEXT_LEVEL) >> NEXT_LEVEL_SHIFT, entry & ADDRESS);
        let shift = self.geometry.shift(level);
        let page_log2 = match next_level {
            0 => shift,
            SIZE_IN_ADDRESS => 13 + (address >> 12).trailing_ones(),
            // Hardware can skip levels; this crate never does.
            _ if next_level == u64::from(level) => return Entry::Table(TableAddr::new(address)),
            _ => return Entry::Reserved,
        };
        match page_log2.checked_sub(shift) {
            Some(run_log2) if run_log2 < 32 && self.geometry.runs(level) >> run_log2 & 1 != 0 => {
                let bus = BusAddr::new(address & (u64::MAX << page_log2));
                Entry::Leaf(LeafEntry { bus, run_log2 })
            }
            _ => Entry::Reserved,
        }
    }

    #[inline]
    fn attributes(&self, prot: Prot) -> Option<u64> {
        let refused = Prot::EXECUTE | Prot::PRIVILEGED | Prot::DEVICE;
        if !prot.intersects(Prot::READ_WRITE) || prot.intersects(refused) {
            return None;
        }
        Some(
            PRESENT
                | when(prot.contains(Prot::READ), READ)
                | when(prot.contains(Prot::WRITE), WRITE)
                | when(prot.contains(Prot::COHERENT), FORCE_COHERENT)
                | when(self.config.dirty, ACCESSED),
        )
    }

    #[inline]
    fn prot(&self, leaf: u64) -> Prot {
        Prot::READ.when(leaf & READ != 0)
            | Prot::WRITE.when(leaf & WRITE != 0)
            | Prot::COHERENT.when(leaf & FORCE_COHERENT != 0)
    }

    #[inline]
    fn narrowing(&self, entry: u64) -> Narrowing {
        let denied = Prot::READ.when(entry & READ == 0) | Prot::WRITE.when(entry & WRITE == 0);
        Narrowing { denied, demanded: Prot::NONE }
    }

    #[inline]
    fn attributes_of(&self, leaf: u64) -> u64 {
        leaf & !(ADDRESS | NEXT_LEVEL)
    }

    #[inline]
    fn leaf(&self, level: u32, run_log2: u32, bus: BusAddr, attributes: u64) -> u64 {
        let page_log2 = self.geometry.shift(level) + run_log2;
        let size = when(run_log2 != 0, {
            SIZE_IN_ADDRESS << NEXT_LEVEL_SHIFT | ((1 << (page_log2 - 1)) - 1) & ADDRESS
        });
        bus.raw() | size | attributes
    }

    #[inline]
    fn table(&self, level: u32, table: TableAddr) -> u64 {
        // The permissions of a page are those that all levels grant.
        table.raw() | PRESENT | READ | WRITE | u64::from(level) << NEXT_LEVEL_SHIFT
    }

    #[inline]
    fn dirty_test(&self) -> Option<DirtyTest> {
        let all = PRESENT | DIRTY;
        self.config.dirty.then_some(DirtyTest { mask: all, value: all })
    }

    #[inline]
    fn with_dirty(&self, leaf: u64, dirty: bool) -> u64 {
        leaf & !DIRTY | when(dirty, DIRTY)
    }

    fn fields(&self, _level: u32, entry: u64) -> Fields {
        match (entry & NEXT_LEVEL) >> NEXT_LEVEL_SHIFT {
            0 | SIZE_IN_ADDRESS => &[SHARED_FIELDS, LEAF_FIELDS],
            _ => &[SHARED_FIELDS],
        }
    }

    fn with_level_on_top(&self) -> Option<Self> {
        Self::new(self.config.with_levels(self.config.levels + 1)).ok()
    }

    #[inline]
    fn needs_break_before_make(&self) -> bool {
        false
    }
}
