//! The published table: what bounce buffers gave over map and unmap for each transfer.

use anyhow::{Context, Result, bail};

use crate::harness::metric::{MAP_TIME, SPEED, UNMAP_TIME};
use crate::harness::{Metric, Row, csv_lines};

const TABLE: &str = include_str!("../../published/bounce.csv");

/// What ratios are taken against.
pub(super) const MAP: &str = "map + unmap";

/// The throughput at a block size, as `4k`.
pub(super) fn throughput(case: &str, block: &str) -> Result<Vec<Row>> {
    let [throughput, ..] = of(block)?;
    let note = "an i5-10210U and its hypervisor, virtio-iommu, 64 in flight";
    Ok(vec![row(case, SPEED, throughput, note)])
}

/// The times at a block size.
pub(super) fn times(case: &str, block: &str) -> Result<Vec<Row>> {
    let [_, unmap_time, map_time] = of(block)?;
    let note =
        "time on an i5-10210U, traps included; of map it says only that more than 99% went away";
    Ok(vec![row(case, UNMAP_TIME, unmap_time, note), row(case, MAP_TIME, map_time, note)])
}

fn row(case: &str, metric: Metric, ratio: f64, note: &str) -> Row {
    Row {
        baseline: Some(format!("published: {MAP}")),
        ratio: Some(ratio),
        note: Some(note.to_owned()),
        ..Row::of(case, "published: bounce", metric)
    }
}

/// Throughput, time in unmap and time in map, each over that of map and unmap for each transfer. Of
/// the time in map it says what it is at most.
fn of(block: &str) -> Result<[f64; 3]> {
    let line = csv_lines(TABLE).find(|fields| fields[0] == block);
    let line = line.with_context(|| format!("published/bounce.csv: no blocks of {block}"))?;
    let [_, throughput, unmap_time_cut, map_time_cut] = line[..] else {
        bail!("published/bounce.csv: the line of {block} has not four fields");
    };
    let cut = |field: &str| -> Result<f64> {
        let cut: f64 = field.trim_start_matches('>').parse()?;
        // Shares in hundredths: what is left is, too.
        Ok(((1.0 - cut) * 100.0).round() / 100.0)
    };
    Ok([throughput.parse()?, cut(unmap_time_cut)?, cut(map_time_cut)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_table_is_read() {
        assert_eq!(of("4k").unwrap(), [2.8, 0.03, 0.01]);
        assert_eq!(of("16k").unwrap(), [4.7, 0.06, 0.01]);
        assert_eq!(of("64k").unwrap(), [3.6, 0.1, 0.01]);
        assert_eq!(of("128k").unwrap(), [3.6, 0.13, 0.01]);
        assert!(of("8k").is_err());
    }
}
