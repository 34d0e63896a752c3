//! The process that does one job: the other side of [`crate::harness::subprocess`].

pub(crate) mod finished;
mod longshore;
mod memory_copy;
mod stream;

use std::fs::File;
use std::io::{self, BufRead, Write};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::harness::Trouble;
use crate::harness::cost::process_cpu_seconds;
use crate::harness::subprocess::Message;
use crate::load::data::DataFile;
use crate::load::schemes;
use finished::{Finished, Prepared};

/// The work of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum Work {
    /// The library's own load.
    Longshore {
        /// `true` for direct reads; otherwise the library chooses.
        direct: bool,
        /// The bytes of a read and the reads in flight; `None` for the library's defaults.
        read_size: Option<(u64, u32)>,
    },
    /// The library's load with every tensor at a multiple of `alignment_bytes`.
    Aligned { alignment_bytes: u64 },
    /// A stream whose consumer drops each tensor at once.
    Stream {
        memory_bytes: u64,
        /// Only the first of this number of equal parts of the rows of each tensor.
        ranks: u64,
    },
    /// A memory copy by two threads.
    MemoryCopy {
        /// `true` for a copy into new pages instead of existing ones.
        fresh: bool,
    },
    /// One of the published schemes, or the library's own among them.
    Scheme { name: String },
}

/// A job: the work, its file, and a small file that is loaded once before the timing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) work: Work,
    pub(crate) file: DataFile,
    pub(crate) rehearsal: DataFile,
}

impl Work {
    /// The library's own load with its default settings.
    pub(crate) const AUTO: Self = Self::Longshore { direct: false, read_size: None };

    /// Returns the maximum memory of the job for a file of `len_bytes`.
    pub(crate) fn memory_bytes(&self, len_bytes: u64) -> u64 {
        const OWN_BYTES: u64 = 128 << 20;
        let buffers_bytes = match self {
            Self::MemoryCopy { .. } => len_bytes * 2,
            Self::Stream { memory_bytes, .. } => *memory_bytes,
            _ => len_bytes,
        };
        buffers_bytes + OWN_BYTES
    }

    /// Does the preparations that are not timed.
    fn prepare(&self, file: &DataFile) -> std::result::Result<Prepared, Trouble> {
        if self.reads_directly() {
            require_direct_io(file)?;
        }
        match self {
            Self::Longshore { direct, read_size } => {
                Ok(longshore::prepare(file, *direct, *read_size))
            }
            Self::Aligned { alignment_bytes } => longshore::prepare_aligned(file, *alignment_bytes),
            Self::Stream { memory_bytes, ranks } => {
                Ok(stream::prepare(file, *memory_bytes, *ranks))
            }
            Self::MemoryCopy { fresh } => Ok(memory_copy::prepare(file, *fresh)?),
            Self::Scheme { name } => schemes::prepare(name, file),
        }
    }

    /// Returns `true` if the work needs direct I/O.
    fn reads_directly(&self) -> bool {
        match self {
            Self::Longshore { direct, .. } => *direct,
            Self::MemoryCopy { .. } | Self::Aligned { .. } | Self::Stream { .. } => false,
            Self::Scheme { name } => schemes::reads_directly(name),
        }
    }

    /// Returns a note for the reader of the figures that is known before the run.
    fn remark(&self, rehearsal: &DataFile) -> Option<String> {
        match self {
            Self::Scheme { name } => schemes::refusal(name, rehearsal),
            _ => None,
        }
    }
}

/// Returns the command that does `job` in a separate process.
pub(crate) fn command(job: &Job) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.arg("worker").arg(serde_json::to_string(job)?);
    Ok(command)
}

/// Does one job, controlled by standard input.
///
/// # Errors
/// Returns an error if the job is invalid or the bench has ended. An error of the job itself is sent as
/// a message.
pub(crate) fn serve(job: &str) -> Result<()> {
    let job: Job = serde_json::from_str(job).context("the job is not valid JSON")?;
    match follow(&job) {
        Ok(()) => Ok(()),
        Err(Trouble::NotRun(reason)) => say(&Message::Unavailable { reason }),
        Err(Trouble::Failed(error)) => say(&Message::Failed { reason: format!("{error:#}") }),
    }
}

fn follow(job: &Job) -> std::result::Result<(), Trouble> {
    let rehearsed = job.work.prepare(&job.rehearsal)?()?;
    (rehearsed.check)()?;
    let note = job.work.remark(&job.rehearsal);
    let prepared = job.work.prepare(&job.file)?;
    say(&Message::Ready { import_seconds: None, note })?;

    let mut words = io::stdin().lock().lines();
    // The input ends if the bench has ended or needs nothing more.
    if words.next().transpose()?.as_deref() != Some("go") {
        return Ok(());
    }
    let (began, cpu) = (Instant::now(), process_cpu_seconds());
    let finished = prepared()?;
    let seconds = began.elapsed().as_secs_f64();
    let cpu_seconds = process_cpu_seconds() - cpu;
    let Finished { check, note, streamed } = finished;
    say(&Message::Done { seconds, cpu_seconds, note, streamed })?;
    if words.next().transpose()?.as_deref() == Some("verify") {
        check()?;
        say(&Message::Verified)?;
    }
    Ok(())
}

/// Returns [`Trouble::NotRun`] if the file system has no direct I/O.
fn require_direct_io(file: &DataFile) -> std::result::Result<(), Trouble> {
    let open = File::open(&file.path)?;
    match longshore_sys::file::reopen_direct(open) {
        Ok(_) => Ok(()),
        Err(error) => Err(Trouble::NotRun(format!("the file system has no direct I/O: {error}"))),
    }
}

fn say(message: &Message) -> Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", serde_json::to_string(message)?)?;
    Ok(stdout.flush()?)
}
