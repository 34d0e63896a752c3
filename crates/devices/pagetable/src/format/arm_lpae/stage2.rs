//! Stage 2: see [`ArmStage2`].

use longshore_mem::{BusAddr, Granule};

use super::{
    ACCESS_FLAG, ADDRESS_HIGH_2, ADDRESS_HIGH_4, ADDRESS_PLAIN, AddressBits, DBM, LEAF,
    LEVEL_NAMES, Lpae, LpaeConfig, SH, SH_INNER, SH_OUTER, SIZE_BITS, TABLE_HIGH_2, TABLE_HIGH_4,
    TABLE_OR_PAGE, TABLE_PLAIN, VALID,
};
use crate::format::fields::{Field, Fields, choice};
use crate::format::{DirtyTest, Entry, Format, Unsupported, bits, when};
use crate::geometry::{Geometry, LEVELS_MAX, Window};
use crate::prot::Prot;
use crate::table_memory::TableAddr;

const MEM_ATTR_SHIFT: u32 = 2;
const MEM_ATTR: u64 = bits(5, 2);
const MEM_DEVICE_NGNRE: u64 = 0b0001 << MEM_ATTR_SHIFT;
const MEM_NON_CACHEABLE: u64 = 0b0101 << MEM_ATTR_SHIFT;
const MEM_WRITE_BACK: u64 = 0b1111 << MEM_ATTR_SHIFT;
/// S2AP[0].
const S2AP_READ: u64 = 1 << 6;
/// S2AP[1]; with DBM set, dirty.
const S2AP_WRITE: u64 = 1 << 7;
/// XN[1:0] of 0b10: execution is not permitted.
const XN: u64 = 0b10 << 53;
const XN_MASK: u64 = bits(54, 53);

/// The fields of a leaf that only stage 2 has.
const STAGE2_LEAF: &[Field] = &[
    choice(
        "MemAttr",
        5,
        2,
        &[
            "device-nGnRnE",
            "device-nGnRE",
            "device-nGRE",
            "device-GRE",
            "reserved",
            "non-cacheable",
            "inner write-through, outer non-cacheable",
            "inner write-back, outer non-cacheable",
            "reserved",
            "inner non-cacheable, outer write-through",
            "write-through",
            "inner write-back, outer write-through",
            "reserved",
            "inner non-cacheable, outer write-back",
            "inner write-through, outer write-back",
            "write-back",
        ],
    ),
    choice("S2AP", 7, 6, &["no access", "read-only", "write-only", "read/write"]),
    choice(
        "XN[1:0]",
        54,
        53,
        &["execute", "unprivileged execute", "execute never", "privileged execute"],
    ),
];

/// The configuration of a stage 2 table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArmStage2Config {
    granule: Granule,
    input_bits: u32,
    output_bits: u32,
    levels: Option<u32>,
    contiguous: bool,
    dirty: bool,
    live_size_changes: bool,
}

impl ArmStage2Config {
    /// Returns the configuration for `granule`, with 48 input and output bits, contiguous runs and
    /// no dirty tracking.
    pub const fn new(granule: Granule) -> Self {
        Self {
            granule,
            input_bits: 48,
            output_bits: 48,
            levels: None,
            contiguous: true,
            dirty: false,
            live_size_changes: false,
        }
    }

    /// Sets the number of address bits that are translated: 25 to 52, as for stage 1.
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

    /// Sets the number of levels, for tables that another program built or for hardware that needs a
    /// certain initial level (SL0). With a 4 KiB granule, a single level needs FEAT_TTST. Without this
    /// setting, the number follows from the table in
    /// [`ArmStage2`](ArmStage2#the-tables-at-the-root).
    #[must_use]
    pub const fn with_levels(mut self, levels: u32) -> Self {
        self.levels = Some(levels);
        self
    }

    /// Sets whether the Contiguous bit is used for runs of entries that allow it.
    #[must_use]
    pub const fn with_contiguous(mut self, contiguous: bool) -> Self {
        self.contiguous = contiguous;
        self
    }

    /// Sets whether the hardware tracks dirty pages (`S2HD` set).
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

/// The Arm LPAE format of stage 2: the tables by which a hypervisor translates the addresses of a
/// guest's device.
///
/// # The registers
///
/// `T0SZ` is 64 minus [`input_bits`](ArmStage2Config::with_input_bits). `SL0` follows from the
/// number of levels of the [geometry](Format::geometry): the initial level is 4 minus that number.
///
/// # The tables at the root
///
/// The root may be up to 16 adjacent (concatenated) tables of the level below, which saves a level
/// (DDI 0487, D8.2). Unless [`with_levels`](ArmStage2Config::with_levels) sets the number of
/// levels, `ArmStage2` concatenates only if no block size is lost:
///
/// | granule | input bits | tables at the root | why |
/// | --- | --- | --- | --- |
/// | 4K | 31 to 34 | 1, of level 1 | level 1 has 1 GiB blocks |
/// | 4K | 40 to 43 | 2 to 16, of level 1 | level 0 has no blocks, and must not be the initial level if physical addresses have fewer than 44 bits |
/// | 4K, 52 output bits | 40 to 43 | 1, of level 0 | level 0 has 512 GiB blocks |
/// | 4K | 49 to 52 | 2 to 16, of level 0 | level -1 has no blocks |
/// | 16K | 26 to 29 | 1, of level 2 | level 2 has 32 MiB blocks |
/// | 16K | 37 to 40 | 2 to 16, of level 2 | level 1 has no blocks, and must not be the initial level if physical addresses have fewer than 42 bits |
/// | 16K, 52 output bits | 37 to 40 | 1, of level 1 | level 1 has 64 GiB blocks |
/// | 16K | 48 to 51 | 2 to 16, of level 1 | level 0 has no blocks, and may be the initial level only with FEAT_LPA2 |
/// | 64K | 30 to 33 | 1, of level 2 | level 2 has 512 MiB blocks |
/// | 64K | 43 to 46 | 2 to 16, of level 2 | level 1 has no blocks |
/// | 64K, 52 output bits | 43 to 46 | 1, of level 1 | level 1 has 4 TiB blocks |
/// | any | all others | 1 | more than 16 tables would be needed |
///
/// Levels are numbered as in the manual. The table includes every case in which the architecture
/// requires concatenated tables (`AArch64.S2InvalidSL` in DDI 0487), for any hardware whose
/// physical addresses have at least [`input_bits`](ArmStage2Config::with_input_bits) and
/// [`output_bits`](ArmStage2Config::with_output_bits) bits. Linux concatenates only on demand for
/// the DMA API, and KVM does so wherever it does not lose 2 MiB blocks
/// (`drivers/iommu/io-pgtable-arm.c`, `kvm_get_vtcr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArmStage2 {
    lpae: Lpae,
    dirty: bool,
    live_size_changes: bool,
}

