//! The case `inspect`: the bytes that a server sends for the header of a model of 3 GB.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::nginx::Nginx;
use crate::harness::metric::RECEIVED;
use crate::harness::{Candidate, Run, Session, Trouble, program};
use crate::load::tools;
use crate::load::units::mebibytes;

pub(super) const CASE: &str = "inspect";
pub(super) const OURS: &str = "longshore inspect";

pub(super) fn measure(nginx: &Nginx<'_>, session: &mut Session) -> Result<()> {
    let inspect = Candidate::new(OURS, move || {
        let before = nginx.sent()?.len();
        let mut command = tools::own_command().map_err(Trouble::NotRun)?;
        let ended = program::run(command.args(["inspect", "--json"]).arg(nginx.sparse_url()))?;
        let said: serde_json::Value =
            serde_json::from_str(&ended.stdout).context("its output is not JSON")?;
        said["files"][0]["bytes"].as_u64().context("its output has no length")?;
        // nginx writes a line when a response has ended, which may be after the client's end.
        thread::sleep(Duration::from_millis(200));
        let sent = nginx.sent()?.split_off(before);
        let bytes: u64 = sent.iter().sum();
        let note = Some(format!("{} requests; the heads of the responses count", sent.len()));
        let sample = vec![(RECEIVED, mebibytes(bytes.cast_signed()))];
        Ok::<_, Trouble>(Run { sample, note, cost: Some(ended.cost) })
    });
    session.compare(CASE, vec![inspect.ours()], &[])
}
