//! Stage 2: what a hypervisor maps for a guest's device.
//!
//! The root may be up to 16 tables side by side (concatenated), which saves a level: the fewest
//! levels possible are used, as the manual has them for each input size.

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
/// XN[1:0] of 0b10: nobody executes.
const XN: u64 = 0b10 << 53;
const XN_MASK: u64 = bits(54, 53);

/// What stage 2 adds to the fields of a leaf.
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
        &["anyone executes", "unprivileged execute", "nobody executes", "privileged execute"],
    ),
];

/// How a stage 2 table is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage2Config {
    /// 4, 16 or 64 KiB.
    pub granule: Granule,
    /// Bits of an address that are translated: 25 to 52, as for stage 1.
    pub input_bits: u32,
    /// Bits of an address after translation: 32 to 52.
    pub output_bits: u32,
    /// Set the Contiguous bit where a run of entries allows it.
    pub contiguous: bool,
    /// Let the hardware track dirty pages (`S2HD` set).
    pub dirty: bool,
    /// The hardware tolerates a change of page size without break-before-make (FEAT_BBM level 2).
    pub live_size_changes: bool,
}

impl Stage2Config {
    /// Of `granule`, 48 bits on both sides, contiguous runs, no dirty tracking.
    pub const fn new(granule: Granule) -> Self {
        Self {
            granule,
            input_bits: 48,
            output_bits: 48,
            contiguous: true,
            dirty: false,
            live_size_changes: false,
        }
    }
}

/// Arm LPAE, stage 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage2 {
    lpae: Lpae,
    dirty: bool,
    live_size_changes: bool,
}

impl Stage2 {
    /// The format for `config`.
    ///
    /// # Errors
    /// [`Unsupported`] where the architecture has no such set-up.
    pub fn new(config: Stage2Config) -> Result<Self, Unsupported> {
        let lpae = Lpae::new(LpaeConfig {
            format: Self::NAME,
            granule: config.granule,
            input_bits: config.input_bits,
            output_bits: config.output_bits,
            window: Window::Low,
            contiguous: config.contiguous,
            concatenation_log2: 4,
        })?;
        Ok(Self { lpae, dirty: config.dirty, live_size_changes: config.live_size_changes })
    }

    /// How many tables lie side by side at the root, as a logarithm.
    pub fn concatenated_log2(&self) -> u32 {
        let geometry = &self.lpae.geometry;
        let full = geometry.granule_log2() - 3;
        geometry.slots_log2(geometry.root_level()).saturating_sub(full)
    }
}

impl Format for Stage2 {
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
            // Fetching is reading.
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
