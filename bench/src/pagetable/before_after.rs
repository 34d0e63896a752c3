//! The published table: unmapping with one sync per entry and with one sync per run.

use anyhow::{Context, Error, Result};
use longshore_pagetable::Check;
use longshore_pagetable::cache_sync::CacheSync;

use super::counts;
use super::layout::{Layout, MIB};
use super::ours::{self, Ours, PerEntry, with_noncoherent};
use super::timed::{Work, candidate};
use crate::harness::metric::TIME_NS;
use crate::harness::{Against, Candidate, CommonOptions, Row, Sample, Session, published};
use crate::load::data::parse_size;

const AFTER: &str = "one sync per run";
const PUBLISHED_AFTER: &str = "published, after";

pub(super) fn run(options: &CommonOptions, session: &mut Session) -> Result<()> {
    for (case, table, pages_only) in [
        ("before and after", "unmap_latency", false),
        ("before and after, pages only", "unmap_latency_pages_only", true),
    ] {
        let csv = published::read(table)?;
        for line in &csv.lines {
            let case = format!("{case}, {}", line[0]);
            if !options.wants(&case) {
                continue;
            }
            // In the published tables a KB has 1024 bytes.
            let len_bytes = parse_size(&line[0].replace('B', "iB")).map_err(Error::msg)?;
            let blocks = !pages_only && len_bytes >= 2 * MIB;
            let layout = Layout::apart(len_bytes, if blocks { 21 } else { 12 });
            let candidates = with_noncoherent!(
                |sync| candidates(sync, &layout, options),
                vec![Candidate::unable(AFTER, ours::cleaned_with())]
            );
            let measured = session.run(&case, candidates);
            let mut rows = measured.rows(&[Against::new(TIME_NS, AFTER)]);
            let nanos = |field| csv.number(line, field).map(|us| us * 1e3).context("no number");
            let published = [
                ("published, before".to_owned(), nanos("before")?),
                (PUBLISHED_AFTER.to_owned(), nanos("after")?),
            ];
            let published = published::rows(&case, TIME_NS, PUBLISHED_AFTER, &published);
            let note = "a DMA benchmark's whole unmapping, which includes more than the tables";
            rows.extend(published.map(|row| Row { note: Some(note.to_owned()), ..row }));
            session.publish(rows)?;
        }
    }
    Ok(())
}

/// Returns candidates on Arm tables, like the published ones, with the best cleaning instruction of the
/// machine.
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
    let each = format!("{note}, a fence after each changed entry");
    vec![
        candidate(AFTER, by_run(), unmap, options, counted).ours().with_note(&note),
        candidate("one sync per entry", by_entry, unmap, options, none()).ours().with_note(each),
        candidate("one unmap per page", by_run(), by_page, options, none()).ours().with_note(note),
    ]
}
