//! A large model: cold, beside the disk's limit; warm, beside a memory copy; both beside other programs;
//! aligned; in Python; and with other read sizes.

use anyhow::Result;

use super::{OURS, REHEARSAL_BYTES};
use crate::harness::metric::{IMPORT, PAGE_CACHE, PEAK_OVER_FILE, SPEED, TIME_MS};
use crate::harness::{Against, Candidate, Measured, Session};
use crate::load::Context;
use crate::load::data::DataFile;
use crate::load::machine::Start;
use crate::load::peers::{
    FASTSAFETENSORS, LONGSHORE, MMAP_CLONE, Peer, READINTO, RUNAI, SAFETENSORS, SAFETENSORS_NUMPY,
    TENSORIZER,
};
use crate::load::timed::{Interest, of_worker};
use crate::load::tools::{self, COMMAND};
use crate::load::worker::Work;

pub(super) const COLD: &str = "cold";
pub(super) const PYTHON: &str = "python";
pub(super) const WARM: &str = "warm";
const ALIGN: &str = "align";
const STREAM: &str = "stream";
const TUNING: &str = "tuning";

/// The disk's limit: in each round the better of two block sizes, because the faster one changes from
/// minute to minute. Choosing the better one can only overstate the limit.
const LIMIT: &str = "fio";
const LIMIT_BLOCKS_MIB: [u64; 2] = [4, 8];
const BEST_PEER: &str = "best peer";

/// The files that the cases load.
struct Model<'c> {
    context: &'c Context<'c>,
    file: DataFile,
    rehearsal: DataFile,
}

pub(super) fn run(context: &Context<'_>, session: &mut Session) -> Result<()> {
    let options = &context.options.common;
    type Case = fn(&Model<'_>, &mut Session) -> Result<()>;
    let cases: [(&str, Case); 5] =
        [(COLD, cold), (PYTHON, python), (ALIGN, align), (STREAM, stream), (WARM, warm)];
    let tunes = options.wants_by_name(TUNING);
    if !tunes && !cases.iter().any(|(case, _)| options.wants(case)) {
        return Ok(());
    }
    let model = Model {
        context,
        file: context.folder.safetensors_file(context.options.size_bytes())?,
        rehearsal: context.folder.safetensors_file(REHEARSAL_BYTES)?,
    };
    for (case, run) in cases {
        if options.wants(case) {
            run(&model, session)?;
        }
    }
    if tunes {
        tuning(&model, session)?;
    }
    // Frees disk space for the files of the schemes.
    context.folder.discard(&model.file.path);
    Ok(())
}

impl<'c> Model<'c> {
    fn ours(
        &self,
        name: impl Into<String>,
        work: Work,
        start: Start,
        interest: Interest,
    ) -> Candidate<'c> {
        let machine = self.context.machine;
        of_worker(name, work, (&self.file, &self.rehearsal), (machine, start), interest)
    }

    fn peer(&self, peer: Peer, start: Start) -> Candidate<'c> {
        let Context { peers, folder, machine, .. } = self.context;
        peers.candidate(peer, (&self.file, &self.rehearsal), folder, (*machine, start))
    }
}

fn cold(model: &Model<'_>, session: &mut Session) -> Result<()> {
    const PEERS: [Peer; 5] = [SAFETENSORS, SAFETENSORS_NUMPY, RUNAI, FASTSAFETENSORS, TENSORIZER];
    let machine = model.context.machine;
    let mut candidates = vec![
        model.ours(OURS, Work::AUTO, Start::Cold, Interest::Everything),
        tools::dd(&model.file, machine),
    ];
    candidates.extend(LIMIT_BLOCKS_MIB.map(|mib| tools::fio(mib, &model.file, machine)));
    candidates.extend(PEERS.map(|peer| model.peer(peer, Start::Cold)));
    let mut measured = session.run(COLD, candidates);
    let blocks = LIMIT_BLOCKS_MIB.map(tools::fio_name);
    let blocks: Vec<&str> = blocks.iter().map(String::as_str).collect();
    measured.add_best_of(LIMIT, &blocks, SPEED);
    measured.add_best_of(BEST_PEER, &PEERS.map(|peer| peer.name), SPEED);
    if let Some(why) = why_not_measured(&measured) {
        measured.set_not_measured(why);
    }
    let against = [
        Against::new(SPEED, LIMIT),
        Against::new(SPEED, BEST_PEER).only(OURS),
        Against::new(SPEED, SAFETENSORS.name).only(OURS),
        Against::new(PAGE_CACHE, SAFETENSORS.name),
        Against::new(PEAK_OVER_FILE, SAFETENSORS.name),
        Against::new(IMPORT, SAFETENSORS.name),
    ];
    session.publish(measured.rows(&against))
}

