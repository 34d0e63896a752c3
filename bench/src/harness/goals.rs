//! The goals of a bench, in `goals/NAME.json`, and whether they were reached.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::harness::metric;
use crate::harness::row::Row;
use crate::harness::table::{Table, figure, number, text};

/// One goal. It identifies one row by case, candidate, metric and baseline.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Goal {
    pub(crate) case: String,
    pub(crate) candidate: String,
    #[serde(deserialize_with = "metric::known_name")]
    pub(crate) metric: String,
    /// If present, the row's ratio to this baseline is compared, else its median.
    #[serde(default)]
    pub(crate) baseline: Option<String>,
    pub(crate) op: Op,
    pub(crate) value: f64,
    /// The candidates of the case that must have run, or the figure is not compared.
    #[serde(default)]
    pub(crate) requires: Vec<String>,
    /// The origin of the goal, in the words of that source.
    pub(crate) source: String,
}

/// The comparison of a figure with a goal's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum Op {
    #[serde(rename = ">=")]
    AtLeast,
    #[serde(rename = "<=")]
    AtMost,
    #[serde(rename = "<")]
    Below,
}

/// The outcome of a goal.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    Reached(f64),
    Missed(f64),
    NotRun(String),
}

/// A goal and its outcome.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) goal: Goal,
    pub(crate) outcome: Outcome,
}

impl Verdict {
    pub(crate) fn is_missed(&self) -> bool {
        matches!(self.outcome, Outcome::Missed(_))
    }

    /// Returns the outcome in a word or two.
    pub(crate) fn word(&self) -> &'static str {
        match self.outcome {
            Outcome::Reached(_) => "reached",
            Outcome::Missed(_) => "missed",
            Outcome::NotRun(_) => "not run",
        }
    }

    /// Returns the figure that was compared with the goal, or the reason why there is none.
    pub(crate) fn seen(&self) -> Result<f64, &str> {
        match &self.outcome {
            Outcome::Reached(value) | Outcome::Missed(value) => Ok(*value),
            Outcome::NotRun(why) => Err(why),
        }
    }

    fn to_json(&self, bench: &str) -> serde_json::Value {
        let (goal, outcome, seen, why) =
            (&self.goal, self.word(), self.seen().ok(), self.seen().err());
        serde_json::json!({
            "bench": bench, "goal": goal, "outcome": outcome, "seen": seen, "why": why,
        })
    }
}

/// Compares `rows` with `goals`. With `--quick` every outcome is "not run".
pub(crate) fn compare(goals: &[Goal], rows: &[Row], quick: bool) -> Vec<Verdict> {
    let outcome = |goal: &Goal| {
        if quick {
            return Outcome::NotRun("figures of --quick are not compared".to_owned());
        }
        goal.outcome(rows)
    };
    goals.iter().map(|goal| Verdict { goal: goal.clone(), outcome: outcome(goal) }).collect()
}

impl Goal {
    fn outcome(&self, rows: &[Row]) -> Outcome {
        let in_case = |row: &&Row| row.case == self.case;
        let Some(first) = rows.iter().find(in_case) else {
            return Outcome::NotRun(format!("the case '{}' was not run", self.case));
        };
        if let Some(why) = &first.not_measured {
            return Outcome::NotRun(why.clone());
        }
        let of = |name: &str| rows.iter().filter(in_case).find(|row| row.candidate == name);
        let others = self.requires.iter().map(String::as_str);
        for name in others.chain(self.baseline.as_deref()).chain([self.candidate.as_str()]) {
            match of(name) {
                None => return Outcome::NotRun(format!("{name} was not run")),
                Some(row) => {
                    if let Some(why) = &row.not_run {
                        return Outcome::NotRun(format!("{name}: {why}"));
                    }
                }
            }
        }
        let row = rows.iter().filter(in_case).find(|row| {
            row.candidate == self.candidate
                && row.metric == self.metric
                && (self.baseline.is_none() || row.baseline == self.baseline)
        });
        let value =
            row.and_then(|row| if self.baseline.is_some() { row.ratio } else { row.median });
        match value {
            None => Outcome::NotRun(format!("there is no figure for {}", self.metric)),
            Some(value) if self.op.holds(value, self.value) => Outcome::Reached(value),
            Some(value) => Outcome::Missed(value),
        }
    }
}

impl Op {
    fn holds(self, value: f64, goal: f64) -> bool {
        match self {
            Self::AtLeast => value >= goal,
            Self::AtMost => value <= goal,
            Self::Below => value < goal,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AtLeast => ">=",
            Self::AtMost => "<=",
            Self::Below => "<",
        })
    }
}

