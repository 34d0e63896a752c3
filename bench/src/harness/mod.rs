//! The code that all benches share: rounds, statistics, rows, tables, results and goals.
//!
//! A bench is a [`Bench`] and a function that measures; [`Bench::run`] does the rest. The code here does
//! not depend on any bench.

mod candidate;
pub(crate) mod clock;
pub(crate) mod cost;
pub(crate) mod environment;
pub(crate) mod goals;
pub(crate) mod measured;
pub(crate) mod metric;
mod options;
pub(crate) mod program;
pub(crate) mod published;
pub(crate) mod results;
mod rounds;
mod row;
mod session;
pub(crate) mod statistics;
pub(crate) mod subprocess;
pub(crate) mod table;
pub(crate) mod timed;

use std::process::ExitCode;

use anyhow::{Context, Result};

use environment::Environment;

pub(crate) use candidate::{Candidate, Run, Sample, Trouble};
pub(crate) use measured::{Against, Measured};
pub(crate) use metric::Metric;
pub(crate) use options::CommonOptions;
pub(crate) use row::Row;
pub(crate) use session::Session;

/// The exit status if `--check` found a missed goal.
const EXIT_MISSED: u8 = 3;

/// One bench of this program.
pub(crate) struct Bench {
    /// Its name on the command line and in every row.
    pub(crate) name: &'static str,
    /// Its committed goals, as JSON (`goals/NAME.json`).
    pub(crate) goals: &'static str,
}

impl Bench {
    /// Runs the bench, or reads a kept run of it, and compares it with the goals if `--check` was given.
    ///
    /// `measure` adds the facts that only this bench needs to the environment, passes the environment to
    /// the session, and then runs the cases.
    ///
    /// # Errors
    /// Returns an error if the bench cannot continue. An error of a single candidate becomes a row.
    pub(crate) fn run<O>(
        &self,
        options: &O,
        common: &CommonOptions,
        measure: fn(&O, &mut Environment, &mut Session) -> Result<()>,
    ) -> Result<ExitCode> {
        let (rows, quick, failures) = match &common.from {
            Some(name) => {
                let saved = results::read(self.name, name)?;
                (saved.rows, saved.quick, 0)
            }
            None => {
                let mut environment = Environment::of_machine();
                environment.set("quick", common.quick);
                let mut session = Session::begin(self.name, common)?;
                measure(options, &mut environment, &mut session)?;
                let (rows, failures) = session.end()?;
                (rows, common.quick, failures)
            }
        };
        let mut missed = false;
        if common.check {
            let goals = self.goals()?;
            let verdicts = goals::compare(&goals, &rows, quick);
            missed = verdicts.iter().any(goals::Verdict::is_missed);
            goals::print(self.name, &verdicts, common.json);
        }
        Ok(match (failures, missed) {
            (0, false) => ExitCode::SUCCESS,
            (0, true) => ExitCode::from(EXIT_MISSED),
            _ => ExitCode::FAILURE,
        })
    }

    /// Reads the committed goals.
    pub(crate) fn goals(&self) -> Result<Vec<goals::Goal>> {
        serde_json::from_str(self.goals).with_context(|| format!("goals/{}.json", self.name))
    }
}
