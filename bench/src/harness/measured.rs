//! The values of one case, and the rows that they become.

use crate::harness::candidate::{Sample, Trouble};
use crate::harness::cost::Cost;
use crate::harness::metric::Metric;
use crate::harness::row::Row;
use crate::harness::statistics::Summary;

const MIB: f64 = 1_048_576.0;

/// The values of one candidate, one for each metric and round.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub(crate) candidate: String,
    pub(crate) series: Vec<(Metric, Vec<f64>)>,
    costs: Vec<Cost>,
    pub(crate) trouble: Option<Trouble>,
    pub(crate) note: Option<String>,
    ours_failed: bool,
}

/// The values of one case.
#[derive(Debug)]
pub(crate) struct Measured {
    case: String,
    entries: Vec<Entry>,
    not_measured: Option<String>,
}

/// The baseline of a metric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Against<'a> {
    metric: Metric,
    baseline: &'a str,
    /// The only candidate to compare; `None` for all candidates.
    only: Option<&'a str>,
}

impl<'a> Against<'a> {
    pub(crate) fn new(metric: Metric, baseline: &'a str) -> Self {
        Self { metric, baseline, only: None }
    }

    pub(crate) fn only(self, candidate: &'a str) -> Self {
        Self { only: Some(candidate), ..self }
    }
}

impl Entry {
    pub(crate) fn new(candidate: &str) -> Self {
        Self { candidate: candidate.to_owned(), ..Self::default() }
    }

    pub(crate) fn add(&mut self, sample: Sample, cost: Cost) {
        self.costs.push(cost);
        for (metric, value) in sample {
            match self.series.iter_mut().find(|(known, _)| *known == metric) {
                Some((_, values)) => values.push(value),
                None => self.series.push((metric, vec![value])),
            }
        }
    }

    pub(crate) fn give_up(&mut self, trouble: Trouble, is_ours: bool) {
        self.ours_failed = is_ours && matches!(trouble, Trouble::Failed(_));
        self.series.clear();
        self.trouble = Some(trouble);
    }

    /// Keeps the values of the first `rounds` rounds. If there are none, `why` becomes the reason.
    pub(crate) fn end_after(&mut self, rounds: usize, why: &str) {
        for (_, values) in &mut self.series {
            values.truncate(rounds);
        }
        self.costs.truncate(rounds);
        self.series.retain(|(_, values)| !values.is_empty());
        if self.series.is_empty() && self.trouble.is_none() {
            self.trouble = Some(Trouble::NotRun(why.to_owned()));
        }
    }

    /// Returns the median over the rounds; `None` if a round lacks the value.
    fn cost(&self, of: fn(&Cost) -> Option<f64>) -> Option<f64> {
        let values: Option<Vec<f64>> = self.costs.iter().map(of).collect();
        Summary::of(&values?).map(|summary| summary.median)
    }

    fn values(&self, metric: Metric) -> Option<&[f64]> {
        self.series.iter().find(|(known, _)| *known == metric).map(|(_, values)| &values[..])
    }
}

impl Measured {
    pub(crate) fn new(case: &str, entries: Vec<Entry>) -> Self {
        Self { case: case.to_owned(), entries, not_measured: None }
    }

    /// Returns a candidate's values of a metric, by round.
    pub(crate) fn values(&self, candidate: &str, metric: Metric) -> Option<&[f64]> {
        self.entries.iter().find(|entry| entry.candidate == candidate)?.values(metric)
    }

    /// Returns the reason why a candidate has no values; `None` if it has values.
    pub(crate) fn why_not(&self, candidate: &str) -> Option<String> {
        match self.entries.iter().find(|entry| entry.candidate == candidate) {
            None => Some(format!("{candidate} was not part of the case")),
            Some(entry) => entry.trouble.as_ref().map(ToString::to_string),
        }
    }

