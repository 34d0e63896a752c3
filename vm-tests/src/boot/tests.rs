//! A shell script replaces QEMU: it appends to the console log and prints reports.

use std::{cell::Cell, fs, process::Command, time::Duration};

use super::*;
use crate::protocol::{Exit, Outcome, Stream, encode};

struct Script {
    dir: tempfile::TempDir,
    boots: Cell<u32>,
    limits: Limits,
    restarts: u32,
    is_handed_over: bool,
}

impl Script {
    fn new() -> Self {
        let quick = Duration::from_millis(400);
        let limits =
            Limits { boot: Duration::from_secs(20), idle: quick, grace: quick, down: quick };
        Self {
            dir: tempfile::tempdir().unwrap(),
            boots: Cell::new(0),
            limits,
            restarts: 0,
            is_handed_over: false,
        }
    }

    /// Runs a guest whose boots are these scripts, one after the other. `$LOG` is the console log.
    fn run(&self, scripts: &[String]) -> Result<Report> {
        let log = self.dir.path().join("console.log");
        let command = |_| {
            let boot = self.boots.replace(self.boots.get() + 1) as usize;
            let mut command = Command::new("/bin/sh");
            let script = scripts.get(boot).expect("no boot beyond those that were scripted");
            command.arg("-c").arg(script).env("LOG", &log);
            Ok(command)
        };
        let launch = Launch {
            command: &command,
            console_log: &log,
            limits: self.limits,
            restarts: self.restarts,
            is_handed_over: self.is_handed_over,
        };
        launch.run(&mut |_| {})
    }
}

/// Returns a script that prints `events` like a guest.
fn reports(events: &[Event]) -> String {
    reports_from(0, events)
}

/// Like [`reports`], for a guest that has already printed `printed` events.
fn reports_from(printed: u64, events: &[Event]) -> String {
    let lines: String = (printed..).zip(events).map(|(n, event)| encode(n, event)).collect();
    format!("cat <<'END'\n{lines}END\n")
}

fn up() -> Event {
    Event::Up { kernel: "6.12".into(), memory_bytes: 1 << 30 }
}

fn begin(timeout_seconds: u64) -> Event {
    Event::Begin { task: "s::t".into(), timeout_seconds }
}

fn passed() -> Event {
    Event::End { task: "s::t".into(), outcome: Outcome::Passed, seconds: 0.5 }
}

const BOOT_LOG: &str = "echo '[    0.0] Linux version' >>$LOG;";

#[test]
fn a_guest_that_is_handed_over_continues_where_it_was() {
    let handed_over = || Script { is_handed_over: true, ..Script::new() };
    let first = format!("{BOOT_LOG}{}", reports(&[up(), begin(60)]));
    let second = format!("echo 'more' >>$LOG;{}", reports_from(2, &[passed(), Event::Down]));
    let script = handed_over();
    let report = script.run(&[first.clone(), second.clone()]).unwrap();
    assert_eq!((report.boots, &report.tests[0].outcome), (1, &Outcome::Passed));
    assert!(fs::read_to_string(report.console_log).unwrap().ends_with("more\n"));
    // A second QEMU that restarts the numbering is an error, and so is a third one.
    let anew = reports(&[up(), passed(), Event::Down]);
    assert!(handed_over().run(&[first.clone(), anew]).unwrap_err().to_string().contains("missing"));
    let lost = handed_over().run(&[first.clone(), String::new()]).unwrap_err();
    assert!(lost.to_string().contains("ended early"), "{lost}");
    // Without a hand-over, the end of the first QEMU is an error.
    assert!(Script::new().run(&[first, second]).is_err());
}

#[test]
fn a_good_run_is_reported_completely() {
    let script = Script::new();
    let exit = Event::Exit { task: "c".into(), exit: Exit::Code(0), seconds: 0.1 };
    let events = [
        up(),
        begin(60),
        passed(),
        Event::Begin { task: "c".into(), timeout_seconds: 1 },
        Event::Line { task: "c".into(), stream: Stream::Out, text: "42".into() },
        exit,
        Event::Down,
    ];
    let noise = "echo 'SeaBIOS (version 1.16)'; echo;";
    let report = script.run(&[format!("{BOOT_LOG}{noise}{}", reports(&events))]).unwrap();
    assert_eq!((report.kernel.as_str(), report.boots), ("6.12", 1));
    assert_eq!(report.tests[0].outcome, Outcome::Passed);
    assert_eq!(report.commands[0].stdout(), "42\n");
    assert!(report.console_log.ends_with("console.log"));
}

#[test]
fn a_guest_that_restarts_is_followed_to_its_end() {
    let script = Script { restarts: 1, ..Script::new() };
    let once = reports(&[up(), begin(9), passed(), Event::Down]);
    let report = script.run(&[format!("{BOOT_LOG}{once}{once}{once}sleep 60")]).unwrap();
    assert_eq!((report.boots, report.tests.len()), (1, 2));
    // A guest that does not restart has not reached its end.
    let script = Script { restarts: 1, ..Script::new() };
    assert!(script.run(&[format!("{BOOT_LOG}{once}")]).is_err());
}

#[test]
fn a_boot_that_never_reaches_init_is_tried_once_more() {
    let script = Script::new();
    let panic = "echo '[ 0.1] Oops: int3 [#1]' >>$LOG".to_owned();
    let good = format!("{BOOT_LOG}{}", reports(&[up(), begin(9), passed(), Event::Down]));
    let report = script.run(&[panic, good]).unwrap();
    assert_eq!((report.boots, report.tests.len()), (2, 1));
    let log = fs::read_to_string(report.console_log).unwrap();
    assert!(!log.contains("Oops"), "the log is that of the failed boot");
}

