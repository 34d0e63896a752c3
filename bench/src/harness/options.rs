//! The options that every bench takes.

use clap::Args;

/// The options that every bench takes.
#[derive(Args, Clone, Debug)]
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