    /// Returns the number of our own candidates that failed.
    pub(crate) fn failures(&self) -> usize {
        self.entries.iter().filter(|entry| entry.ours_failed).count()
    }

    /// Adds a candidate whose value in each round is the best of the named candidates that ran.
    pub(crate) fn add_best_of(&mut self, name: &str, of: &[&str], metric: Metric) {
        let mut entry = Entry::new(name);
        let series: Vec<&[f64]> = of.iter().filter_map(|one| self.values(one, metric)).collect();
        let rounds = series.iter().map(|values| values.len()).min().unwrap_or(0);
        for round in 0..rounds {
            let best = series.iter().map(|values| values[round]).fold(f64::MIN, f64::max);
            entry.add(vec![(metric, best)], Cost::default());
        }
        let ran: Vec<&str> =
            of.iter().copied().filter(|one| self.values(one, metric).is_some()).collect();
        if ran.is_empty() {
            let why = of.iter().filter_map(|one| self.why_not(one)).next();
            let why = why.unwrap_or_else(|| "none of its candidates ran".to_owned());
            entry.trouble = Some(Trouble::NotRun(why));
        } else {
            entry.note = Some(format!("in each round the best of: {}", ran.join(", ")));
        }
        self.entries.push(entry);
    }

    /// Marks all figures of the case as not measured, with the reason.
    pub(crate) fn set_not_measured(&mut self, why: String) {
        self.not_measured = Some(why);
    }

