//! The bench `load`: files into buffers.

mod cases;
pub(crate) mod data;
mod guest;
pub(crate) mod machine;
pub(crate) mod peers;
mod schemes;
mod timed;
pub(crate) mod tools;
pub(crate) mod units;
pub(crate) mod worker;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::harness::environment::{Environment, version_of};
use crate::harness::{Bench, CommonOptions, Session};
use data::{Folder, parse_size};
use machine::Machine;
use peers::Peers;
use schemes::Kinds;

/// The size of the published test, on the host: a model of 3.4 GB.
const SIZE_BYTES: u64 = 3_400_000_000;
const SIZE_QUICK_BYTES: u64 = 512 << 20;

/// The bench and its options.
#[derive(Args, Clone, Debug)]
pub(crate) struct Load {
    #[command(flatten)]
    pub(crate) common: CommonOptions,
    #[command(flatten)]
    on: On,
    /// The size of the model, such as 3.4GB or 512MiB [default: 3.4GB, with --quick 512MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Also install and run the peers that need torch (up to 6 GB on disk)
    #[arg(long, conflicts_with = "quick")]
    peers: bool,
    /// Run the schemes only at this size, on the host and in the guest; may be given several times
    #[arg(long, value_name = "SIZE", value_parser = ["512KB", "8MB", "1GB", "3GB"])]
    scheme_size: Vec<String>,
    /// Also run the schemes in a guest whose kernel has dma-heap and udmabuf
    #[arg(long, conflicts_with = "quick")]
    guest: bool,
    /// Also run them at 3 GB in the guest, which then has 8 GiB of memory
    #[arg(long, requires = "guest")]
    guest_3g: bool,
}

/// The options for the folder of data files and the programs.
#[derive(Args, Clone, Debug)]
pub(crate) struct On {
    /// A folder on the disk to be measured [default: the user's cache]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Keep the data files for the next run
    #[arg(long)]
    keep: bool,
    /// The Python that makes the environment of the peers
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    pub(crate) python: PathBuf,
    /// Before a cold run evict only the file, even if the whole page cache could be dropped
    #[arg(long)]
    evict_only: bool,
}

impl On {
    /// Opens the folder, and adds folder and machine to the environment.
    pub(crate) fn set_up(
        &self,
        quick: bool,
        environment: &mut Environment,
    ) -> Result<(Folder, Machine)> {
        let folder = Folder::open(self.dir.as_deref(), self.keep)?;
        let machine = Machine::new(self.evict_only, quick);
        environment.set("disk", serde_json::to_value(folder.disk())?);
        environment.set("cold", machine.describe());
        environment.set("fio", version_of("fio"));
        environment.set("dd", version_of("dd"));
        environment.set("python", version_of(&self.python.to_string_lossy()));
        Ok((folder, machine))
    }
}

/// The data that all cases of a run share.
struct Context<'o> {
    options: &'o Load,
    folder: Folder,
    machine: Machine,
    peers: Peers,
}

pub(crate) const BENCH: Bench = Bench { name: "load", goals: include_str!("../goals/load.json") };

pub(crate) fn measure(
    options: &Load,
    environment: &mut Environment,
    session: &mut Session,
) -> Result<()> {
    let (folder, machine) = options.on.set_up(options.common.quick, environment)?;
    let peers = options.install_peers();
    environment.set("size_bytes", options.size_bytes());
    environment.set("memory_kinds", Kinds::of_machine().describe());
    environment.set("peers", peers.versions());
    session.add_environment(environment)?;
    cases::run(&Context { options, folder, machine, peers }, session)
}

impl Load {
    fn size_bytes(&self) -> u64 {
        let default = if self.common.quick { SIZE_QUICK_BYTES } else { SIZE_BYTES };
        self.size.unwrap_or(default)
    }

    /// Installs peers if a case of the run needs them.
    fn install_peers(&self) -> Peers {
        if self.common.quick {
            return Peers::none("peers are not run by --quick");
        }
        if !cases::WITH_PEERS.iter().any(|case| self.common.wants(case)) {
            return Peers::none("no case of this run has peers");
        }
        Peers::install(&self.on.python, self.peers)
    }
}
