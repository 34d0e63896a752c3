//! The published table, measured here.

use anyhow::{Context as _, Result};

use super::REHEARSAL_BYTES;
use crate::harness::metric::TIME_MS;
use crate::harness::{Against, Row, Session, published};
use crate::load::Context;
use crate::load::machine::Start;
use crate::load::schemes::{ALL, SIZES, Size};
use crate::load::timed::{Interest, of_worker};
use crate::load::worker::Work;

pub(crate) const CASE: &str = "schemes";
/// The baseline of the published table.
const BASELINE: &str = "normal";
pub(crate) const OURS: &str = "longshore auto";
const PUBLISHED_BEST: &str = "async direct";
/// The largest size that `--quick` runs.
const QUICK_BYTES_MAX: u64 = 8 << 20;

pub(super) fn run(context: &Context<'_>, session: &mut Session) -> Result<()> {
    for size in SIZES {
        let case = format!("{CASE}/{}", size.name);
        let asked_for = &context.options.scheme_size;
        let too_long = context.options.common.quick && size.bytes > QUICK_BYTES_MAX;
        let listed = asked_for.is_empty() || asked_for.iter().any(|name| name == size.name);
        if !context.options.common.wants(&case) || !listed || too_long {
            continue;
        }
        if context.folder.has_room(size.bytes) {
            run_size(context, session, &case, size)?;
        } else {
            session.not_run(&case, OURS, "the disk has no room for the file")?;
        }
    }
    Ok(())
}

fn run_size(context: &Context<'_>, session: &mut Session, case: &str, size: Size) -> Result<()> {
    let file = context.folder.raw_file(size.bytes)?;
    let rehearsal = context.folder.raw_file(REHEARSAL_BYTES)?;
    let (files, on) = ((&file, &rehearsal), (context.machine, Start::Cold));
    let candidates = ALL.map(|scheme| {
        let work = Work::Scheme { name: scheme.name.to_owned() };
        of_worker(scheme.name, work, files, on, Interest::Time)
    });
    let against =
        [Against::new(TIME_MS, BASELINE), Against::new(TIME_MS, PUBLISHED_BEST).only(OURS)];
    session.compare(case, candidates.into(), &against)?;
    context.folder.discard(&file.path);
    session.publish(published_rows(size)?)
}

/// Returns the published figures of one size as rows of a separate case: mean times, on a phone.
fn published_rows(size: Size) -> Result<Vec<Row>> {
    /// The number of runs, according to the table's first line.
    const RUNS: usize = 5;
    let csv = published::read("file_to_dmabuf")?;
    let figure = |line: &Vec<&'static str>| {
        let scheme = ALL.iter().find(|scheme| scheme.published_name == Some(line[0]));
        let scheme = scheme.with_context(|| format!("no scheme '{}'", line[0]))?;
        let nanos = csv.number(line, size.name).context("no such size")?;
        Ok((scheme.name.to_owned(), nanos / 1e6))
    };
    let figures = csv.lines.iter().map(figure).collect::<Result<Vec<_>>>()?;
    let case = format!("published/{}", size.name);
    let note = Some("published: a phone with UFS 4.0, kernel 6.1; the mean".to_owned());
    let rows = published::rows(&case, TIME_MS, BASELINE, &figures);
    let of_mean =
        |row: Row| Row { mean: row.median, median: None, runs: RUNS, note: note.clone(), ..row };
    Ok(rows.map(of_mean).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_has_its_published_figures() {
        for size in SIZES {
            assert_eq!(published_rows(size).unwrap().len(), 8, "{}", size.name);
        }
        let published = published_rows(SIZES[3]).unwrap();
        assert_eq!(published[0].mean, Some(3_332.438_754));
        let best = published.iter().find(|row| row.candidate == PUBLISHED_BEST).unwrap();
        assert_eq!(best.median, None, "a mean is not a median");
        assert!((best.ratio.unwrap() - 0.42).abs() < 0.001);
    }
}
