//! What every bench shares: turns, statistics, rows, tables, results, goals.
//!
//! A bench implements [`Bench`]; [`run`] does the rest. Nothing here knows what is measured.

mod candidate;
pub(crate) mod clock;
pub(crate) mod cost;
pub(crate) mod environment;
pub(crate) mod goals;
pub(crate) mod measured;
pub(crate) mod metric;
mod options;
pub(crate) mod program;
mod published;
pub(crate) mod results;
mod rounds;
mod row;
mod session;
mod statistics;
pub(crate) mod subprocess;
pub(crate) mod table;
pub(crate) mod timed;

use std::process::ExitCode;

use anyhow::{Context, Result};

pub(crate) use candidate::{Candidate, Run, Sample, Trouble};
pub(crate) use measured::{Against, Measured};
pub(crate) use metric::Metric;
pub(crate) use options::CommonOptions;
pub(crate) use published::csv_lines;
pub(crate) use row::Row;
pub(crate) use session::Session;

/// A goal was missed and `--check` was given.
const EXIT_MISSED: u8 = 3;

/// One bench of this program.
pub(crate) trait Bench {
    /// What it is called, on the command line and in every row.
    const NAME: &'static str;
    /// Its committed goals, as JSON (`goals/NAME.json`).
    const GOALS: &'static str;

    /// What its cases share: folders, files, other programs.
    type Setting;

    /// The options that all benches take.
    fn common(&self) -> &CommonOptions;

    /// Gets ready, and adds to the environment what only this bench depends on.
    ///
    /// # Errors
    /// Where the bench cannot run on this machine at all.
    fn set_up(&self, environment: &mut environment::Environment) -> Result<Self::Setting>;

    /// Runs the cases and hands their rows to the session.
    ///
    /// # Errors
    /// Where it cannot go on; what a single candidate meets becomes a row.
    fn measure(&self, setting: &Self::Setting, session: &mut Session) -> Result<()>;
}

/// Runs a bench, or reads an earlier run of it, and compares it with its goals if asked to.
pub(crate) fn run<B: Bench>(bench: &B) -> Result<ExitCode> {
    let options = bench.common();
    let (rows, quick, failures) = match &options.from {
        Some(name) => {
            let saved = results::read(B::NAME, name)?;
            (saved.rows, saved.quick, 0)
        }
        None => {
            let mut environment = environment::Environment::of_machine();
            environment.set("quick", options.quick);
            let setting = bench.set_up(&mut environment)?;
            let mut session = Session::begin(B::NAME, options, &environment)?;
            bench.measure(&setting, &mut session)?;
            let (rows, failures) = session.end()?;
            (rows, options.quick, failures)
        }
    };
    let mut missed = false;
    if options.check {
        let goals = goals::parse(B::GOALS).with_context(|| format!("goals/{}.json", B::NAME))?;
        let verdicts = goals::compare(&goals, &rows, quick);
        missed = verdicts.iter().any(goals::Verdict::is_missed);
        goals::print(B::NAME, &verdicts, options.json);
    }
    Ok(match (failures, missed) {
        (0, false) => ExitCode::SUCCESS,
        (0, true) => ExitCode::from(EXIT_MISSED),
        _ => ExitCode::FAILURE,
    })
}
