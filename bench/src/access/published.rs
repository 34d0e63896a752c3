//! The published table: cycles of an access by each scheme.

use anyhow::{Context, Result};

use crate::harness::metric::CYCLES;
use crate::harness::{Row, csv_lines};

const ACCESSES: &str = include_str!("../../published/iova_access.csv");

/// What ratios are taken against.
const UNTRANSLATED: &str = "kvm_read_page/kvm_write_page";

/// The averages with `vms` guests, each against untranslated access.
pub(super) fn accesses(case: &str, vms: usize) -> Result<Vec<Row>> {
    let mut figures = Vec::new();
    for fields in csv_lines(ACCESSES) {
        let average = fields.get(4).context("published/iova_access.csv: a line is too short")?;
        // Of some interfaces only a part was published.
        if let (true, Ok(cycles)) = (fields[1] == vms.to_string(), average.parse::<f64>()) {
            figures.push((fields[0], cycles));
        }
    }
    let base = figures.iter().find(|(name, _)| *name == UNTRANSLATED).map(|(_, cycles)| *cycles);
    let published = |name: &str| format!("published: {name}");
    let row = |(name, cycles): &(&str, f64)| Row {
        median: Some(*cycles),
        baseline: Some(published(UNTRANSLATED)),
        ratio: base.map(|base| cycles / base),
        note: Some("a kernel of 2020, glmark2 in the guest".to_owned()),
        ..Row::of(case, &published(name), CYCLES)
    };
    Ok(figures.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_table_is_read() {
        let one = accesses("c", 1).unwrap();
        assert_eq!(one.len(), 5);
        assert_eq!((one[0].median, one[0].ratio), (Some(993.0), Some(1.0)));
        let mutex = one.iter().find(|row| row.candidate.contains("(mutex)")).unwrap();
        assert!((mutex.ratio.unwrap() - 1673.0 / 993.0).abs() < 1e-9);
        assert_eq!(accesses("c", 2).unwrap().len(), 3);
    }
}
