//! Goals, and whether they were reached.

use anyhow::{Context, Result};

use super::super::BENCHES;
use super::super::figures::Figures;
use super::super::html::put;
use super::super::number;
use super::super::table::{self, Cell, Column, Line, Table};
use crate::harness::Row;
use crate::harness::goals::{self, Outcome, Verdict};

/// The verdicts of one bench.
pub(super) struct Verdicts {
    bench: &'static str,
    verdicts: Vec<Verdict>,
}

/// How many goals were reached, missed, not run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) reached: usize,
    pub(super) missed: usize,
    pub(super) not_run: usize,
}

/// Holds all figures against all goals.
///
/// # Errors
/// Where a goals file cannot be read.
pub(super) fn of_all(figures: &Figures) -> Result<Vec<Verdicts>> {
    let of = |(bench, goals)| {
        let goals = goals::parse(goals).with_context(|| format!("goals/{bench}.json"))?;
        let rows: Vec<Row> = figures.rows(bench).cloned().collect();
        Ok(Verdicts { bench, verdicts: goals::compare(&goals, &rows, figures.is_quick(bench)) })
    };
    BENCHES.into_iter().map(of).collect()
}

/// The tally of one bench, or of all.
pub(super) fn tally(all: &[Verdicts], bench: Option<&str>) -> Tally {
    let mut tally = Tally::default();
    let wanted = all.iter().filter(|of| bench.is_none_or(|bench| of.bench == bench));
    for verdict in wanted.flat_map(|of| &of.verdicts) {
        match verdict.outcome {
            Outcome::Reached(_) => tally.reached += 1,
            Outcome::Missed(_) => tally.missed += 1,
            Outcome::NotRun(_) => tally.not_run += 1,
        }
    }
    tally
}

impl Tally {
    pub(super) fn all(self) -> usize {
        self.reached + self.missed + self.not_run
    }

    /// In words: what is none is left out, but for what was reached.
    pub(super) fn words(self) -> String {
        let mut words = format!("{} of {} goals reached", self.reached, self.all());
        for (count, word) in [(self.missed, "missed"), (self.not_run, "not run")] {
            if count > 0 {
                put!(words, ", {count} {word}");
            }
        }
        words
    }

    /// A bar of the three, in their shares.
    pub(super) fn bar(self, out: &mut String) {
        out.push_str("<span class=\"tally\" aria-hidden=\"true\">");
        for (count, class) in
            [(self.reached, "reached"), (self.missed, "missed"), (self.not_run, "not-run")]
        {
            if count > 0 {
                put!(out, "<span class=\"{class}\" style=\"flex-grow:{count}\"></span>");
            }
        }
        out.push_str("</span>");
    }
}

/// A chapter's goals as a table: what was missed first.
pub(super) fn write(out: &mut String, all: &[Verdicts], bench: &str) {
    let Some(of) = all.iter().find(|of| of.bench == bench) else { return };
    put!(out, "<h3 id=\"{bench}-goals\">Goals</h3>");
    put!(out, "<p>{}.</p>", tally(all, Some(bench)).words());
    let mut sorted: Vec<&Verdict> = of.verdicts.iter().collect();
    sorted.sort_by_key(|verdict| match verdict.outcome {
        Outcome::Missed(_) => 0,
        Outcome::NotRun(_) => 1,
        Outcome::Reached(_) => 2,
    });
    let lines = sorted.iter().map(|verdict| line(verdict)).collect();
    let columns = vec![
        Column::text("outcome"),
        Column::number("asked"),
        Column::number("seen"),
        Column::text("figure"),
    ];
    let id = format!("{bench}-goals-table");
    table::write(out, &Table::new(id, "Goals, and what was seen", "goal", columns, lines));
}

fn line(verdict: &Verdict) -> Line {
    let goal = &verdict.goal;
    let (state, seen) = match &verdict.outcome {
        Outcome::Reached(value) => ("reached", Cell::figure(number::figure(*value))),
        Outcome::Missed(value) => ("missed", Cell::figure(number::figure(*value))),
        Outcome::NotRun(why) => ("not run", Cell::without("not run", why)),
    };
    let op = match goal.op {
        goals::Op::AtLeast => "≥",
        goals::Op::AtMost => "≤",
        goals::Op::Below => "<",
    };
    let metric = goal.metric.replace('_', " ");
    let against = goal.baseline.as_ref().map_or(String::new(), |of| format!(" over that of {of}"));
    let figure = format!("{}: {}, {metric}{against}", goal.case, goal.candidate);
    let cells = vec![
        Cell::State(state),
        Cell::text(format!("{op} {}", plain(goal.value))),
        seen,
        Cell::text(figure),
    ];
    Line::of(&goal.source, cells)
}

/// A goal's own number, as it was written.
fn plain(value: f64) -> String {
    let text = format!("{value}");
    let decimals = text.split_once('.').map_or(0, |(_, rest)| rest.len());
    number::grouped(value, decimals)
}

#[cfg(test)]
mod tests {
    use super::super::super::kept;
    use super::*;

    #[test]
    fn a_tally_names_what_is_not_none() {
        let tally = Tally { reached: 3, missed: 0, not_run: 1 };
        assert_eq!(tally.words(), "3 of 4 goals reached, 1 not run");
        let mut bar = String::new();
        tally.bar(&mut bar);
        assert!(bar.contains("flex-grow:3") && !bar.contains("missed"), "{bar}");
    }

    #[test]
    fn every_goal_has_a_verdict() {
        let all = of_all(&kept()).unwrap();
        let expected: usize =
            BENCHES.iter().map(|(_, goals)| goals::parse(goals).unwrap().len()).sum();
        let seen = tally(&all, None);
        assert_eq!(seen.all(), expected);
        assert!(seen.reached > 0 && seen.missed > 0, "{seen:?}");
        let nothing = tally(&of_all(&Figures::default()).unwrap(), None);
        assert_eq!(nothing, Tally { not_run: expected, ..Tally::default() });
    }

    #[test]
    fn a_goal_is_shown_as_it_was_written() {
        let shown: Vec<String> = [1.05, 45000.0, 0.97, 10.0].into_iter().map(plain).collect();
        assert_eq!(shown, ["1.05", "45,000", "0.97", "10"]);
    }
}
