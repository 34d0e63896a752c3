//! The published table: unmapping with one sync per entry and with one sync per run.

use anyhow::{Context, Result};
use longshore_pagetable::Check;
use longshore_pagetable::cache_sync::CacheSync;
use longshore_pagetable::format::Format;

use super::cases::{Candidates, effort};
use super::counts;
use super::layout::{KIB, Layout, MIB};
use super::ours::{self, Ours, PerEntry};
use super::timed::{Effort, Timed, Work};
use crate::harness::metric::TIME_NS;
use crate::harness::{Against, CommonOptions, Row, Sample, Session};

const TABLE: &str = include_str!("../../published/unmap_latency.csv");
const PAGES_ONLY: &str = include_str!("../../published/unmap_latency_pages_only.csv");

const AFTER: &str = "one sync per run";
const BEFORE: &str = "one sync per entry";
const BY_PAGE: &str = "one unmap per page";
const PUBLISHED_BEFORE: &str = "published, before";
const PUBLISHED_AFTER: &str = "published, after";

pub(super) fn run(options: &CommonOptions, session: &mut Session) -> Result<()> {
    for (case, table, pages_only) in
        [("before and after", TABLE, false), ("before and after, pages only", PAGES_ONLY, true)]
    {
        for published in read(table)? {
            let case = format!("{case}, {}", published.size);
            if !options.wants(&case) {
                continue;
            }
            let blocks = !pages_only && published.len_bytes >= 2 * MIB;
            let layout = Layout::apart(published.len_bytes, if blocks { 21 } else { 12 });
            let mut candidates = Candidates::new();
            add(&layout, effort(options), &mut candidates);
            let measured = session.run(&case, candidates);
            let against = [Against { metric: TIME_NS, baseline: AFTER, only: None }];
            let mut rows = measured.rows(session.bench(), &against);
            rows.extend(published.rows(session.bench(), &case));
            session.publish(rows)?;
        }
    }
    Ok(())
}

/// Arm tables, as those published, with the cleaning that the machine has.
fn add(layout: &Layout, effort: Effort, candidates: &mut Candidates) {
    #[cfg(target_arch = "x86_64")]
    match (ours::Clwb::new(), ours::ClFlushOpt::new()) {
        (Some(clwb), _) => add_with(ours::arm(), clwb, layout, effort, candidates),
        (None, Some(clflushopt)) => add_with(ours::arm(), clflushopt, layout, effort, candidates),
        (None, None) => {}
    }
    #[cfg(target_arch = "aarch64")]
    add_with(ours::arm(), ours::DcCvac::new(), layout, effort, candidates);
}

fn add_with<F: Format + 'static, S: CacheSync + Copy + 'static>(
    format: F,
    sync: S,
    layout: &Layout,
    effort: Effort,
    candidates: &mut Candidates,
) {
    let check = Check::Checked;
    let counted = counts::of(format, check, layout, &Work::Unmap);
    let note = format!("cleaned with {}", ours::cleaned_with());
    let after = Timed::new(AFTER, Ours::new(format, sync, check), layout, &Work::Unmap, effort);
    candidates.push(Box::new(after.ours(counted).with_note(&note)));
    let tables = Ours::new(format, PerEntry(sync), check);
    let before = Timed::new(BEFORE, tables, layout, &Work::Unmap, effort);
    let what = "each changed entry cleaned and waited for";
    let before = before.ours(Sample::new());
    candidates.push(Box::new(before.with_note(format!("{note}, {what}"))));
    let tables = Ours::new(format, sync, check);
    let by_page = Timed::new(BY_PAGE, tables, layout, &Work::UnmapByPage, effort);
    let by_page = by_page.ours(Sample::new());
    candidates.push(Box::new(by_page.with_note(&note)));
}

/// A line of a published table.
#[derive(Debug, PartialEq)]
struct Published {
    size: String,
    len_bytes: u64,
    before_us: f64,
    after_us: f64,
}

impl Published {
    fn rows(&self, bench: &str, case: &str) -> Vec<Row> {
        let row = |candidate, us: f64| Row {
            metric: TIME_NS.name.to_owned(),
            unit: TIME_NS.unit.to_owned(),
            median: Some(us * 1e3),
            baseline: Some(PUBLISHED_AFTER.to_owned()),
            ratio: Some(us / self.after_us),
            note: Some(
                "a DMA benchmark's whole unmapping, of which the tables are a part".to_owned(),
            ),
            not_run: None,
            ..Row::not_run(bench, case, candidate, "")
        };
        vec![row(PUBLISHED_BEFORE, self.before_us), row(PUBLISHED_AFTER, self.after_us)]
    }
}

fn read(table: &str) -> Result<Vec<Published>> {
    let lines = table.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .skip(1)
        .map(|line| {
            let mut fields = line.split(',');
            let mut field = || fields.next().with_context(|| format!("too short: {line:?}"));
            let size = field()?.to_owned();
            let len_bytes = size_bytes(&size).with_context(|| format!("no size: {size:?}"))?;
            let (before_us, after_us) = (field()?.parse()?, field()?.parse()?);
            Ok(Published { size, len_bytes, before_us, after_us })
        })
        .collect::<Result<_>>()
        .context("published/unmap_latency*.csv")
}

fn size_bytes(size: &str) -> Option<u64> {
    let (number, unit) = match (size.strip_suffix("KB"), size.strip_suffix("MB")) {
        (Some(number), _) => (number, KIB),
        (_, Some(number)) => (number, MIB),
        _ => return None,
    };
    Some(number.parse::<u64>().ok()? * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_tables_are_read() {
        let table = read(TABLE).unwrap();
        assert_eq!(table.len(), 8);
        let first =
            Published { size: "4KB".to_owned(), len_bytes: 4096, before_us: 3.0, after_us: 3.1 };
        assert_eq!(table[0], first);
        assert_eq!(read(PAGES_ONLY).unwrap().len(), 4);
        assert!(read("h\n4K,1,2").is_err());
    }
}
