//! Formats: each is the shape of its tables and a few functions on the bits of one entry.
//!
//! A format is a small value that is made at run time from the properties of the hardware (granule,
//! input bits, output bits, features). The algorithm is generic over its type, so that these
//! functions are inlined. `docs/formats.md` explains how to add a format.

mod amd_v1;
mod arm_lpae;
mod fields;
mod riscv;
mod vtd_first;
mod vtd_second;
mod x86_64;

use core::fmt;

use longshore_mem::{BusAddr, Granule};

use crate::prot::Prot;
use crate::table_memory::TableAddr;

pub use crate::geometry::{Geometry, LEVELS_MAX, Shape, Window};
pub use crate::prot::Narrowing;
pub use amd_v1::{AmdV1, AmdV1Config};
pub use arm_lpae::{ArmStage1, ArmStage1Config, ArmStage2, ArmStage2Config};
use fields::bits;
pub use fields::{Field, Fields};
pub use riscv::{RiscV, RiscVConfig, RiscVMode};
pub use vtd_first::{VtdFirst, VtdFirstConfig};
pub use vtd_second::{VtdSecond, VtdSecondConfig};
pub use x86_64::{X86_64, X86_64Config};

/// The decoded form of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// No mapping: a walker faults.
    Absent,
    /// The next table.
    Table(TableAddr),
    /// A page or block, or one of the entries of a contiguous run.
    Leaf(LeafEntry),
    /// An encoding that the manual reserves: a walker faults. This crate never writes one.
    Reserved,
}

/// An entry that is a page or block, or one of a contiguous run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafEntry {
    /// The bus address of the leaf, or of this slot's part of a run if each entry has its own
    /// address.
    pub bus: BusAddr,
    /// The number of adjacent entries of the leaf, as a logarithm.
    pub run_log2: u32,
}

/// A test for dirty pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyTest {
    /// The bits to compare.
    pub mask: u64,
    /// Their value in every dirty entry, and in no other.
    pub value: u64,
}

impl DirtyTest {
    /// Returns `true` if `entry` maps a dirty page.
    #[inline]
    pub const fn matches(self, entry: u64) -> bool {
        entry & self.mask == self.value
    }
}

/// A format of page tables. Entries have eight bytes, and an absent entry is zero.
///
/// *Attributes* are the bits of a leaf that depend neither on its address nor on its level.
pub trait Format: Copy + fmt::Debug + Send + Sync {
    /// The usual name of the format.
    const NAME: &'static str;

    /// `true` if all entries of a contiguous run are the same; `false` if each has its own address.
    const RUNS_REPEAT: bool;

    /// `true` if an entry keeps its dirty bit when write permission is removed from it.
    const READ_ONLY_KEEPS_DIRTY: bool;

    /// The manual's names of the levels, from the pages upwards.
    const LEVEL_NAMES: [&'static str; LEVELS_MAX];

    /// Returns the shape of the tables.
    fn geometry(&self) -> &Geometry;

    /// Returns the bits that mark an entry as present: it is if any of them is set. At level 0, such
    /// an entry is a leaf.
    fn present_mask(&self) -> u64;

    /// Decodes `entry` of a table of `level`.
    fn decode(&self, level: u32, entry: u64) -> Entry;

    /// Returns the attributes for `prot`, of a clean page if dirty pages are tracked, or `None` if
    /// the format cannot express `prot`.
    fn attributes(&self, prot: Prot) -> Option<u64>;

    /// Returns the permissions and attributes of a leaf.
    fn prot(&self, leaf: u64) -> Prot;

    /// Returns the restrictions that `entry`, which leads to a table, puts on everything below it.
    /// Entries that this crate writes have none.
    fn narrowing(&self, _entry: u64) -> Narrowing {
        Narrowing::NONE
    }

    /// Returns the attributes of a leaf, with its dirty bit as it is.
    fn attributes_of(&self, leaf: u64) -> u64;

    /// Returns the first entry of a leaf of 2^`run_log2` entries of `level`.
    fn leaf(&self, level: u32, run_log2: u32, bus: BusAddr, attributes: u64) -> u64;

    /// Returns the difference between the entries of two adjacent slots of `level` with adjacent
    /// bus addresses.
    fn step(&self, level: u32) -> u64 {
        1 << self.geometry().shift(level)
    }

    /// Returns the entry of a table of `level` that leads to `table`.
    fn table(&self, level: u32, table: TableAddr) -> u64;

    /// Returns the test for dirty pages, or `None` if dirty pages are not tracked.
    fn dirty_test(&self) -> Option<DirtyTest>;

    /// Returns a leaf, or its attributes, with the dirty bit set or cleared. Only called if dirty
    /// pages are tracked. A leaf that is not writable may stay clean.
    fn with_dirty(&self, leaf: u64, dirty: bool) -> u64;

    /// Returns the fields of `entry`, of a table of `level`, that the manual names. For an absent
    /// entry, they are those of the kind that its remaining bits suggest.
    fn fields(&self, level: u32, entry: u64) -> Fields;

    /// Returns this format with one more level, whose first table is the present root, or `None` if
    /// that is not possible.
    fn with_level_on_top(&self) -> Option<Self> {
        None
    }

    /// Returns `true` if a live entry must be cleared and flushed before an entry with another page
    /// size replaces it.
    fn needs_break_before_make(&self) -> bool;

    /// Returns the attributes of a live entry that can only be changed by clearing and flushing it
    /// first, even if the page size may change.
    fn fixed_while_live(&self) -> Prot {
        Prot::NONE
    }
}

/// The error of a format's constructor: the architecture does not have this configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unsupported {
    /// The name of the format.
    pub format: &'static str,
    /// The reason.
    pub reason: UnsupportedReason,
}

