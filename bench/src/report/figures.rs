//! All figures of the page, and the search for one of them.

use serde_json::{Map, Value};

use super::read::Run;
use super::table::{Missing, Range};
use crate::harness::Row;

/// All figures of the page.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) runs: Vec<Run>,
    /// The cases of several runs, with the run whose figures are used.
    pub(super) doubled: Vec<String>,
    /// The used rows, by run and index.
    counted: Vec<(usize, usize)>,
}

impl Figures {
    /// Collects the figures. If several runs have a case, the last one is used.
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
                            "'{case}' of {bench} is also in {}; the figures are those of {}.",
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

    /// Returns the used rows of a bench, in the order of measurement.
    pub(super) fn rows<'f>(&'f self, bench: &str) -> impl Iterator<Item = &'f Row> {
        let rows = self.counted.iter().map(|&(run, place)| &self.runs[run].rows[place].0);
        rows.filter(move |row| row.bench == bench)
    }

    /// Returns the rows of one case.
    pub(super) fn case<'f>(&'f self, bench: &str, case: &str) -> Vec<&'f Row> {
        self.rows(bench).filter(|row| row.case == case).collect()
    }

    /// Returns the cases of a bench, in the order of measurement.
    pub(super) fn cases<'f>(&'f self, bench: &str) -> Vec<&'f str> {
        let mut cases: Vec<&str> = Vec::new();
        for row in self.rows(bench) {
            if cases.last() != Some(&row.case.as_str()) && !cases.contains(&row.case.as_str()) {
                cases.push(&row.case);
            }
        }
        cases
    }

    /// Returns the run that measured a case: its name and its environment.
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

    /// Returns `true` if one of a bench's runs used `--quick`.
    pub(super) fn is_quick(&self, bench: &str) -> bool {
        let mut all = self.runs.iter().flat_map(|run| &run.environments);
        all.any(|(of, facts)| of == bench && facts.get("quick") == Some(&Value::Bool(true)))
    }

    /// Returns the first figure with this candidate, metric, and baseline if one is given.
    pub(super) fn find(
        &self,
        bench: &str,
        case: &str,
        candidate: &str,
        metric: &str,
        baseline: Option<&str>,
    ) -> Result<&Row, Missing> {
        if self.rows(bench).next().is_none() {
            let run = self.runs.iter().find(|run| run.name == bench);
            let trouble = run.and_then(|run| run.trouble.clone());
            let why = trouble.unwrap_or_else(|| format!("no figures of '{bench}' were given"));
            return Err(Missing::not_run(why));
        }
        let rows = self.case(bench, case);
        let mut of_candidate = rows.iter().filter(|row| row.candidate == candidate).peekable();
        let why = match of_candidate.peek() {
            None if rows.is_empty() => format!("the case '{case}' was not run"),
            None => {
                let why = rows.iter().find_map(|row| row.not_run.as_ref());
                let why = why.map_or_else(String::new, |why| format!(": {why}"));
                format!("'{candidate}' is not in the case '{case}'{why}")
            }
            Some(Row { not_run: Some(why), .. }) => format!("{candidate}: {why}"),
            Some(_) => format!("'{candidate}' has no {metric} in the case '{case}'"),
        };
        let is_meant = |row: &&&Row| {
            let is_against = baseline.is_none() || row.baseline.as_deref() == baseline;
            row.metric == metric && row.not_run.is_none() && is_against
        };
        of_candidate.find(is_meant).copied().ok_or_else(|| Missing::not_run(why))
    }
}

/// Returns a row's median with its spread.
pub(super) fn median_of(row: &Row) -> Result<Range, Missing> {
    match (row.median, &row.not_run) {
        (Some(median), _) => Ok((median, row.min.unwrap_or(median), row.max.unwrap_or(median))),
        (None, Some(why)) => Err(Missing::not_run(why)),
        (None, None) => {
            Err(Missing { word: "ratio only", why: "only the ratio was published".to_owned() })
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
            bench: "load".to_owned(),
            metric: SPEED.name.to_owned(),
            median: Some(median),
            not_run: None,
            ..Row::not_run(case, "longshore", "")
        };
        let absent = Row { bench: "load".to_owned(), ..Row::not_run(case, "fio", "absent") };
        Run {
            name: name.to_owned(),
            environments: vec![("load".to_owned(), Map::new())],
            rows: vec![(row, 0), (absent, 0)],
            trouble: None,
        }
    }

    #[test]
    fn the_last_run_of_a_case_is_used() {
        let figures = Figures::new(vec![run("a", "cold", 1.0), run("b", "cold", 2.0)]);
        let row = figures.find("load", "cold", "longshore", SPEED.name, None).unwrap();
        assert_eq!(row.median, Some(2.0));
        assert_eq!(figures.rows("load").count(), 2);
        assert_eq!(figures.doubled.len(), 1);
        assert_eq!(figures.origin("load", "cold").unwrap().0, "b");
    }

    #[test]
    fn an_absent_figure_has_a_reason() {
        let figures = Figures::new(vec![run("a", "cold", 1.0)]);
        for (bench, case, candidate, metric, baseline, why) in [
            ("load", "cold", "fio", SPEED, None, "fio: absent"),
            ("load", "warm", "fio", SPEED, None, "the case 'warm' was not run"),
            ("load", "cold", "dd", SPEED, None, "'dd' is not in the case 'cold': absent"),
            ("load", "cold", "longshore", TIME_MS, None, "'longshore' has no time in"),
            ("load", "cold", "longshore", SPEED, Some("x"), "'longshore' has no speed in"),
            ("iov", "cold", "fio", SPEED, None, "no figures of 'iov' were given"),
        ] {
            let found = figures.find(bench, case, candidate, metric.name, baseline);
            let missing = found.unwrap_err();
            assert!(missing.word == "not run" && missing.why.starts_with(why), "{missing:?}");
        }
    }
}
