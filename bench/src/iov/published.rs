//! The published table: microseconds of a kernel's benchmark that copies the same number of bytes
//! through each of its iterators.

use anyhow::{Context, Result};

use crate::harness::Row;
use crate::harness::metric::{BYTES_PER_CLOCK, TIME_US};

const TABLE: &str = include_str!("../../published/iov_copy.csv");

/// What ratios are taken against: the kernel's own memory.
const BASELINE: &str = "kvec";
/// What that is called here.
pub(super) const OWN: &str = "OwnVec";
const RUNS: usize = 3;

/// The median of the always-inlined version's runs, by kind.
#[derive(Debug)]
pub(super) struct Published(Vec<(String, f64)>);

impl Published {
    pub(super) fn read() -> Result<Self> {
        parse(TABLE).context("published/iov_copy.csv")
    }

    /// The figures as rows, each against that of the kernel's own memory.
    pub(super) fn rows(&self, bench: &str, case: &str) -> Vec<Row> {
        let baseline = self.0.iter().find(|(kind, _)| kind == BASELINE).map(|(_, time)| *time);
        let rows = self.0.iter().filter_map(|(kind, time)| {
            let candidate = format!("{}, published", Self::name_here(kind)?);
            Some(Row {
                metric: TIME_US.name.to_owned(),
                unit: TIME_US.unit.to_owned(),
                median: Some(*time),
                runs: RUNS,
                baseline: Some(format!("{OWN}, published")),
                ratio: baseline.map(|baseline| time / baseline),
                not_run: None,
                ..Row::not_run(bench, case, &candidate, "")
            })
        });
        rows.collect()
    }

    /// What the kind is called here.
    fn name_here(kind: &str) -> Option<&'static str> {
        Some(match kind {
            "ubuf" => "ForeignBuf",
            "iovec" => "ForeignVec",
            "bvec" => "PageVec",
            "bvec_split" => "PageVec, split",
            BASELINE => OWN,
            "xarray" => "SparsePages",
            _ => return None,
        })
    }
}

const BOUNDS: &str = include_str!("../../published/checksum_bounds.csv");

/// What was named as reachable, in bytes per core clock, as rows of the case that measures it.
pub(super) fn bounds(bench: &str, case: &str) -> Result<Vec<Row>> {
    let of_case = |what: &str| match case {
        "checksum, 4 KiB" => what.starts_with("internet checksum"),
        "copy, 4 KiB" => what.starts_with("rep movs"),
        "copy+checksum, 4 KiB" => what.starts_with("fused"),
        _ => false,
    };
    let lines = BOUNDS.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let mut rows = Vec::new();
    for line in lines.skip(1) {
        let (what, figure) = line.split_once(',').context("published/checksum_bounds.csv")?;
        let figure = figure.parse().with_context(|| format!("checksum_bounds.csv: {line:?}"))?;
        if of_case(what) {
            rows.push(Row {
                metric: BYTES_PER_CLOCK.name.to_owned(),
                unit: BYTES_PER_CLOCK.unit.to_owned(),
                median: Some(figure),
                not_run: None,
                ..Row::not_run(bench, case, &format!("published: {what}"), "")
            });
        }
    }
    Ok(rows)
}

fn parse(text: &str) -> Result<Published> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let mut figures = Vec::new();
    for line in lines.skip(1) {
        let mut fields = line.split(',');
        let kind = fields.next().context("a line is empty")?;
        let mut after: Vec<f64> =
            fields.skip(3).map(str::parse).collect::<Result<_, _>>().context("no number")?;
        after.sort_by(f64::total_cmp);
        let median = *after.get(1).with_context(|| format!("{kind} has not three runs"))?;
        figures.push((kind.to_owned(), median));
    }
    Ok(Published(figures))
}
