//! The entry point. The arguments select the test, one workload, or the peer of a workload.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::call::Call;
use crate::check::{Runner, WORKLOAD};
use crate::filter;
use crate::page::{self, List};
use crate::run::{Files, PEER, Phase, Run, Steps};
use crate::workloads;

/// The first argument of a process that only installs a filter.
const PROBE: &str = "--probe";

pub(crate) fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [WORKLOAD, name, place, calls] => {
            let phase = Phase::ALL[place.parse::<usize>().expect("of the test")];
            let calls = calls.split(' ').filter(|call| !call.is_empty());
            let calls = calls.map(|call| call.parse().expect("of the test"));
            let workload = workloads::find(name).expect("of the test");
            filter::limit_time();
            filter::report_to(&Files::report(&Files::new().run)).expect("the folder is the test's");
            (workload.run)(&mut Run::new(phase, calls.collect()))
        }
        [PEER, name] => {
            filter::limit_time();
            workloads::peer(name)(Steps::new());
            ExitCode::SUCCESS
        }
        [PROBE] => probe(),
        ["--print", ref names @ ..] => print(names),
        ref others => harness(others),
    }
}

/// Handles the arguments of a test harness that apply to a single test.
fn harness(arguments: &[&str]) -> ExitCode {
    const NAME: &str = "system_calls";
    let mut filters = arguments.iter().filter(|argument| !argument.starts_with('-')).peekable();
    let is_chosen = filters.peek().is_none() || filters.any(|filter| NAME.contains(filter));
    if arguments.contains(&"--ignored") || !is_chosen {
        return ExitCode::SUCCESS;
    }
    if arguments.contains(&"--list") {
        println!("{NAME}: test");
        return ExitCode::SUCCESS;
    }
    test()
}

fn probe() -> ExitCode {
    let permitted = ["write", "exit_group"];
    let permitted = permitted.map(|name| name.parse::<Call>().expect("a system call"));
    match filter::install(&permitted.into()) {
        Ok(()) => filter::exit(0),
        Err(reason) => {
            eprintln!("{reason}");
            filter::exit(1)
        }
    }
}

/// Returns the reason why no filter can be installed here; `None` if one can.
fn unavailable() -> Option<String> {
    let program = env::current_exe().expect("a program has a path");
    let output = Command::new(program).arg(PROBE).output().expect("it runs already");
    let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    (!output.status.success()).then(|| format!("{}: {reason}", output.status))
}

fn test() -> ExitCode {
    if let Some(reason) = unavailable() {
        println!("SKIPPED: no filter of system calls can be installed here: {reason}");
        // In CI a filter can be installed.
        return if env::var("CI").as_deref() == Ok("true") {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        };
    }
    let failures = match page::read() {
        Ok((base, lists)) => compare(&base, &lists),
        Err(reason) => vec![reason],
    };
    for failure in &failures {
        println!("{failure}");
    }
    let runs = workloads::ALL.len();
    if failures.is_empty() {
        println!("the lists of {runs} workloads are complete, and list nothing else");
        return ExitCode::SUCCESS;
    }
    println!("{} differences from docs/system-calls.md", failures.len());
    ExitCode::FAILURE
}

fn compare(base: &BTreeSet<Call>, lists: &BTreeMap<String, List>) -> Vec<String> {
    let mut failures = Vec::new();
    for name in lists.keys().filter(|name| workloads::find(name).is_none()) {
        failures.push(format!("docs/system-calls.md: no workload for the list of {name}"));
    }
    let mut tasks = Vec::new();
    for workload in workloads::ALL {
        match lists.get(workload.name) {
            Some(list) => tasks.extend(Phase::ALL.map(|phase| (workload.name, phase, list))),
            None => failures.push(format!("docs/system-calls.md: no list for {}", workload.name)),
        }
    }
    let runner = match Runner::new() {
        Ok(runner) => runner,
        Err(error) => return vec![format!("no model can be written in /var/tmp: {error}")],
    };
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(failures));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (name, phase, list) = *task;
                    let found = differences(&runner, name, phase, list, base);
                    failed.lock().expect("no thread panics here").extend(found);
                }
            });
        }
    });
    failed.into_inner().expect("no thread panicked")
}

/// Returns the differences between a phase of a workload and its list.
fn differences(
    runner: &Runner,
    name: &str,
    phase: Phase,
    list: &List,
    base: &BTreeSet<Call>,
) -> Vec<String> {
    let calls = list.phase(phase);
    let mut permitted = calls.listed();
    if phase != Phase::Steady || calls.has_base {
        permitted.extend(base);
    }
    let found = (|| {
        let unlisted = runner.unlisted(name, phase, &permitted)?;
        permitted.extend(&unlisted);
        let unmade = runner.unmade(name, phase, &calls, &permitted)?;
        let number = |call: &Call| call.number;
        let unlisted = unlisted.iter().map(|call| {
            format!("{name}, {phase}: calls {call} (number {}), which is not listed", number(call))
        });
        let unmade = unmade.iter().map(|call| {
            format!("{name}, {phase}: lists {call} (number {}), which is not called", number(call))
        });
        Ok::<Vec<String>, String>(unlisted.chain(unmade).collect())
    })();
    found.unwrap_or_else(|reason| vec![format!("{name}, {phase}: {reason}")])
}

/// Prints the calls of these workloads, or of all if `names` is empty, without the calls of the base.
fn print(names: &[&str]) -> ExitCode {
    let (base, lists) = page::read().unwrap_or_else(|reason| {
        eprintln!("{reason}");
        Default::default()
    });
    let runner = Runner::new().expect("a model can be written in /var/tmp");
    for workload in workloads::ALL {
        if !names.is_empty() && !names.contains(&workload.name) {
            continue;
        }
        for phase in Phase::ALL {
            let has_base = match phase {
                Phase::Setup | Phase::Teardown => true,
                Phase::Steady => {
                    lists.get(workload.name).is_some_and(|list| list.phase(phase).has_base)
                }
            };
            let permitted = if has_base { base.clone() } else { BTreeSet::new() };
            println!("{}, {phase}:", workload.name);
            match runner.unlisted(workload.name, phase, &permitted) {
                Ok(calls) => calls.iter().for_each(|call| println!("  {call}")),
                Err(reason) => println!("  {reason}"),
            }
        }
    }
    ExitCode::SUCCESS
}
