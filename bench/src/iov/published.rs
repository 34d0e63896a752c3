//! The published tables: microseconds of a kernel benchmark that copies the same number of bytes through
//! each of the kernel's iterators, and bounds that were published as reachable.

use anyhow::{Context, Result};

use crate::harness::metric::{BYTES_PER_CLOCK, TIME_US};
use crate::harness::statistics::Summary;
use crate::harness::{Row, published};

/// The baseline of the ratios: the process's own memory.
pub(super) const OWN: &str = "OwnVec";
/// The kernel's iterators, and our kinds.
const KINDS: [(&str, &str); 6] = [
    ("ubuf", "ForeignBuf"),
    ("iovec", "ForeignVec"),
    ("bvec", "PageVec"),
    ("bvec_split", "PageVec, split"),
    ("kvec", OWN),
    ("xarray", "SparsePages"),
];

/// Returns the medians of the runs with always-inlined steps, with ratios to the kernel's own memory.
pub(super) fn kinds(case: &str) -> Result<Vec<Row>> {
    let csv = published::read("iov_copy")?;
    let mut figures = Vec::new();
    for line in &csv.lines {
        let runs = ["after1", "after2", "after3"].map(|field| csv.number(line, field));
        let runs =
            runs.into_iter().collect::<Option<Vec<f64>>>().and_then(|runs| Summary::of(&runs));
        let median = runs.context("published/iov_copy.csv: no number")?.median;
        let here = KINDS.iter().find(|(kind, _)| *kind == line[0]);
        figures.extend(here.map(|(_, here)| (format!("{here}, published"), median)));
    }
    let baseline = format!("{OWN}, published");
    let rows = published::rows(case, TIME_US, &baseline, &figures);
    Ok(rows.map(|row| Row { runs: 3, ..row }).collect())
}

/// Returns the published bounds, in bytes per core clock, as rows of the case that measures them.
pub(super) fn bounds(case: &str) -> Result<Vec<Row>> {
    let begins = match case {
        "checksum, 4 KiB" => "internet checksum",
        "copy, 4 KiB" => "rep movs",
        "copy+checksum, 4 KiB" => "fused",
        _ => return Ok(Vec::new()),
    };
    let csv = published::read("checksum_bounds")?;
    let of_case = csv.lines.iter().filter(|line| line[0].starts_with(begins));
    let row = |line: &Vec<_>| Row {
        median: csv.number(line, "bytes_per_clock"),
        ..Row::of(case, &format!("published: {}", line[0]), BYTES_PER_CLOCK)
    };
    Ok(of_case.map(row).collect())
}