impl ArmStage2 {
    /// Returns the format for `config`.
    ///
    /// # Errors
    /// [`Unsupported`] if the architecture does not have this configuration.
    pub fn new(config: ArmStage2Config) -> Result<Self, Unsupported> {
        let lpae = Lpae::new(LpaeConfig {
            format: Self::NAME,
            granule: config.granule,
            input_bits: config.input_bits,
            output_bits: config.output_bits,
            window: Window::Low,
            contiguous: config.contiguous,
            concatenation_log2: 4,
            levels: config.levels,
        })?;
        Ok(Self { lpae, dirty: config.dirty, live_size_changes: config.live_size_changes })
    }

    /// Returns the number of tables concatenated at the root, as a logarithm.
    pub fn concatenated_log2(&self) -> u32 {
        let geometry = &self.lpae.geometry;
        let full = geometry.granule_log2() - 3;
        geometry.slots_log2(geometry.root_level()).saturating_sub(full)
    }
}

impl Format for ArmStage2 {
    const NAME: &'static str = "Arm LPAE stage 2";
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
        if !prot.intersects(Prot::READ_WRITE)
            || prot.contains(Prot::PRIVILEGED)
            || prot.contains(Prot::COHERENT | Prot::DEVICE)
            // An instruction fetch is a read.
            || prot.contains(Prot::EXECUTE) && !prot.contains(Prot::READ)
        {
            return None;
        }
        let (memory, shareability) = if prot.contains(Prot::COHERENT) {
            (MEM_WRITE_BACK, SH_INNER)
        } else if prot.contains(Prot::DEVICE) {
            (MEM_DEVICE_NGNRE, SH_OUTER)
        } else {
            (MEM_NON_CACHEABLE, SH_OUTER)
        };
        let write = if self.dirty { DBM } else { S2AP_WRITE };
        Some(
            ACCESS_FLAG
                | memory
                | when(self.lpae.has_shareability(), shareability)
                | when(prot.contains(Prot::READ), S2AP_READ)
                | when(prot.contains(Prot::WRITE), write)
                | when(!prot.contains(Prot::EXECUTE), XN),
        )
    }

    #[inline]
    fn prot(&self, leaf: u64) -> Prot {
        Prot::READ.when(leaf & S2AP_READ != 0)
            | Prot::WRITE.when(leaf & S2AP_WRITE != 0 || self.dirty && leaf & DBM != 0)
            | Prot::EXECUTE.when(leaf & XN_MASK == 0)
            | Prot::COHERENT.when(leaf & MEM_ATTR == MEM_WRITE_BACK)
            | Prot::DEVICE.when(leaf & MEM_ATTR == MEM_DEVICE_NGNRE)
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
        let all = VALID | DBM | S2AP_WRITE;
        self.dirty.then_some(DirtyTest { mask: all, value: all })
    }

    #[inline]
    fn with_dirty(&self, leaf: u64, dirty: bool) -> u64 {
        match (leaf & DBM != 0, dirty) {
            (false, _) => leaf,
            (true, true) => leaf | S2AP_WRITE,
            (true, false) => leaf & !S2AP_WRITE,
        }
    }

    fn fields(&self, level: u32, entry: u64) -> Fields {
        let leads_to_a_table = level > 0 && entry & TABLE_OR_PAGE != 0;
        match (leads_to_a_table, self.lpae.address) {
            (true, AddressBits::Plain) => &[SIZE_BITS, &[], TABLE_PLAIN],
            (true, AddressBits::High4In15To12) => &[SIZE_BITS, &[], TABLE_HIGH_4],
            (true, AddressBits::High2In9To8) => &[SIZE_BITS, &[], TABLE_HIGH_2],
            (false, AddressBits::Plain) => &[SIZE_BITS, STAGE2_LEAF, SH, LEAF, ADDRESS_PLAIN],
            (false, AddressBits::High4In15To12) => {
                &[SIZE_BITS, STAGE2_LEAF, SH, LEAF, ADDRESS_HIGH_4]
            }
            (false, AddressBits::High2In9To8) => &[SIZE_BITS, STAGE2_LEAF, LEAF, ADDRESS_HIGH_2],
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
