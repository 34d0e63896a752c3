//! What is measured: a candidate, its metrics, and what may keep it from running.

use std::fmt;

use super::metric::Metric;

/// The values of one run.
pub(crate) type Sample = Vec<(Metric, f64)>;

/// Why a run gave no values.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// It cannot run here: a tool, a package or a kernel feature is absent.
    NotRun(String),
    /// It ran and went wrong.
    Failed(anyhow::Error),
}

/// One of the things that a case compares.
pub(crate) trait Candidate {
    /// What rows call it.
    fn name(&self) -> &str;

    /// Gets the machine ready and runs once.
    fn measure(&mut self) -> Result<Sample, Trouble>;

    /// What must be known to read its figures, as far as it has run.
    fn note(&self) -> Option<String> {
        None
    }

    /// Whether it is this project's own: its failure fails the bench.
    fn is_ours(&self) -> bool {
        false
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
