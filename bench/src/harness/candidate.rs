//! What is measured: a candidate, its metrics, and what may keep it from running.

use std::fmt;
use std::thread;

use super::cost::Cost;
use super::metric::Metric;

/// The values of one run.
pub(crate) type Sample = Vec<(Metric, f64)>;

/// One run: its values and what it cost.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) sample: Sample,
    /// What must be known to read the figures; replaces the candidate's own note.
    pub(crate) note: Option<String>,
    /// CPU time and memory, where they are not those of this process during the run.
    pub(crate) cost: Option<Cost>,
}

impl From<Sample> for Run {
    fn from(sample: Sample) -> Self {
        Self { sample, ..Self::default() }
    }
}

/// Why a run gave no values.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// It cannot run here: a tool, a package or a kernel feature is absent.
    NotRun(String),
    /// It ran and went wrong.
    Failed(anyhow::Error),
}

/// One of the things that a case compares: a name, and a closure that runs it once.
pub(crate) struct Candidate<'a> {
    pub(crate) name: String,
    pub(crate) note: Option<String>,
    /// `true` for a candidate of this project, whose failure fails the bench.
    pub(crate) is_ours: bool,
    /// Cores without which it is not run.
    cores: usize,
    run: Box<dyn FnMut() -> Result<Run, Trouble> + 'a>,
}

impl<'a> Candidate<'a> {
    /// Makes a candidate of another project. `run` prepares the machine and runs the candidate once.
    pub(crate) fn new<R: Into<Run>>(
        name: impl Into<String>,
        mut run: impl FnMut() -> Result<R, Trouble> + 'a,
    ) -> Self {
        let run = Box::new(move || run().map(Into::into));
        Self { name: name.into(), note: None, is_ours: false, cores: 1, run }
    }

    /// A candidate that cannot run here.
    pub(crate) fn unable(name: impl Into<String>, why: impl Into<String>) -> Self {
        let why = why.into();
        Self::new(name, move || Err::<Run, _>(Trouble::NotRun(why.clone())))
    }

    pub(crate) fn ours(self) -> Self {
        Self { is_ours: true, ..self }
    }

    pub(crate) fn with_note(self, note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..self }
    }

    pub(crate) fn needs_cores(self, cores: usize) -> Self {
        Self { cores, ..self }
    }

    /// Runs once. CPU time and memory are this process's, unless the run reports others.
    pub(crate) fn run(&mut self) -> Result<Run, Trouble> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        if cores < self.cores {
            let why = format!("it needs {} cores, and the machine has {cores}", self.cores);
            return Err(Trouble::NotRun(why));
        }
        let (run, own) = Cost::of(&mut self.run);
        let mut run = run?;
        run.cost.get_or_insert(own);
        Ok(run)
    }
}

impl<E: Into<anyhow::Error>> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRun(why) => f.write_str(why),
            Self::Failed(error) => write!(f, "failed: {error:#}"),
        }
    }
}
