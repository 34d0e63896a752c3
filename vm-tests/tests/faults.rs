//! Tests that faults in a real guest are detected and named, and that the other tests still run.

use std::time::Duration;

use longshore_vm_tests::{
    Error, GuestFault, Machine, Report, Task,
    protocol::{Exit, Outcome},
    require,
};

fn outcome<'a>(report: &'a Report, name: &str) -> &'a Outcome {
    let found = report.tests.iter().find(|test| test.name == name);
    &found.unwrap_or_else(|| panic!("{name} is not among {:?}", report.tests)).outcome
}

fn assert_failed(report: &Report, name: &str, why: &str) {
    match outcome(report, name) {
        Outcome::Failed(said) if said.contains(why) => {}
        other => panic!("{name}: {other:?} does not contain {why:?}"),
    }
}

#[test]
fn each_kind_of_failure_is_one_failed_test() {
    let Some(()) = require::or_skip("the guest's faults", require::check()) else { return };
    let tasks = [
        Task::test("deliberate::error"),
        Task::test("deliberate::panic"),
        Task::test("deliberate::abort"),
        Task::test("deliberate::exit"),
        Task::test("deliberate::hang").timeout(Duration::from_secs(2)),
        Task::test("deliberate::skip"),
        Task::test("deliberate::unheard_of"),
        Task::suite("unheard_of"),
        Task::command(["/no/such/program"]).named("absent"),
        Task::command(["/init", "--nonsense"]).named("complaining"),
        Task::command(["/init", "--facts"]).named("facts"),
    ];
    let report = Machine::new("faults").run(&tasks).unwrap();

    assert_failed(&report, "deliberate::error", "an error on purpose");
    assert_failed(&report, "deliberate::panic", "a panic on purpose");
    assert_failed(&report, "deliberate::panic", "deliberate.rs:");
    assert_failed(&report, "deliberate::abort", "SIGABRT");
    assert_failed(&report, "deliberate::exit", "without an outcome");
    assert_failed(&report, "deliberate::hang", "timed out after 2s");
    assert_failed(&report, "deliberate::unheard_of", "no test called");
    assert_failed(&report, "unheard_of", "no suite called");
    assert_eq!(
        *outcome(&report, "deliberate::skip"),
        Outcome::Skipped("a skip on purpose".to_owned())
    );
    assert_eq!(report.tests.len(), 8);
    let lines = |name: &str| {
        let test = report.tests.iter().find(|test| test.name == name).unwrap();
        test.lines.iter().map(|(_, text)| text.clone()).collect::<Vec<_>>()
    };
    assert_eq!(lines("deliberate::error"), ["a line before the error"]);
    assert_eq!(lines("deliberate::hang"), ["a line before the hang"]);

    let [absent, complaining, facts] = &report.commands[..] else { panic!("{report:?}") };
    assert!(matches!(&absent.exit, Exit::NotStarted(why) if why.contains("No such file")));
    assert_eq!(complaining.exit, Exit::Code(2));
    assert_eq!(complaining.stdout(), "", "usage belongs on standard error");
    assert!(complaining.lines[0].1.contains("usage"));
    assert!(facts.success(), "the guest still works after the failures");
}

#[test]
fn a_kernel_panic_fails_the_run_once_and_keeps_earlier_results() {
    let Some(()) = require::or_skip("the guest's panic", require::check()) else { return };
    let tasks = [
        Task::command(["/init", "--facts"]).named("facts"),
        Task::test("deliberate::kernel_panic"),
        Task::test("deliberate::skip"),
    ];
    let mut begun = 0;
    let error = Machine::new("panic")
        .run_observed(&tasks, &mut |event| {
            begun += u32::from(matches!(event, longshore_vm_tests::protocol::Event::Begin { .. }));
        })
        .unwrap_err();
    assert!(!error.is_unavailable());
    let Error::Guest { fault, finished, log_tail } = error else { panic!("{error:?}") };
    assert!(matches!(&fault, GuestFault::Kernel(line) if line.contains("sysrq")), "{fault:?}");
    assert!(log_tail.contains("Kernel panic - not syncing: sysrq triggered crash"), "{log_tail}");
    assert!(finished.commands[0].success());
    assert!(matches!(outcome(&finished, "deliberate::kernel_panic"), Outcome::Failed(_)));
    assert_eq!((finished.boots, begun), (1, 2), "a test was run again, or after the panic");
}
