//! The command line of `longshore pt`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};

use super::format::FormatName;
use crate::units::Size;

/// Decode IO page tables: entries bit by bit, walks step by step, whole trees.
///
/// The tables are read from a raw memory image, such as a dump of a guest. Levels have the names and
/// numbers of each format's manual.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  Decode an entry:
    longshore pt decode --format arm-lpae-s1 --level 2 0x60000080000f4d
  Translate an address that a device uses:
    longshore pt walk --format vtd-second --root 0x1000 memory.bin 0x40001234
  Show all mappings:
    longshore pt dump --format arm-lpae-s2 --granule 64K --root 0x90000 --base 0x80000 memory.bin
  List the formats and their options:
    longshore pt formats
")]
pub(crate) struct PtArgs {
    #[command(subcommand)]
    pub(crate) command: PtCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PtCommand {
    Formats(FormatsArgs),
    Decode(DecodeArgs),
    Index(IndexArgs),
    Walk(WalkArgs),
    Dump(DumpArgs),
}

impl PtArgs {
    /// Returns `true` if JSON is requested.
    pub(crate) const fn json(&self) -> bool {
        match &self.command {
            PtCommand::Formats(args) => args.json,
            PtCommand::Decode(args) => args.json,
            PtCommand::Index(args) => args.json,
            PtCommand::Walk(args) => args.json,
            PtCommand::Dump(args) => args.json,
        }
    }
}

/// A page-table format and its options.
#[derive(Args, Clone, Debug)]
pub(crate) struct FormatArgs {
    /// The format; `longshore pt formats` describes each.
    #[arg(long, value_enum)]
    pub(crate) format: FormatName,

    /// The smallest page: 4K, 16K or 64K (Arm) [default: 4K].
    #[arg(long, value_name = "SIZE")]
    pub(crate) granule: Option<Size>,

    /// The input address size in bits (Arm, VT-d second stage) [default: 48].
    #[arg(long, value_name = "BITS")]
    pub(crate) input_bits: Option<u32>,

    /// The output address size in bits [default: 48 for Arm, where a larger size changes the format;
    /// the most that the format allows for others].
    #[arg(long, value_name = "BITS")]
    pub(crate) output_bits: Option<u32>,

    /// Levels: 1 to 6 (AMD), 4 or 5 (x86-64, VT-d first stage) [default: 4]. Arm stage 2: 4 minus the
    /// initial level (SL0) [default: one fewer if concatenated tables at the root lose no block size].
    #[arg(long)]
    pub(crate) levels: Option<u32>,

    /// The tables translate the upper address range, TTBR1 (Arm stage 1).
    #[arg(long)]
    pub(crate) upper: bool,

    /// Every entry is a page by itself: no contiguous bit, and no page sizes between those of two levels.
    #[arg(long)]
    pub(crate) no_runs: bool,

    /// Allow pages of 512 GiB and more (AMD).
    #[arg(long)]
    pub(crate) pages_512g: bool,

    /// The hardware tracks dirty pages; show which pages are dirty.
    #[arg(long)]
    pub(crate) dirty: bool,
}

/// A raw memory image that contains the tables.
#[derive(Args, Clone, Debug)]
pub(crate) struct ImageArgs {
    /// The physical address of the root table.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) root: Address,

    /// The physical address of the image's first byte.
    #[arg(long, value_name = "ADDRESS", default_value = "0")]
    pub(crate) base: Address,

    /// The image file. Only the blocks that are needed are read, so it may be larger than memory.
    #[arg(value_name = "IMAGE")]
    pub(crate) image: PathBuf,
}

/// List the formats with their page sizes, address sizes and features.
#[derive(Args, Debug)]
pub(crate) struct FormatsArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Decode an entry: its fields by name, its kind, its address and its permissions.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  A page of a guest's device:
    longshore pt decode --format arm-lpae-s2 0x400000123457ff
  A page directory entry of x86-64:
    longshore pt decode --format x86-64 --level PDE 0x2000e7
")]
pub(crate) struct DecodeArgs {
    #[command(flatten)]
    pub(crate) format: FormatArgs,

    /// The level of the table that the entry is in, as the manual names it: 3, 2, 1, 0 (Arm), PTE, PDE
    /// and so on (x86-64), SS-PTE (VT-d) [default: the last level].
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) level: Option<String>,

