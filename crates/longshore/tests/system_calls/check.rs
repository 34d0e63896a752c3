//! Runs workloads under filters, and compares their system calls with the lists.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tempfile::TempDir;

use crate::call::Call;
use crate::filter::{self, TRAPPED};
use crate::page::Calls;
use crate::run::{Files, Phase};
use crate::tasks;
use crate::workloads::models;

/// The first argument of a program that runs one workload.
pub(crate) const WORKLOAD: &str = "--workload";

/// The limit on the distinct calls of one phase; a phase that exceeds it fails.
const CALLS_MAX: usize = 200;

/// The number of runs in which a call is searched for before it is reported as never made.
const RUNS_MAX: u32 = 3;

/// How a run ended.
enum End {
    /// The phase made only calls that its filter permits.
    Finished,
    /// The phase made this call, which its filter does not permit.
    Trapped(Call),
}

/// Runs workloads in a folder that contains their files.
pub(crate) struct Runner {
    folder: TempDir,
    runs: AtomicUsize,
}

impl Runner {
    /// Creates the folder and writes the model.
    ///
    /// # Errors
    /// The I/O errors of that.
    pub(crate) fn new() -> io::Result<Self> {
        // Not in /tmp, which can be a tmpfs: the model must be on a disk to be read with direct I/O.
        let folder = tempfile::tempdir_in("/var/tmp")?;
        models::write_model(folder.path())?;
        Ok(Self { folder, runs: AtomicUsize::new(0) })
    }

    /// Returns the calls that a phase makes and that are not in `permitted`.
    pub(crate) fn unlisted(
        &self,
        workload: &str,
        phase: Phase,
        permitted: &BTreeSet<Call>,
    ) -> Result<BTreeSet<Call>, String> {
        let (mut permitted, mut unlisted) = (permitted.clone(), BTreeSet::new());
        for _ in 0..CALLS_MAX {
            let call = match self.run(workload, phase, &permitted)? {
                End::Finished => return Ok(unlisted),
                End::Trapped(call) => call,
            };
            if !permitted.insert(call) {
                return Err(format!("{call} is refused although the filter permits it"));
            }
            unlisted.insert(call);
        }
        Err(format!("more than {CALLS_MAX} calls that are not listed"))
    }

    /// Returns the calls that are listed as `always` and that the phase does not make. To find them, it
    /// refuses one call at a time.
    pub(crate) fn unmade(
        &self,
        workload: &str,
        phase: Phase,
        calls: &Calls,
        permitted: &BTreeSet<Call>,
    ) -> Result<BTreeSet<Call>, String> {
        let mut unmade = BTreeSet::new();
        for call in &calls.always {
            let mut fewer = permitted.clone();
            fewer.remove(call);
            // On a busy machine a single run may not make the call.
            let mut is_made = false;
            for _ in 0..RUNS_MAX {
                is_made = matches!(self.run(workload, phase, &fewer)?, End::Trapped(_));
                if is_made {
                    break;
                }
            }
            if !is_made {
                unmade.insert(*call);
            }
        }
        Ok(unmade)
    }

    /// Runs one phase of a workload under a filter that permits only the calls in `permitted`.
    fn run(&self, workload: &str, phase: Phase, permitted: &BTreeSet<Call>) -> Result<End, String> {
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.path().join(number.to_string());
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let permitted: Vec<String> = permitted.iter().map(ToString::to_string).collect();
        let place = Phase::ALL.iter().position(|other| *other == phase).expect("all are there");
        let report = Files::report(&folder);
        let child = std::env::current_exe().and_then(|program| {
            let mut command = Command::new(program);
            command.args([WORKLOAD, workload, &place.to_string(), &permitted.join(" ")]);
            // Printing a backtrace makes more system calls, which the filter would trap.
            command.env(Files::VARIABLE, &folder).env("RUST_BACKTRACE", "0");
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
            command.spawn()
        });
        let mut child = child.map_err(|error| format!("the workload cannot start: {error}"))?;
        // Wait until the process exits, or until the phase is over and all threads sleep.
        let mut is_over = false;
        while !is_over && child.try_wait().is_ok_and(|status| status.is_none()) {
            thread::sleep(tasks::LOOK_EVERY);
            let has_ended = || filter::read_report(&report).is_ok_and(|report| report.is_over);
            is_over = has_ended() && tasks::wait_of(child.id());
        }
        let _ = child.kill();
        let output = child.wait_with_output();
        let output = output.map_err(|error| format!("the workload has no status: {error}"))?;
        match output.status.code() {
            Some(TRAPPED) => {
                let report = filter::read_report(&report);
                let words = report.map_err(|error| format!("there is no report: {error}"))?.words;
                Ok(End::Trapped(Call::made(words[0] as i64, &words[1..])))
            }
            None if is_over && output.status.signal() == Some(libc::SIGKILL) => Ok(End::Finished),
            _ => Err(format!(
                "the workload failed with {}: {}",
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            )),
        }
    }
}
