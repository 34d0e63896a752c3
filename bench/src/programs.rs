//! The bench `programs`: programs that a shell would run, each from its start to its end, on one model.
//!
//! ```text
//!   for each round, cold and warm:   prepare the machine ──► exec … exit ──► time, CPU time, memory,
//!   programs alternate                                                       disk reads, page cache
//! ```

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;

use crate::harness::environment::Environment;
use crate::harness::metric::{PAGE_CACHE, READ_FROM_DISK, SPEED, TIME_MS};
use crate::harness::program::{self, Ended};
use crate::harness::{Against, Bench, Candidate, CommonOptions, Run, Session, Trouble};
use crate::load;
use crate::load::data::{DataFile, parse_size};
use crate::load::machine::{Machine, Start, require_memory, resident_bytes};
use crate::load::peers::{LONGSHORE, Peer, Peers, SAFETENSORS_NUMPY};
use crate::load::tools;
use crate::load::units::{gigabytes_per_second, mebibytes};

const SIZE_BYTES: u64 = 1 << 30;
const SIZE_QUICK_BYTES: u64 = 64 << 20;
/// The times after which no round continues, so that the bench ends within ten minutes. Cold rounds take
/// longer.
const COLD_LIMIT: Duration = Duration::from_secs(330);
const WARM_LIMIT: Duration = Duration::from_secs(240);
const OVER: &str = "the time limit of this bench was reached";
/// The seconds of a run, most of them to prepare the machine.
const RUN_SECONDS: u64 = 5;
/// The memory of a program besides the content.
const OTHER_BYTES: u64 = 256 << 20;

const OURS: &str = "longshore load";
const OURS_VERIFY: &str = "longshore load --verify crc32c";
const OURS_PYTHON: &str = "longshore, Python";
const CAT: &str = "cat";
const CP: &str = "cp to a memfd";
const DD: &str = "dd, direct";
const FIO: &str = "fio";
const SAFETENSORS: &str = "safetensors, Python";

/// The bench and its options.
#[derive(Args, Clone, Debug)]
pub(crate) struct Programs {
    #[command(flatten)]
    pub(crate) common: CommonOptions,
    #[command(flatten)]
    on: load::On,
    /// The size of the model, such as 1GiB or 512MB [default: 1GiB, with --quick 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
}

pub(crate) const BENCH: Bench =
    Bench { name: "programs", goals: include_str!("../goals/programs.json") };

pub(crate) fn measure(
    options: &Programs,
    environment: &mut Environment,
    session: &mut Session,
) -> Result<()> {
    let (folder, machine) = options.on.set_up(options.common.quick, environment)?;
    let peers = if options.common.quick {
        Peers::none("Python is not run by --quick")
    } else {
        Peers::install(&options.on.python, false)
    };
    environment.set("size_bytes", options.size_bytes());
    environment.set("peers", peers.versions());
    session.add_environment(environment)?;
    let file = folder.safetensors_file(options.size_bytes())?;
    let rounds = session.rounds().warm_up + session.rounds().counted;
    let mut cases = Vec::new();
    for (case, start, limit) in
        [("cold", Start::Cold, COLD_LIMIT), ("warm", Start::Warm, WARM_LIMIT)]
    {
        if options.common.wants(case) {
            cases.push((case, start, limit, candidates(&peers, (&file, machine, start))?));
        }
    }
    let mut runs = 0;
    for (case, _, _, programs) in &cases {
        let names: Vec<&str> = programs.iter().map(|one| one.name.as_str()).collect();
        eprintln!("{case}, {} MiB, {rounds} rounds: {}", file.len_bytes >> 20, names.join(", "));
        runs += programs.len() * rounds;
    }
    if !options.common.quick {
        let minutes = (runs as u64 * RUN_SECONDS).div_ceil(60).min(10);
        eprintln!(
            "this takes about {minutes} minutes; the rounds end after ten minutes in any case"
        );
    }
    for (case, start, limit, programs) in cases {
        let measured = session.run_within((limit, OVER), case, programs);
        let against = |baseline| Against::new(TIME_MS, baseline);
        let rules: &[Against<'_>] = match start {
            Start::Cold => &[
                against(FIO),
                against(CAT).only(OURS),
                against(CP).only(OURS),
                against(SAFETENSORS).only(OURS_PYTHON),
            ],
            Start::Warm => {
                &[against(CP), against(CAT).only(OURS), against(SAFETENSORS).only(OURS_PYTHON)]
            }
        };
        session.publish(measured.rows(rules))?;
    }
    folder.discard(&file.path);
    Ok(())
}

