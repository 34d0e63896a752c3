//! What can be said on the command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use longshore::load::DigestKind;
use longshore::load::FormatChoice;
use longshore::{Heap, ReadMode};

use crate::attach::AttachArgs;
use crate::exit;
use crate::ls::LsArgs;
use crate::pt::args::PtArgs;
use crate::repack::RepackArgs;
use crate::serve::ServeArgs;
use crate::units::{Alignment, Size};

/// Fills device-shareable memory straight from files, at the disk's speed.
#[derive(Debug, Parser)]
#[command(name = "longshore", version, propagate_version = true, after_help = exit::CODES_HELP)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Load(LoadArgs),
    Inspect(InspectArgs),
    Repack(RepackArgs),
    Serve(ServeArgs),
    Attach(AttachArgs),
    Ls(LsArgs),
    Doctor(DoctorArgs),
    MakeModel(MakeModelArgs),
    Pt(PtArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// Load files into one buffer and hand it on.
///
/// The content goes straight from the disk into huge pages, past the page cache, while the pages
/// are still being made; what is in the page cache already is copied from there. No descriptor
/// exists before everything was read, and verified if that was asked for. A load that fails leaves
/// nothing behind.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  Load a model and see how fast it went:
    longshore load model.safetensors
  Hand it to a program, which finds the memory at descriptor $LONGSHORE_FD:
    longshore load model.safetensors --read-only --exec python3 serve.py
  Keep it in memory until Ctrl-C; others open /proc/PID/fd/N as printed:
    longshore load model.safetensors --hold
  Every tensor at a multiple of 64 bytes, as vector instructions and JAX want it:
    longshore load model.safetensors --align 64 --hold
  All shards of a model, checked against sha256sum's output:
    longshore load model.safetensors.index.json --manifest SHA256SUMS
  All splits of a model of llama.cpp:
    longshore load model-00001-of-00003.gguf
")]
pub(crate) struct LoadArgs {
    /// Files to load, in this order; a `*.safetensors.index.json` stands for its shards, and
    /// `*-00001-of-NNNNN.gguf` for all splits.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,

    /// Where the memory comes from: auto, memfd, memfd:4k, hugetlb, udmabuf, dma-heap,
    /// dma-heap:NAME.
    #[arg(long, default_value = "auto")]
    pub(crate) heap: Heap,

    /// How files are read: auto, direct, buffered, uncached.
    #[arg(long, default_value = "auto")]
    pub(crate) mode: ReadMode,

    /// What the files are: auto (by name), raw, safetensors, gguf. The header of a file is checked
    /// before anything is read.
    #[arg(long, default_value = "auto")]
    pub(crate) format: FormatChoice,

    /// Place every tensor at a multiple of this while reading: 64, 256, 4096, 2M. A file whose
    /// tensors do not lie so already becomes one in memory that has the same tensors.
    #[arg(long, value_name = "SIZE")]
    pub(crate) align: Option<Alignment>,

    /// How far pages are made ahead of the reads.
    #[arg(long, value_name = "SIZE", default_value = "128MiB")]
    pub(crate) populate_ahead: Size,

    /// Refuse to load more than this.
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory_max: Option<Size>,

    /// Compute a checksum of each file: crc32c, xxh3 or sha256. May be repeated.
    #[arg(long, value_name = "KIND")]
    pub(crate) verify: Vec<DigestKind>,

    /// Fail unless each file has the checksum this file names, in the form that sha256sum writes.
    #[arg(long, value_name = "MANIFEST")]
    pub(crate) manifest: Option<PathBuf>,

    /// Seal the content, so that nobody can change it: heap memfd or hugetlb.
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Print what was done as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,

    /// Print nothing but errors.
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// Do not use io_uring, even where it may be used.
    #[arg(long)]
    pub(crate) no_uring: bool,

    /// Keep the buffer until Ctrl-C or SIGTERM, and exit with 0 then.
    #[arg(long, conflicts_with = "exec")]
    pub(crate) hold: bool,

    /// Become this program once the buffer is there. It finds the memfd at descriptor
    /// $LONGSHORE_FD, the dma-buf, if there is one, at $LONGSHORE_DMABUF_FD, and the length of the
    /// content in $LONGSHORE_BYTES. Must come last.
    #[arg(long, value_name = "CMD", num_args = 1.., allow_hyphen_values = true)]
    pub(crate) exec: Vec<OsString>,
}

/// Show the tensors and metadata of a model file as a table.
#[derive(Args, Debug)]
pub(crate) struct InspectArgs {
    /// A safetensors file, the index of a sharded model, or a GGUF file.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Say what this machine can do, and how to enable the rest.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// The directory whose file system is examined.
    #[arg(value_name = "DIR", default_value = ".")]
    pub(crate) directory: PathBuf,

    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Write a safetensors or GGUF file of realistic shapes and random content, to try things on.
#[derive(Args, Debug)]
pub(crate) struct MakeModelArgs {
    /// Its size, reached within one percent.
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub(crate) size: Size,

    /// Overwrite a file that exists.
    #[arg(long)]
    pub(crate) force: bool,

    /// Where to write it: `*.gguf` is GGUF, with types and a vocabulary as llama.cpp writes them,
    /// and anything else safetensors.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// Print a completion script for a shell.
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    pub(crate) shell: clap_complete::Shell,
}

/// Print the manual page, or write one for each command into a directory.
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// Where to write `longshore.1`, `longshore-load.1` and so on.
    #[arg(value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_program_to_become_takes_options_of_its_own() {
        let words = ["longshore", "load", "a", "b", "--exec", "cmd", "--hold", "-x"];
        let Command::Load(load) = Cli::try_parse_from(words).unwrap().command else {
            panic!("not a load");
        };
        assert_eq!(load.files, [PathBuf::from("a"), PathBuf::from("b")]);
        assert_eq!(load.exec, ["cmd", "--hold", "-x"]);
        assert!(!load.hold);
    }
}
