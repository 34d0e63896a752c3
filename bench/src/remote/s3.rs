//! The case `s3`: the model as an object of a server with the protocol of S3.

use std::cell::Cell;
use std::process::Command;

use anyhow::{Result, anyhow};

use super::clients::{CONNECTIONS, OURS, candidate, make_room, ours, run_of};
use super::model::{Model, NAME, SMALL};
use super::versitygw::{Versitygw, url};
use crate::harness::cost::Cost;
use crate::harness::metric::{CPU_PER_GIB, SPEED, TIME_MS};
use crate::harness::program::{self, Ended};
use crate::harness::subprocess::{Message, Subprocess};
use crate::harness::{Against, Candidate, Run, Session, Trouble};
use crate::load::peers::{AWSCLI, Peers, RUNAI_S3};

pub(super) const CASE: &str = "s3";
const AWS_CP: &str = "aws s3 cp";
const RUNAI: &str = RUNAI_S3.name;

pub(super) fn measure(server: &Versitygw<'_>, peers: &Peers, session: &mut Session) -> Result<()> {
    let load = ours(
        server.model,
        OURS,
        || url(NAME),
        &["--connections", CONNECTIONS],
        |command| server.set(command),
    );
    let is_checked = Cell::new(false);
    let copy = move || -> Result<Ended, Trouble> {
        let dir = tempfile::tempdir_in("/dev/shm")?;
        let to = dir.path().join(NAME);
        let mut command = peers.script(AWSCLI, "aws").map_err(Trouble::NotRun)?;
        command.args(["s3", "cp", "--no-progress", &url(NAME)]).arg(&to);
        let ended = program::run(server.set(&mut command))?;
        if !is_checked.replace(true) {
            server.model.check(&to)?;
        }
        Ok(ended)
    };
    let all = vec![
        load,
        streamer(server, peers),
        candidate(server.model, AWS_CP, copy).with_note("into a tmpfs, with the imports of Python"),
    ];
    let rules = [
        Against::new(SPEED, RUNAI),
        Against::new(CPU_PER_GIB, RUNAI),
        Against::new(TIME_MS, AWS_CP).only(OURS),
    ];
    session.compare(CASE, all, &rules)
}

/// Makes a candidate that streams the tensors into memory after its imports. It chooses the number of its
/// connections: with 16 it was slower.
fn streamer<'a>(server: &'a Versitygw<'_>, peers: &'a Peers) -> Candidate<'a> {
    let candidate = Candidate::new(RUNAI, move || {
        let mut command = peers.driver(RUNAI_S3).map_err(Trouble::NotRun)?;
        command.args(["load", RUNAI_S3.name, &url(NAME), &url(SMALL)]);
        command.args([NAME, SMALL].map(|name| server.model.root().join(name)));
        // The name of the bucket is part of the path.
        server.set(&mut command).env("RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING", "0");
        command.env_remove("RUNAI_STREAMER_CONCURRENCY");
        command.env_remove("RUNAI_STREAMER_OBJ_CONCURRENCY");
        stream(command, server.model)
    });
    candidate.with_note("after the imports of Python and a first small load")
}

/// Runs a process that loads on command, and compares the content.
fn stream(command: Command, model: &Model) -> Result<Run, Trouble> {
    let out_of_turn = || Trouble::Failed(anyhow!("the process sent an unexpected message"));
    let mut process = Subprocess::start(command)?;
    let Message::Ready { .. } = process.hear()? else { return Err(out_of_turn()) };
    make_room(model)?;
    process.tell("go")?;
    let Message::Done { seconds, cpu_seconds, .. } = process.hear()? else {
        return Err(out_of_turn());
    };
    let peak_memory_bytes = Some(process.peak_bytes()?);
    process.tell("verify")?;
    if process.hear()? != Message::Verified {
        return Err(out_of_turn());
    }
    Ok(run_of(model, seconds, Cost { cpu_seconds: Some(cpu_seconds), peak_memory_bytes }))
}
