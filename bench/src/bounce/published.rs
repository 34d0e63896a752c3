//! The published table: what bounce buffers gave over map and unmap for each transfer.

use anyhow::{Context, Result};

use crate::harness::metric::{MAP_TIME, SPEED, UNMAP_TIME};
use crate::harness::{Metric, Row};

const TABLE: &str = include_str!("../../published/bounce.csv");

/// What ratios are taken against.
pub(super) const MAP: &str = "map + unmap";

/// One block size.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Published {
    /// Throughput over that of map and unmap.
    throughput: f64,
    /// Time over that of map and unmap.
    unmap_time: f64,
    /// At most that.
    map_time: f64,
}

/// The throughput at a block size, as `4k`.
pub(super) fn throughput(bench: &str, case: &str, block: &str) -> Result<Vec<Row>> {
    let published = of(block)?;
    let note = "an i5-10210U and its hypervisor, virtio-iommu, 64 in flight";
    Ok(vec![row(bench, case, SPEED, published.throughput, note)])
}

/// The times at a block size.
pub(super) fn times(bench: &str, case: &str, block: &str) -> Result<Vec<Row>> {
    let published = of(block)?;
    let note =
        "time on an i5-10210U, traps included; of map it says only that more than 99% went away";
    Ok(vec![
        row(bench, case, UNMAP_TIME, published.unmap_time, note),
        row(bench, case, MAP_TIME, published.map_time, note),
    ])
}

fn row(bench: &str, case: &str, metric: Metric, ratio: f64, note: &str) -> Row {
    Row {
        metric: metric.name.to_owned(),
        unit: metric.unit.to_owned(),
        baseline: Some(format!("published: {MAP}")),
        ratio: Some(ratio),
        note: Some(note.to_owned()),
        not_run: None,
        ..Row::not_run(bench, case, "published: bounce", "")
    }
}

fn of(block: &str) -> Result<Published> {
    parse(TABLE, block).context("published/bounce.csv")
}

fn parse(table: &str, block: &str) -> Result<Published> {
    let lines = table.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).skip(1);
    let mut lines = lines.map(|line| line.split(',').collect::<Vec<_>>());
    let fields = lines.find(|fields| fields[0] == block);
    let fields = fields.with_context(|| format!("it has no blocks of {block}"))?;
    let [_, throughput, unmap_time_cut, map_time_cut] = fields[..] else {
        anyhow::bail!("the line of {block} has not four fields");
    };
    let cut = |field: &str| -> Result<f64> {
        let cut: f64 = field.trim_start_matches('>').parse()?;
        // Shares in hundredths: what is left is, too.
        Ok(((1.0 - cut) * 100.0).round() / 100.0)
    };
    Ok(Published {
        throughput: throughput.parse()?,
        unmap_time: cut(unmap_time_cut)?,
        map_time: cut(map_time_cut)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_table_is_read() {
        let expected =
            |throughput, unmap_time| Published { throughput, unmap_time, map_time: 0.01 };
        assert_eq!(of("4k").unwrap(), expected(2.8, 0.03));
        assert_eq!(of("16k").unwrap(), expected(4.7, 0.06));
        assert_eq!(of("64k").unwrap(), expected(3.6, 0.1));
        assert_eq!(of("128k").unwrap(), expected(3.6, 0.13));
        assert!(of("8k").is_err());
        assert!(parse("block,throughput\n4k,2.8\n", "4k").is_err());
    }
}
