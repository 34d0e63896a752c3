//! Process 1 of the guest.
//!
//! ```text
//!   mounts ──► report "up" ──► modules ──► disks ──► settle ──► each task in its process ──► off, or restart
//! ```
//!
//! It never returns and never panics on purpose, because the end of process 1 is a kernel panic. An
//! error is reported, and the machine is powered off.

mod disks;
mod modules;
mod mounts;
mod process;
mod reports;
mod tasks;

use std::{fs, io, thread, time::Duration};

use longshore_vm_tests::protocol::{Event, PLAN_PATH, Plan};
use reports::Reports;
use rustix::system::RebootCommand;

/// An error that stops init.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{operation} {subject}")]
    System { operation: &'static str, subject: String, source: io::Error },
    #[error("reading the plan")]
    Plan(#[from] serde_json::Error),
    #[error("disks that did not appear in {seconds} s: {missing:?}; there are {present:?}")]
    MissingDisks { missing: Vec<String>, present: Vec<String>, seconds: u64 },
}

type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Converts a system call's error.
    fn system<E: Into<io::Error>>(
        operation: &'static str,
        subject: impl Into<String>,
    ) -> impl FnOnce(E) -> Self {
        move |source| Self::System { operation, subject: subject.into(), source: source.into() }
    }
}

/// Runs init to its end.
pub(crate) fn run() -> ! {
    let end = start().unwrap_or_else(|error| {
        // Reporting failed, but the console is logged.
        eprintln!("init: {}", crate::outcome::described(&error));
        RebootCommand::PowerOff
    });
    rustix::fs::sync();
    loop {
        if let Err(error) = rustix::system::reboot(end) {
            eprintln!("init: {end:?}: {error}");
        }
        // It takes effect a moment after the call. Returning would cause a kernel panic.
        thread::sleep(Duration::from_secs(1));
    }
}

fn start() -> Result<RebootCommand> {
    mounts::mount_kernel_file_systems()?;
    let mut reports = Reports::open()?;
    reports.send(&Event::Up { kernel: kernel_release()?, memory_bytes: memory_bytes() })?;
    let (end, last) = match work(&mut reports) {
        Ok(end) => (end, Event::Down),
        Err(error) => {
            let detail = crate::outcome::described(&error);
            (RebootCommand::PowerOff, Event::Fault { detail })
        }
    };
    reports.send(&last)?;
    reports.drain()?;
    Ok(end)
}

/// Executes the plan, and returns how the machine is to end.
fn work(reports: &mut Reports) -> Result<RebootCommand> {
    let text = fs::read_to_string(PLAN_PATH).map_err(Error::system("reading", PLAN_PATH))?;
    let plan = Plan::from_json(&text)?;
    for module in &plan.modules {
        modules::load(module)?;
    }
    disks::prepare(&plan.disks)?;
    thread::sleep(Duration::from_secs(plan.settle_seconds));
    for task in &plan.tasks {
        tasks::run(task, reports)?;
    }
    Ok(if plan.restarts { RebootCommand::Restart } else { RebootCommand::PowerOff })
}

fn kernel_release() -> Result<String> {
    let path = "/proc/sys/kernel/osrelease";
    let release = fs::read_to_string(path).map_err(Error::system("reading", path))?;
    Ok(release.trim().to_owned())
}

fn memory_bytes() -> u64 {
    longshore_sys::memory::meminfo_bytes("MemTotal:").unwrap_or(0)
}
