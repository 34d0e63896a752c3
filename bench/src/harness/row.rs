//! One figure: a line of JSON and of a table, and the value that a goal is compared with.

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
    /// The median over the rounds of this candidate's value divided by the baseline's.
    pub(crate) ratio: Option<f64>,
    pub(crate) ratio_min: Option<f64>,
    pub(crate) ratio_max: Option<f64>,
    /// User and system time of the run, or of one timed stretch; the median.
    #[serde(default)]
    pub(crate) cpu_seconds: Option<f64>,
    /// The peak memory of the process that did the work; the median.
    #[serde(default)]
    pub(crate) peak_memory_mib: Option<f64>,
    /// A note that the reader of the figure needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// The reason why there is no figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) not_run: Option<String>,
    /// The reason why the figure must not be used: a candidate that it must be compared with did not
    /// run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) not_measured: Option<String>,
}

impl Row {
    /// Returns a row of a metric, without a figure yet.
    pub(crate) fn of(case: &str, candidate: &str, metric: Metric) -> Self {
        Self {
            case: case.to_owned(),
            candidate: candidate.to_owned(),
            metric: metric.name.to_owned(),
            unit: metric.unit.to_owned(),
            ..Self::default()
        }
    }

    /// Returns a row with the reason why there is no figure.
    pub(crate) fn not_run(case: &str, candidate: &str, why: &str) -> Self {
        Self {
            case: case.to_owned(),
            candidate: candidate.to_owned(),
            not_run: Some(why.to_owned()),
            ..Self::default()
        }
    }
}
