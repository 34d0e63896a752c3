//! The registry of guest tests.
//!
//! A suite is a file beside this one and a line in [`SUITES`]; a test is a function in it and a line in
//! its list. The committed list of tests must name it, too.

mod access;
mod deliberate;
mod device;
mod heap;
mod kernel;
mod load;
mod nvme;
pub(crate) mod passthrough;
mod vhost;

use std::{
    panic::{self, AssertUnwindSafe},
    path::Path,
    process::ExitCode,
    sync::Mutex,
};

use longshore_vm_tests::protocol::Outcome;

use crate::outcome::{self, OUTCOME_PATH, TestResult};

/// A group of tests.
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) tests: &'static [Test],
}

/// One test.
pub(crate) struct Test {
    pub(crate) name: &'static str,
    pub(crate) run: fn() -> TestResult,
}

/// The suites that the committed list of tests covers.
const SUITES: &[Suite] = &[
    kernel::SUITE,
    heap::SUITE,
    load::SUITE,
    access::SUITE,
    device::SUITE,
    vhost::SUITE,
    passthrough::VFIO_INTEL,
    passthrough::VFIO_VIRTIO,
    passthrough::IOMMUFD_INTEL,
    passthrough::IOMMUFD_VIRTIO,
    nvme::VFIO_INTEL,
    nvme::VFIO_VIRTIO,
    nvme::IOMMUFD_INTEL,
    nvme::IOMMUFD_VIRTIO,
];

/// Tests that fail on purpose, to prove that the harness detects it. They run only by name.
const DELIBERATE: &[Suite] = &[deliberate::SUITE];

/// Returns the names of all tests, as `suite::test`, in run order.
pub(crate) fn names() -> Vec<String> {
    SUITES.iter().flat_map(|suite| names_in(suite.name)).collect()
}

/// Returns the names of one suite's tests; none if there is no such suite.
pub(crate) fn names_in(suite: &str) -> Vec<String> {
    every_suite()
        .filter(|candidate| candidate.name == suite)
        .flat_map(|suite| suite.tests.iter().map(|test| full_name(suite, test)))
        .collect()
}

/// Runs one test in this process and leaves its outcome for init.
pub(crate) fn run_one(name: &str) -> ExitCode {
    let found = every_suite()
        .flat_map(|suite| suite.tests.iter().map(move |test| (full_name(suite, test), test)))
        .find(|(full_name, _)| full_name == name);
    let outcome = match found {
        Some((_, test)) => guarded(test.run),
        None => Outcome::Failed(format!("the guest has no test called {name}")),
    };
    if let Err(error) = outcome::leave(Path::new(OUTCOME_PATH), &outcome) {
        eprintln!("{OUTCOME_PATH}: {error}");
        return ExitCode::FAILURE;
    }
    match outcome {
        Outcome::Failed(_) => ExitCode::FAILURE,
        Outcome::Passed | Outcome::Skipped(_) => ExitCode::SUCCESS,
    }
}

/// Runs a test. A panic fails it, with the panic's message and location.
fn guarded(run: fn() -> TestResult) -> Outcome {
    // Only the hook knows the location of a panic.
    static PANIC: Mutex<Option<String>> = Mutex::new(None);
    let said = || PANIC.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    panic::set_hook(Box::new(move |info| {
        // The first panic is the cause; later ones are consequences.
        said().get_or_insert_with(|| info.to_string().replace('\n', " "));
    }));
    let result = panic::catch_unwind(AssertUnwindSafe(run));
    let panicked = said().take();
    match (result, panicked) {
        // Also if the test caught the panic, or another thread panicked.
        (_, Some(panic)) => Outcome::Failed(panic),
        (Err(_), None) => Outcome::Failed("panicked without a message".into()),
        (Ok(result), None) => outcome::of(result),
    }
}

fn every_suite() -> impl Iterator<Item = &'static Suite> {
    SUITES.iter().chain(DELIBERATE)
}

fn full_name(suite: &Suite, test: &Test) -> String {
    format!("{}::{}", suite.name, test.name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::outcome::Passed;

    #[test]
    fn names_are_unique_and_only_listed_suites_are_named() {
        let names = names();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        assert!(names.iter().all(|name| name.split("::").count() == 2), "{names:?}");
        assert!(!names.iter().any(|name| name.starts_with("deliberate::")));
        assert!(names_in("deliberate").len() > 2);
        assert!(names_in("no such suite").is_empty());
    }

    #[test]
    fn a_panic_is_a_failure_with_its_message_and_place() {
        let outcome = guarded(|| panic!("the answer is {}", 42));
        let Outcome::Failed(why) = outcome else { panic!("{outcome:?}") };
        assert!(why.contains("the answer is 42") && why.contains("suite.rs:"), "{why}");
        let hidden = guarded(|| {
            let _ = std::thread::spawn(|| panic!("in a thread")).join();
            Ok(Passed::Yes)
        });
        assert!(matches!(hidden, Outcome::Failed(why) if why.contains("in a thread")));
        assert_eq!(guarded(|| Ok(Passed::Yes)), Outcome::Passed);
        // Later tests of this process must report their panics as usual.
        let _ = panic::take_hook();
    }
}
