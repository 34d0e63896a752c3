//! Runs tasks: each test and each command in a process of its own.

use std::{
    collections::BTreeMap,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use longshore_vm_tests::protocol::{Event, Exit, Outcome, Task, Work};

use super::{Error, Result, process, reports::Reports};
use crate::{
    outcome::{self, OUTCOME_PATH},
    suite,
};

/// The path of this program, which also runs tests.
const OWN_PATH: &str = "/init";

/// Runs one task of the plan and reports it.
pub(super) fn run(task: &Task, reports: &mut Reports) -> Result<()> {
    let timeout = Duration::from_secs(task.timeout_seconds);
    match &task.work {
        Work::Test(name) => run_test(name, timeout, reports),
        Work::Suite(name) => {
            let names = suite::names_in(name);
            if names.is_empty() {
                let why = format!("the guest has no suite called {name}");
                return refuse(&task.name, why, reports);
            }
            names.iter().try_for_each(|name| run_test(name, timeout, reports))
        }
        Work::Command { argv, env } => run_command(&task.name, argv, env, timeout, reports),
        _ => refuse(&task.name, "the guest does not know this kind of work".into(), reports),
    }
}

fn run_test(name: &str, timeout: Duration, reports: &mut Reports) -> Result<()> {
    let mut command = Command::new(OWN_PATH);
    command.args(["--test", name]);
    let (exit, seconds) = supervise(name, command, &fixed_environment(), timeout, reports)?;
    let left = outcome::collect(Path::new(OUTCOME_PATH))
        .map_err(Error::system("collecting", OUTCOME_PATH))?;
    let outcome = judge(&exit, left, timeout);
    reports.send(&Event::End { task: name.to_owned(), outcome, seconds })
}

fn run_command(
    name: &str,
    argv: &[String],
    env: &BTreeMap<String, String>,
    timeout: Duration,
    reports: &mut Reports,
) -> Result<()> {
    let [program, args @ ..] = argv else {
        return refuse(name, "a command needs a program".into(), reports);
    };
    let mut command = Command::new(program);
    command.args(args);
    let mut environment = fixed_environment();
    environment.extend(env.clone());
    let (exit, seconds) = supervise(name, command, &environment, timeout, reports)?;
    reports.send(&Event::Exit { task: name.to_owned(), exit, seconds })
}

fn supervise(
    name: &str,
    mut command: Command,
    environment: &BTreeMap<String, String>,
    timeout: Duration,
    reports: &mut Reports,
) -> Result<(Exit, f64)> {
    command.env_clear().envs(environment);
    let begin = Event::Begin { task: name.to_owned(), timeout_seconds: timeout.as_secs() };
    reports.send(&begin)?;
    let started = Instant::now();
    let mut sent = Ok(());
    let exit = process::supervise(command, timeout, |stream, text| {
        if sent.is_ok() {
            sent = reports.send(&Event::Line { task: name.to_owned(), stream, text });
        }
    });
    sent?;
    Ok((exit, started.elapsed().as_secs_f64()))
}

/// Fails a task that cannot be run at all.
fn refuse(name: &str, why: String, reports: &mut Reports) -> Result<()> {
    reports.send(&Event::Begin { task: name.to_owned(), timeout_seconds: 0 })?;
    let outcome = Outcome::Failed(why);
    reports.send(&Event::End { task: name.to_owned(), outcome, seconds: 0.0 })
}

/// Returns the environment of init's children; the kernel gives init none that is suitable.
fn fixed_environment() -> BTreeMap<String, String> {
    let fixed = [("PATH", "/bin"), ("HOME", "/"), ("TMPDIR", "/tmp")];
    fixed.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Judges a test: it passed only if it left that outcome and its process ended successfully.
fn judge(exit: &Exit, left: Option<Outcome>, timeout: Duration) -> Outcome {
    match (exit, left) {
        (Exit::Code(0), Some(outcome)) => outcome,
        (Exit::Code(_), Some(failed @ Outcome::Failed(_))) => failed,
        (Exit::TimedOut, _) => Outcome::Failed(format!("timed out after {timeout:?}")),
        (Exit::Signal(signal), _) => Outcome::Failed(format!("killed by {}", named(*signal))),
        (Exit::Code(code), _) => {
            Outcome::Failed(format!("ended with code {code}, without an outcome"))
        }
        (Exit::NotStarted(why), _) => Outcome::Failed(format!("could not be started: {why}")),
    }
}

fn named(signal: i32) -> String {
    match signal {
        libc::SIGABRT => "SIGABRT".into(),
        libc::SIGBUS => "SIGBUS".into(),
        libc::SIGILL => "SIGILL".into(),
        libc::SIGKILL => "SIGKILL (the kernel does this when memory runs out)".into(),
        libc::SIGSEGV => "SIGSEGV".into(),
        libc::SIGSYS => "SIGSYS".into(),
        other => format!("signal {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_passes_only_with_an_outcome_and_a_successful_end() {
        let limit = Duration::from_secs(3);
        let judged = |exit, left| judge(&exit, left, limit);
        assert_eq!(judged(Exit::Code(0), Some(Outcome::Passed)), Outcome::Passed);
        for (exit, left, why) in [
            (Exit::Code(0), None, "without an outcome"),
            (Exit::Code(1), Some(Outcome::Passed), "code 1"),
            (Exit::Code(1), Some(Outcome::Failed("a is 7".into())), "a is 7"),
            (Exit::Signal(libc::SIGSEGV), Some(Outcome::Passed), "SIGSEGV"),
            (Exit::TimedOut, Some(Outcome::Passed), "timed out after 3s"),
            (Exit::NotStarted("no memory".into()), None, "no memory"),
        ] {
            let outcome = judged(exit, left);
            assert!(
                matches!(&outcome, Outcome::Failed(detail) if detail.contains(why)),
                "{outcome:?} does not contain {why}"
            );
        }
    }
}