    /// Returns a row for each candidate, metric and baseline, and a row for each candidate that did not
    /// run.
    pub(crate) fn rows(&self, against: &[Against<'_>]) -> Vec<Row> {
        let mut metrics: Vec<Metric> = Vec::new();
        for (metric, _) in self.entries.iter().flat_map(|entry| &entry.series) {
            if !metrics.contains(metric) {
                metrics.push(*metric);
            }
        }
        let mut rows = Vec::new();
        for metric in metrics {
            for entry in &self.entries {
                let Some(values) = entry.values(metric) else { continue };
                let mut baselines = against
                    .iter()
                    .filter(|rule| rule.metric == metric)
                    .filter(|rule| rule.only.is_none_or(|only| only == entry.candidate))
                    .map(|rule| rule.baseline)
                    .peekable();
                if baselines.peek().is_none() {
                    rows.push(self.row(entry, metric, values, None));
                }
                rows.extend(baselines.map(|name| self.row(entry, metric, values, Some(name))));
            }
        }
        for entry in &self.entries {
            if let Some(trouble) = &entry.trouble {
                let mut row = Row::not_run(&self.case, &entry.candidate, &trouble.to_string());
                row.not_measured.clone_from(&self.not_measured);
                rows.push(row);
            }
        }
        rows
    }

    fn row(&self, entry: &Entry, metric: Metric, values: &[f64], baseline: Option<&str>) -> Row {
        let summary = Summary::of(values);
        let ratio = baseline
            .and_then(|name| self.values(name, metric))
            .and_then(|base| Summary::of_ratios(values, base));
        Row {
            median: summary.map(|of| of.median),
            min: summary.map(|of| of.min),
            max: summary.map(|of| of.max),
            mean: summary.map(|of| of.mean),
            runs: values.len(),
            baseline: baseline.map(str::to_owned),
            ratio: ratio.map(|of| of.median),
            ratio_min: ratio.map(|of| of.min),
            ratio_max: ratio.map(|of| of.max),
            // Rounded to a nanosecond, the unit of the clock.
            cpu_seconds: entry.cost(|cost| Some((cost.cpu_seconds? * 1e9).round() / 1e9)),
            peak_memory_mib: entry.cost(|cost| Some(cost.peak_memory_bytes? as f64 / MIB)),
            note: entry.note.clone(),
            not_measured: self.not_measured.clone(),
            ..Row::of(&self.case, &entry.candidate, metric)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::metric::{POOL_PEAK, SPEED};

    fn entry(candidate: &str, values: &[f64]) -> Entry {
        let mut entry = Entry::new(candidate);
        for value in values {
            let cost = Cost { cpu_seconds: Some(*value), peak_memory_bytes: Some(3 << 20) };
            entry.add(vec![(SPEED, *value)], cost);
        }
        entry
    }

    fn measured() -> Measured {
        let mut absent = Entry::new("dd");
        absent.give_up(Trouble::NotRun("dd is not installed".to_owned()), false);
        Measured::new(
            "cold",
            vec![
                entry("ours", &[2.0, 3.0]),
                entry("fio 4 MiB", &[4.0, 2.0]),
                entry("fio 8 MiB", &[3.0, 3.0]),
                absent,
            ],
        )
    }

    #[test]
    fn the_best_is_taken_in_each_round() {
        let mut measured = measured();
        measured.add_best_of("fio", &["fio 4 MiB", "fio 8 MiB", "dd"], SPEED);
        assert_eq!(measured.values("fio", SPEED).unwrap(), [4.0, 3.0]);
        let against = [Against::new(SPEED, "fio")];
        let rows = measured.rows(&against);
        let ours = rows.iter().find(|row| row.candidate == "ours").unwrap();
        assert_eq!((ours.median, ours.ratio, ours.runs), (Some(2.5), Some(0.75), 2));
        assert_eq!((ours.cpu_seconds, ours.peak_memory_mib), (Some(2.5), Some(3.0)));
        let fio = rows.iter().find(|row| row.candidate == "fio").unwrap();
        assert_eq!((fio.ratio, fio.cpu_seconds), (Some(1.0), None));
        assert!(fio.note.as_ref().unwrap().ends_with("fio 4 MiB, fio 8 MiB"));
    }

    #[test]
    fn a_candidate_that_did_not_run_has_a_row_with_the_reason() {
        let mut measured = measured();
        measured.add_best_of("limit", &["dd"], SPEED);
        let rows = measured.rows(&[]);
        for candidate in ["dd", "limit"] {
            let row = rows.iter().find(|row| row.candidate == candidate).unwrap();
            assert_eq!(row.not_run.as_deref(), Some("dd is not installed"), "{candidate}");
            assert_eq!((row.median, row.runs), (None, 0));
        }
    }

    #[test]
    fn a_candidate_may_have_several_baselines_and_a_metric_none() {
        let mut measured = measured();
        measured.entries[0].add(vec![(POOL_PEAK, 1.0), (POOL_PEAK, 3.0)], Cost::default());
        measured.set_not_measured("no fio".to_owned());
        let rows = measured
            .rows(&[Against::new(SPEED, "fio 4 MiB"), Against::new(SPEED, "dd").only("ours")]);
        let ours: Vec<_> = rows
            .iter()
            .filter(|row| row.candidate == "ours")
            .map(|row| (row.metric.as_str(), row.baseline.as_deref(), row.ratio))
            .collect();
        assert_eq!(
            ours,
            [
                (SPEED.name, Some("fio 4 MiB"), Some(1.0)),
                (SPEED.name, Some("dd"), None),
                (POOL_PEAK.name, None, None)
            ]
        );
        assert!(rows.iter().all(|row| row.not_measured.as_deref() == Some("no fio")));
    }

    #[test]
    fn only_a_failure_of_our_own_candidate_fails_the_bench() {
        let mut ours = Entry::new("ours");
        ours.give_up(Trouble::Failed(anyhow::anyhow!("broken")), true);
        let mut theirs = Entry::new("theirs");
        theirs.give_up(Trouble::Failed(anyhow::anyhow!("broken")), false);
        let mut absent = Entry::new("absent");
        absent.give_up(Trouble::NotRun("absent".to_owned()), true);
        assert_eq!(Measured::new("c", vec![ours, theirs, absent]).failures(), 1);
    }
}