impl Programs {
    fn size_bytes(&self) -> u64 {
        let default = if self.common.quick { SIZE_QUICK_BYTES } else { SIZE_BYTES };
        self.size.unwrap_or(default)
    }
}

/// A file, and the state of the page cache at the start.
type On<'a> = (&'a DataFile, Machine, Start);

/// Returns the programs of a case. Direct reads always read the disk, so those programs are part of the
/// cold case only.
fn candidates<'s>(peers: &'s Peers, on: On<'s>) -> Result<Vec<Candidate<'s>>> {
    let longshore = |options: &'static [&str]| {
        move |file: &DataFile| -> Result<Ended, Trouble> {
            let mut command = tools::longshore().map_err(Trouble::NotRun)?;
            program::run(command.args(["--heap", "memfd"]).args(options).arg(&file.path))
        }
    };
    let memfd = rustix::fs::memfd_create("copy", rustix::fs::MemfdFlags::CLOEXEC)?;
    let python = |name, peer: Peer| {
        candidate(name, on, move |file| {
            let command = peers.load_file(peer);
            program::run(command.map_err(Trouble::NotRun)?.arg(&file.path))
        })
    };
    let mut all = vec![
        candidate(OURS, on, longshore(&[])).ours(),
        candidate(OURS_VERIFY, on, longshore(&["--verify", "crc32c"])).ours(),
        candidate(CAT, on, |file| program::run_discarding(Command::new("cat").arg(&file.path))),
        candidate(CP, on, move |file| {
            let place = format!("/proc/{}/fd/{}", std::process::id(), memfd.as_raw_fd());
            let ended = program::run(Command::new("cp").arg(&file.path).arg(place))?;
            ensure_copied(&memfd, file)?;
            Ok(ended)
        }),
        python(OURS_PYTHON, LONGSHORE).ours(),
        python(SAFETENSORS, SAFETENSORS_NUMPY),
    ];
    if on.2 == Start::Cold {
        all.push(candidate(DD, on, |file| {
            program::run(tools::dd_command(file).arg("of=/dev/null"))
        }));
        all.push(
            candidate(FIO, on, |file| program::run(&mut tools::fio_command(8 << 20, file)))
                .with_note("direct, io_uring, 8 MiB at a time, 8 in flight"),
        );
    }
    Ok(all)
}

/// Checks the length of a copy, and frees its memory for the next run.
fn ensure_copied(memfd: &OwnedFd, file: &DataFile) -> Result<()> {
    let copied_bytes = rustix::fs::fstat(memfd)?.st_size;
    rustix::fs::ftruncate(memfd, 0)?;
    ensure!(copied_bytes.cast_unsigned() == file.len_bytes, "{copied_bytes} bytes were copied");
    Ok(())
}

/// Makes a candidate that runs a program on a cold or warm file.
fn candidate<'a>(
    name: &str,
    (file, machine, start): On<'a>,
    run: impl Fn(&DataFile) -> Result<Ended, Trouble> + 'a,
) -> Candidate<'a> {
    Candidate::new(name, move || {
        require_memory(file.len_bytes + start.cached_bytes(file.len_bytes))?;
        machine.prepare(&file.path, start, file.len_bytes + OTHER_BYTES)?;
        let resident = resident_bytes(&file.path)?.cast_signed();
        let ended = run(file)?;
        let growth = resident_bytes(&file.path)?.cast_signed() - resident;
        let mut sample = vec![
            (TIME_MS, ended.seconds * 1e3),
            (SPEED, gigabytes_per_second(file.len_bytes, ended.seconds)),
            (PAGE_CACHE, mebibytes(growth)),
        ];
        let read = ended.read_bytes.map(|bytes| (READ_FROM_DISK, mebibytes(bytes.cast_signed())));
        sample.extend(read);
        Ok::<_, Trouble>(Run { sample, note: None, cost: Some(ended.cost) })
    })
}
