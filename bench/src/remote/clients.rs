//! The candidates that are whole programs.

use std::cell::Cell;
use std::process::Command;

use anyhow::Result;

use super::model::Model;
use super::nginx::Nginx;
use crate::harness::cost::Cost;
use crate::harness::metric::{CPU_PER_GIB, PEAK_OVER_FILE, SPEED, TIME_MS};
use crate::harness::program::{self, Ended};
use crate::harness::{Candidate, Run, Trouble};
use crate::load::machine::{require_memory, touch_memory};
use crate::load::tools;
use crate::load::units::{gigabytes_per_second, mebibytes};

pub(super) const OURS: &str = "longshore load";
pub(super) const BARE: &str = "bare receive loop";
pub(super) const CURL: &str = "curl --parallel";

/// The connections of all candidates that have an option for it.
pub(super) const CONNECTIONS: &str = "16";
/// The size of the model with `--quick`, for which no memory is touched before a run.
pub(super) const SIZE_QUICK_BYTES: u64 = 32 << 20;
/// The memory of a program besides the content.
const OTHER_BYTES: u64 = 256 << 20;

/// Returns the candidates of a plain server.
pub(super) fn of_http<'a>(nginx: &'a Nginx<'_>, is_tls: bool) -> Vec<Candidate<'a>> {
    let (model, connections) = (nginx.model, &["--connections", CONNECTIONS]);
    let curl = candidate(model, CURL, move || curl(nginx, is_tls));
    vec![
        ours(model, OURS, move || nginx.url(is_tls), connections, |it| trusting(nginx, it)),
        candidate(model, BARE, move || bare(nginx, is_tls)),
        curl.with_note("16 ranges, into files in a tmpfs"),
    ]
}

/// Lets a program trust the authority of a server.
pub(super) fn trusting<'c>(nginx: &Nginx<'_>, command: &'c mut Command) -> &'c mut Command {
    command.env("SSL_CERT_FILE", nginx.authority())
}

/// Makes a candidate of `longshore load`. Before its first run the content that it loads is compared with
/// the model.
pub(super) fn ours<'a>(
    model: &'a Model,
    name: &str,
    url: impl Fn() -> String + 'a,
    options: &'static [&'static str],
    set: impl Fn(&mut Command) -> &mut Command + 'a,
) -> Candidate<'a> {
    const HOW: [&str; 4] = ["--heap", "memfd", "--format", "raw"];
    let is_checked = Cell::new(false);
    let run = move || -> Result<Ended, Trouble> {
        if !is_checked.replace(true) {
            let mut command = tools::own_command().map_err(Trouble::NotRun)?;
            command.arg("exec").arg(url()).args(["--", "cmp", "{}"]);
            program::run(set(command.arg(model.path())))?;
        }
        let mut command = tools::longshore().map_err(Trouble::NotRun)?;
        program::run(set(command.args(HOW).args(options).arg(url())))
    };
    candidate(model, name, run).ours()
}

/// Makes a candidate of a whole program that receives the model.
pub(super) fn candidate<'a>(
    model: &'a Model,
    name: &str,
    run: impl Fn() -> Result<Ended, Trouble> + 'a,
) -> Candidate<'a> {
    Candidate::new(name, move || {
        make_room(model)?;
        let Ended { seconds, cost, .. } = run()?;
        Ok::<_, Trouble>(run_of(model, seconds, cost))
    })
}

/// Touches and frees the memory for the model.
pub(super) fn make_room(model: &Model) -> Result<(), Trouble> {
    let needed_bytes = model.len_bytes + OTHER_BYTES;
    require_memory(needed_bytes)?;
    if model.len_bytes > SIZE_QUICK_BYTES {
        touch_memory(needed_bytes)?;
    }
    Ok(())
}

/// Returns the figures of a client that received the model.
pub(super) fn run_of(model: &Model, seconds: f64, cost: Cost) -> Run {
    let speed = gigabytes_per_second(model.len_bytes, seconds);
    let mut sample = vec![(TIME_MS, seconds * 1e3), (SPEED, speed)];
    let gibibytes = model.len_bytes as f64 / f64::from(1 << 30);
    sample.extend(cost.cpu_seconds.map(|cpu| (CPU_PER_GIB, cpu / gibibytes)));
    let over = |peak: u64| mebibytes(peak.cast_signed() - model.len_bytes.cast_signed());
    sample.extend(cost.peak_memory_bytes.map(|peak| (PEAK_OVER_FILE, over(peak))));
    Run { sample, note: None, cost: Some(cost) }
}

/// Runs the bare loop.
fn bare(nginx: &Nginx<'_>, is_tls: bool) -> Result<Ended, Trouble> {
    let mut command = Command::new(std::env::current_exe()?);
    let url = nginx.url(is_tls);
    let (_, rest) = url.rsplit_once(':').unwrap_or_default();
    let (port, path) = rest.split_once('/').unwrap_or_default();
    command.args(["receive", "--port", port, "--path", &format!("/{path}")]);
    command.args(["--connections", CONNECTIONS, "--bytes", &nginx.model.len_bytes.to_string()]);
    if is_tls {
        command.arg("--authority").arg(nginx.authority());
    }
    program::run(&mut command)
}

/// Runs curl with one range for each connection.
fn curl(nginx: &Nginx<'_>, is_tls: bool) -> Result<Ended, Trouble> {
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let connections: u64 = CONNECTIONS.parse()?;
    let (url, len) = (nginx.url(is_tls), nginx.model.len_bytes.div_ceil(connections));
    let mut command = Command::new("curl");
    command.args([
        "--silent",
        "--fail",
        "--parallel",
        "--parallel-immediate",
        "--parallel-max",
        CONNECTIONS,
    ]);
    command.arg("--cacert").arg(nginx.authority());
    for number in 0..connections {
        if number > 0 {
            command.arg("--next");
        }
        let (start, end) = (number * len, (number + 1) * len - 1);
        command.args(["--range", &format!("{start}-{end}")]);
        command.arg("--output").arg(dir.path().join(number.to_string())).arg(&url);
        command.arg("--cacert").arg(nginx.authority());
    }
    program::run(&mut command)
}
