//! The bench `remote`: models of a server on this machine, into memory, by whole programs.
//!
//! ```text
//!   nginx: a file in a tmpfs ─┬─────────────────────────► longshore load, a bare loop, curl
//!                             └─► proxy: delays, stalls ─► longshore load
//! ```
//!
//! Client and server share the processors, so speeds are those of both together. The processor time is that of
//! the client alone.

mod nginx;
mod proxy;
pub(crate) mod receive;

use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::harness::environment::Environment;
use crate::harness::metric::{CPU_PER_GIB, PEAK_OVER_FILE, SPEED, TIME_MS};
use crate::harness::program::{self, Ended};
use crate::harness::{Against, Bench, Candidate, CommonOptions, Run, Session, Trouble};
use crate::load::data::parse_size;
use crate::load::machine::{require_memory, touch_memory};
use crate::load::tools;
use crate::load::units::{gigabytes_per_second, mebibytes};
use nginx::Nginx;
use proxy::{Fault, Proxy};

const SIZE_BYTES: u64 = 2 << 30;
const SIZE_QUICK_BYTES: u64 = 32 << 20;
/// The memory of a program besides the content.
const OTHER_BYTES: u64 = 256 << 20;
/// The connections of all candidates.
const CONNECTIONS: &str = "16";
/// The connections through a proxy that limits each.
const SLOW_CONNECTIONS: usize = 64;
/// The limit of each of these, in bytes per second. The sum must be much less than the processors can do.
const SLOW_RATE: u64 = 6 << 20;
const SLOW_DELAY: Duration = Duration::from_millis(20);

const OURS: &str = "longshore load";
const OURS_STALLED: &str = "longshore load, one connection stalls";
const BARE: &str = "bare receive loop";
const CURL: &str = "curl --parallel";

/// The bench and its options.
#[derive(Args, Clone, Debug)]
pub(crate) struct Remote {
    #[command(flatten)]
    pub(crate) common: CommonOptions,
    /// The size of the file, such as 2GiB or 512MB [default: 2GiB, with --quick 32MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
}

pub(crate) const BENCH: Bench =
    Bench { name: "remote", goals: include_str!("../goals/remote.json") };

pub(crate) fn measure(
    options: &Remote,
    environment: &mut Environment,
    session: &mut Session,
) -> Result<()> {
    let default = if options.common.quick { SIZE_QUICK_BYTES } else { SIZE_BYTES };
    let size_bytes = options.size.unwrap_or(default).next_multiple_of(1 << 20);
    environment.set("size_bytes", size_bytes);
    environment.set("connections", CONNECTIONS);
    let started = match Nginx::start(size_bytes) {
        Ok(nginx) => nginx,
        Err(Trouble::NotRun(why)) => {
            session.add_environment(environment)?;
            return session.not_run("http", OURS, &why);
        }
        Err(Trouble::Failed(error)) => return Err(error),
    };
    let nginx = &started;
    environment.set("nginx", nginx.version());
    session.add_environment(environment)?;
    let against = [
        Against::new(SPEED, BARE),
        Against::new(CPU_PER_GIB, BARE),
        Against::new(TIME_MS, CURL).only(OURS),
    ];
    for (case, is_tls) in [("http", false), ("https", true)] {
        if options.common.wants(case) {
            session.compare(case, candidates(nginx, is_tls), &against)?;
        }
    }
    if options.common.wants("stall") {
        let (plain, stalled) =
            (Proxy::start(nginx.port(), Fault::None)?, Proxy::start(nginx.port(), Fault::Stall)?);
        let all = vec![
            ours(nginx, OURS, move || nginx.url_at(plain.port()), &[]),
            ours(nginx, OURS_STALLED, move || nginx.url_at(stalled.port()), &[]),
        ];
        session.compare("stall", all, &[Against::new(TIME_MS, OURS)])?;
    }
    if options.common.wants("slow connections") {
        let fault = Fault::Slow { bytes_per_second: SLOW_RATE, delay: SLOW_DELAY };
        let slow = Proxy::start(nginx.port(), fault)?;
        let sum = (SLOW_RATE * SLOW_CONNECTIONS as u64) as f64 / 1e9;
        let limit = Candidate::new("sum of 64 connections", move || {
            Ok::<_, Trouble>(Run::from(vec![(SPEED, sum)]))
        });
        let all = vec![
            ours(nginx, OURS, move || nginx.url_at(slow.port()), &["--connections", "64"]),
            limit,
        ];
        session.compare(
            "slow connections",
            all,
            &[Against::new(SPEED, "sum of 64 connections")],
        )?;
    }
    Ok(())
}

