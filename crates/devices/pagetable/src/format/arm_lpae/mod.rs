//! Arm's 64-bit tables (VMSAv8-64), as walked by an SMMUv3 and by CPUs.
//!
//! Source: Arm Architecture Reference Manual for A-profile (DDI 0487), section D8.3 "Translation
//! table descriptor formats": table, block and page descriptors of both stages; D8.2 for granules,
//! levels and concatenated tables; D8.6 for memory attributes and the Contiguous bit; D8.5 for
//! hardware-managed dirty state; the pseudocode functions `AArch64.S2InvalidSL` and
//! `AArch64.S2InconsistentSL` for initial levels of stage 2, and `AArch64.ContiguousBitFaults` for
//! runs in a small root. The manual counts levels from the root down: its level 3 is level
//! 0 here.
//!
//! ```text
//!    63 … 55 54  53  52   51  50 49 … 12 (OA)          11 10 9 8 7 6 5 … 2   1     0
//!   ┌───────┬───┬───┬────┬───┬──┬─────────────────────┬──┬──┬───┬─────┬─────┬─────┬─────┐
//!   │       │UXN│PXN│Cont│DBM│  │ output address      │nG│AF│SH │AP21 │attr │table│valid│  stage 1
//!   │       │ XN[1:0]│Cont│DBM│ │ output address      │  │AF│SH │S2AP │attr │table│valid│  stage 2
//!   └───────┴───┴───┴────┴───┴──┴─────────────────────┴──┴──┴───┴─────┴─────┴─────┴─────┘
//! ```

mod stage1;
mod stage2;

pub use stage1::{ArmStage1, ArmStage1Config};
pub use stage2::{ArmStage2, ArmStage2Config};

use longshore_mem::{BusAddr, Granule};

use super::fields::{Field, bit, choice, flag, range};
use super::{Entry, LeafEntry, Unsupported, UnsupportedReason, bits, when};
use crate::geometry::{Geometry, Shape, Window};
use crate::table_memory::TableAddr;

const VALID: u64 = 1 << 0;
const TABLE_OR_PAGE: u64 = 1 << 1;
const SH_SHIFT: u32 = 8;
const SH_OUTER: u64 = 0b10 << SH_SHIFT;
const SH_INNER: u64 = 0b11 << SH_SHIFT;
const ACCESS_FLAG: u64 = 1 << 10;
const DBM: u64 = 1 << 51;
const CONTIGUOUS: u64 = 1 << 52;

/// The manual's names of the levels.
const LEVEL_NAMES: [&str; 6] = ["3", "2", "1", "0", "-1", ""];

const SIZE_BITS: &[Field] =
    &[bit("valid", 0), flag("type", 1, &["block", "table, or page at level 3"])];
const SH: &[Field] =
    &[choice("SH", 9, 8, &["non-shareable", "reserved", "outer shareable", "inner shareable"])];
const LEAF: &[Field] = &[
    flag("AF", 10, &["access faults", ""]),
    flag("DBM", 51, &["", "writes set it dirty"]),
    flag("Contiguous", 52, &["", "part of a run"]),
    range("ignored for software", 58, 55),
    range("PBHA", 62, 59),
];
const ADDRESS_PLAIN: &[Field] = &[range("OA[47:12]", 47, 12)];
const ADDRESS_HIGH_4: &[Field] = &[range("OA[47:16]", 47, 16), range("OA[51:48]", 15, 12)];
const ADDRESS_HIGH_2: &[Field] = &[range("OA[49:12]", 49, 12), range("OA[51:50]", 9, 8)];
const TABLE_PLAIN: &[Field] = &[range("next table[47:12]", 47, 12)];
const TABLE_HIGH_4: &[Field] =
    &[range("next table[47:16]", 47, 16), range("next table[51:48]", 15, 12)];
const TABLE_HIGH_2: &[Field] =
    &[range("next table[49:12]", 49, 12), range("next table[51:50]", 9, 8)];

/// The place of an address in a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressBits {
    /// Bits 47:n at the same place as in the address.
    Plain,
    /// FEAT_LPA: bits 51:48 in bits 15:12 of the descriptor.
    High4In15To12,
    /// FEAT_LPA2 (`DS` set): bits 51:50 in bits 9:8, so there are no shareability bits.
    High2In9To8,
}

