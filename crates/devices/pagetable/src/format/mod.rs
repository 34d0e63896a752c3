//! Formats: each is a shape and a handful of functions on the bits of one entry.
//!
//! A format is a small value, made at run time from what the hardware reports (granule,
//! input bits, output bits, features). The algorithm is generic over its type, so that its
//! functions are inlined. `docs/formats.md` says how to add one.

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

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Nothing: a walker faults.
    Absent,
    /// The next table.
    Table(TableAddr),
    /// A page or block, or one of the entries of a contiguous run.
    Leaf(LeafEntry),
    /// An encoding that the manual reserves: a walker faults. Never written here.
    Reserved,
}

/// An entry that is a page or block, or one of a contiguous run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafEntry {
    /// Where the leaf begins: for a run, where this slot's part of it begins.
    pub bus: BusAddr,
    /// How many adjacent entries form the leaf, as a logarithm.
    pub run_log2: u32,
}

/// How to see that an entry is of a dirty page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyTest {
    /// The bits to look at.
    pub mask: u64,
    /// What they are in a dirty entry, and in no other.
    pub value: u64,
}

impl DirtyTest {
    /// Whether `entry` is of a dirty page.
    #[inline]
    pub const fn matches(self, entry: u64) -> bool {
        entry & self.mask == self.value
    }
}

/// A format of page tables: entries of eight bytes, zero for absent.
///
/// *Attributes* are the bits of a leaf that depend neither on its address nor on its level.
pub trait Format: Copy + fmt::Debug + Send + Sync {
    /// The format's name, as people write it.
    const NAME: &'static str;

    /// Whether all entries of a contiguous run are the same, instead of each having its own
    /// address.
    const RUNS_REPEAT: bool;

    /// Whether an entry that lost the permission to be written still says whether it was.
    const READ_ONLY_KEEPS_DIRTY: bool;

    /// What the manual calls each level, from the pages upwards.
    const LEVEL_NAMES: [&'static str; LEVELS_MAX];

    /// The shape of the tables.
    fn geometry(&self) -> &Geometry;

    /// An entry is present where any of these bits is set. At level 0 it is a leaf then.
    fn present_mask(&self) -> u64;

    /// What `entry` of a table of `level` is.
    fn decode(&self, level: u32, entry: u64) -> Entry;

    /// The attributes for `prot`, for a page that is clean where dirty pages are tracked; `None`
    /// where the format cannot express it.
    fn attributes(&self, prot: Prot) -> Option<u64>;

    /// The permissions of a leaf.
    fn prot(&self, leaf: u64) -> Prot;

    /// What `entry`, which leads to a table, does to the permissions of what is below. The entries
    /// that are written here do nothing to them.
    fn narrowing(&self, _entry: u64) -> Narrowing {
        Narrowing::NONE
    }

    /// The attributes of a leaf, dirty or clean as it is.
    fn attributes_of(&self, leaf: u64) -> u64;

    /// The first entry of a leaf of 2^`run_log2` entries of `level`.
    fn leaf(&self, level: u32, run_log2: u32, bus: BusAddr, attributes: u64) -> u64;

    /// By how much entries of adjacent slots of `level` differ where their targets are adjacent.
    fn step(&self, level: u32) -> u64 {
        1 << self.geometry().shift(level)
    }

    /// An entry of a table of `level` that leads to `table`.
    fn table(&self, level: u32, table: TableAddr) -> u64;

    /// How to see a dirty page; `None` where dirty pages are not tracked.
    fn dirty_test(&self) -> Option<DirtyTest>;

    /// A leaf, or its attributes, made dirty or clean. Only called where dirty pages are tracked;
    /// a leaf that cannot be written may stay clean.
    fn with_dirty(&self, leaf: u64, dirty: bool) -> u64;

    /// The parts of `entry`, of a table of `level`, that have a name in the manual. What an absent
    /// entry would be is told by what remains of it.
    fn fields(&self, level: u32, entry: u64) -> Fields;

    /// The same with one more level, of which the root becomes the first table below; `None` where
    /// there is none.
    fn with_level_on_top(&self) -> Option<Self> {
        None
    }

    /// Whether a live entry must be cleared and flushed before another size of page takes its
    /// place.
    fn needs_break_before_make(&self) -> bool;

    /// What of a live entry can only be changed by clearing and flushing it first, even where sizes
    /// may change.
    fn fixed_while_live(&self) -> Prot {
        Prot::NONE
    }
}

/// The error of a format's constructor: the architecture has no such configuration.
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

/// The reason that a format cannot be set up as asked.
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
    /// A translated address cannot have this many bits, and only certain numbers are possible.
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
    /// No level was asked for.
    NoLevels {
        /// The fewest levels that are possible.
        fewest: u32,
    },
    /// The root would be more tables than can be concatenated.
    TooFewLevels {
        /// The levels asked for.
        levels: u32,
        /// The bits of an address that they were to translate.
        input_bits: u32,
        /// How many tables the root would be, as a logarithm.
        root_tables_log2: u32,
        /// How many it may be, as a logarithm.
        root_tables_max_log2: u32,
        /// The fewest levels that are possible.
        fewest: u32,
    },
    /// The upper levels would have no address bits to translate.
    TooManyLevels {
        /// The levels asked for.
        levels: u32,
        /// The bits of an address that they were to translate.
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
            Self::Granule { .. } => f.write_str("the granule is none of 4, 16 and 64 KiB"),
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

/// `value` where `condition` holds, no bits where not.
const fn when(condition: bool, value: u64) -> u64 {
    if condition { value } else { 0 }
}
