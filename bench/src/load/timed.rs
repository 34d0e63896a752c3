//! A candidate that runs as a separate process, with the steps ready, go, done and verify.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, anyhow};

use super::data::DataFile;
use super::machine::{Machine, Start, require_memory, resident_bytes};
use super::units::{gigabytes_per_second, mebibytes};
use super::worker::{self, Job, Work};
use crate::harness::cost::Cost;
use crate::harness::metric::{
    FIRST_TENSOR, IMPORT, PAGE_CACHE, PEAK_OVER_FILE, PEAK_OVER_MEMORY, READ_SHARE, SPEED, TIME_MS,
};
use crate::harness::subprocess::{Message, Streamed, Subprocess};
use crate::harness::{Candidate, Run, Sample, Trouble};

/// The metrics of a run that are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Speed, page cache, peak memory, import.
    Everything,
    Speed,
    Time,
}

/// Makes a candidate of a job of this program.
pub(crate) fn of_worker(
    name: impl Into<String>,
    work: Work,
    (file, rehearsal): (&DataFile, &DataFile),
    (machine, start): (Machine, Start),
    interest: Interest,
) -> Candidate<'static> {
    let needs_bytes = work.memory_bytes(file.len_bytes);
    let job = Job { work, file: file.clone(), rehearsal: rehearsal.clone() };
    let (path, len_bytes) = (file.path.clone(), file.len_bytes);
    Candidate::new(name, move || {
        require_memory(needs_bytes + start.cached_bytes(len_bytes))?;
        run(worker::command(&job)?, (&path, len_bytes), (machine, start), interest)
    })
    .ours()
}

/// Makes a candidate of another program that uses the protocol of [`crate::harness::subprocess`]. The
/// file is made cold or warm before the run, and its pages in the page cache are counted after it.
pub(crate) fn of_program<'a>(
    name: impl Into<String>,
    command: impl Fn() -> Command + 'a,
    (path, len_bytes): (PathBuf, u64),
    (machine, start): (Machine, Start),
) -> Candidate<'a> {
    Candidate::new(name, move || {
        require_memory(len_bytes + start.cached_bytes(len_bytes))?;
        run(command(), (&path, len_bytes), (machine, start), Interest::Everything)
    })
}

fn run(
    command: Command,
    (path, len_bytes): (&Path, u64),
    (machine, start): (Machine, Start),
    interest: Interest,
) -> Result<Run, Trouble> {
    let mut process = Subprocess::start(command)?;
    let Message::Ready { import_seconds, note: remark } = process.hear()? else {
        return Err(out_of_turn());
    };
    // Prepare after the imports, because a host reclaims memory that stays free for seconds.
    machine.prepare(path, start, memory_bytes(len_bytes))?;
    let resident_before = resident_bytes(path)?;
    process.tell("go")?;
    let Message::Done { seconds, cpu_seconds, note, streamed } = process.hear()? else {
        return Err(out_of_turn());
    };
    let peak_bytes = process.peak_bytes()?;
    let growth = resident_bytes(path)?.cast_signed() - resident_before.cast_signed();
    process.tell("verify")?;
    if process.hear()? != Message::Verified {
        return Err(out_of_turn());
    }
    let notes: Vec<String> = [remark, note].into_iter().flatten().collect();
    let peak_over_file = peak_bytes.cast_signed() - len_bytes.cast_signed();
    let speed = (SPEED, gigabytes_per_second(len_bytes, seconds));
    let sample = match interest {
        Interest::Speed => vec![speed],
        Interest::Time => vec![(TIME_MS, seconds * 1e3)],
        Interest::Everything => {
            let page_cache = (PAGE_CACHE, mebibytes(growth));
            let mut sample = vec![speed, page_cache, (PEAK_OVER_FILE, mebibytes(peak_over_file))];
            sample.extend(import_seconds.map(|seconds| (IMPORT, seconds * 1e3)));
            sample
        }
    };
    let sample = match streamed {
        Some(streamed) => sample_of(streamed, peak_bytes, len_bytes, seconds),
        None => sample,
    };
    let cost = Cost { cpu_seconds: Some(cpu_seconds), peak_memory_bytes: Some(peak_bytes) };
    let note = (!notes.is_empty()).then(|| notes.join("; "));
    Ok(Run { sample, note, cost: Some(cost) })
}

/// Returns the figures of a stream from a file of `len_bytes`.
fn sample_of(streamed: Streamed, peak_bytes: u64, len_bytes: u64, seconds: f64) -> Sample {
    let Streamed { first_seconds, selected_bytes, read_bytes, memory_bytes } = streamed;
    let peak_over_memory = peak_bytes.cast_signed() - memory_bytes.cast_signed();
    vec![
        (SPEED, gigabytes_per_second(selected_bytes, seconds)),
        (FIRST_TENSOR, first_seconds * 1e3),
        (READ_SHARE, read_bytes as f64 / len_bytes as f64),
        (PEAK_OVER_MEMORY, mebibytes(peak_over_memory)),
    ]
}

/// Returns the maximum memory of any candidate: twice the content, for those that map a file and copy
/// it.
pub(crate) fn memory_bytes(len_bytes: u64) -> u64 {
    const OWN_BYTES: u64 = 512 << 20;
    len_bytes * 2 + OWN_BYTES.min(len_bytes)
}

fn out_of_turn() -> Trouble {
    Trouble::Failed(anyhow!("the process sent an unexpected message"))
}
