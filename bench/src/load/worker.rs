//! The process that does one job: the other end of [`crate::harness::subprocess`].

mod longshore;
mod memory_copy;

use std::fs::File;
use std::io::{self, BufRead, Write};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use longshore_heap::SharedBuffer;
use serde::{Deserialize, Serialize};

use crate::harness::Trouble;
use crate::harness::cost::process_cpu_seconds;
use crate::harness::subprocess::Message;
use crate::load::data::{self, DataFile};
use crate::load::schemes;

/// What to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum Work {
    /// The library's own load.
    Longshore {
        /// Past the page cache, rather than as the library chooses.
        direct: bool,
        /// Bytes a read asks for and reads in flight, where they are not the library's own.
        read_size: Option<(u64, u32)>,
    },
    /// The library's load with every tensor at a multiple of something.
    Aligned { alignment_bytes: u64 },
    /// A copy in memory by two threads.
    MemoryCopy {
        /// Into pages that are made on the way, rather than ones that exist.
        fresh: bool,
    },
    /// One of the published schemes, or the library beside them.
    Scheme { name: String },
}

/// A job: what to do with which file, and a small file to do it with once before.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) work: Work,
    pub(crate) file: DataFile,
    pub(crate) rehearsal: DataFile,
}

/// What a job comes to.
pub(crate) struct Finished {
    /// Compares the content with what it must be, and frees it.
    pub(crate) check: Box<dyn FnOnce() -> Result<()>>,
    pub(crate) note: Option<String>,
}

/// A job whose preparations are over.
pub(crate) type Prepared = Box<dyn FnOnce() -> Result<Finished>>;

impl Work {
    /// The library's own load, with nothing chosen for it.
    pub(crate) const AUTO: Self = Self::Longshore { direct: false, read_size: None };

    /// How much memory the job takes at most, for a file of `len_bytes`.
    pub(crate) fn memory_bytes(&self, len_bytes: u64) -> u64 {
        const OWN_BYTES: u64 = 128 << 20;
        let buffers = if matches!(self, Self::MemoryCopy { .. }) { 2 } else { 1 };
        len_bytes * buffers + OWN_BYTES
    }

    /// Does what the clock does not count.
    fn prepare(&self, file: &DataFile) -> std::result::Result<Prepared, Trouble> {
        if self.reads_directly() {
            require_direct_io(file)?;
        }
        match self {
            Self::Longshore { direct, read_size } => {
                Ok(longshore::prepare(file, *direct, *read_size))
            }
            Self::Aligned { alignment_bytes } => longshore::prepare_aligned(file, *alignment_bytes),
            Self::MemoryCopy { fresh } => Ok(memory_copy::prepare(file, *fresh)?),
            Self::Scheme { name } => schemes::prepare(name, file),
        }
    }

    /// Whether it cannot do without direct I/O.
    fn reads_directly(&self) -> bool {
        match self {
            Self::Longshore { direct, .. } => *direct,
            Self::MemoryCopy { .. } | Self::Aligned { .. } => false,
            Self::Scheme { name } => schemes::reads_directly(name),
        }
    }

    /// What must be known to read the figures, before there are any.
    fn remark(&self, rehearsal: &DataFile) -> Option<String> {
        match self {
            Self::Scheme { name } => schemes::refusal(name, rehearsal),
            _ => None,
        }
    }
}

/// The command that does `job` in a process of its own.
pub(crate) fn command(job: &Job) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.arg("worker").arg(serde_json::to_string(job)?);
    Ok(command)
}

/// Does one job as it is told to on standard input.
///
/// # Errors
/// Where the job is none, or the bench is gone. What the job meets is said, and no error here.
pub(crate) fn serve(job: &str) -> Result<()> {
    let job: Job = serde_json::from_str(job).context("the job is none")?;
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
    // A bench that is gone, or has what it wanted, ends the words.
    if words.next().transpose()?.as_deref() != Some("go") {
        return Ok(());
    }
    let (began, cpu) = (Instant::now(), process_cpu_seconds());
    let finished = prepared()?;
    let seconds = began.elapsed().as_secs_f64();
    let cpu_seconds = process_cpu_seconds() - cpu;
    say(&Message::Done { seconds, cpu_seconds, note: finished.note })?;
    if words.next().transpose()?.as_deref() == Some("verify") {
        (finished.check)()?;
        say(&Message::Verified)?;
    }
    Ok(())
}

impl Finished {
    /// A buffer that must hold the content of `file`.
    pub(crate) fn loaded(file: DataFile, buffer: SharedBuffer, note: Option<String>) -> Self {
        Self { check: Box::new(move || data::check(&file, buffer.view()?.bytes())), note }
    }
}

/// Where the file system has no direct I/O, what needs it cannot be measured.
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