/// Prints a line for each goal.
pub(crate) fn print(bench: &str, verdicts: &[Verdict], json: bool) {
    if json {
        for verdict in verdicts {
            println!("{}", verdict.to_json(bench));
        }
        return;
    }
    let mut table = Table::default();
    table.push(vec![text("goal"), text(""), text("asked"), text("seen"), text("source")]);
    for verdict in verdicts {
        let goal = &verdict.goal;
        let against = goal.baseline.as_ref().map_or(String::new(), |of| format!(" / {of}"));
        let what = format!("{}: {} {}{against}", goal.case, goal.candidate, goal.metric);
        let asked = format!("{} {}", goal.op, goal.value);
        let (seen, source) = match verdict.seen() {
            Ok(value) => (number(figure(value)), goal.source.clone()),
            Err(why) => (text(""), format!("({why}) {}", goal.source)),
        };
        table.push(vec![text(what), text(verdict.word()), text(asked), seen, text(source)]);
    }
    print!("\n{}", table.print());
    let count = |word| verdicts.iter().filter(|verdict| verdict.word() == word).count();
    let (reached, missed) = (count("reached"), count("missed"));
    println!("  {reached} reached, {missed} missed, {} not run", count("not run"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goal(op: Op, value: f64, baseline: Option<&str>) -> Goal {
        Goal {
            case: "cold".to_owned(),
            candidate: "longshore".to_owned(),
            metric: metric::SPEED.name.to_owned(),
            baseline: baseline.map(str::to_owned),
            op,
            value,
            requires: Vec::new(),
            source: String::new(),
        }
    }

    fn row(candidate: &str, median: f64, baseline: Option<&str>, ratio: Option<f64>) -> Row {
        Row {
            metric: metric::SPEED.name.to_owned(),
            median: Some(median),
            runs: 5,
            baseline: baseline.map(str::to_owned),
            ratio,
            not_run: None,
            ..Row::not_run("cold", candidate, "")
        }
    }

    fn outcome(goal: &Goal, rows: &[Row]) -> Outcome {
        compare(std::slice::from_ref(goal), rows, false).remove(0).outcome
    }

    #[test]
    fn the_ratio_to_the_named_baseline_is_compared() {
        let rows = [
            row("longshore", 2.0, Some("fio"), Some(0.96)),
            row("longshore", 2.0, Some("safetensors"), Some(2.4)),
            row("fio", 2.1, Some("fio"), Some(1.0)),
            row("safetensors", 0.9, Some("fio"), Some(0.4)),
        ];
        assert_eq!(outcome(&goal(Op::AtLeast, 0.97, Some("fio")), &rows), Outcome::Missed(0.96));
        assert_eq!(outcome(&goal(Op::AtLeast, 0.96, Some("fio")), &rows), Outcome::Reached(0.96));
        let safetensors = goal(Op::AtLeast, 2.3, Some("safetensors"));
        assert_eq!(outcome(&safetensors, &rows), Outcome::Reached(2.4));
        assert_eq!(outcome(&goal(Op::AtMost, 2.0, None), &rows), Outcome::Reached(2.0));
        assert_eq!(outcome(&goal(Op::Below, 2.0, None), &rows), Outcome::Missed(2.0));
    }

    #[test]
    fn a_goal_whose_candidates_did_not_run_is_not_run() {
        let over_fio = goal(Op::AtLeast, 0.97, Some("fio"));
        let not_run = |rows: &[Row]| match outcome(&over_fio, rows) {
            Outcome::NotRun(why) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(not_run(&[]), "the case 'cold' was not run");
        let ours = row("longshore", 2.0, Some("fio"), None);
        assert_eq!(not_run(std::slice::from_ref(&ours)), "fio was not run");
        let absent = Row::not_run("cold", "fio", "not installed");
        assert_eq!(not_run(&[ours.clone(), absent]), "fio: not installed");
        let mut uncounted = ours.clone();
        uncounted.not_measured = Some("runai-model-streamer did not run".to_owned());
        assert_eq!(not_run(&[uncounted]), "runai-model-streamer did not run");
        let mut needs_peer = goal(Op::AtLeast, 1.0, None);
        needs_peer.requires = vec!["runai-model-streamer".to_owned()];
        assert_eq!(
            outcome(&needs_peer, &[ours]),
            Outcome::NotRun("runai-model-streamer was not run".to_owned())
        );
    }

    #[test]
    fn quick_figures_are_not_compared() {
        let rows = [row("longshore", 2.0, None, None)];
        let verdicts = compare(&[goal(Op::AtLeast, 9.0, None)], &rows, true);
        assert!(!verdicts[0].is_missed());
        assert_eq!(verdicts[0].to_json("load")["outcome"], "not run");
    }

    #[test]
    fn an_unknown_field_or_metric_is_an_error_that_names_it() {
        let good = serde_json::to_value([goal(Op::AtLeast, 1.0, None)]).unwrap().to_string();
        assert_eq!(serde_json::from_str::<Vec<Goal>>(&good).unwrap().len(), 1);
        let refusal = |from: &str, to: &str| {
            let bad = good.replace(from, to);
            serde_json::from_str::<Vec<Goal>>(&bad).unwrap_err().to_string()
        };
        assert!(refusal("\"requires\"", "\"needs\"").contains("unknown field `needs`"));
        let metric = refusal("\"speed\"", "\"sped\"");
        assert!(metric.contains("unknown metric 'sped' (expected one of: a remap"), "{metric}");
    }
}
