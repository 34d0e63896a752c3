//! All figures of the page, and how one is found among them.

use serde_json::{Map, Value};

use super::read::Run;
use super::table::{Missing, Range};
use crate::harness::Row;

/// All figures of the page.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) runs: Vec<Run>,
    /// What was measured in several runs, and which one counts.
    pub(super) doubled: Vec<String>,
    /// By run and place: only those that count.
    counted: Vec<(usize, usize)>,
}

/// Which figure is meant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key<'a> {
    pub(super) bench: &'a str,
    pub(super) case: &'a str,
    pub(super) candidate: &'a str,
    pub(super) metric: &'a str,
    /// Any where there is none.
    pub(super) baseline: Option<&'a str>,
}

impl Figures {
    /// Of a case that several runs have, the last counts.
    pub(super) fn new(runs: Vec<Run>) -> Self {
        let mut figures = Self { runs, ..Self::default() };
        for (nth, run) in figures.runs.iter().enumerate() {
            for (place, (row, _)) in run.rows.iter().enumerate() {
                let has_case = |later: &Run| {
                    later.rows.iter().any(|(it, _)| it.bench == row.bench && it.case == row.case)
                };
                match figures.runs[nth + 1..].iter().rfind(|later| has_case(later)) {
                    None => figures.counted.push((nth, place)),
                    Some(later) => {
                        let (bench, case) = (&row.bench, &row.case);
                        let said = format!(
                            "'{case}' of {bench} is in {} too; the figures are those of {}.",
                            run.name, later.name
                        );
                        if !figures.doubled.contains(&said) {
                            figures.doubled.push(said);
                        }
                    }
                }
            }
        }
        figures
    }

    /// The rows of a bench that count, in the order they were measured.
    pub(super) fn rows<'f>(&'f self, bench: &str) -> impl Iterator<Item = &'f Row> {
        let rows = self.counted.iter().map(|&(run, place)| &self.runs[run].rows[place].0);
        rows.filter(move |row| row.bench == bench)
    }

    /// The rows of one case.
    pub(super) fn case<'f>(&'f self, bench: &str, case: &str) -> Vec<&'f Row> {
        self.rows(bench).filter(|row| row.case == case).collect()
    }

    /// The cases of a bench, in the order they were measured.
    pub(super) fn cases<'f>(&'f self, bench: &str) -> Vec<&'f str> {
        let mut cases: Vec<&str> = Vec::new();
        for row in self.rows(bench) {
            if cases.last() != Some(&row.case.as_str()) && !cases.contains(&row.case.as_str()) {
                cases.push(&row.case);
            }
        }
        cases
    }

    /// Where and when a case was measured: its run's name, and its environment.
    pub(super) fn origin(&self, bench: &str, case: &str) -> Option<(&str, &Map<String, Value>)> {
        let of_case = |&&(run, place): &&(usize, usize)| {
            let row = &self.runs[run].rows[place].0;
            row.bench == bench && row.case == case
        };
        let &(run, place) = self.counted.iter().find(of_case)?;
        let run = &self.runs[run];
        let (_, facts) = run.environments.get(run.rows[place].1)?;
        Some((&run.name, facts))
    }

    /// Whether one of a bench's runs was with `--quick`.
    pub(super) fn is_quick(&self, bench: &str) -> bool {
        let mut all = self.runs.iter().flat_map(|run| &run.environments);
        all.any(|(of, facts)| of == bench && facts.get("quick") == Some(&Value::Bool(true)))
    }

    /// A figure, or why there is none.
    pub(super) fn find(&self, key: Key<'_>) -> Result<&Row, String> {
        let Key { bench, case, candidate, metric, baseline } = key;
        if self.rows(bench).next().is_none() {
            let trouble = self.runs.iter().find(|run| run.name == bench);
            let trouble = trouble.and_then(|run| run.trouble.clone());
            return Err(trouble.unwrap_or_else(|| format!("no figures of '{bench}' were given")));
        }
        let rows = self.case(bench, case);
        if rows.is_empty() {
            return Err(format!("the case '{case}' was not run"));
        }
        let mut of_candidate = rows.iter().filter(|row| row.candidate == candidate);
        let Some(first) = of_candidate.clone().next() else {
            return Err(match rows.iter().find_map(|row| row.not_run.as_ref()) {
                Some(why) => format!("'{candidate}' is not in the case '{case}': {why}"),
                None => format!("'{candidate}' is not in the case '{case}'"),
            });
        };
        if let Some(why) = &first.not_run {
            return Err(format!("{candidate}: {why}"));
        }
        let is_meant = |row: &&&Row| {
            row.metric == metric && (baseline.is_none() || row.baseline.as_deref() == baseline)
        };
        let row = of_candidate.find(is_meant).copied();
        row.ok_or_else(|| format!("'{candidate}' has no {metric} in the case '{case}'"))
    }

    /// Returns a median with its spread.
    pub(super) fn median(&self, key: Key<'_>) -> Result<Range, Missing> {
        self.find(key).map_err(Missing::not_run).and_then(median_of)
    }

    /// Returns a ratio with its spread.
    pub(super) fn ratio(&self, key: Key<'_>) -> Result<Range, Missing> {
        self.find(key).map_err(Missing::not_run).and_then(ratio_of)
    }
}

