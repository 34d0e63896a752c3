//! The arguments of the program.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use longshore::heap::Heap;
use longshore_nvme::{DataPointerFormat, Interface};

use crate::bench::Scheme;

/// Drives an NVMe controller from userspace, through VFIO or iommufd.
///
/// The controller must be bound to vfio-pci, so the kernel cannot use the disk meanwhile: `bind` does
/// that. Lengths and offsets are in bytes; K, M, G and T are powers of 1024.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print the properties of a controller and its namespaces.
    Info {
        #[command(flatten)]
        device: DeviceArgs,
        /// Print one JSON object instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Load a range of the disk, or a file's extents, into a buffer.
    ///
    /// For --extents, run `extents FILE` while the kernel drives the disk.
    Load(LoadArgs),
    /// Write a file of the host to a range of the disk.
    ///
    /// The range is overwritten, even if a file system is there.
    Write(WriteArgs),
    /// Print a file's extents on its disk as JSON, for `load --extents`.
    ///
    /// The kernel must drive the disk, and the file system must be mounted.
    Extents {
        /// The file.
        file: PathBuf,
    },
    /// Bind a device to a driver: vfio-pci, nvme, or none.
    ///
    /// File systems on its disk must not be mounted.
    Bind {
        /// The PCI address of the device, such as 0000:00:05.0.
        #[arg(long)]
        device: String,
        /// The driver, or `none`.
        driver: String,
        /// Also allow devices whose interrupts cannot be isolated (virtio-iommu has no interrupt
        /// remapping). Use this only if the device is trusted.
        #[arg(long)]
        allow_unsafe_interrupts: bool,
    },
    /// Read sequentially by each scheme of mapping in turn, and print a row for each turn.
    Bench(BenchArgs),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DeviceArgs {
    /// The PCI address of the device, such as 0000:00:05.0.
    #[arg(long)]
    pub(crate) device: String,
    /// The kernel's interface by which it is opened.
    #[arg(long, value_enum, default_value_t = Backend::Vfio)]
    pub(crate) backend: Backend,
    /// The namespace.
    #[arg(long, default_value_t = 1)]
    pub(crate) namespace: u32,
    /// The format in which commands describe the place of their data.
    #[arg(long, value_enum, default_value_t = Pointers::Shortest)]
    pub(crate) pointers: Pointers,
    /// The number of commands in flight.
    #[arg(long, default_value_t = 64)]
    pub(crate) depth: u16,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// The start of the range on the disk.
    #[arg(long, value_parser = bytes, default_value = "0", conflicts_with = "extents")]
    pub(crate) offset: u64,
    /// The length of the range. The default is up to the end of the disk.
    #[arg(long, value_parser = bytes, conflicts_with = "extents")]
    pub(crate) len: Option<u64>,
    /// A file's extents, as `extents` prints them.
    #[arg(long, value_name = "LIST.JSON")]
    pub(crate) extents: Option<PathBuf>,
    /// Write the loaded bytes to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// The memory to load into: auto, memfd, memfd:4k, hugetlb or udmabuf.
    #[arg(long, default_value = "memfd")]
    pub(crate) heap: Heap,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct WriteArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// The start of the range on the disk.
    #[arg(long, value_parser = bytes)]
    pub(crate) offset: u64,
    /// The file to write. The last block is filled up with zeros.
    #[arg(long, value_name = "FILE")]
    pub(crate) input: PathBuf,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// The length of a transfer.
    #[arg(long, value_parser = bytes, default_value = "4K")]
    pub(crate) block: u64,
    /// The number of turns of each scheme.
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: u32,
    /// The number of transfers of a turn, without its warm-up. Each turn makes them twice: timed as a
    /// whole, and with a clock around each mapping and unmapping.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) ios: u64,
    /// The maximum number of submissions before the doorbell is written. The default is a quarter of
    /// the depth.
    #[arg(long)]
    pub(crate) doorbell_batch: Option<u16>,
    /// The schemes that take turns, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Scheme::ALL)]
    pub(crate) schemes: Vec<Scheme>,
    /// Print JSON lines instead of text: the environment, then a row for each turn.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Backend {
    /// A container of type 1, and the device's group.
    Vfio,
    /// An address space of /dev/iommu, and the device alone.
    Iommufd,
}

impl Backend {
    pub(crate) fn interface(self) -> Interface {
        match self {
            Self::Vfio => Interface::Vfio,
            Self::Iommufd => Interface::Iommufd,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Vfio => "vfio",
            Self::Iommufd => "iommufd",
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Pointers {
    /// PRP entries and lists.
    Prp,
    /// Scatter-gather lists.
    Sgl,
    /// PRP entries if they need no list, otherwise scatter-gather lists if the controller supports them.
    Shortest,
}

impl Pointers {
    pub(crate) fn format(self) -> DataPointerFormat {
        match self {
            Self::Prp => DataPointerFormat::Prp,
            Self::Sgl => DataPointerFormat::Sgl,
            Self::Shortest => DataPointerFormat::Shortest,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Prp => "prp",
            Self::Sgl => "sgl",
            Self::Shortest => "shortest",
        }
    }
}

/// Parses a number of bytes, such as `4096`, `64K` or `0x1000`.
fn bytes(word: &str) -> Result<u64, String> {
    let (digits, log2) = match word.as_bytes().last().map(u8::to_ascii_uppercase) {
        Some(b'K') => (&word[..word.len() - 1], 10),
        Some(b'M') => (&word[..word.len() - 1], 20),
        Some(b'G') => (&word[..word.len() - 1], 30),
        Some(b'T') => (&word[..word.len() - 1], 40),
        _ => (word, 0),
    };
    let number = match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => digits.parse(),
    };
    let number = number
        .map_err(|_| format!("{word:?} is not a number of bytes (such as 4096, 64K, 0x1000)"))?;
    number.checked_mul(1 << log2).ok_or_else(|| format!("{word} bytes are more than 64 bits hold"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn numbers_of_bytes_are_parsed() {
        for (word, number) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65_536),
            ("2m", 2 << 20),
            ("0x10", 16),
            ("1T", 1 << 40),
        ] {
            assert_eq!(bytes(word), Ok(number), "{word}");
        }
        for word in ["", "K", "1.5G", "-1", "4 K", "0xK0", "99999999999T"] {
            assert!(bytes(word).is_err(), "{word}");
        }
    }
}
