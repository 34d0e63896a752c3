//! One run of a bench: its options, its rows, and the file that keeps them.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;

use crate::harness::candidate::{Candidate, Run, Trouble};
use crate::harness::environment::Environment;
use crate::harness::measured::{Against, Measured};
use crate::harness::options::CommonOptions;
use crate::harness::results::Saving;
use crate::harness::rounds::{self, Rounds};
use crate::harness::row::Row;
use crate::harness::table;

/// `--quick` promises two minutes. No run starts after this time, so that the last one can end.
const QUICK_LIMIT: Duration = Duration::from_secs(100);
const ROUNDS: Rounds = Rounds { warm_up: 1, counted: 5 };
const ROUNDS_QUICK: Rounds = Rounds { warm_up: 0, counted: 2 };

/// One run of a bench.
pub(crate) struct Session {
    bench: &'static str,
    json: bool,
    rounds: Rounds,
    /// The time after which no run starts, and the reason to report then.
    until: Option<(Instant, &'static str)>,
    rows: Vec<Row>,
    failures: usize,
    saving: Option<Saving>,
}

impl Session {
    pub(crate) fn begin(bench: &'static str, options: &CommonOptions) -> Result<Self> {
        let mut rounds = if options.quick { ROUNDS_QUICK } else { ROUNDS };
        if let Some(counted) = options.rounds {
            rounds.counted = usize::from(counted);
        }
        Ok(Self {
            bench,
            json: options.json,
            rounds,
            until: options
                .quick
                .then(|| (Instant::now() + QUICK_LIMIT, "the time limit of --quick was reached")),
            rows: Vec::new(),
            failures: 0,
            saving: options.save.as_deref().map(|name| Saving::begin(bench, name)).transpose()?,
        })
    }

    /// Prints and keeps the environment of the following rows.
    pub(crate) fn add_environment(&mut self, environment: &Environment) -> Result<()> {
        self.put(&environment.line(self.bench))?;
        if !self.json {
            print!("{environment}");
        }
        Ok(())
    }

    pub(crate) fn rounds(&self) -> Rounds {
        self.rounds
    }

    /// Like [`Session::run`], but starts no run after `limit`. Only rounds that are complete by then are
    /// kept.
    pub(crate) fn run_within(
        &mut self,
        (limit, why): (Duration, &'static str),
        case: &str,
        candidates: Vec<Candidate<'_>>,
    ) -> Measured {
        let (until, known) = (Instant::now() + limit, self.until);
        if known.is_none_or(|(known, _)| until < known) {
            self.until = Some((until, why));
        }
        let measured = self.run(case, candidates);
        self.until = known;
        measured
    }

    /// Runs the candidates of a case in alternation.
    pub(crate) fn run(&mut self, case: &str, mut candidates: Vec<Candidate<'_>>) -> Measured {
        let until = self.until;
        let out_of_time = || {
            let (until, why) = until?;
            (Instant::now() > until).then(|| why.to_owned())
        };
        let rounds = self.rounds;
        let measured = rounds::run(
            case,
            rounds,
            &mut candidates,
            |round, candidate, outcome| tell(case, rounds, round, candidate, outcome),
            out_of_time,
        );
        self.failures += measured.failures();
        measured
    }

    /// Runs the candidates of a case in alternation and publishes their rows.
    pub(crate) fn compare(
        &mut self,
        case: &str,
        candidates: Vec<Candidate<'_>>,
        against: &[Against<'_>],
    ) -> Result<()> {
        let measured = self.run(case, candidates);
        self.publish(measured.rows(against))
    }

    /// Prints and keeps final rows.
    pub(crate) fn publish(&mut self, mut rows: Vec<Row>) -> Result<()> {
        rows.iter_mut().for_each(|row| self.bench.clone_into(&mut row.bench));
        if !self.json && !rows.is_empty() {
            print!("\n{}", table::of_rows(&rows));
        }
        for row in &rows {
            self.put(&serde_json::to_value(row)?)?;
        }
        self.rows.extend(rows);
        Ok(())
    }

    /// Publishes a row with the reason why a whole case did not run.
    pub(crate) fn not_run(&mut self, case: &str, candidate: &str, why: &str) -> Result<()> {
        self.publish(vec![Row::not_run(case, candidate, why)])
    }

    /// Counts a failure of our own that belongs to no candidate.
    pub(crate) fn count_failure(&mut self) {
        self.failures += 1;
    }

    /// Returns all rows, and the number of our own failures.
    pub(crate) fn end(self) -> Result<(Vec<Row>, usize)> {
        if let Some(saving) = self.saving {
            saving.end()?;
        }
        Ok((self.rows, self.failures))
    }

    fn put(&mut self, line: &Value) -> Result<()> {
        if let Some(saving) = &mut self.saving {
            saving.put(line)?;
        }
        if self.json {
            let mut stdout = io::stdout().lock();
            writeln!(stdout, "{line}")?;
            stdout.flush()?;
        }
        Ok(())
    }
}

/// Prints progress to standard error.
fn tell(case: &str, rounds: Rounds, round: usize, candidate: &str, outcome: &Result<Run, Trouble>) {
    let stage = match round.checked_sub(rounds.warm_up) {
        None => "warm-up".to_owned(),
        Some(counted) => format!("round {} of {}", counted + 1, rounds.counted),
    };
    let how = match outcome {
        Ok(run) => match run.sample.first() {
            Some((metric, value)) => format!("{} {}", table::figure(*value), metric.unit),
            None => String::new(),
        },
        Err(trouble) => format!("not run: {trouble}"),
    };
    // Every run is one line, on a terminal and in a log.
    let dim = if io::stderr().is_terminal() { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
    eprintln!("{}{case}, {stage}: {candidate}: {how}{}", dim.0, dim.1);
}