/// Returns a row's median with its spread.
pub(super) fn median_of(row: &Row) -> Result<Range, Missing> {
    match (row.median, &row.not_run) {
        (Some(median), _) => Ok((median, row.min.unwrap_or(median), row.max.unwrap_or(median))),
        (None, Some(why)) => Err(Missing::not_run(why)),
        (None, None) => {
            Err(Missing { word: "ratio only", why: "only the ratio is known".to_owned() })
        }
    }
}

/// Returns a row's ratio with its spread.
pub(super) fn ratio_of(row: &Row) -> Result<Range, Missing> {
    let Some(ratio) = row.ratio else {
        let against = row.baseline.as_deref().unwrap_or("anything");
        let why = format!("'{}' has no ratio against {against}", row.candidate);
        return Err(Missing::not_run(row.not_run.as_ref().unwrap_or(&why)));
    };
    Ok((ratio, row.ratio_min.unwrap_or(ratio), row.ratio_max.unwrap_or(ratio)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::metric::{SPEED, TIME_MS};

    fn run(name: &str, case: &str, median: f64) -> Run {
        let row = Row {
            metric: SPEED.name.to_owned(),
            median: Some(median),
            not_run: None,
            ..Row::not_run("load", case, "longshore", "")
        };
        Run {
            name: name.to_owned(),
            environments: vec![("load".to_owned(), Map::new())],
            rows: vec![(row, 0), (Row::not_run("load", case, "fio", "absent"), 0)],
            trouble: None,
        }
    }

    fn key(case: &'static str, candidate: &'static str) -> Key<'static> {
        Key { bench: "load", case, candidate, metric: SPEED.name, baseline: None }
    }

    #[test]
    fn the_last_run_of_a_case_counts() {
        let figures = Figures::new(vec![run("a", "cold", 1.0), run("b", "cold", 2.0)]);
        assert_eq!(figures.find(key("cold", "longshore")).unwrap().median, Some(2.0));
        assert_eq!(figures.rows("load").count(), 2);
        assert_eq!(figures.doubled.len(), 1);
        assert_eq!(figures.origin("load", "cold").unwrap().0, "b");
    }

    #[test]
    fn what_is_not_there_has_a_reason() {
        let figures = Figures::new(vec![run("a", "cold", 1.0)]);
        let why = |key| figures.find(key).unwrap_err();
        assert_eq!(why(key("cold", "fio")), "fio: absent");
        assert_eq!(why(key("warm", "fio")), "the case 'warm' was not run");
        assert!(why(key("cold", "dd")).starts_with("'dd' is not in the case 'cold'"));
        let other = Key { metric: TIME_MS.name, ..key("cold", "longshore") };
        assert!(why(other).contains("has no time"));
        let elsewhere = Key { bench: "iov", ..key("cold", "longshore") };
        assert_eq!(why(elsewhere), "no figures of 'iov' were given");
        let median = figures.median(key("warm", "x"));
        assert_eq!(median, Err(Missing::not_run("the case 'warm' was not run")));
    }
}
