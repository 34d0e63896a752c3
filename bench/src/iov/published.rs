//! The published tables: microseconds of a kernel's benchmark that copies the same number of bytes
//! through each of its iterators, and figures that were named as reachable.

use anyhow::{Context, Result};

use crate::harness::metric::{BYTES_PER_CLOCK, TIME_US};
use crate::harness::{Row, csv_lines};

const TABLE: &str = include_str!("../../published/iov_copy.csv");
const BOUNDS: &str = include_str!("../../published/checksum_bounds.csv");

/// The kind that ratios are taken against, as it is called here: the process's own memory.
pub(super) const OWN: &str = "OwnVec";
/// The kernel's iterators and the kinds here.
const KINDS: [(&str, &str); 6] = [
    ("ubuf", "ForeignBuf"),
    ("iovec", "ForeignVec"),
    ("bvec", "PageVec"),
    ("bvec_split", "PageVec, split"),
    ("kvec", OWN),
    ("xarray", "SparsePages"),
];
const RUNS: usize = 3;

/// The medians of the always-inlined version's runs, each against that of the kernel's own memory.
pub(super) fn kinds(case: &str) -> Result<Vec<Row>> {
    let mut figures = Vec::new();
    for line in csv_lines(TABLE) {
        let after: Result<Vec<f64>, _> = line.iter().skip(3).map(|field| field.parse()).collect();
        let mut after = after.context("published/iov_copy.csv: no number")?;
        after.sort_by(f64::total_cmp);
        let median = *after.get(RUNS / 2).context("published/iov_copy.csv: too few runs")?;
        let here = KINDS.iter().find(|(kind, _)| *kind == line[0]);
        figures.extend(here.map(|(_, here)| (*here, median)));
    }
    let baseline = figures.iter().find(|(kind, _)| *kind == OWN).map(|(_, time)| *time);
    let row = |(kind, time): &(&str, f64)| Row {
        median: Some(*time),
        runs: RUNS,
        baseline: Some(format!("{OWN}, published")),
        ratio: baseline.map(|baseline| time / baseline),
        ..Row::of(case, &format!("{kind}, published"), TIME_US)
    };
    Ok(figures.iter().map(row).collect())
}

/// What was named as reachable, in bytes per core clock, as rows of the case that measures it.
pub(super) fn bounds(case: &str) -> Result<Vec<Row>> {
    let begins = match case {
        "checksum, 4 KiB" => "internet checksum",
        "copy, 4 KiB" => "rep movs",
        "copy+checksum, 4 KiB" => "fused",
        _ => return Ok(Vec::new()),
    };
    let of_case = csv_lines(BOUNDS).filter(|line| line[0].starts_with(begins));
    of_case
        .map(|line| {
            let figure = line.get(1).context("published/checksum_bounds.csv: no figure")?;
            let row = Row::of(case, &format!("published: {}", line[0]), BYTES_PER_CLOCK);
            Ok(Row { median: Some(figure.parse()?), ..row })
        })
        .collect()
}
