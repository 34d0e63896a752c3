//! RISC-V Sv39, Sv48 and Sv57, as walked by CPUs and by the RISC-V IOMMU.
//!
//! Source: The RISC-V Instruction Set Manual, volume II (Privileged Architecture), chapter
//! "Supervisor-Level ISA": "Sv39: Page-Based 39-bit Virtual-Memory System" and its like, "Svnapot"
//! and "Svpbmt".
//!
//! ```text
//!   63 62 61 60 … 54   53 … 10               9 8  7 6 5 4 3 2 1 0
//!   ┌──┬────┬────────┬──────────────────────┬────┬─┬─┬─┬─┬─┬─┬─┬─┐
//!   │N │PBMT│reserved│ page number          │ RSW│D│A│G│U│X│W│R│V│
//!   └──┴────┴────────┴──────────────────────┴────┴─┴─┴─┴─┴─┴─┴─┴─┘
//! ```
//!
//! Memory is coherent with or without [`Prot::COHERENT`], except with [`Prot::DEVICE`].

use longshore_mem::BusAddr;

use super::fields::{Field, Fields, choice, flag, range};
use super::{DirtyTest, Entry, Format, LeafEntry, Unsupported, UnsupportedReason, bits, when};
use crate::geometry::{Geometry, LEVELS_MAX, Shape, Window};
use crate::prot::Prot;
use crate::table_memory::TableAddr;

const VALID: u64 = 1 << 0;
const READ: u64 = 1 << 1;
const WRITE: u64 = 1 << 2;
const EXECUTE: u64 = 1 << 3;
const USER: u64 = 1 << 4;
const ACCESSED: u64 = 1 << 6;
const DIRTY: u64 = 1 << 7;
const PAGE_NUMBER: u64 = bits(53, 10);
/// In an entry, a page number is two bits lower than in an address.
const ADDRESS_SHIFT: u32 = 2;
const PBMT: u64 = bits(62, 61);
const PBMT_IO: u64 = 0b10 << 61;
const RESERVED: u64 = bits(60, 54);
const NAPOT: u64 = 1 << 63;
/// The size of a Svnapot page, 64 KiB, encoded in the lowest four bits of the page number.
const NAPOT_RUN_LOG2: u32 = 4;
const NAPOT_SIZE: u64 = 0b1000 << 10;
const NAPOT_SIZE_MASK: u64 = bits(13, 10);

const FIELDS: &[Field] = &[
    flag("V", 0, &["not valid", "valid"]),
    flag("R", 1, &["", "read"]),
    flag("W", 2, &["", "write"]),
    flag("X", 3, &["", "execute"]),
    flag("U", 4, &["", "user"]),
    flag("G", 5, &["", "global"]),
    flag("A", 6, &["", "accessed"]),
    flag("D", 7, &["", "dirty"]),
    range("RSW", 9, 8),
    range("PPN", 53, 10),
    choice("PBMT", 62, 61, &["none (PMA)", "non-cacheable", "I/O", "reserved"]),
    flag("N", 63, &["", "64 KiB of sixteen entries"]),
];

/// The paging mode, which is the number of levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RiscVMode {
    /// Three levels, 39 bits.
    Sv39,
    /// Four levels, 48 bits.
    Sv48,
    /// Five levels, 57 bits.
    Sv57,
}

/// The configuration of a RISC-V table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RiscVConfig {
    mode: RiscVMode,
    output_bits: u32,
    svnapot: bool,
    svpbmt: bool,
    dirty: bool,
}

impl RiscVConfig {
    /// Returns the configuration for `mode`, with 56 output bits, both extensions and no dirty
    /// tracking.
    pub const fn new(mode: RiscVMode) -> Self {
        Self { mode, output_bits: 56, svnapot: true, svpbmt: true, dirty: false }
    }

    /// Sets the number of bits of a physical address: 32 to 56.
    #[must_use]
    pub const fn with_output_bits(mut self, output_bits: u32) -> Self {
        self.output_bits = output_bits;
        self
    }

    /// Sets whether 64 KiB pages of sixteen entries are used (Svnapot).
    #[must_use]
    pub const fn with_svnapot(mut self, svnapot: bool) -> Self {
        self.svnapot = svnapot;
        self
    }

