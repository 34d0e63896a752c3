//! The bench `remote`: models of a server on this machine, into memory, by whole programs.
//!
//! ```text
//!   files in a tmpfs ─┬─ nginx ─┬──────────────────────────► longshore load, a bare loop, curl
//!                     │         ├─ proxy: delays, stalls ──► longshore load
//!                     │         └─ redirects of a Hub ─────► longshore load, huggingface_hub
//!                     └─ versitygw ────────────────────────► longshore load, runai-model-streamer, aws s3 cp
//! ```
//!
//! Client and server share the processors, so speeds are those of both together. The processor time is that of
//! the client alone.

mod clients;
mod hub;
mod inspect;
mod model;
mod nginx;
mod process;
mod proxy;
pub(crate) mod receive;
mod s3;
mod versitygw;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::harness::environment::{Environment, version_of};
use crate::harness::metric::{CPU_PER_GIB, SPEED, TIME_MS};
use crate::harness::{Against, Bench, Candidate, CommonOptions, Run, Session, Trouble};
use crate::load::data::parse_size;
use crate::load::peers::Peers;
use clients::{BARE, CONNECTIONS, CURL, OURS, SIZE_QUICK_BYTES, of_http, ours, trusting};
use model::Model;
use nginx::Nginx;
use proxy::{Fault, Proxy};
use versitygw::Versitygw;

const SIZE_BYTES: u64 = 2 << 30;
/// The connections through a proxy that limits each.
const SLOW_CONNECTIONS: usize = 64;
/// The limit of each of these, in bytes per second. The sum must be much less than the processors can do.
const SLOW_RATE: u64 = 6 << 20;
const SLOW_DELAY: Duration = Duration::from_millis(20);

const STALL: &str = "stall";
const SLOW: &str = "slow connections";
const OURS_STALLED: &str = "longshore load, one connection stalls";
const SUM: &str = "sum of 64 connections";

/// The bench and its options.
#[derive(Args, Clone, Debug)]
pub(crate) struct Remote {
    #[command(flatten)]
    pub(crate) common: CommonOptions,
    /// The size of the file, such as 2GiB or 512MB [default: 2GiB, with --quick 32MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Also install versitygw and the clients of S3 and of the Hub (up to 7 GB on disk); without this
    /// option only those run that an earlier run installed
    #[arg(long, conflicts_with = "quick")]
    peers: bool,
    /// The Python that makes the environment of the peers
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
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
    let wants = |case: &str| options.common.wants(case);
    let peers = match wants(s3::CASE) || wants(hub::CASE) {
        true => Peers::of_servers(&options.python, options.peers),
        false => Peers::none("no case of this run has peers"),
    };
    environment.set("size_bytes", size_bytes);
    environment.set("connections", CONNECTIONS);
    environment.set("nginx", nginx::version());
    environment.set("versitygw", versitygw::VERSION);
    environment.set("python", version_of(&options.python.to_string_lossy()));
    environment.set("peers", peers.versions());
    session.add_environment(environment)?;
    let model = Model::make(size_bytes)?;
    with_nginx(options, &model, &peers, session)?;
    if wants(s3::CASE) {
        match Versitygw::start(&model, options.peers) {
            Ok(server) => s3::measure(&server, &peers, session)?,
            Err(Trouble::NotRun(why)) => session.not_run(s3::CASE, OURS, &why)?,
            Err(Trouble::Failed(error)) => return Err(error),
        }
    }
    Ok(())
}

/// Runs the cases whose server is nginx.
fn with_nginx(options: &Remote, model: &Model, peers: &Peers, session: &mut Session) -> Result<()> {
    let all = ["http", "https", STALL, SLOW, hub::CASE, inspect::CASE];
    let cases: Vec<_> = all.into_iter().filter(|case| options.common.wants(case)).collect();
    if cases.is_empty() {
        return Ok(());
    }
    let started = match Nginx::start(model) {
        Ok(nginx) => nginx,
        Err(Trouble::NotRun(why)) => {
            let of = |case| if case == inspect::CASE { inspect::OURS } else { OURS };
            return cases.into_iter().try_for_each(|case| session.not_run(case, of(case), &why));
        }
        Err(Trouble::Failed(error)) => return Err(error),
    };
    let nginx = &started;
    for case in cases {
        match case {
            STALL => stall(nginx, session)?,
            SLOW => slow(nginx, session)?,
            hub::CASE => hub::measure(nginx, peers, session)?,
            inspect::CASE => inspect::measure(nginx, session)?,
            _ => {
                let against = [
                    Against::new(SPEED, BARE),
                    Against::new(CPU_PER_GIB, BARE),
                    Against::new(TIME_MS, CURL).only(OURS),
                ];
                session.compare(case, of_http(nginx, case == "https"), &against)?;
            }
        }
    }
    Ok(())
}

fn stall(nginx: &Nginx<'_>, session: &mut Session) -> Result<()> {
    let (plain, stalled) =
        (Proxy::start(nginx.port(), Fault::None)?, Proxy::start(nginx.port(), Fault::Stall)?);
    let by = |name, proxy: Proxy| {
        let url = move || nginx.url_at(proxy.port());
        ours(nginx.model, name, url, &[], |it| trusting(nginx, it))
    };
    let all = vec![by(OURS, plain), by(OURS_STALLED, stalled)];
    session.compare(STALL, all, &[Against::new(TIME_MS, OURS)])
}

fn slow(nginx: &Nginx<'_>, session: &mut Session) -> Result<()> {
    let fault = Fault::Slow { bytes_per_second: SLOW_RATE, delay: SLOW_DELAY };
    let proxy = Proxy::start(nginx.port(), fault)?;
    let sum = (SLOW_RATE * SLOW_CONNECTIONS as u64) as f64 / 1e9;
    let limit = Candidate::new(SUM, move || Ok::<_, Trouble>(Run::from(vec![(SPEED, sum)])));
    let url = move || nginx.url_at(proxy.port());
    let load = ours(nginx.model, OURS, url, &["--connections", "64"], |it| trusting(nginx, it));
    session.compare(SLOW, vec![load, limit], &[Against::new(SPEED, SUM)])
}