/// The part that both stages share: the shape of the tables and the place of the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lpae {
    geometry: Geometry,
    address: AddressBits,
    /// The mask of a table's address, if addresses are plain.
    plain_table_mask: u64,
    /// The number of entries of a contiguous run at each level, as a logarithm; 0 if there are
    /// none.
    contiguous_log2: [u32; 6],
}

/// The parameters of [`Lpae::new`].
#[derive(Clone, Copy, Debug)]
struct LpaeConfig {
    format: &'static str,
    granule: Granule,
    input_bits: u32,
    output_bits: u32,
    window: Window,
    contiguous: bool,
    /// The number of index bits that a root may have in addition to those of a table: 4 for the
    /// concatenated tables of stage 2.
    concatenation_log2: u32,
    /// The number of levels, if the caller sets it.
    levels: Option<u32>,
}

impl Lpae {
    fn new(config: LpaeConfig) -> Result<Self, Unsupported> {
        let LpaeConfig { format, granule, input_bits, output_bits, window, .. } = config;
        let unsupported = |reason| Err(Unsupported::new(format, reason));
        let granule_log2 = u32::from(granule.log2());
        if !(25..=52).contains(&input_bits) {
            return unsupported(UnsupportedReason::InputBits { input_bits, fewest: 25, most: 52 });
        }
        if !matches!(output_bits, 32 | 36 | 40 | 42 | 44 | 48 | 52) {
            return unsupported(UnsupportedReason::OutputBitsNotListed { output_bits });
        }
        let wide = output_bits > 48;
        // For granules of 4 and 16 KiB, FEAT_LPA2 widens both input and output addresses.
        let lpa2 = granule_log2 < 16 && (input_bits > 48 || wide);
        // The wider addresses brought larger block sizes (DDI 0487, D8.3, table "Block descriptor
        // OA bits"). The contiguous runs, from the pages upwards, are in D8.6.1. `Geometry::new`
        // removes runs that are larger than the input size, for which the Contiguous bit is
        // misprogrammed and the hardware may fault (`AArch64.ContiguousBitFaults`). A run of
        // exactly the input size is valid.
        let (block_levels, contiguous_log2) = match granule_log2 {
            12 => (if lpa2 { 4 } else { 3 }, [4, 4, 4, 0, 0, 0]),
            14 => (if lpa2 { 3 } else { 2 }, [7, 5, 0, 0, 0, 0]),
            16 => (if wide { 3 } else { 2 }, [5, 5, 0, 0, 0, 0]),
            _ => return unsupported(UnsupportedReason::Granule { granule }),
        };
        let index_log2 = granule_log2 - 3;
        let contiguous_log2 = if config.contiguous { contiguous_log2 } else { [0; 6] };
        let mut runs = [0; 6];
        for (level, run) in runs.iter_mut().enumerate().take(block_levels) {
            *run = 1 | 1 << contiguous_log2[level];
        }
        let above_granule = input_bits - granule_log2;
        // Concatenated tables replace a root that cannot hold blocks: see `ArmStage2`.
        let single = above_granule.div_ceil(index_log2);
        let fewest = above_granule.saturating_sub(config.concatenation_log2).div_ceil(index_log2);
        let levels = match config.levels {
            Some(0) => return unsupported(UnsupportedReason::NoLevels { fewest }),
            Some(levels) if levels < fewest => {
                let reason = UnsupportedReason::TooFewLevels {
                    levels,
                    input_bits,
                    root_tables_log2: above_granule - levels * index_log2,
                    root_tables_max_log2: config.concatenation_log2,
                    fewest,
                };
                return unsupported(reason);
            }
            Some(levels) if levels > single => {
                let reason = UnsupportedReason::TooManyLevels { levels, input_bits, most: single };
                return unsupported(reason);
            }
            Some(levels) => levels,
            None if single as usize > block_levels => fewest,
            None => single,
        };
        let (address, linear_log2) = match (lpa2, wide) {
            (true, _) => (AddressBits::High2In9To8, 50),
            (false, true) => (AddressBits::High4In15To12, 48),
            (false, false) => (AddressBits::Plain, 64),
        };
        let geometry = Geometry::new(Shape {
            granule_log2,
            index_log2,
            levels,
            input_bits,
            output_bits,
            window,
            runs,
            linear_log2,
        });
        let plain_table_mask = bits(47, granule_log2);
        Ok(Self { geometry, address, plain_table_mask, contiguous_log2 })
    }

