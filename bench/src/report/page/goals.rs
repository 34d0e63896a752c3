//! Goals, and whether they were reached.

use anyhow::Result;

use super::super::BENCHES;
use super::super::figures::Figures;
use super::super::html::put;
use super::super::number;
use super::super::table::{self, Cell, Column, Line, Table};
use crate::harness::goals::{self, Op, Verdict};
use crate::harness::{Bench, Row};

/// A bench with the verdicts on its goals.
pub(super) type Verdicts = (&'static str, Vec<Verdict>);

/// Compares all figures with all goals.
pub(super) fn of_all(figures: &Figures) -> Result<Vec<Verdicts>> {
    let of = |bench: Bench| {
        let rows: Vec<Row> = figures.rows(bench.name).cloned().collect();
        let quick = figures.is_quick(bench.name);
        Ok((bench.name, goals::compare(&bench.goals()?, &rows, quick)))
    };
    BENCHES.into_iter().map(of).collect()
}

/// Returns how many goals of one bench, or of all benches, were reached, missed and not run: in words,
/// and as a bar.
pub(super) fn tally(all: &[Verdicts], bench: Option<&str>) -> (String, String) {
    let wanted = all.iter().filter(|(of, _)| bench.is_none_or(|bench| *of == bench));
    let states: Vec<&str> = wanted.flat_map(|(_, verdicts)| verdicts).map(Verdict::word).collect();
    let count = |state: &str| states.iter().filter(|of| **of == state).count();
    let mut words = format!("{} of {} goals reached", count("reached"), states.len());
    let mut bar = r#"<span class="tally" aria-hidden="true">"#.to_owned();
    for (state, class) in [("reached", "reached"), ("missed", "missed"), ("not run", "not-run")] {
        let count = count(state);
        if count > 0 {
            put!(bar, r#"<span class="{class}" style="flex-grow:{count}"></span>"#);
            if state != "reached" {
                put!(words, ", {count} {state}");
            }
        }
    }
    (words, bar + "</span>")
}

/// Writes a chapter's goals as a table; missed goals come first.
pub(super) fn write(out: &mut String, all: &[Verdicts], bench: &str) {
    let (words, _) = tally(all, Some(bench));
    put!(out, r#"<h3 id="{bench}-goals">Goals</h3><p>{words}.</p>"#);
    let of_bench = all.iter().filter(|(of, _)| *of == bench);
    let mut verdicts: Vec<&Verdict> = of_bench.flat_map(|(_, verdicts)| verdicts).collect();
    // This order is alphabetical: "missed", "not run", "reached".
    verdicts.sort_by_key(|verdict| verdict.word());
    let columns = vec![
        Column::text("outcome"),
        Column::number("asked"),
        Column::number("seen"),
        Column::text("figure"),
    ];
    let id = format!("{bench}-goals-table");
    let lines = verdicts.into_iter().map(line).collect();
    table::write(out, &Table::new(id, "Goals, and the measured figures", "goal", columns, lines));
}

fn line(verdict: &Verdict) -> Line {
    let goal = &verdict.goal;
    let seen = match verdict.seen() {
        Ok(value) => Cell::figure(number::figure(value)),
        Err(why) => Cell::without("not run", why),
    };
    let op = match goal.op {
        Op::AtLeast => "≥",
        Op::AtMost => "≤",
        Op::Below => "<",
    };
    // Use the decimals of the goal's file.
    let decimals = goal.value.to_string().split_once('.').map_or(0, |(_, rest)| rest.len());
    let metric = goal.metric.replace('_', " ");
    let against = goal.baseline.as_ref().map_or(String::new(), |of| format!(" over that of {of}"));
    let cells = vec![
        Cell::State(verdict.word()),
        Cell::text(format!("{op} {}", number::grouped(goal.value, decimals))),
        seen,
        Cell::text(format!("{}: {}, {metric}{against}", goal.case, goal.candidate)),
    ];
    Line::of(&goal.source, cells)
}

#[cfg(test)]
mod tests {
    use super::super::super::kept;
    use super::*;
    use crate::harness::goals::Outcome;

    #[test]
    fn every_goal_has_exactly_one_verdict() {
        let expected: usize = BENCHES.iter().map(|bench| bench.goals().unwrap().len()).sum();
        let (words, bar) = tally(&of_all(&kept()).unwrap(), None);
        assert!(words.contains(&format!(" of {expected} goals reached, ")), "{words}");
        let grown = bar.split("flex-grow:").skip(1).map(|rest| rest.split('"').next().unwrap());
        assert_eq!(grown.map(|count| count.parse::<usize>().unwrap()).sum::<usize>(), expected);
        let (nothing, bar) = tally(&of_all(&Figures::default()).unwrap(), None);
        assert_eq!(nothing, format!("0 of {expected} goals reached, {expected} not run"));
        assert!(!bar.contains("missed"), "{bar}");
    }

    #[test]
    fn missed_goals_come_first_with_the_decimals_of_their_file() {
        let mut all = of_all(&kept()).unwrap();
        let (_, verdicts) = &mut all[0];
        verdicts.truncate(2);
        verdicts[0].outcome = Outcome::Reached(1.0);
        verdicts[1].outcome = Outcome::Missed(0.5);
        (verdicts[0].goal.value, verdicts[1].goal.value) = (45_000.0, 1.05);
        let mut out = String::new();
        write(&mut out, &all, "load");
        let at = |text: &str| out.find(text).unwrap();
        assert!(at(" 1.05<") < at(" 45,000<"), "{out}");
    }
}
