//! Intel VT-d, second stage.
//!
//! Source: Intel Virtualization Technology for Directed I/O, Architecture Specification (D51397),
//! section 3.7 "Second-Stage Translation" and 9.8 "Second-Stage Paging Entries".
//!
//! ```text
//!    63 … 52   51 … 12             11  10  9 8  7  6 … 3   2   1   0
//!   ┌────────┬────────────────────┬───┬───┬─┬─┬──┬───────┬───┬───┬───┐
//!   │ ignored│ address            │SNP│   │D│A│PS│       │ X │ W │ R │
//!   └────────┴────────────────────┴───┴───┴─┴─┴──┴───────┴───┴───┴───┘
//! ```
//!
//! X is always clear: this crate does not express whether a device may fetch instructions.

use longshore_mem::BusAddr;

use super::fields::{Field, Fields, bit, flag, range};
use super::{DirtyTest, Entry, Format, LeafEntry, Unsupported, UnsupportedReason, bits, when};
use crate::geometry::{Geometry, LEVELS_MAX, Shape, Window};
use crate::prot::{Narrowing, Prot};
use crate::table_memory::TableAddr;

const READ: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const PAGE_SIZE: u64 = 1 << 7;
const ACCESSED: u64 = 1 << 8;
const DIRTY: u64 = 1 << 9;
const SNOOP: u64 = 1 << 11;
const ADDRESS: u64 = bits(51, 12);

const SHARED_FIELDS: &[Field] = &[
    flag("R", 0, &["", "read"]),
    flag("W", 1, &["", "write"]),
    flag("X", 2, &["", "execute"]),
    flag("A", 8, &["", "accessed"]),
    bit("ignored", 10),
    range("ignored (high)", 61, 52),
    bit("ignored (63)", 63),
];
const LEAF_FIELDS: &[Field] = &[
    range("EMT", 5, 3),
    bit("IPAT", 6),
    flag("D", 9, &["", "dirty"]),
    flag("SNP", 11, &["", "snooped"]),
    range("ADDR", 51, 12),
    bit("TM", 62),
];
const PAGE_SIZE_FIELD: &[Field] = &[flag("PS", 7, &["table", "page"])];
const TABLE_FIELDS: &[Field] = &[range("ADDR (next table)", 51, 12)];

/// The configuration of a second-stage table, from the unit's capability registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VtdSecondConfig {
    input_bits: u32,
    output_bits: u32,
    pages_2m: bool,
    pages_1g: bool,
    snoop_control: bool,
    dirty: bool,
}

impl VtdSecondConfig {
    /// Returns the configuration with four levels, 48 input and output bits, all page sizes, snoop
    /// control and no dirty tracking.
    pub const fn new() -> Self {
        Self {
            input_bits: 48,
            output_bits: 48,
            pages_2m: true,
            pages_1g: true,
            snoop_control: true,
            dirty: false,
        }
    }

    /// Sets the number of address bits that are translated: 31 to 57. This is the domain's width,
    /// which is at most `CAP.MGAW` plus one. Up to 39 bits need three levels, up to 48 four, and more
    /// than 48 five (`CAP.SAGAW`).
    #[must_use]
    pub const fn with_input_bits(mut self, input_bits: u32) -> Self {
        self.input_bits = input_bits;
        self
    }

    /// Sets the number of bits of a translated address (the host address width): 32 to 52.
    #[must_use]
    pub const fn with_output_bits(mut self, output_bits: u32) -> Self {
        self.output_bits = output_bits;
        self
    }

    /// Sets whether 2 MiB pages are used (`CAP.SSLPS` bit 0).
    #[must_use]
    pub const fn with_pages_2m(mut self, pages_2m: bool) -> Self {
        self.pages_2m = pages_2m;
        self
    }

    /// Sets whether 1 GiB pages are used (`CAP.SSLPS` bit 1).
    #[must_use]
    pub const fn with_pages_1g(mut self, pages_1g: bool) -> Self {
        self.pages_1g = pages_1g;
        self
    }

    /// Sets whether [`Prot::COHERENT`] sets the snoop bit (`ECAP.SC`). If not, it is refused.
    #[must_use]
    pub const fn with_snoop_control(mut self, snoop_control: bool) -> Self {
        self.snoop_control = snoop_control;
        self
    }