    /// Returns `true` if descriptors have shareability bits.
    const fn has_shareability(&self) -> bool {
        !matches!(self.address, AddressBits::High2In9To8)
    }

    /// Returns the mask of the address in a descriptor.
    const fn address_mask(&self) -> u64 {
        match self.address {
            AddressBits::Plain => bits(47, 12),
            AddressBits::High4In15To12 => bits(47, 12),
            AddressBits::High2In9To8 => bits(49, 12) | bits(9, 8),
        }
    }

    #[inline]
    const fn encode_address(&self, address: u64) -> u64 {
        match self.address {
            AddressBits::Plain => address,
            AddressBits::High4In15To12 => address & bits(47, 16) | (address >> 48 & 0xf) << 12,
            AddressBits::High2In9To8 => address & bits(49, 12) | (address >> 50 & 3) << 8,
        }
    }

    /// Returns the address in `descriptor`, a multiple of 2^`aligned_log2`.
    #[inline]
    const fn decode_address(&self, descriptor: u64, aligned_log2: u32) -> u64 {
        let high = match self.address {
            AddressBits::Plain => 0,
            AddressBits::High4In15To12 => (descriptor >> 12 & 0xf) << 48,
            AddressBits::High2In9To8 => (descriptor >> 8 & 3) << 50,
        };
        let top = match self.address {
            AddressBits::High2In9To8 => 49,
            _ => 47,
        };
        descriptor & bits(top, 12) & (u64::MAX << aligned_log2) | high
    }

    #[inline]
    const fn leaf(&self, level: u32, run_log2: u32, bus: BusAddr, attributes: u64) -> u64 {
        self.encode_address(bus.raw())
            | attributes
            | VALID
            | when(level == 0, TABLE_OR_PAGE)
            | when(run_log2 != 0, CONTIGUOUS)
    }

    #[inline]
    const fn table(&self, table: TableAddr) -> u64 {
        self.encode_address(table.raw()) | VALID | TABLE_OR_PAGE
    }

    // Kept small for tables, on which walks spend most of their time.
    #[inline(always)]
    fn decode(&self, level: u32, descriptor: u64) -> Entry {
        if level > 0 && descriptor & (VALID | TABLE_OR_PAGE) == VALID | TABLE_OR_PAGE {
            return Entry::Table(TableAddr::new(match self.address {
                AddressBits::Plain => descriptor & self.plain_table_mask,
                _ => self.decode_address(descriptor, self.geometry.granule_log2()),
            }));
        }
        self.decode_leaf(level, descriptor)
    }

    /// As [`decode`](Self::decode), for a descriptor that does not lead to a table.
    #[inline]
    fn decode_leaf(&self, level: u32, descriptor: u64) -> Entry {
        if descriptor & VALID == 0 {
            return Entry::Absent;
        }
        let is_page_or_table = descriptor & TABLE_OR_PAGE != 0;
        if (level == 0) != is_page_or_table || self.geometry.runs(level) == 0 {
            return Entry::Reserved;
        }
        let bus = self.decode_address(descriptor, self.geometry.shift(level));
        let run_log2 = self.contiguous_log2[level as usize];
        // If a run would be larger than the input size, hardware ignores the bit or faults, and
        // `Geometry` has no such run. Levels without runs ignore the bit.
        let is_run = descriptor & CONTIGUOUS != 0 && self.geometry.runs(level) >> run_log2 & 1 != 0;
        let run_log2 = if is_run { run_log2 } else { 0 };
        Entry::Leaf(LeafEntry { bus: BusAddr::new(bus), run_log2 })
    }

    /// Returns a descriptor without its address, size and validity.
    const fn attributes_of(&self, leaf: u64) -> u64 {
        leaf & !(self.address_mask() | VALID | TABLE_OR_PAGE | CONTIGUOUS)
    }
}
