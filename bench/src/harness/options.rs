//! The options that every bench takes.

use std::time::Duration;

use clap::Args;

/// The options that every bench takes.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct CommonOptions {
    /// Print one JSON object a line; the first is the environment
    #[arg(long)]
    pub(crate) json: bool,
    /// Run every path once on small inputs, within two minutes; the figures mean nothing
    #[arg(long)]
    pub(crate) quick: bool,
    /// Run only the cases whose names contain S
    #[arg(long, value_name = "S")]
    pub(crate) filter: Option<String>,
    /// Number of rounds of each case, after the warm-up round [default: 5, with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rounds: Option<u16>,
    /// Compare with the committed goals: reached, missed or not run
    #[arg(long)]
    pub(crate) check: bool,
    /// Keep the lines under bench/results/ as NAME.jsonl
    #[arg(long, value_name = "NAME")]
    pub(crate) save: Option<String>,
    /// Measure nothing: read what an earlier run saved as NAME
    #[arg(long, value_name = "NAME", requires = "check", conflicts_with_all = ["save", "quick"])]
    pub(crate) from: Option<String>,
}

impl CommonOptions {
    /// Returns for how long work in this process is timed.
    pub(crate) fn timed(&self) -> Duration {
        Duration::from_millis(if self.quick { 1 } else { 30 })
    }

    /// Returns `true` if a case is to run.
    pub(crate) fn wants(&self, case: &str) -> bool {
        self.filter.as_deref().is_none_or(|filter| case.contains(filter))
    }

    /// Returns `true` if the filter is the beginning of the case's name. For long cases that few users
    /// need.
    pub(crate) fn wants_by_name(&self, case: &str) -> bool {
        self.filter.as_deref().is_some_and(|filter| !filter.is_empty() && case.starts_with(filter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(filter: Option<&str>) -> CommonOptions {
        CommonOptions { filter: filter.map(str::to_owned), ..CommonOptions::default() }
    }

    #[test]
    fn a_filter_selects_cases_and_some_run_only_if_it_names_them() {
        let all = options(None);
        assert!(all.wants("cold") && !all.wants_by_name("tuning"));
        let tuning = options(Some("tuning"));
        assert!(!tuning.wants("cold") && tuning.wants_by_name("tuning"));
        let schemes = options(Some("8MB"));
        assert!(schemes.wants("schemes/8MB") && !schemes.wants_by_name("tuning"));
        assert!(!options(Some("")).wants_by_name("tuning"));
    }
}
