//! The published table: unmapping with one sync per entry and with one sync per run.

use anyhow::{Context, Result, bail};
use longshore_pagetable::Check;
use longshore_pagetable::cache_sync::CacheSync;

use super::counts;
use super::layout::{KIB, Layout, MIB};
use super::ours::{self, Ours, PerEntry, with_noncoherent};
use super::timed::{Work, candidate};
use crate::harness::metric::TIME_NS;
use crate::harness::{Against, Candidate, CommonOptions, Row, Sample, Session, csv_lines};

const TABLE: &str = include_str!("../../published/unmap_latency.csv");
const PAGES_ONLY: &str = include_str!("../../published/unmap_latency_pages_only.csv");

const AFTER: &str = "one sync per run";
const PUBLISHED_AFTER: &str = "published, after";

pub(super) fn run(options: &CommonOptions, session: &mut Session) -> Result<()> {
    for (case, table, pages_only) in
        [("before and after", TABLE, false), ("before and after, pages only", PAGES_ONLY, true)]
    {
        for line in csv_lines(table) {
            let published = Published::read(&line)?;
            let case = format!("{case}, {}", line[0]);
            if !options.wants(&case) {
                continue;
            }
            let blocks = !pages_only && published.len_bytes >= 2 * MIB;
            let layout = Layout::apart(published.len_bytes, if blocks { 21 } else { 12 });
            let candidates = with_noncoherent!(
                |sync| candidates(sync, &layout, options),
                vec![Candidate::unable(AFTER, ours::cleaned_with())]
            );
            let measured = session.run(&case, candidates);
            let against = [Against::new(TIME_NS, AFTER)];
            let mut rows = measured.rows(&against);
            rows.extend(published.rows(&case));
            session.publish(rows)?;
        }
    }
    Ok(())
}

/// Arm tables, as those published, with the cleaning that the machine has.
fn candidates<S: CacheSync + Copy + 'static>(
    sync: S,
    layout: &Layout,
    options: &CommonOptions,
) -> Vec<Candidate<'static>> {
    let (format, check) = (ours::arm(false), Check::Checked);
    let counted = counts::of(format, check, layout, &Work::Unmap);
    let by_run = || Ours::new(format, sync, check);
    let by_entry = Ours::new(format, PerEntry(sync), check);
    let (unmap, by_page) = ((layout, &Work::Unmap), (layout, &Work::UnmapByPage));
    let none = Sample::new;
    let note = format!("cleaned with {}", ours::cleaned_with());
    let each = format!("{note}, each changed entry cleaned and waited for");
    vec![
        candidate(AFTER, by_run(), unmap, options, counted).ours().with_note(&note),
        candidate("one sync per entry", by_entry, unmap, options, none()).ours().with_note(each),
        candidate("one unmap per page", by_run(), by_page, options, none()).ours().with_note(note),
    ]
}

/// A line of a published table.
#[derive(Debug, PartialEq)]
struct Published {
    len_bytes: u64,
    before_us: f64,
    after_us: f64,
}

impl Published {
    fn read(line: &[&str]) -> Result<Self> {
        let [size, before, after] = line else {
            bail!("published/unmap_latency*.csv: {line:?} has not three fields");
        };
        let len_bytes = size_bytes(size).with_context(|| format!("no size: {size:?}"))?;
        Ok(Self { len_bytes, before_us: before.parse()?, after_us: after.parse()? })
    }

    fn rows(&self, case: &str) -> [Row; 2] {
        let row = |candidate, us: f64| Row {
            median: Some(us * 1e3),
            baseline: Some(PUBLISHED_AFTER.to_owned()),
            ratio: Some(us / self.after_us),
            note: Some(
                "a DMA benchmark's whole unmapping, of which the tables are a part".to_owned(),
            ),
            ..Row::of(case, candidate, TIME_NS)
        };
        [row("published, before", self.before_us), row(PUBLISHED_AFTER, self.after_us)]
    }
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
        let all = |table| csv_lines(table).map(|line| Published::read(&line).unwrap());
        let first = Published { len_bytes: 4096, before_us: 3.0, after_us: 3.1 };
        assert_eq!((all(TABLE).count(), all(TABLE).next()), (8, Some(first)));
        assert_eq!(all(PAGES_ONLY).count(), 4);
        assert!(Published::read(&["4K", "1", "2"]).is_err());
    }
}
