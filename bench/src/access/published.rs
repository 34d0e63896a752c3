//! The published tables: cycles of an access by each scheme, and of each lock.

use anyhow::{Context, Result};

use crate::harness::Row;
use crate::harness::metric::CYCLES;

const ACCESSES: &str = include_str!("../../published/iova_access.csv");
const LOCKS: &str = include_str!("../../published/iova_access_locks.csv");

/// What ratios are taken against.
const UNTRANSLATED: &str = "kvm_read_page/kvm_write_page";
const MUTEX: &str = "uncontended mutex";

/// The averages with `vms` guests, each against untranslated access.
pub(super) fn accesses(bench: &str, case: &str, vms: u64) -> Result<Vec<Row>> {
    let lines = lines(ACCESSES).with_context(|| "published/iova_access.csv")?;
    let vms = vms.to_string();
    let figures: Vec<(&str, f64)> = lines
        .iter()
        .filter(|fields| fields.get(1) == Some(&vms.as_str()))
        .filter_map(|fields| Some((fields[0], fields.get(4)?.parse().ok()?)))
        .collect();
    Ok(rows(bench, case, &figures, UNTRANSLATED, "a kernel of 2020, glmark2 in the guest"))
}

/// The locks, each against a mutex that nobody else wants.
pub(super) fn locks(bench: &str, case: &str) -> Result<Vec<Row>> {
    let lines = lines(LOCKS).with_context(|| "published/iova_access_locks.csv")?;
    let figures: Vec<(&str, f64)> =
        lines.iter().filter_map(|fields| Some((fields[0], fields.get(1)?.parse().ok()?))).collect();
    Ok(rows(bench, case, &figures, MUTEX, "one guest"))
}

fn rows(bench: &str, case: &str, figures: &[(&str, f64)], baseline: &str, note: &str) -> Vec<Row> {
    let base = figures.iter().find(|(name, _)| *name == baseline).map(|(_, cycles)| *cycles);
    let row = |(name, cycles): &(&str, f64)| Row {
        metric: CYCLES.name.to_owned(),
        unit: CYCLES.unit.to_owned(),
        median: Some(*cycles),
        baseline: Some(published(baseline)),
        ratio: base.map(|base| cycles / base),
        note: Some(note.to_owned()),
        not_run: None,
        ..Row::not_run(bench, case, &published(name), "")
    };
    figures.iter().map(row).collect()
}

fn published(name: &str) -> String {
    format!("published: {name}")
}

/// The fields of each line but the first, which names them.
fn lines(table: &str) -> Result<Vec<Vec<&str>>> {
    let lines = table.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let lines: Vec<Vec<&str>> = lines.skip(1).map(|line| line.split(',').collect()).collect();
    lines.iter().all(|fields| fields.len() >= 2).then_some(lines).context("a line is too short")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_tables_are_read() {
        let one = accesses("access", "c", 1).unwrap();
        assert_eq!(one.len(), 5);
        assert_eq!((one[0].median, one[0].ratio), (Some(993.0), Some(1.0)));
        let mutex = one.iter().find(|row| row.candidate.contains("(mutex)")).unwrap();
        assert!((mutex.ratio.unwrap() - 1673.0 / 993.0).abs() < 1e-9);
        assert_eq!(accesses("access", "c", 2).unwrap().len(), 3);
        let locks = locks("access", "c").unwrap();
        assert_eq!(locks.len(), 8);
        assert_eq!(locks[7].ratio, Some(1.0));
    }
}
