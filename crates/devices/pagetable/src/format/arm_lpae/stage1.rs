//! Stage 1: the mappings of a process or a driver for a device.

use longshore_mem::{BusAddr, Granule};

use super::{
    ACCESS_FLAG, ADDRESS_HIGH_2, ADDRESS_HIGH_4, ADDRESS_PLAIN, AddressBits, DBM, LEAF,
    LEVEL_NAMES, Lpae, LpaeConfig, SH, SH_INNER, SH_OUTER, SIZE_BITS, TABLE_HIGH_2, TABLE_HIGH_4,
    TABLE_OR_PAGE, TABLE_PLAIN, VALID,
};
use crate::format::fields::{Field, Fields, choice, flag};
use crate::format::{DirtyTest, Entry, Format, Unsupported, when};
use crate::geometry::{Geometry, LEVELS_MAX, Window};
use crate::prot::{Narrowing, Prot};
use crate::table_memory::TableAddr;

const ATTR_INDEX_SHIFT: u32 = 2;
/// AP[1]: unprivileged accesses are allowed.
const AP_UNPRIVILEGED: u64 = 1 << 6;
/// AP[2]: no writes; with DBM set, clean.
const AP_READ_ONLY: u64 = 1 << 7;
const NOT_GLOBAL: u64 = 1 << 11;
const PXN: u64 = 1 << 53;
const UXN: u64 = 1 << 54;
/// `PXNTable`, `UXNTable`, `APTable[0]` and `APTable[1]` of an entry that leads to a table.
const TABLE_PXN: u64 = 1 << 59;
const TABLE_UXN: u64 = 1 << 60;
const TABLE_NO_UNPRIVILEGED: u64 = 1 << 61;
const TABLE_READ_ONLY: u64 = 1 << 62;

/// Indexes into [`ArmStage1::MAIR`].
const ATTR_NON_CACHEABLE: u64 = 0;
const ATTR_WRITE_BACK: u64 = 1;
const ATTR_DEVICE: u64 = 2;

/// The fields of a leaf that only stage 1 has.
const STAGE1_LEAF: &[Field] = &[
    choice("AttrIndx", 4, 2, &["non-cacheable", "write-back", "device"]),
    flag("NS", 5, &["", "non-secure"]),
    choice(
        "AP[2:1]",
        7,
        6,
        &["read/write, privileged", "read/write", "read-only, privileged", "read-only"],
    ),
    flag("nG", 11, &["global", "not global"]),
    flag("PXN", 53, &["", "privileged execute never"]),
    flag("UXN", 54, &["", "unprivileged execute never"]),
];
/// The fields of an entry for a table that only stage 1 has.
const STAGE1_TABLE: &[Field] = &[
    flag("PXNTable", 59, &["", "privileged execute never below"]),
    flag("UXNTable", 60, &["", "unprivileged execute never below"]),
    choice(
        "APTable",
        62,
        61,
        &["", "privileged only below", "read-only below", "read-only, privileged below"],
    ),
    flag("NSTable", 63, &["", "non-secure below"]),
];

/// The configuration of a stage 1 table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArmStage1Config {
    granule: Granule,
    input_bits: u32,
    output_bits: u32,
    upper: bool,
    contiguous: bool,
    dirty: bool,
    live_size_changes: bool,
}

impl ArmStage1Config {
    /// Returns the configuration for `granule`, with 48 input and output bits, contiguous runs and
    /// no dirty tracking.
    pub const fn new(granule: Granule) -> Self {
        Self {
            granule,
            input_bits: 48,
            output_bits: 48,
            upper: false,
            contiguous: true,
            dirty: false,
            live_size_changes: false,
        }
    }

    /// Sets the number of address bits that are translated: 25 to 52. More than 48 input or output
    /// bits need FEAT_LPA2 (4 and 16 KiB granules), or FEAT_LVA and FEAT_LPA (64 KiB granule).
    #[must_use]
    pub const fn with_input_bits(mut self, input_bits: u32) -> Self {
        self.input_bits = input_bits;
        self
    }

