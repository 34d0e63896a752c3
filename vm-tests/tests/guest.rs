//! Runs the guest's tests in their machines, prints a line for each, and compares the tests that ran
//! with the committed list.
//!
//! The program takes the arguments of an ordinary test program:
//! `cargo test -p longshore-vm-tests --test guest -- load::` runs one suite, `--exact NAME` runs one
//! test, `--list` prints their names, and `--nocapture` shows their output.

#[path = "guest/machines.rs"]
mod machines;

use std::{
    collections::{BTreeSet, VecDeque},
    env,
    num::NonZero,
    process::{Command, ExitCode},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use longshore_vm_tests::{
    Error, Result, Task, TestReport,
    arguments::Arguments,
    expected,
    protocol::{Event, Outcome},
    require,
};
use machines::Group;

const EXPECTED: &str = include_str!("../expected-tests.txt");
const EXPECTED_PATH: &str = "vm-tests/expected-tests.txt";

fn main() -> ExitCode {
    let arguments = match Arguments::parse(env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(reason) => return complain(&reason),
    };
    let mut expected = match expected::parse(EXPECTED) {
        Ok(expected) => expected,
        Err(reason) => return complain(&format!("{EXPECTED_PATH}: {reason}")),
    };
    expected.retain(|name| is_ours(name));
    let selected: BTreeSet<String> =
        expected.iter().filter(|name| arguments.selects(name)).cloned().collect();
    if arguments.list {
        selected.iter().for_each(|name| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    // A filter that is meant for another test program of the package should not boot a machine.
    if selected.is_empty() && arguments.is_filtering() {
        println!(
            "\nrunning 0 tests\n\ntest result: ok. 0 passed; {} filtered out\n",
            expected.len()
        );
        return ExitCode::SUCCESS;
    }
    if let Err(error) = require::check() {
        if error.is_unavailable() && !require::is_required() {
            require::skip("the guest tests", &error);
            return ExitCode::SUCCESS;
        }
        return complain(&error.to_string());
    }
    match run(&arguments, &selected) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => complain(&error.to_string()),
    }
}

/// Returns `true` if this test program runs the test and its environment variable is set.
fn is_ours(name: &str) -> bool {
    let is_others = [expected::WALKERS, expected::DEVICE, expected::VHOST]
        .iter()
        .any(|others| name.starts_with(others));
    let needs_iommufd =
        name.split("::").next().is_some_and(|suite| suite.contains(expected::IOMMUFD));
    !is_others && (machines::has_iommufd() || !needs_iommufd)
}

/// Runs the selected tests, and returns `true` if all passed and match the list.
fn run(arguments: &Arguments, selected: &BTreeSet<String>) -> Result<bool> {
    let started = Instant::now();
    let known: Vec<String> = names_in_guest()?
        .into_iter()
        .filter(|name| arguments.selects(name) && is_ours(name))
        .collect();
    println!("\nrunning {} guest tests", known.len());
    let fixtures = machines::fixtures()?;
    let run = run_groups(machines::groups(fixtures.path(), &known)?, &known, arguments.show_output);
    Ok(run.finish(selected, started.elapsed()))
}

/// Boots the machines, at most one per host processor at a time, because each uses one processor.
fn run_groups(groups: Vec<Group>, known: &[String], show: bool) -> Run {
    let at_once = thread::available_parallelism().map_or(1, NonZero::get);
    let waiting = Mutex::new(VecDeque::from(groups));
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let mut all = Run::default();
    thread::scope(|scope| {
        let work = || {
            let mut run = Run { show, ..Run::default() };
            while let Some(group) = next() {
                run.group(&group, known);
            }
            run
        };
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            match worker.join() {
                Ok(run) => {
                    all.tests.extend(run.tests);
                    all.troubles.extend(run.troubles);
                }
                Err(_) => all.troubles.push("a thread that runs machines panicked".to_owned()),
            }
        }
    });
    all
}

/// Returns the names of the tests in the guest's registry, which the guest's program prints on the host.
fn names_in_guest() -> Result<Vec<String>> {
    let program = longshore_vm_tests::guest_init()?;
    let listed = Command::new(&program).arg("--list").output().map_err(|source| Error::Io {
        operation: "starting",
        path: program.clone(),
        source,
    })?;
    Ok(String::from_utf8_lossy(&listed.stdout).lines().map(str::to_owned).collect())
}

/// The results of the machines that have run so far.
#[derive(Default)]
struct Run {
    show: bool,
    tests: Vec<TestReport>,
    troubles: Vec<String>,
}

impl Run {
    /// Boots a group's machine and runs those of the tests `known` that belong to it.
    fn group(&mut self, group: &Group, known: &[String]) {
        let tasks: Vec<Task> = known
            .iter()
            .filter(|name| name.split("::").next().is_some_and(|s| group.suites.contains(&s)))
            .map(|name| Task::test(name).timeout(group.timeout))
            .collect();
        if tasks.is_empty() {
            return;
        }
        let show = self.show;
        // Host time: the clock of a machine that counts instructions skips waits.
        let mut began = Instant::now();
        let result = group.machine.run_observed(&tasks, &mut |event| {
            if matches!(event, Event::Begin { .. }) {
                began = Instant::now();
            }
            print(event, began.elapsed(), show);
        });
        let report = match result {
            Ok(report) => report,
            Err(Error::Guest { fault, finished, log_tail }) => {
                let log = finished.console_log.display();
                self.troubles.push(format!(
                    "the machine of {:?}: {fault}\n{log_tail}\nthe whole log: {log}",
                    group.suites
                ));
                *finished
            }
            Err(error) => {
                self.troubles.push(error.to_string());
                return;
            }
        };
        println!(
            "# {} on Linux {}, {} MiB, booted in {:.1} s ({} tried)",
            group.suites.join(", "),
            report.kernel,
            report.memory_bytes >> 20,
            report.boot.as_secs_f64(),
            report.boots
        );
        report.kernel_warnings.iter().for_each(|warning| println!("# kernel: {warning}"));
        self.tests.extend(report.tests);
    }

    /// Prints the failures and the deviations from the list, and returns `true` if there are none.
    fn finish(&self, selected: &BTreeSet<String>, elapsed: Duration) -> bool {
        let mut failed = 0;
        for test in &self.tests {
            let Outcome::Failed(why) = &test.outcome else { continue };
            failed += 1;
            println!("\n---- {} ----\n{why}", test.name);
            test.lines.iter().for_each(|(_, line)| println!("  | {line}"));
        }
        self.troubles.iter().for_each(|trouble| println!("\n{trouble}"));
        let ran: Vec<_> =
            self.tests.iter().map(|test| (test.name.clone(), test.outcome.clone())).collect();
        let deviations = expected::compare(selected, &ran);
        if !deviations.is_empty() {
            println!("\nthe tests that ran differ from {EXPECTED_PATH}:");
            deviations.iter().for_each(|deviation| println!("  {deviation}"));
        }
        let good = failed == 0 && self.troubles.is_empty() && deviations.is_empty();
        let passed = self.tests.iter().filter(|test| test.outcome == Outcome::Passed).count();
        println!(
            "\ntest result: {}. {passed} passed; {failed} failed; {} expected; in {:.1} s\n",
            if good { "ok" } else { "FAILED" },
            selected.len(),
            elapsed.as_secs_f64()
        );
        good
    }
}

fn print(event: &Event, elapsed: Duration, show: bool) {
    match event {
        Event::End { task, outcome, .. } => {
            let word = match outcome {
                Outcome::Passed => "ok",
                Outcome::Failed(_) => "FAILED",
                Outcome::Skipped(_) => "skipped",
            };
            println!("test {task} ... {word} <{:.3}s>", elapsed.as_secs_f64());
        }
        Event::Line { text, .. } if show => println!("  | {text}"),
        _ => {}
    }
}

fn complain(reason: &str) -> ExitCode {
    eprintln!("{reason}");
    ExitCode::FAILURE
}
