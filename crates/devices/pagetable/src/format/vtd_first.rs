//! Intel VT-d, first stage.
//!
//! Source: Intel Virtualization Technology for Directed I/O, Architecture Specification (D51397),
//! section 3.6 "First-Stage Translation" and 9.7 "First-Stage Paging Entries".
//!
//! The entries are those of [`x86_64`](super::x86_64), and addresses are canonical as there. Bit 10
//! (extended accessed) is always clear. Instruction fetches are not distinguished from reads:
//! [`Prot::EXECUTE`] is refused, and bit 63 (execute disable), which some units reserve, is always
//! clear.

use longshore_mem::BusAddr;

use super::x86_64::{X86_64, X86_64Config};
use super::{DirtyTest, Entry, Fields, Format, Unsupported};
use crate::geometry::{Geometry, LEVELS_MAX};
use crate::prot::{Narrowing, Prot};
use crate::table_memory::TableAddr;

const EXECUTE_DISABLE: u64 = 1 << 63;

/// The configuration of a first-stage table, from the unit's capability registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VtdFirstConfig {
    five_levels: bool,
    output_bits: u32,
    pages_1g: bool,
    dirty: bool,
}

impl VtdFirstConfig {
    /// Returns the configuration with four levels, 48 output bits, all page sizes and no dirty
    /// tracking.
    pub const fn new() -> Self {
        Self { five_levels: false, output_bits: 48, pages_1g: true, dirty: false }
    }

    /// Sets whether the table has five levels (57 bits, `CAP.FS5LP`) or four (48 bits).
    #[must_use]
    pub const fn with_five_levels(mut self, five_levels: bool) -> Self {
        self.five_levels = five_levels;
        self
    }

    /// Sets the number of bits of a translated address (the host address width): 32 to 52.
    #[must_use]
    pub const fn with_output_bits(mut self, output_bits: u32) -> Self {
        self.output_bits = output_bits;
        self
    }

    /// Sets whether 1 GiB pages are used (`CAP.FS1GP`).
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

impl Default for VtdFirstConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// The VT-d first-stage format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VtdFirst {
    entries: X86_64,
}

impl VtdFirst {
    /// Returns the format for `config`.
    ///
    /// # Errors
    /// [`Unsupported`] if the architecture does not have this configuration.
    pub fn new(config: VtdFirstConfig) -> Result<Self, Unsupported> {
        let VtdFirstConfig { five_levels, output_bits, pages_1g, dirty } = config;
        let config = X86_64Config::new()
            .with_five_levels(five_levels)
            .with_output_bits(output_bits)
            .with_pages_1g(pages_1g)
            .with_dirty_tracking(dirty);
        let entries = X86_64::new(config)
            .map_err(|unsupported| Unsupported::new(Self::NAME, unsupported.reason))?;
        Ok(Self { entries })
    }
}

impl Format for VtdFirst {
    const NAME: &'static str = "VT-d first stage";
    const LEVEL_NAMES: [&'static str; LEVELS_MAX] =
        ["FS-PTE", "FS-PDE", "FS-PDPE", "FS-PML4E", "FS-PML5E", ""];
    const RUNS_REPEAT: bool = X86_64::RUNS_REPEAT;
    const READ_ONLY_KEEPS_DIRTY: bool = X86_64::READ_ONLY_KEEPS_DIRTY;

    #[inline]
    fn geometry(&self) -> &Geometry {
        self.entries.geometry()
    }

    #[inline]
    fn present_mask(&self) -> u64 {
        self.entries.present_mask()
    }

    #[inline]
    fn decode(&self, level: u32, entry: u64) -> Entry {
        self.entries.decode(level, entry)
    }

    #[inline]
    fn attributes(&self, prot: Prot) -> Option<u64> {
        if prot.contains(Prot::EXECUTE) {
            return None;
        }
        Some(self.entries.attributes(prot)? & !EXECUTE_DISABLE)
    }

    #[inline]
    fn prot(&self, leaf: u64) -> Prot {
        self.entries.prot(leaf).without(Prot::EXECUTE)
    }

    #[inline]
    fn narrowing(&self, entry: u64) -> Narrowing {
        self.entries.narrowing(entry)
    }

    #[inline]
    fn attributes_of(&self, leaf: u64) -> u64 {
        self.entries.attributes_of(leaf)
    }

    #[inline]
    fn leaf(&self, level: u32, run_log2: u32, bus: BusAddr, attributes: u64) -> u64 {
        self.entries.leaf(level, run_log2, bus, attributes)
    }

    #[inline]
    fn table(&self, level: u32, table: TableAddr) -> u64 {
        self.entries.table(level, table)
    }

    #[inline]
    fn dirty_test(&self) -> Option<DirtyTest> {
        self.entries.dirty_test()
    }

    #[inline]
    fn with_dirty(&self, leaf: u64, dirty: bool) -> u64 {
        self.entries.with_dirty(leaf, dirty)
    }

    fn fields(&self, level: u32, entry: u64) -> Fields {
        self.entries.fields(level, entry)
    }

    #[inline]
    fn needs_break_before_make(&self) -> bool {
        self.entries.needs_break_before_make()
    }
}
