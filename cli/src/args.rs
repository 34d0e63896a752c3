//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use longshore::load::FormatChoice;
use longshore::{Heap, ReadMode};

use crate::attach::AttachArgs;
use crate::cat::CatArgs;
use crate::choices::{self, Verify};
use crate::evict::{EvictArgs, PinArgs};
use crate::exec::ExecArgs;
use crate::exit;
use crate::ls::LsArgs;
use crate::pt::args::PtArgs;
use crate::publish::PublishArgs;
use crate::repack::RepackArgs;
use crate::serve::ServeArgs;
use crate::sources::{FilterArgs, ServerArgs};
use crate::units::{Alignment, Size};

/// Load files at the disk's speed into memory that devices and other processes share.
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
    Cat(CatArgs),
    Publish(PublishArgs),
    Evict(EvictArgs),
    Pin(PinArgs),
    Exec(ExecArgs),
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

/// Load files into one buffer, and pass it to a program or hold it.
///
/// By default, resident pages are copied from the page cache, and the rest is read from the disk into
/// huge pages by direct I/O, while further pages are prefaulted. The buffer can be shared only after
/// everything was read, and verified if that was requested. A load that fails leaves nothing behind.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  Load a model and show how fast that was:
    longshore load model.safetensors
  Run a program with the memory as descriptor $LONGSHORE_FD:
    longshore load model.safetensors --read-only --exec python3 serve.py
  Keep it in memory until Ctrl-C; other processes open the printed path /proc/PID/fd/N:
    longshore load model.safetensors --hold
  Place every tensor at a multiple of 64 bytes, for vector instructions and JAX:
    longshore load model.safetensors --align 64 --hold
  Load all shards of a model and verify them with the output of sha256sum:
    longshore load model.safetensors.index.json --manifest SHA256SUMS
  Load the model in a directory, and one of the GGUF models in another:
    longshore load ./llama
    longshore load ./llama-gguf --variant Q4_K_M
  Load a model from the Hugging Face Hub, or from its local cache if the Hub does not answer:
    longshore load hf://Qwen/Qwen3-0.6B
  Load the model below a prefix of an object store:
    longshore load s3://my-bucket/llama/
")]
pub(crate) struct LoadArgs {
    /// The files to load, in this order; a directory stands for the model in it, a
    /// `*.safetensors.index.json` for its shards, and `*-00001-of-NNNNN.gguf` for all splits. On a server:
    /// https://HOST/FILE, s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY, or hf://ORG/NAME of the
    /// Hugging Face Hub.
    #[arg(required = true, value_name = "SOURCE")]
    pub(crate) files: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) filter: FilterArgs,

    #[command(flatten)]
    pub(crate) server: ServerArgs,

    /// The number of connections to servers, up to 256. [default: 16, and up to 128 while more are faster]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) connections: Option<u16>,

    /// Of a source on servers, also write the files of its model into this directory, which must not exist, so
    /// that the next load can be that of 'longshore load DIR'. 'hub' (not './hub') is the cache of the Hugging Face
    /// Hub, for a repository of it. Weights are written when the load is complete and verified.
    #[arg(long, value_name = "DIR", conflicts_with = "align")]
    pub(crate) keep_copy: Option<PathBuf>,

    /// The source of the memory; `dma-heap:NAME` names a dma-heap.
    #[arg(long, default_value = "auto", value_parser = choices::HEAPS)]
    pub(crate) heap: Heap,

    /// How files are read.
    #[arg(long, default_value = "auto", value_parser = choices::MODES)]
    pub(crate) mode: ReadMode,

    /// The format of the files; auto: by their names, and by their first bytes if a name has no
    /// extension. The header of a file is checked before its data is read.
    #[arg(long, default_value = "auto", value_parser = choices::FORMATS)]
    pub(crate) format: FormatChoice,

    /// Place every tensor at a multiple of this many bytes while reading: 64, 256, 4096, 2M. If the
    /// tensors of a file are not aligned, the memory holds another valid file with the same tensors.
    #[arg(long, value_name = "SIZE")]
    pub(crate) align: Option<Alignment>,

    /// The prefault window: by how much prefaulted pages may be ahead of the reads.
    #[arg(long, value_name = "SIZE", default_value = "128MiB")]
    pub(crate) populate_ahead: Size,

    /// Fail if the files have more bytes than this.
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory_max: Option<Size>,

    /// Compute a checksum of each file; hub: fail unless each file has the SHA-256 checksum under which it
    /// is stored in the cache of the Hugging Face Hub. May be repeated.
    #[arg(long, value_name = "KIND", value_parser = choices::VERIFY)]
    pub(crate) verify: Vec<Verify>,

    /// Fail unless each file has the checksum in this file, which has the format of sha256sum.
    #[arg(long, value_name = "MANIFEST")]
    pub(crate) manifest: Option<PathBuf>,

    /// Seal the content, so that no process can change it. Needs heap memfd, memfd:4k or hugetlb.
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Print the result as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,

    /// Print only errors.
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// Do not use io_uring, even if it is available.
    #[arg(long)]
    pub(crate) no_uring: bool,

    /// Keep the buffer until Ctrl-C or SIGTERM, and exit with 0 then.
    #[arg(long, conflicts_with = "exec")]
    pub(crate) hold: bool,

    /// Execute this program in place of this one when the load is complete, with the memfd as
    /// descriptor $LONGSHORE_FD, the dma-buf, if there is one, as descriptor $LONGSHORE_DMABUF_FD, and
    /// the length of the content as $LONGSHORE_BYTES. Must come last, with the program and its
    /// arguments as separate words. The summary is printed to standard error. For a program that takes
    /// the path of a model, use 'longshore exec'.
    #[arg(long, value_name = "CMD", num_args = 1.., allow_hyphen_values = true)]
    pub(crate) exec: Vec<OsString>,
}

/// Show the tensors and metadata of a model as tables.
#[derive(Args, Debug)]
pub(crate) struct InspectArgs {
    /// A safetensors file, the index of a sharded model, a GGUF file, or a directory with a model. On a server:
    /// https://HOST/FILE, s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY, or hf://ORG/NAME of the
    /// Hugging Face Hub.
    #[arg(value_name = "SOURCE")]
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) filter: FilterArgs,

    #[command(flatten)]
    pub(crate) server: ServerArgs,

    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show which features this machine supports, and how to enable the others.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// A directory of the file system to examine.
    #[arg(value_name = "DIR", default_value = ".")]
    pub(crate) directory: PathBuf,

    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Write a safetensors or GGUF file with realistic shapes and random content, for experiments.
#[derive(Args, Debug)]
pub(crate) struct MakeModelArgs {
    /// The size of the file, within one percent.
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub(crate) size: Size,

    /// Overwrite a file that exists.
    #[arg(long)]
    pub(crate) force: bool,

    /// The file to write: `*.gguf` is a GGUF file, with types and a vocabulary as llama.cpp writes
    /// them; any other name is a safetensors file.
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
    /// The directory for `longshore.1`, `longshore-load.1` and so on; it is created if it does not exist.
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
    fn words_after_exec_are_arguments_of_the_program() {
        let words = ["longshore", "load", "a", "b", "--exec", "cmd", "--hold", "-x"];
        let Command::Load(load) = Cli::try_parse_from(words).unwrap().command else {
            panic!("not a load");
        };
        assert_eq!(load.files, [PathBuf::from("a"), PathBuf::from("b")]);
        assert_eq!(load.exec, ["cmd", "--hold", "-x"]);
        assert!(!load.hold);
    }
}
