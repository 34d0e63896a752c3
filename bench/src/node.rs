//! The bench `node`: a model that several processes of a machine use, published by Longshore, beside the
//! page cache and beside a copy in the same tmpfs.
//!
//! ```text
//!   publish, cold:     longshore publish │ longshore load │ cp          ──► time, disk, page cache
//!   four processes:    each maps the model and reads it                 ──► time, memory of all
//!   llama.cpp:         one thread generates tokens; one process starts  ──► tokens/s, time
//!   transformers:      loads a model and computes one forward pass      ──► time
//! ```

mod llama;
mod place;
mod readers;
mod server;
mod transformers;
mod ways;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::harness::environment::Environment;
use crate::harness::metric::{COPIES, PAGE_CACHE, READ_FROM_DISK, SPEED, TIME_MS};
use crate::harness::program;
use crate::harness::{Against, Bench, Candidate, CommonOptions, Run, Session, Trouble};
use crate::load;
use crate::load::data::{DataFile, parse_size};
use crate::load::machine::{Machine, Start, require_memory, resident_bytes};
use crate::load::tools;
use crate::load::units::{gigabytes_per_second, mebibytes};
use llama::Llama;
use place::Place;
use transformers::Transformers;
use ways::{COPIED, FROM_DISK, OTHER_BYTES, copy, publish};

pub(crate) use readers::read;

/// The size of the published test: a model of 3.4 GB.
const SIZE_BYTES: u64 = 3_400_000_000;
const SIZE_QUICK_BYTES: u64 = 64 << 20;

const PUBLISH: &str = "longshore publish";
const LOAD: &str = "longshore load";
const CP: &str = "cp to a tmpfs with huge pages";

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
    /// A Python interpreter with torch, transformers and longshore
    #[arg(long, value_name = "PYTHON")]
    transformers: Option<PathBuf>,
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
    let transformers = Transformers::new(options.transformers.as_deref());
    environment.set("transformers", transformers.version());
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
    llama::measure(&llama, &options.common, &folder, machine, &place, session)?;
    transformers::measure(&transformers, &options.common, &folder, machine, &place, session)
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
