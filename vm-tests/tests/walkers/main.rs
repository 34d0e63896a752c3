//! Checks the page tables of `longshore-pagetable` with independent hardware models: QEMU's SMMUv3, VT-d
//! and AMD IOMMU walk them. No kernel runs: the host writes registers and queues, and the DMA of a
//! device shows the translations.
//!
//! The program takes the arguments of an ordinary test program, and compares the tests that ran with the
//! lines of `expected-tests.txt` that start with `walker::`.
//!
//! ```text
//!   PageTable ─► Mirror ── cleaned lines ─► memory ◄── walk ── SMMUv3, VT-d, AMD
//!                                             ▲                    │
//!   case ── transfer ─────────────────────────┼──────► edu ── DMA ─┘
//!     └──── checks ───────────────────────────┘
//! ```

mod amd_iommu;
mod cases;
mod machine;
mod mirror;
mod setups;
mod smmu_v3;
mod unit;
mod vtd;
mod vtd_scalable;

use std::collections::BTreeSet;
use std::env;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use longshore_vm_tests::arguments::Arguments;
use longshore_vm_tests::protocol::Outcome;
use longshore_vm_tests::{Qemu, Result, expected, require};

const EXPECTED: &str = include_str!("../../expected-tests.txt");
const EXPECTED_PATH: &str = "vm-tests/expected-tests.txt";

/// The prefix of the names of tests that need QEMU 11.
const QEMU_11: &str = "walker::qemu11::";

/// A test and its name.
pub(crate) struct Test {
    pub(crate) name: String,
    pub(crate) run: Box<dyn Fn() -> Outcome + Send + Sync>,
}

fn main() -> ExitCode {
    let arguments = match Arguments::parse(env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(reason) => return complain(&reason),
    };
    let mut expected = match expected::parse(EXPECTED) {
        Ok(expected) => expected,
        Err(reason) => return complain(&format!("{EXPECTED_PATH}: {reason}")),
    };
    expected.retain(|name| name.starts_with(expected::WALKERS) && arguments.selects(name));
    if arguments.list {
        expected.iter().for_each(|name| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    match check() {
        Ok(()) => {}
        Err(error) if error.is_unavailable() && !require::is_required() => {
            require::skip("the walkers' tests", &error);
            return ExitCode::SUCCESS;
        }
        Err(error) => return complain(&error.to_string()),
    }
    let mut tests = setups::tests();
    match qemu_11() {
        Ok(()) => tests.extend(setups::tests_of_qemu_11()),
        Err(why) => {
            require::skip("tests that need QEMU 11", &why);
            expected.retain(|name| !name.starts_with(QEMU_11));
        }
    }
    tests.retain(|test| arguments.selects(&test.name));
    if run(&tests, &expected) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns an error if one of QEMU's two programs is missing.
fn check() -> Result<()> {
    Qemu::system()?;
    Qemu::system_aarch64()?;
    Ok(())
}

/// Returns the reason if QEMU 11 is not enabled or not available.
fn qemu_11() -> std::result::Result<(), String> {
    if env::var("LONGSHORE_VM_QEMU11").as_deref() != Ok("1") {
        return Err("it is downloaded; set LONGSHORE_VM_QEMU11=1 to run it".to_owned());
    }
    let both = Qemu::v11().and_then(|_| Qemu::v11_aarch64());
    both.map(drop).map_err(|error| error.to_string())
}

/// Runs the tests, prints them as other test programs do, and returns `true` if all passed and match the
/// list.
fn run(tests: &[Test], expected: &BTreeSet<String>) -> bool {
    let started = Instant::now();
    println!("\nrunning {} tests", tests.len());
    // Each test has its own machine, and spends most of its time starting it.
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    let next = AtomicUsize::new(0);
    let (sender, ended) = mpsc::channel();
    let mut ran = Vec::new();
    let mut failed = 0;
    thread::scope(|scope| {
        for _ in 0..workers {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                while let Some(test) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let started = Instant::now();
                    // The panic's message has already been printed to standard error.
                    let outcome = catch_unwind(AssertUnwindSafe(|| (test.run)()))
                        .unwrap_or_else(|_| Outcome::Failed("it panicked".to_owned()));
                    let ended = (test.name.clone(), outcome, started.elapsed());
                    sender.send(ended).expect("the other end waits for all workers");
                }
            });
        }
        drop(sender);
        for (name, outcome, elapsed) in ended {
            let word = match &outcome {
                Outcome::Passed => "ok",
                Outcome::Failed(_) => "FAILED",
                Outcome::Skipped(_) => "skipped",
            };
            println!("test {name} ... {word} <{:.3}s>", elapsed.as_secs_f64());
            match &outcome {
                Outcome::Passed => {}
                Outcome::Failed(_) => failed += 1,
                Outcome::Skipped(why) => require::skip(&name, why),
            }
            ran.push((name, outcome));
        }
    });
    let deviations = expected::compare(expected, &ran);
    if !deviations.is_empty() {
        println!("\nthe tests that ran differ from {EXPECTED_PATH}:");
        deviations.iter().for_each(|deviation| println!("  {deviation}"));
    }
    let good = failed == 0 && deviations.is_empty();
    println!(
        "\ntest result: {}. {} passed; {failed} failed; {} expected; in {:.1} s\n",
        if good { "ok" } else { "FAILED" },
        ran.len() - failed,
        expected.len(),
        started.elapsed().as_secs_f64()
    );
    good
}

fn complain(reason: &str) -> ExitCode {
    eprintln!("{reason}");
    ExitCode::FAILURE
}