/// Returns the reason if the cold figures must not be used: the disk's limit or the fastest known peer
/// is missing.
fn why_not_measured(measured: &Measured) -> Option<String> {
    [LIMIT, RUNAI.name]
        .into_iter()
        .find_map(|name| measured.why_not(name).map(|why| format!("{name} did not run: {why}")))
}

fn warm(model: &Model<'_>, session: &mut Session) -> Result<()> {
    const PEERS: [Peer; 4] = [READINTO, MMAP_CLONE, SAFETENSORS_NUMPY, RUNAI];
    /// One copy by two threads into existing memory: the upper limit of any copy.
    const COPY_POPULATED: &str = "memcpy, populated";
    /// The same into new pages: the upper limit of a load into new memory.
    const COPY_FRESH: &str = "memcpy, fresh pages";
    let copy =
        |name, fresh| model.ours(name, Work::MemoryCopy { fresh }, Start::Warm, Interest::Speed);
    let mut candidates = vec![
        model.ours(OURS, Work::AUTO, Start::Warm, Interest::Everything),
        copy(COPY_POPULATED, false),
        copy(COPY_FRESH, true),
    ];
    candidates.extend(PEERS.map(|peer| model.peer(peer, Start::Warm)));
    let against = [
        Against::new(SPEED, COPY_POPULATED),
        Against::new(SPEED, COPY_FRESH).only(OURS),
        Against::new(PAGE_CACHE, SAFETENSORS_NUMPY.name),
        Against::new(PEAK_OVER_FILE, SAFETENSORS_NUMPY.name),
        Against::new(IMPORT, SAFETENSORS_NUMPY.name),
    ];
    session.compare(WARM, candidates, &against)
}

/// Measures the overhead of Python: `load_file` beside the command.
fn python(model: &Model<'_>, session: &mut Session) -> Result<()> {
    let candidates = vec![
        tools::load_command(&model.file, model.context.machine),
        model.peer(LONGSHORE, Start::Cold),
        model.peer(SAFETENSORS_NUMPY, Start::Cold),
    ];
    let rules = [Against::new(SPEED, COMMAND), Against::new(IMPORT, SAFETENSORS_NUMPY.name)];
    session.compare(PYTHON, candidates, &rules)
}

/// Measures loads that align every tensor, beside one that aligns none.
fn align(model: &Model<'_>, session: &mut Session) -> Result<()> {
    let ours = |name, work| model.ours(name, work, Start::Cold, Interest::Time);
    let mut candidates = vec![ours(OURS.to_owned(), Work::AUTO)];
    for (word, alignment_bytes) in [("64", 64), ("4096", 4096), ("2M", 2 << 20)] {
        candidates.push(ours(format!("{OURS}, align {word}"), Work::Aligned { alignment_bytes }));
    }
    session.compare(ALIGN, candidates, &[Against::new(TIME_MS, OURS)])
}

/// Measures streams in 1 GiB of memory, of all tensors and of the rows of one of eight ranks.
fn stream(model: &Model<'_>, session: &mut Session) -> Result<()> {
    let ours = |name: &str, work| model.ours(name, work, Start::Cold, Interest::Speed);
    let streaming = |ranks| Work::Stream { memory_bytes: 1 << 30, ranks };
    let candidates = vec![
        ours(OURS, Work::AUTO),
        ours("longshore, stream", streaming(1)),
        ours("longshore, one of 8 ranks", streaming(8)),
    ];
    session.compare(STREAM, candidates, &[Against::new(SPEED, OURS)])
}

/// Measures read sizes and depths on this disk. The library's defaults come from such runs.
fn tuning(model: &Model<'_>, session: &mut Session) -> Result<()> {
    const DEFAULTS: &str = "defaults";
    let ours = |name: String, read_size| {
        model.ours(name, Work::Longshore { direct: true, read_size }, Start::Cold, Interest::Speed)
    };
    let mut candidates = vec![ours(DEFAULTS.to_owned(), None)];
    for mib in [2, 4, 8, 16] {
        for depth in [2, 4, 8, 16] {
            candidates.push(ours(format!("{mib} MiB x {depth}"), Some((mib << 20, depth))));
        }
    }
    session.compare(TUNING, candidates, &[Against::new(SPEED, DEFAULTS)])
}