    /// Sets the number of bits of a translated address: 32 to 52.
    #[must_use]
    pub const fn with_output_bits(mut self, output_bits: u32) -> Self {
        self.output_bits = output_bits;
        self
    }

    /// Sets whether the top of the address space is translated (TTBR1) or the bottom (TTBR0).
    #[must_use]
    pub const fn with_upper(mut self, upper: bool) -> Self {
        self.upper = upper;
        self
    }

    /// Sets whether the Contiguous bit is used for runs of entries that allow it.
    #[must_use]
    pub const fn with_contiguous(mut self, contiguous: bool) -> Self {
        self.contiguous = contiguous;
        self
    }

    /// Sets whether the hardware tracks dirty pages (`HD` set).
    #[must_use]
    pub const fn with_dirty_tracking(mut self, dirty: bool) -> Self {
        self.dirty = dirty;
        self
    }

    /// Sets whether the hardware tolerates a change of page size without break-before-make (FEAT_BBM
    /// level 2).
    #[must_use]
    pub const fn with_live_size_changes(mut self, live_size_changes: bool) -> Self {
        self.live_size_changes = live_size_changes;
        self
    }
}

/// The Arm LPAE format of stage 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArmStage1 {
    lpae: Lpae,
    dirty: bool,
    live_size_changes: bool,
}

impl ArmStage1 {
    /// The required value of the memory attribute register: Normal non-cacheable, Normal
    /// write-back, Device-nGnRE.
    pub const MAIR: u64 = 0x04_ff_44;

    /// Returns the format for `config`.
    ///
    /// # Errors
    /// [`Unsupported`] if the architecture does not have this configuration.
    pub fn new(config: ArmStage1Config) -> Result<Self, Unsupported> {
        let lpae = Lpae::new(LpaeConfig {
            format: Self::NAME,
            granule: config.granule,
            input_bits: config.input_bits,
            output_bits: config.output_bits,
            window: if config.upper { Window::High } else { Window::Low },
            contiguous: config.contiguous,
            concatenation_log2: 0,
            levels: None,
        })?;
        Ok(Self { lpae, dirty: config.dirty, live_size_changes: config.live_size_changes })
    }
}