#[test]
fn a_boot_is_not_tried_a_third_time() {
    let script = Script::new();
    let bad = "echo 'qemu: no such machine' >&2; exit 1".to_owned();
    let error = script.run(&[bad.clone(), bad]).unwrap_err();
    assert!(matches!(error, Error::Boot { attempts: 2, .. }), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("no such machine") && said.contains("exit status: 1"), "{said}");
    assert!(!error.is_unavailable());
}

#[test]
fn a_failed_test_is_final() {
    let script = Script::new();
    let failed =
        Event::End { task: "s::t".into(), outcome: Outcome::Failed("no".into()), seconds: 0.0 };
    let report = script.run(&[reports(&[up(), begin(9), failed, Event::Down])]).unwrap();
    assert_eq!(report.boots, 1, "a test was run again");
    assert_eq!(report.tests[0].outcome, Outcome::Failed("no".into()));
}

#[test]
fn a_guest_that_hangs_in_a_test_is_killed_and_not_tried_again() {
    let script = Script::new();
    let hang = format!("{}exec sleep 600", reports(&[up(), begin(0)]));
    let started = Instant::now();
    let error = script.run(&[hang]).unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(60), "the script was waited for");
    let Error::Guest { fault, finished, .. } = error else { panic!("{error:?}") };
    assert_eq!(fault, GuestFault::Hung { during: "in s::t".into(), seconds: 0 });
    assert!(matches!(&finished.tests[0].outcome, Outcome::Failed(why) if why.contains("hung")));
}

#[test]
fn output_does_not_extend_the_time_limit_of_a_test() {
    let script = Script::new();
    let line = Event::Line { task: "s::t".into(), stream: Stream::Out, text: "tick".into() };
    let json = encode(0, &line).replace("\"n\":0", "\"n\":'$n'");
    let chatter = format!(
        "{}n=2; while :; do printf '%s' '{json}'; n=$((n+1)); sleep 0.05; done",
        reports(&[up(), begin(0)])
    );
    let error = script.run(&[chatter]).unwrap_err();
    let Error::Guest { fault: GuestFault::Hung { .. }, finished, .. } = error else {
        panic!("{error:?}")
    };
    assert!(finished.tests[0].lines.len() > 1, "the lines were not received");
}

#[test]
fn a_guest_that_hangs_while_booting_is_killed_and_tried_again() {
    let mut script = Script::new();
    script.limits.boot = Duration::from_millis(300);
    let hang = "exec sleep 600".to_owned();
    let error = script.run(&[hang.clone(), hang]).unwrap_err();
    let Error::Boot { fault: GuestFault::Hung { during, .. }, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(during, "while booting");
}

#[test]
fn a_kernel_panic_in_a_test_is_detected_and_shown() {
    let script = Script::new();
    let panic = "echo '[ 3.0] Kernel panic - not syncing: sysrq' >>$LOG";
    let error = script.run(&[format!("{}{panic}", reports(&[up(), begin(9)]))]).unwrap_err();
    assert!(error.to_string().contains("not syncing: sysrq"), "{error}");
    let Error::Guest { fault: GuestFault::Kernel(_), finished, .. } = error else {
        panic!("{error:?}")
    };
    assert!(matches!(finished.tests[0].outcome, Outcome::Failed(_)));
}

#[test]
fn an_oops_fails_a_run_whose_tests_all_passed() {
    let script = Script::new();
    let oops = "echo '[ 3.0] BUG: kernel NULL pointer dereference' >>$LOG;";
    let error =
        script.run(&[format!("{oops}{}", reports(&[up(), begin(9), passed(), Event::Down]))]);
    let Error::Guest { fault, finished, .. } = error.unwrap_err() else { panic!() };
    assert!(matches!(fault, GuestFault::Kernel(_)));
    assert_eq!(finished.tests[0].outcome, Outcome::Passed);
}

#[test]
fn a_guest_that_ends_early_is_an_error() {
    let script = Script::new();
    let error = script.run(&[reports(&[up(), begin(9), passed()])]).unwrap_err();
    assert!(matches!(error, Error::Guest { fault: GuestFault::Died(_), .. }), "{error:?}");
}

#[test]
fn a_lost_report_is_an_error() {
    let script = Script::new();
    let lines = encode(0, &up()) + &encode(2, &Event::Down);
    let error = script.run(&[format!("cat <<'END'\n{lines}END\n")]).unwrap_err();
    assert!(matches!(error, Error::Guest { fault: GuestFault::Protocol(_), .. }), "{error:?}");
}

#[test]
fn a_fault_of_init_is_reported_with_its_reason() {
    let script = Script::new();
    let fault = Event::Fault { detail: "no module xfs".into() };
    let error = script.run(&[reports(&[up(), fault])]).unwrap_err();
    assert!(error.to_string().contains("no module xfs"), "{error}");
}

#[test]
fn a_guest_that_is_done_but_does_not_end_is_killed() {
    let script = Script::new();
    let events = reports(&[up(), begin(9), passed(), Event::Down]);
    let report = script.run(&[format!("{events}exec sleep 600")]).unwrap();
    assert_eq!(report.tests.len(), 1);
}