    /// Sets whether the hardware tracks dirty pages (`ECAP.SSADS`, enabled in the PASID entry).
    #[must_use]
    pub const fn with_dirty_tracking(mut self, dirty: bool) -> Self {
        self.dirty = dirty;
        self
    }
}

impl Default for VtdSecondConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// The VT-d second-stage format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VtdSecond {
    geometry: Geometry,
    config: VtdSecondConfig,
}

impl VtdSecond {
    /// Returns the format for `config`.
    ///
    /// # Errors
    /// [`Unsupported`] if the architecture does not have this configuration.
    pub fn new(config: VtdSecondConfig) -> Result<Self, Unsupported> {
        let unsupported = |reason| Err(Unsupported::new(Self::NAME, reason));
        if !(31..=57).contains(&config.input_bits) {
            let input_bits = config.input_bits;
            return unsupported(UnsupportedReason::InputBits { input_bits, fewest: 31, most: 57 });
        }
        if !(32..=52).contains(&config.output_bits) {
            let output_bits = config.output_bits;
            return unsupported(UnsupportedReason::OutputBits {
                output_bits,
                fewest: 32,
                most: 52,
            });
        }
        let geometry = Geometry::new(Shape {
            granule_log2: 12,
            index_log2: 9,
            levels: (config.input_bits - 12).div_ceil(9),
            input_bits: config.input_bits,
            output_bits: config.output_bits,
            window: Window::Low,
            runs: [1, u32::from(config.pages_2m), u32::from(config.pages_1g), 0, 0, 0],
            linear_log2: 64,
        });
        Ok(Self { geometry, config })
    }
}

impl Format for VtdSecond {
    const NAME: &'static str = "VT-d second stage";
    const LEVEL_NAMES: [&'static str; LEVELS_MAX] =
        ["SS-PTE", "SS-PDE", "SS-PDPE", "SS-PML4E", "SS-PML5E", ""];
    const RUNS_REPEAT: bool = false;
    const READ_ONLY_KEEPS_DIRTY: bool = true;

    #[inline]
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    #[inline]
    fn present_mask(&self) -> u64 {
        READ | WRITE
    }

    #[inline]
    fn decode(&self, level: u32, entry: u64) -> Entry {
        if entry & (READ | WRITE) == 0 {
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
        let refused = Prot::EXECUTE | Prot::PRIVILEGED | Prot::DEVICE;
        let refused = refused | Prot::COHERENT.when(!self.config.snoop_control);
        if !prot.intersects(Prot::READ_WRITE) || prot.intersects(refused) {
            return None;
        }
        Some(
            when(prot.contains(Prot::READ), READ)
                | when(prot.contains(Prot::WRITE), WRITE)
                | when(prot.contains(Prot::COHERENT), SNOOP)
                | when(self.config.dirty, ACCESSED),
        )
    }

    #[inline]
    fn prot(&self, leaf: u64) -> Prot {
        Prot::READ.when(leaf & READ != 0)
            | Prot::WRITE.when(leaf & WRITE != 0)
            | Prot::COHERENT.when(leaf & SNOOP != 0)
    }

    #[inline]
    fn narrowing(&self, entry: u64) -> Narrowing {
        let denied = Prot::READ.when(entry & READ == 0) | Prot::WRITE.when(entry & WRITE == 0);
        Narrowing { denied, demanded: Prot::NONE }
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
        table.raw() | READ | WRITE
    }

    #[inline]
    fn dirty_test(&self) -> Option<DirtyTest> {
        self.config.dirty.then_some(DirtyTest { mask: DIRTY, value: DIRTY })
    }

    #[inline]
    fn with_dirty(&self, leaf: u64, dirty: bool) -> u64 {
        leaf & !DIRTY | when(dirty, DIRTY)
    }

    fn fields(&self, level: u32, entry: u64) -> Fields {
        match (level, entry & PAGE_SIZE != 0) {
            (0, _) => &[SHARED_FIELDS, LEAF_FIELDS],
            (_, true) => &[SHARED_FIELDS, LEAF_FIELDS, PAGE_SIZE_FIELD],
            (_, false) => &[SHARED_FIELDS, TABLE_FIELDS, PAGE_SIZE_FIELD],
        }
    }

    fn with_level_on_top(&self) -> Option<Self> {
        let input_bits = 12 + 9 * (self.geometry.levels() + 1);
        Self::new(self.config.with_input_bits(input_bits)).ok()
    }

    #[inline]
    fn needs_break_before_make(&self) -> bool {
        false
    }
}
