//! Candidates: a name, a closure that runs once and returns values, and the reasons why it may not run.

use std::fmt;
use std::thread;

use super::cost::Cost;
use super::metric::Metric;

/// The values of one run.
pub(crate) type Sample = Vec<(Metric, f64)>;

/// The values and the cost of one run.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) sample: Sample,
    /// A note that the reader of the figures needs; it replaces the candidate's own note.
    pub(crate) note: Option<String>,
    /// CPU time and memory, if they are not those of this process during the run.
    pub(crate) cost: Option<Cost>,
}

impl From<Sample> for Run {
    fn from(sample: Sample) -> Self {
        Self { sample, ..Self::default() }
    }
}

/// The reason why a run gave no values.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// It cannot run here: a tool, a package or a kernel feature is absent.
    NotRun(String),
    /// It ran and failed.
    Failed(anyhow::Error),
}

/// One candidate of a case: a name, and a closure that runs it once.
pub(crate) struct Candidate<'a> {
    pub(crate) name: String,
    pub(crate) note: Option<String>,
    /// `true` for a candidate of this project, whose failure fails the bench.
    pub(crate) is_ours: bool,
    /// The number of cores that it needs to run.
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

    /// Makes a candidate that cannot run here, with the reason.
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

    /// Runs once. CPU time and memory are those of this process, unless the run reports others.
    pub(crate) fn run(&mut self) -> Result<Run, Trouble> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        if cores < self.cores {
            let why = format!("it needs {} cores, but the machine has {cores}", self.cores);
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
