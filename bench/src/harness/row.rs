//! One figure: a line of JSON, a line of a table, what a goal is compared with.

use serde::{Deserialize, Serialize};

use crate::harness::metric::Metric;

/// One figure with its spread, or the reason why there is none.
///
/// As JSON it is one line of a bench's output; `README.md` describes the fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The session sets it.
    pub(crate) bench: String,
    pub(crate) case: String,
    pub(crate) candidate: String,
    pub(crate) metric: String,
    pub(crate) unit: String,
    pub(crate) median: Option<f64>,
    pub(crate) min: Option<f64>,
    pub(crate) max: Option<f64>,
    pub(crate) mean: Option<f64>,
    pub(crate) runs: usize,
    pub(crate) baseline: Option<String>,
    /// Median over the rounds of this candidate's value over the baseline's.
    pub(crate) ratio: Option<f64>,
    pub(crate) ratio_min: Option<f64>,
    pub(crate) ratio_max: Option<f64>,
    /// User and system time of the run, or of the stretch that was timed; the median.
    #[serde(default)]
    pub(crate) cpu_seconds: Option<f64>,
    /// The peak memory of the process that did the work; the median.
    #[serde(default)]
    pub(crate) peak_memory_mib: Option<f64>,
    /// What must be known to read the figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// Why there is no figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) not_run: Option<String>,
    /// Why the figure does not count: something it has to be seen beside did not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) not_measured: Option<String>,
}

impl Row {
    /// A row of a metric, without a figure yet.
    pub(crate) fn of(case: &str, candidate: &str, metric: Metric) -> Self {
        Self {
            case: case.to_owned(),
            candidate: candidate.to_owned(),
            metric: metric.name.to_owned(),
            unit: metric.unit.to_owned(),
            ..Self::default()
        }
    }

    /// A row that says only why there is no figure.
    pub(crate) fn not_run(case: &str, candidate: &str, why: &str) -> Self {
        Self {
            case: case.to_owned(),
            candidate: candidate.to_owned(),
            not_run: Some(why.to_owned()),
            ..Self::default()
        }
    }
}