    /// Sets whether [`Prot::DEVICE`] can be expressed (Svpbmt). If not, it is refused.
    #[must_use]
    pub const fn with_svpbmt(mut self, svpbmt: bool) -> Self {
        self.svpbmt = svpbmt;
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

/// The RISC-V format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RiscV {
    geometry: Geometry,
    /// The bits that must be clear in a leaf, given the extensions.
    reserved: u64,
    svpbmt: bool,
    dirty: bool,
}

impl RiscV {
    /// Returns the format for `config`.
    ///
    /// # Errors
    /// [`Unsupported`] if the architecture does not have this configuration.
    pub fn new(config: RiscVConfig) -> Result<Self, Unsupported> {
        if !(32..=56).contains(&config.output_bits) {
            let output_bits = config.output_bits;
            let reason = UnsupportedReason::OutputBits { output_bits, fewest: 32, most: 56 };
            return Err(Unsupported::new(Self::NAME, reason));
        }
        let levels = match config.mode {
            RiscVMode::Sv39 => 3,
            RiscVMode::Sv48 => 4,
            RiscVMode::Sv57 => 5,
        };
        let pages = 1 | u32::from(config.svnapot) << NAPOT_RUN_LOG2;
        let geometry = Geometry::new(Shape {
            granule_log2: 12,
            index_log2: 9,
            levels,
            input_bits: 12 + 9 * levels,
            output_bits: config.output_bits,
            window: Window::Signed,
            runs: [pages, 1, 1, 1, 1, 0],
            linear_log2: 64,
        });
        let reserved = RESERVED | when(!config.svpbmt, PBMT) | when(!config.svnapot, NAPOT);
        Ok(Self { geometry, reserved, svpbmt: config.svpbmt, dirty: config.dirty })
    }
}

impl Format for RiscV {
    const NAME: &'static str = "RISC-V";
    const LEVEL_NAMES: [&'static str; LEVELS_MAX] = ["0", "1", "2", "3", "4", ""];
    const RUNS_REPEAT: bool = true;
    const READ_ONLY_KEEPS_DIRTY: bool = true;

    #[inline]
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    #[inline]
    fn present_mask(&self) -> u64 {
        VALID
    }

    #[inline]
    fn decode(&self, level: u32, entry: u64) -> Entry {
        if entry & VALID == 0 {
            return Entry::Absent;
        }
        let address = (entry & PAGE_NUMBER) << ADDRESS_SHIFT;
        if entry & (READ | WRITE | EXECUTE) == 0 {
            let reserved = RESERVED | NAPOT | PBMT | DIRTY | ACCESSED | USER;
            return if level > 0 && entry & reserved == 0 {
                Entry::Table(TableAddr::new(address))
            } else {
                Entry::Reserved
            };
        }
        let napot = entry & NAPOT != 0;
        let napot_fits = level == 0 && entry & NAPOT_SIZE_MASK == NAPOT_SIZE;
        let (page_log2, run_log2, size) = if napot {
            (16, NAPOT_RUN_LOG2, 0b1000 << 12)
        } else {
            (self.geometry.shift(level), 0, 0)
        };
        let bus = address - when(napot_fits && napot, size);
        let misaligned = bus & !(u64::MAX << page_log2) != 0;
        let unknown = entry & self.reserved != 0 || entry & PBMT == PBMT;
        if napot && !napot_fits || entry & (READ | WRITE) == WRITE || misaligned || unknown {
            return Entry::Reserved;
        }
        Entry::Leaf(LeafEntry { bus: BusAddr::new(bus), run_log2 })
    }

    #[inline]
    fn attributes(&self, prot: Prot) -> Option<u64> {
        if !prot.intersects(Prot::READ | Prot::EXECUTE)
            || prot.contains(Prot::WRITE) && !prot.contains(Prot::READ)
            || prot.contains(Prot::COHERENT | Prot::DEVICE)
            || prot.contains(Prot::DEVICE) && !self.svpbmt
        {
            return None;
        }
        Some(
            VALID
                | ACCESSED
                | when(prot.contains(Prot::READ), READ)
                | when(prot.contains(Prot::WRITE), WRITE | when(!self.dirty, DIRTY))
                | when(prot.contains(Prot::EXECUTE), EXECUTE)
                | when(!prot.contains(Prot::PRIVILEGED), USER)
                | when(prot.contains(Prot::DEVICE), PBMT_IO),
        )
    }

    #[inline]
    fn prot(&self, leaf: u64) -> Prot {
        let device = leaf & PBMT == PBMT_IO;
        Prot::READ.when(leaf & READ != 0)
            | Prot::WRITE.when(leaf & WRITE != 0)
            | Prot::EXECUTE.when(leaf & EXECUTE != 0)
            | Prot::PRIVILEGED.when(leaf & USER == 0)
            | if device { Prot::DEVICE } else { Prot::COHERENT }
    }

    #[inline]
    fn attributes_of(&self, leaf: u64) -> u64 {
        leaf & !(PAGE_NUMBER | NAPOT)
    }

    #[inline]
    fn leaf(&self, _level: u32, run_log2: u32, bus: BusAddr, attributes: u64) -> u64 {
        bus.raw() >> ADDRESS_SHIFT | attributes | when(run_log2 != 0, NAPOT | NAPOT_SIZE)
    }

    #[inline]
    fn step(&self, level: u32) -> u64 {
        1 << (self.geometry.shift(level) - ADDRESS_SHIFT)
    }

    #[inline]
    fn table(&self, _level: u32, table: TableAddr) -> u64 {
        table.raw() >> ADDRESS_SHIFT | VALID
    }

    #[inline]
    fn dirty_test(&self) -> Option<DirtyTest> {
        let all = VALID | DIRTY;
        self.dirty.then_some(DirtyTest { mask: all, value: all })
    }

    #[inline]
    fn with_dirty(&self, leaf: u64, dirty: bool) -> u64 {
        leaf & !DIRTY | when(dirty, DIRTY)
    }

    fn fields(&self, _level: u32, _entry: u64) -> Fields {
        &[FIELDS]
    }

    #[inline]
    fn needs_break_before_make(&self) -> bool {
        false
    }
}