impl Unsupported {
    pub(crate) const fn new(format: &'static str, reason: UnsupportedReason) -> Self {
        Self { format, reason }
    }
}

/// The reason that a configuration is not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnsupportedReason {
    /// The format does not translate this many bits of an address.
    InputBits {
        /// The bits asked for.
        input_bits: u32,
        /// The fewest that are possible.
        fewest: u32,
        /// The most that are possible.
        most: u32,
    },
    /// A translated address cannot have this many bits.
    OutputBits {
        /// The bits asked for.
        output_bits: u32,
        /// The fewest that are possible.
        fewest: u32,
        /// The most that are possible.
        most: u32,
    },
    /// A translated address cannot have this many bits. Only certain numbers are possible.
    OutputBitsNotListed {
        /// The bits asked for.
        output_bits: u32,
    },
    /// The format has no pages of this size.
    Granule {
        /// The granule asked for.
        granule: Granule,
    },
    /// The format does not have this many levels.
    Levels {
        /// The levels asked for.
        levels: u32,
        /// The fewest that are possible.
        fewest: u32,
        /// The most that are possible.
        most: u32,
    },
    /// Zero levels were asked for.
    NoLevels {
        /// The fewest levels that are possible.
        fewest: u32,
    },
    /// The root would need more tables than can be concatenated.
    TooFewLevels {
        /// The levels asked for.
        levels: u32,
        /// The address bits to translate.
        input_bits: u32,
        /// The number of tables in the root, as a logarithm.
        root_tables_log2: u32,
        /// The maximum number of tables in the root, as a logarithm.
        root_tables_max_log2: u32,
        /// The fewest levels that are possible.
        fewest: u32,
    },
    /// The upper levels would have no address bits to translate.
    TooManyLevels {
        /// The levels asked for.
        levels: u32,
        /// The address bits to translate.
        input_bits: u32,
        /// The most levels that are possible.
        most: u32,
    },
}

impl fmt::Display for UnsupportedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::InputBits { fewest, most, .. } => {
                write!(f, "input bits are not between {fewest} and {most}")
            }
            Self::OutputBits { fewest, most, .. } => {
                write!(f, "output bits are not between {fewest} and {most}")
            }
            Self::OutputBitsNotListed { .. } => {
                f.write_str("output bits are not 32, 36, 40, 42, 44, 48 or 52")
            }
            Self::Granule { .. } => f.write_str("the granule is not 4, 16 or 64 KiB"),
            Self::Levels { fewest, most, .. } => {
                write!(f, "levels are not between {fewest} and {most}")
            }
            Self::NoLevels { fewest } => {
                write!(f, "0 levels translate no address; use at least {fewest}")
            }
            Self::TooFewLevels {
                levels,
                input_bits,
                root_tables_log2,
                root_tables_max_log2,
                fewest,
            } => write!(
                f,
                "{levels} levels for {input_bits} input bits would need {} root tables, and at most \
                 {} are possible; use at least {fewest}",
                1_u64 << root_tables_log2,
                1_u64 << root_tables_max_log2,
            ),
            Self::TooManyLevels { levels, input_bits, most } => write!(
                f,
                "{levels} levels are more than {input_bits} input bits fill; use at most {most}"
            ),
        }
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.format, self.reason)
    }
}

impl core::error::Error for Unsupported {}

/// Returns `value` if `condition` is true, and zero otherwise.
const fn when(condition: bool, value: u64) -> u64 {
    if condition { value } else { 0 }
}