    /// The entry.
    #[arg(value_name = "ENTRY")]
    pub(crate) entry: Address,

    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Split an address into the index at each level.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  longshore pt index --format arm-lpae-s1 --granule 16K 0x40001234
")]
pub(crate) struct IndexArgs {
    #[command(flatten)]
    pub(crate) format: FormatArgs,

    /// The address.
    #[arg(value_name = "IOVA")]
    pub(crate) iova: Address,

    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Walk the tables for an address step by step, and show its translation or why there is none.
///
/// Exits with 18 if the address is not mapped, and with 15 if a table is not in the image.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  longshore pt walk --format arm-lpae-s1 --root 0x1000 memory.bin 0x40001234
  longshore pt walk --format amd-v1 --levels 3 --root 0x80001000 --base 0x80000000 memory.bin 0
")]
pub(crate) struct WalkArgs {
    #[command(flatten)]
    pub(crate) format: FormatArgs,

    #[command(flatten)]
    pub(crate) image: ImageArgs,

    /// The address that a device uses.
    #[arg(value_name = "IOVA")]
    pub(crate) iova: Address,

    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show the tree of tables, with adjacent pages in one line.
///
/// A table that several entries point to is shown once. If a table is not in the image, the rest is
/// shown, and the exit code is 15.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  longshore pt dump --format riscv-sv39 --root 0x1000 memory.bin
  longshore pt dump --format vtd-second --root 0x1000 --range 0x40000000+2MiB memory.bin
")]
pub(crate) struct DumpArgs {
    #[command(flatten)]
    pub(crate) format: FormatArgs,

    #[command(flatten)]
    pub(crate) image: ImageArgs,

    /// Show only the entries that translate a part of this range: first address and length.
    #[arg(long, value_name = "IOVA+SIZE")]
    pub(crate) range: Option<Range>,

    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A 64-bit address, written as `0x4000_0000` or `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address(pub(crate) u64);

impl FromStr for Address {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let digits = word.replace('_', "");
        let parsed = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
            // `from_str_radix` would accept a sign.
            Some(hex) if !hex.starts_with('+') => u64::from_str_radix(hex, 16),
            _ if digits.starts_with('+') => return Err(format!("'{word}' has a sign")),
            _ => digits.parse(),
        };
        parsed.map(Self).map_err(|_| {
            format!("'{word}' is not a 64-bit number such as 0x40000000; hexadecimal needs 0x")
        })
    }
}

/// A range of addresses, written as `0x40000000+2MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: u64,
    pub(crate) len_bytes: u64,
}

impl FromStr for Range {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let (first, len) = word
            .split_once('+')
            .ok_or_else(|| format!("'{word}' is not a range such as 0x40000000+2MiB"))?;
        let Address(first) = first.parse()?;
        let len_bytes = match len.parse::<Address>() {
            Ok(Address(len_bytes)) => len_bytes,
            Err(_) => len.parse::<Size>()?.0,
        };
        if len_bytes == 0 {
            return Err(format!("'{word}' is empty"));
        }
        Ok(Self { first, len_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_and_hexadecimal_addresses_are_parsed() {
        for (word, value) in [
            ("0", 0),
            ("4096", 4096),
            ("0x1000", 4096),
            ("0x4000_0000", 1 << 30),
            ("0XfF", 255),
            ("0xffffffffffffffff", u64::MAX),
        ] {
            assert_eq!(word.parse(), Ok(Address(value)), "{word}");
        }
        for word in ["", "x", "0x", "ff", "-1", "+1", "0x+1", "0x10000000000000000"] {
            assert!(word.parse::<Address>().is_err(), "{word}");
        }
    }

    #[test]
    fn the_length_of_a_range_may_be_a_number_or_a_size() {
        let range = Range { first: 1 << 30, len_bytes: 2 << 20 };
        for word in ["0x40000000+2MiB", "0x40000000+0x200000", "1073741824+2097152"] {
            assert_eq!(word.parse(), Ok(range), "{word}");
        }
        for word in ["0x1000", "0x1000+0", "+1", "0x1000+x"] {
            assert!(word.parse::<Range>().is_err(), "{word}");
        }
    }
}
