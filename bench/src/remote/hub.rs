//! The case `hub`: a repository of a server that answers as the Hugging Face Hub does.

use std::cell::Cell;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::clients::{CONNECTIONS, OURS, candidate, ours};
use super::model::NAME;
use super::nginx::{Nginx, REPOSITORY};
use crate::harness::metric::{CPU_PER_GIB, TIME_MS};
use crate::harness::program::{self, Ended};
use crate::harness::{Against, Session, Trouble};
use crate::load::peers::{HUGGINGFACE_HUB, Peers};

pub(super) const CASE: &str = "hub";
const DOWNLOAD: &str = "huggingface_hub download";
/// Prints the path of the file.
const PROGRAM: &str = "import sys; from huggingface_hub import hf_hub_download; \
                       print(hf_hub_download(*sys.argv[1:]))";

pub(super) fn measure(nginx: &Nginx<'_>, peers: &Peers, session: &mut Session) -> Result<()> {
    let source = format!("hf://{REPOSITORY}/{NAME}");
    let load = ours(
        nginx.model,
        OURS,
        move || source.clone(),
        &["--connections", CONNECTIONS],
        |it| set(nginx, it, Path::new("/nonexistent")),
    );
    let is_checked = Cell::new(false);
    let download = move || -> Result<Ended, Trouble> {
        let home = tempfile::tempdir_in("/dev/shm")?;
        let mut command = peers.python(HUGGINGFACE_HUB, PROGRAM).map_err(Trouble::NotRun)?;
        let ended = program::run(set(nginx, command.args([REPOSITORY, NAME]), home.path()))?;
        if !is_checked.replace(true) {
            nginx.model.check(Path::new(ended.stdout.trim_end()))?;
        }
        Ok(ended)
    };
    let download = candidate(nginx.model, DOWNLOAD, download)
        .with_note("hf_hub_download without Xet, into a tmpfs, with the imports of Python");
    let rules = [Against::new(TIME_MS, DOWNLOAD), Against::new(CPU_PER_GIB, DOWNLOAD)];
    session.compare(CASE, vec![load, download], &rules)
}

/// Sets the variables that both clients read.
fn set<'c>(nginx: &Nginx<'_>, command: &'c mut Command, home: &Path) -> &'c mut Command {
    command.env("HF_ENDPOINT", nginx.hub_url()).env("HF_HOME", home);
    command.envs([("HF_HUB_DISABLE_XET", "1"), ("HF_HUB_DISABLE_TELEMETRY", "1")]);
    command.env("HF_HUB_DISABLE_PROGRESS_BARS", "1");
    command.env_remove("HF_TOKEN").env_remove("HF_HUB_CACHE").env_remove("HF_HUB_OFFLINE")
}
