//! Tests that fail on purpose, each in another way.

use std::{fs, process, thread, time::Duration};

use super::{Suite, Test};
use crate::outcome::{Passed, TestResult};

pub(super) const SUITE: Suite = Suite {
    name: "deliberate",
    tests: &[
        Test { name: "error", run: error },
        Test { name: "panic", run: panic },
        Test { name: "abort", run: abort },
        Test { name: "exit", run: exit },
        Test { name: "hang", run: hang },
        Test { name: "skip", run: skip },
        Test { name: "kernel_panic", run: kernel_panic },
    ],
};

fn error() -> TestResult {
    println!("a line before the error");
    Err("an error on purpose".into())
}

fn panic() -> TestResult {
    panic!("a panic on purpose")
}

fn abort() -> TestResult {
    process::abort()
}

/// Ends the process successfully but without an outcome, like a stray `exit` in a library.
fn exit() -> TestResult {
    process::exit(0)
}

fn hang() -> TestResult {
    println!("a line before the hang");
    loop {
        thread::sleep(Duration::from_secs(3600));
    }
}

fn skip() -> TestResult {
    Ok(Passed::Skipped("a skip on purpose".into()))
}

/// Crashes the whole machine.
fn kernel_panic() -> TestResult {
    fs::write("/proc/sysrq-trigger", "c")?;
    Err("the kernel survived its panic".into())
}