impl Format for ArmStage1 {
    const NAME: &'static str = "Arm LPAE stage 1";
    const LEVEL_NAMES: [&'static str; LEVELS_MAX] = LEVEL_NAMES;
    const RUNS_REPEAT: bool = false;
    const READ_ONLY_KEEPS_DIRTY: bool = false;

    #[inline]
    fn geometry(&self) -> &Geometry {
        &self.lpae.geometry
    }

    #[inline]
    fn present_mask(&self) -> u64 {
        VALID
    }

    #[inline(always)]
    fn decode(&self, level: u32, entry: u64) -> Entry {
        self.lpae.decode(level, entry)
    }

    #[inline]
    fn attributes(&self, prot: Prot) -> Option<u64> {
        // Writable pages are always readable, and memory has only one type.
        if !prot.contains(Prot::READ) || prot.contains(Prot::COHERENT | Prot::DEVICE) {
            return None;
        }
        let (index, shareability) = if prot.contains(Prot::COHERENT) {
            (ATTR_WRITE_BACK, SH_INNER)
        } else if prot.contains(Prot::DEVICE) {
            (ATTR_DEVICE, SH_OUTER)
        } else {
            (ATTR_NON_CACHEABLE, SH_OUTER)
        };
        let access = match (prot.contains(Prot::WRITE), self.dirty) {
            (false, _) => AP_READ_ONLY,
            (true, false) => 0,
            (true, true) => AP_READ_ONLY | DBM,
        };
        Some(
            ACCESS_FLAG
                | NOT_GLOBAL
                | index << ATTR_INDEX_SHIFT
                | when(self.lpae.has_shareability(), shareability)
                | when(!prot.contains(Prot::PRIVILEGED), AP_UNPRIVILEGED)
                | when(!prot.contains(Prot::EXECUTE), PXN | UXN)
                | access,
        )
    }

    #[inline]
    fn prot(&self, leaf: u64) -> Prot {
        let index = leaf >> ATTR_INDEX_SHIFT & 7;
        Prot::READ
            | Prot::WRITE.when(leaf & AP_READ_ONLY == 0 || self.dirty && leaf & DBM != 0)
            | Prot::EXECUTE.when(leaf & (UXN | PXN) == 0)
            | Prot::PRIVILEGED.when(leaf & AP_UNPRIVILEGED == 0)
            | Prot::COHERENT.when(index == ATTR_WRITE_BACK)
            | Prot::DEVICE.when(index == ATTR_DEVICE)
    }

    #[inline]
    fn narrowing(&self, entry: u64) -> Narrowing {
        // These bits apply unless TCR_ELx.HPD disables them for all tables.
        Narrowing {
            denied: Prot::WRITE.when(entry & TABLE_READ_ONLY != 0)
                | Prot::EXECUTE.when(entry & (TABLE_UXN | TABLE_PXN) != 0),
            demanded: Prot::PRIVILEGED.when(entry & TABLE_NO_UNPRIVILEGED != 0),
        }
    }

    #[inline]
    fn attributes_of(&self, leaf: u64) -> u64 {
        self.lpae.attributes_of(leaf)
    }

    #[inline]
    fn leaf(&self, level: u32, run_log2: u32, bus: BusAddr, attributes: u64) -> u64 {
        self.lpae.leaf(level, run_log2, bus, attributes)
    }

    #[inline]
    fn table(&self, _level: u32, table: TableAddr) -> u64 {
        self.lpae.table(table)
    }

    #[inline]
    fn dirty_test(&self) -> Option<DirtyTest> {
        self.dirty.then_some(DirtyTest { mask: VALID | DBM | AP_READ_ONLY, value: VALID | DBM })
    }

    #[inline]
    fn with_dirty(&self, leaf: u64, dirty: bool) -> u64 {
        match (leaf & DBM != 0, dirty) {
            (false, _) => leaf,
            (true, true) => leaf & !AP_READ_ONLY,
            (true, false) => leaf | AP_READ_ONLY,
        }
    }

    fn fields(&self, level: u32, entry: u64) -> Fields {
        let leads_to_a_table = level > 0 && entry & TABLE_OR_PAGE != 0;
        match (leads_to_a_table, self.lpae.address) {
            (true, AddressBits::Plain) => &[SIZE_BITS, STAGE1_TABLE, TABLE_PLAIN],
            (true, AddressBits::High4In15To12) => &[SIZE_BITS, STAGE1_TABLE, TABLE_HIGH_4],
            (true, AddressBits::High2In9To8) => &[SIZE_BITS, STAGE1_TABLE, TABLE_HIGH_2],
            (false, AddressBits::Plain) => &[SIZE_BITS, STAGE1_LEAF, SH, LEAF, ADDRESS_PLAIN],
            (false, AddressBits::High4In15To12) => {
                &[SIZE_BITS, STAGE1_LEAF, SH, LEAF, ADDRESS_HIGH_4]
            }
            (false, AddressBits::High2In9To8) => &[SIZE_BITS, STAGE1_LEAF, LEAF, ADDRESS_HIGH_2],
        }
    }

    #[inline]
    fn needs_break_before_make(&self) -> bool {
        !self.live_size_changes
    }

    #[inline]
    fn fixed_while_live(&self) -> Prot {
        // The memory type and the shareability: DDI 0487, "Using break-before-make when updating
        // translation table entries". FEAT_BBM takes away only the rule about sizes.
        Prot::DEVICE | Prot::COHERENT
    }
}
