//! What the program can be asked for.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use longshore::heap::Heap;
use longshore_nvme::{DataPointerFormat, Interface};

use crate::bench::Scheme;

/// Drives an NVMe controller from userspace, by VFIO or iommufd.
///
/// The controller must have been given to vfio-pci, so the kernel does not have the disk meanwhile:
/// `bind` does that. Lengths and offsets are bytes; K, M, G and T are powers of 1024.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Say what controller and namespaces are like.
    Info {
        #[command(flatten)]
        device: DeviceArgs,
        /// One JSON object instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Load a range of the disk, or a file's extents, into a buffer.
    ///
    /// With --extents the list is what `extents FILE` has printed while the kernel had the disk.
    Load(LoadArgs),
    /// Write a file of the host to a range of the disk.
    ///
    /// What is there is overwritten, file system or not.
    Write(WriteArgs),
    /// Print where on its disk a file is, as JSON: for `load --extents`.
    ///
    /// The kernel must have the disk, with the file system mounted.
    Extents {
        /// The file.
        file: PathBuf,
    },
    /// Give a device to a driver: vfio-pci, nvme, or none.
    ///
    /// File systems on its disk must not be mounted.
    Bind {
        /// The device, as 0000:00:05.0.
        #[arg(long)]
        device: String,
        /// The driver, or `none`.
        driver: String,
        /// Also allow devices whose interrupts cannot be isolated (virtio-iommu has no interrupt
        /// remapping): only where the device is trusted.
        #[arg(long)]
        allow_unsafe_interrupts: bool,
    },
    /// Read sequentially by each scheme of mapping in turn, and print a row for each turn.
    Bench(BenchArgs),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DeviceArgs {
    /// The device, as 0000:00:05.0.
    #[arg(long)]
    pub(crate) device: String,
    /// Which of the kernel's interfaces it is opened by.
    #[arg(long, value_enum, default_value_t = Backend::Vfio)]
    pub(crate) backend: Backend,
    /// The namespace.
    #[arg(long, default_value_t = 1)]
    pub(crate) namespace: u32,
    /// How commands say where data is.
    #[arg(long, value_enum, default_value_t = Pointers::Shortest)]
    pub(crate) pointers: Pointers,
    /// Commands in flight.
    #[arg(long, default_value_t = 64)]
    pub(crate) depth: u16,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Where the range begins on the disk.
    #[arg(long, value_parser = bytes, default_value = "0", conflicts_with = "extents")]
    pub(crate) offset: u64,
    /// How long it is; to the disk's end where this is not given.
    #[arg(long, value_parser = bytes, conflicts_with = "extents")]
    pub(crate) len: Option<u64>,
    /// A file's extents, as `extents` prints them.
    #[arg(long, value_name = "LIST.JSON")]
    pub(crate) extents: Option<PathBuf>,
    /// Write what was loaded to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// What memory it is loaded into: auto, memfd, memfd:4k, hugetlb or udmabuf.
    #[arg(long, default_value = "memfd")]
    pub(crate) heap: Heap,
    /// One JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct WriteArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Where on the disk it goes.
    #[arg(long, value_parser = bytes)]
    pub(crate) offset: u64,
    /// The file. The last block is filled up with zeros.
    #[arg(long, value_name = "FILE")]
    pub(crate) input: PathBuf,
    /// One JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Bytes of a transfer.
    #[arg(long, value_parser = bytes, default_value = "4K")]
    pub(crate) block: u64,
    /// How often each scheme has its turn.
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: u32,
    /// Transfers of a turn, without its warm-up. Each turn makes them twice: timed as a whole, and
    /// with a clock around each mapping and unmapping.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) ios: u64,
    /// Ring the doorbell after so many submissions at the latest; a quarter of the depth where this is
    /// not given.
    #[arg(long)]
    pub(crate) doorbell_batch: Option<u16>,
    /// Which schemes take turns, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Scheme::ALL)]
    pub(crate) schemes: Vec<Scheme>,
    /// JSON lines instead of text: the environment, then a row for each turn.
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
    /// PRP entries where they need no list, else scatter-gather lists if the controller takes them.
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

/// A number of bytes, as `4096`, `64K` or `0x1000`.
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
    let number =
        number.map_err(|_| format!("{word:?} is no number of bytes, as 4096, 64K, 0x1000"))?;
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
