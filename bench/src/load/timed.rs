//! A candidate that is a process of the bench's own kind: ready, go, done, verify.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, anyhow};

use crate::harness::metric::{IMPORT, PAGE_CACHE, PEAK_OVER_FILE, SPEED, TIME_MS};
use crate::harness::subprocess::{Message, Subprocess};
use crate::harness::{Measure, Sample, Trouble};
use crate::load::data::DataFile;
use crate::load::machine::{Machine, Start, require_memory, resident_bytes};
use crate::load::units::{gigabytes_per_second, mebibytes};
use crate::load::worker::{self, Job, Work};

/// What is taken down of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Speed, page cache, peak memory, import.
    Everything,
    Speed,
    Time,
}

/// A candidate that runs in a process of its own.
pub(crate) struct TimedJob<'a> {
    name: String,
    command: Box<dyn Fn() -> Result<Command> + 'a>,
    /// The file that is read: cold or warm before, and whose pages are counted after.
    path: PathBuf,
    len_bytes: u64,
    machine: Machine,
    start: Start,
    interest: Interest,
    is_ours: bool,
    /// The memory without which it is not tried.
    needs_bytes: u64,
    note: Option<String>,
}

impl<'a> TimedJob<'a> {
    /// A job of this program.
    pub(crate) fn of_worker(
        name: impl Into<String>,
        work: Work,
        file: &DataFile,
        rehearsal: &DataFile,
        machine: Machine,
    ) -> Self {
        let needs_bytes = work.memory_bytes(file.len_bytes);
        let job = Job { work, file: file.clone(), rehearsal: rehearsal.clone() };
        let command = move || worker::command(&job);
        let (path, len_bytes) = (file.path.clone(), file.len_bytes);
        let program = Self::of_program(name, command, path, len_bytes, machine);
        Self { is_ours: true, needs_bytes, ..program }
    }

    /// A job of another program that speaks as [`crate::harness::subprocess`] asks.
    pub(crate) fn of_program(
        name: impl Into<String>,
        command: impl Fn() -> Result<Command> + 'a,
        path: PathBuf,
        len_bytes: u64,
        machine: Machine,
    ) -> Self {
        Self {
            name: name.into(),
            command: Box::new(command),
            path,
            len_bytes,
            machine,
            start: Start::Cold,
            interest: Interest::Everything,
            is_ours: false,
            needs_bytes: len_bytes,
            note: None,
        }
    }

    pub(crate) fn start(self, start: Start) -> Self {
        Self { start, ..self }
    }

    /// One whose failures are this project's own.
    pub(crate) fn ours(self) -> Self {
        Self { is_ours: true, ..self }
    }

    pub(crate) fn interest(self, interest: Interest) -> Self {
        Self { interest, ..self }
    }

    fn sample(&mut self) -> std::result::Result<Sample, Trouble> {
        let cached_bytes = if self.start == Start::Warm { self.len_bytes } else { 0 };
        require_memory(self.needs_bytes + cached_bytes)?;
        let mut process = Subprocess::start((self.command)()?)?;
        let Message::Ready { import_seconds, note: remark } = process.hear()? else {
            return Err(out_of_turn());
        };
        // Made ready now, not before the imports: a host takes back what lies free for seconds.
        self.machine.prepare(&self.path, self.start, memory_bytes(self.len_bytes))?;
        let resident_before = resident_bytes(&self.path)?;
        process.tell("go")?;
        let Message::Done { seconds, note } = process.hear()? else { return Err(out_of_turn()) };
        let memory = process.memory()?;
        let growth = resident_bytes(&self.path)?.cast_signed() - resident_before.cast_signed();
        process.tell("verify")?;
        if process.hear()? != Message::Verified {
            return Err(out_of_turn());
        }
        let notes: Vec<String> = [remark, note].into_iter().flatten().collect();
        self.note = (!notes.is_empty()).then(|| notes.join("; "));

        let peak_over_file = memory.peak_bytes.cast_signed() - self.len_bytes.cast_signed();
        let speed = (SPEED, gigabytes_per_second(self.len_bytes, seconds));
        Ok(match self.interest {
            Interest::Speed => vec![speed],
            Interest::Time => vec![(TIME_MS, seconds * 1e3)],
            Interest::Everything => {
                let mut sample = vec![
                    speed,
                    (PAGE_CACHE, mebibytes(growth)),
                    (PEAK_OVER_FILE, mebibytes(peak_over_file)),
                ];
                sample.extend(import_seconds.map(|seconds| (IMPORT, seconds * 1e3)));
                sample
            }
        })
    }
}

impl Measure for TimedJob<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn measure(&mut self) -> std::result::Result<Sample, Trouble> {
        self.sample()
    }

    fn note(&self) -> Option<String> {
        self.note.clone()
    }

    fn is_ours(&self) -> bool {
        self.is_ours
    }
}

/// The most that any candidate takes: the content twice, as those do that map a file and copy it.
pub(crate) fn memory_bytes(len_bytes: u64) -> u64 {
    const OWN_BYTES: u64 = 512 << 20;
    len_bytes * 2 + OWN_BYTES.min(len_bytes)
}

fn out_of_turn() -> Trouble {
    Trouble::Failed(anyhow!("the process said something out of turn"))
}