fn candidates(nginx: &Nginx, is_tls: bool) -> Vec<Candidate<'_>> {
    let bare = move || -> Result<Ended, Trouble> {
        let mut command = Command::new(std::env::current_exe()?);
        let url = nginx.url(is_tls);
        let (_, rest) = url.rsplit_once(':').unwrap_or_default();
        let (port, path) = rest.split_once('/').unwrap_or_default();
        command.args(["receive", "--port", port, "--path", &format!("/{path}")]);
        command.args(["--connections", CONNECTIONS, "--bytes", &nginx.len_bytes.to_string()]);
        if is_tls {
            command.arg("--authority").arg(nginx.authority());
        }
        program::run(&mut command)
    };
    let mut all = vec![
        ours(nginx, OURS, move || nginx.url(is_tls), &["--connections", CONNECTIONS]),
        candidate(nginx, BARE, bare),
    ];
    all.push(
        candidate(nginx, CURL, move || curl(nginx, is_tls))
            .with_note("16 ranges, into files in a tmpfs"),
    );
    all
}

/// Makes a candidate of `longshore load`.
fn ours<'a>(
    nginx: &'a Nginx,
    name: &str,
    url: impl Fn() -> String + 'a,
    options: &'static [&'static str],
) -> Candidate<'a> {
    let run = move || -> Result<Ended, Trouble> {
        let mut command = tools::longshore().map_err(Trouble::NotRun)?;
        command.args(["--heap", "memfd", "--format", "raw"]).args(options);
        program::run(command.arg(url()).env("SSL_CERT_FILE", nginx.authority()))
    };
    candidate(nginx, name, run).ours()
}

/// Runs curl with one range for each connection.
fn curl(nginx: &Nginx, is_tls: bool) -> Result<Ended, Trouble> {
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let connections: u64 = CONNECTIONS.parse()?;
    let (url, len) = (nginx.url(is_tls), nginx.len_bytes.div_ceil(connections));
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

fn candidate<'a>(
    nginx: &'a Nginx,
    name: &str,
    run: impl Fn() -> Result<Ended, Trouble> + 'a,
) -> Candidate<'a> {
    Candidate::new(name, move || {
        let needed_bytes = nginx.len_bytes + OTHER_BYTES;
        require_memory(needed_bytes)?;
        if nginx.len_bytes > SIZE_QUICK_BYTES {
            touch_memory(needed_bytes)?;
        }
        let Ended { seconds, cost, .. } = run()?;
        let mut sample =
            vec![(TIME_MS, seconds * 1e3), (SPEED, gigabytes_per_second(nginx.len_bytes, seconds))];
        let gibibytes = nginx.len_bytes as f64 / f64::from(1 << 30);
        sample.extend(cost.cpu_seconds.map(|cpu| (CPU_PER_GIB, cpu / gibibytes)));
        let over = |peak: u64| mebibytes(peak.cast_signed() - nginx.len_bytes.cast_signed());
        sample.extend(cost.peak_memory_bytes.map(|peak| (PEAK_OVER_FILE, over(peak))));
        Ok::<_, Trouble>(Run { sample, note: None, cost: Some(cost) })
    })
}
