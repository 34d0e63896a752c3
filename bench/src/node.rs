//! The bench `node`: a model that several processes of a machine use, published by Longshore, beside the
//! page cache and beside a copy in the same tmpfs.
//!
//! ```text
//!   publish, cold:     longshore publish │ longshore load │ cp          ──► time, disk, page cache
//!   four processes:    each maps the model and reads it                 ──► time, memory of all
//!   llama.cpp:         one thread generates tokens; one process starts  ──► tokens/s, time
//! ```

mod llama;
mod place;
mod readers;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use crate::harness::environment::Environment;
use crate::harness::metric::{COPIES, PAGE_CACHE, READ_FROM_DISK, SPEED, TIME_MS, TOKEN_RATE};
use crate::harness::program::{self, Ended};
use crate::harness::{Against, Bench, Candidate, CommonOptions, Run, Session, Trouble};
use crate::load;
use crate::load::data::{DataFile, parse_size};
use crate::load::machine::{Machine, Start, require_memory, resident_bytes};
use crate::load::tools;
use crate::load::units::{gigabytes_per_second, mebibytes};
use llama::Llama;
use place::Place;

pub(crate) use readers::read;

/// The size of the published test: a model of 3.4 GB.
const SIZE_BYTES: u64 = 3_400_000_000;
const SIZE_QUICK_BYTES: u64 = 64 << 20;
/// The memory of a program besides the content.
const OTHER_BYTES: u64 = 256 << 20;

const PUBLISH: &str = "longshore publish";
const LOAD: &str = "longshore load";
const CP: &str = "cp to a tmpfs with huge pages";
const FROM_DISK: &str = "mmap from the disk";
const COPIED: &str = "cp to the tmpfs, mmap";
const PUBLISHED: &str = "longshore published, mmap";
const ATTACHED: &str = "longshore attached, mmap";

/// The bench and its options.
#[derive(Args, Clone, Debug)]
pub(crate) struct Node {
    #[command(flatten)]
    pub(crate) common: CommonOptions,
    #[command(flatten)]
    on: load::On,
    /// The size of the model, such as 3.4GB or 512MiB [default: 3.4GB, with --quick 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// The program llama-bench of llama.cpp
    #[arg(long, value_name = "PROGRAM", default_value = "llama-bench")]
    llama_bench: PathBuf,
}

pub(crate) const BENCH: Bench = Bench { name: "node", goals: include_str!("../goals/node.json") };

pub(crate) fn measure(
    options: &Node,
    environment: &mut Environment,
    session: &mut Session,
) -> Result<()> {
    let (folder, machine) = options.on.set_up(options.common.quick, environment)?;
    environment.set("size_bytes", options.size_bytes());
    let llama = Llama::find(&options.llama_bench);
    environment.set("llama.cpp", llama.version());
    session.add_environment(environment)?;
    let place = match Place::mount() {
        Ok(place) => place,
        Err(error) => {
            let why = format!("a tmpfs cannot be mounted: {error:#}");
            return session.not_run("publish, cold", PUBLISH, &why);
        }
    };
    let model = folder.safetensors_file(options.size_bytes())?;
    if options.common.wants("publish, cold") {
        let candidates = [PUBLISH, LOAD, CP].map(|name| publishing(name, &model, machine, &place));
        let rules = [Against::new(TIME_MS, LOAD), Against::new(TIME_MS, CP)];
        session.compare("publish, cold", candidates.into(), &rules)?;
    }
    if options.common.wants("four processes") {
        let candidates = readers::candidates(&model, machine, &place)?;
        let rules = [
            Against::new(TIME_MS, FROM_DISK),
            Against::new(TIME_MS, COPIED),
            Against::new(COPIES, FROM_DISK),
        ];
        session.compare("four processes", candidates, &rules)?;
    }
    folder.discard(&model.path);
    llama::measure(&llama, options, &folder, machine, &place, session)
}

impl Node {
    fn size_bytes(&self) -> u64 {
        let default = if self.common.quick { SIZE_QUICK_BYTES } else { SIZE_BYTES };
        self.size.unwrap_or(default)
    }
}

/// Makes a candidate that puts a cold model into memory, as a whole program.
fn publishing<'a>(
    name: &'static str,
    model: &'a DataFile,
    machine: Machine,
    place: &'a Place,
) -> Candidate<'a> {
    let candidate = Candidate::new(name, move || {
        place.clear()?;
        require_memory(model.len_bytes + OTHER_BYTES)?;
        machine.prepare(&model.path, Start::Cold, model.len_bytes + OTHER_BYTES)?;
        let ended = match name {
            LOAD => {
                let mut command = tools::longshore().map_err(Trouble::NotRun)?;
                program::run(command.args(["--heap", "memfd"]).arg(&model.path))?
            }
            PUBLISH => publish(&model.path, place)?.0,
            _ => copy(&model.path, place)?.0,
        };
        if name != LOAD {
            place.check(&model.path)?;
        }
        let cached = resident_bytes(&model.path)?.cast_signed();
        let mut sample = vec![
            (TIME_MS, ended.seconds * 1e3),
            (SPEED, gigabytes_per_second(model.len_bytes, ended.seconds)),
            (PAGE_CACHE, mebibytes(cached)),
        ];
        let read = ended.read_bytes.map(|bytes| (READ_FROM_DISK, mebibytes(bytes.cast_signed())));
        sample.extend(read);
        place.clear()?;
        Ok::<_, Trouble>(Run { sample, note: None, cost: Some(ended.cost) })
    });
    if name == CP { candidate } else { candidate.ours() }
}

/// Publishes a model, and returns the program's end and the path of the file.
fn publish(source: &Path, place: &Place) -> Result<(Ended, PathBuf), Trouble> {
    let mut command = tools::own_command().map_err(Trouble::NotRun)?;
    let name = source.file_name().context("a model has a name")?;
    command.arg("publish").arg(source).arg("--to").arg(place.path()).args(["--name", "model"]);
    let ended = program::run(&mut command)?;
    Ok((ended, place.path().join("model").join(name)))
}

/// Copies a model, and returns the program's end and the path of the file.
fn copy(source: &Path, place: &Place) -> Result<(Ended, PathBuf), Trouble> {
    let name = source.file_name().context("a model has a name")?;
    let path = place.path().join(name);
    let ended = program::run(Command::new("cp").arg(source).arg(&path))?;
    Ok((ended, path))
}

/// Brings a model to the place for a candidate, outside of the time, and returns the path to map.
fn bring(name: &str, model: &Path, place: &Place) -> Result<PathBuf, Trouble> {
    place.clear()?;
    let path = match name {
        PUBLISHED => publish(model, place)?.1,
        COPIED => copy(model, place)?.1,
        _ => return Ok(model.to_owned()),
    };
    // The copy has filled the page cache.
    longshore_sys::page_cache::evict(std::fs::File::open(model)?)?;
    let (whole, found) = (std::fs::metadata(model)?.len(), std::fs::metadata(&path)?.len());
    ensure_same(whole, found)?;
    Ok(path)
}

fn ensure_same(whole: u64, found: u64) -> Result<()> {
    ensure!(whole == found, "the model has {whole} bytes, but its copy has {found}");
    Ok(())
}

/// Returns the metrics of a run of llama.cpp.
fn tokens(rate: f64, seconds: f64) -> Vec<(crate::harness::Metric, f64)> {
    vec![(TOKEN_RATE, rate), (TIME_MS, seconds * 1e3)]
}
