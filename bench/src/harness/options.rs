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
    /// Run only the cases whose names contain this
    #[arg(long, value_name = "S")]
    pub(crate) filter: Option<String>,
    /// Counted rounds of each case [default: 5, with --quick 2]
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
    /// How long stretches of work in this process are timed.
    pub(crate) fn timed(&self) -> Duration {
        Duration::from_millis(if self.quick { 1 } else { 30 })
    }

    /// Whether a case is to run.
    pub(crate) fn wants(&self, case: &str) -> bool {
        self.filter.as_deref().is_none_or(|filter| case.contains(filter))
    }

    /// Whether a case was asked for by a name that begins with its own: for cases that take long
    /// and answer a question few have.
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
    fn a_filter_picks_cases_and_some_run_only_by_name() {
        let all = options(None);
        assert!(all.wants("cold") && !all.wants_by_name("tuning"));
        let tuning = options(Some("tuning"));
        assert!(!tuning.wants("cold") && tuning.wants_by_name("tuning"));
        let schemes = options(Some("8MB"));
        assert!(schemes.wants("schemes/8MB") && !schemes.wants_by_name("tuning"));
        assert!(!options(Some("")).wants_by_name("tuning"));
    }
}
