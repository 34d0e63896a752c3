//! Errors on the host's side of a guest.

use std::{io, path::PathBuf, process::ExitStatus};

use crate::report::Report;

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// An error on the host's side of a guest.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program that the harness calls is not installed.
    #[error("{program} was not found; on Debian: apt install {package}")]
    MissingTool {
        /// The program.
        program: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// A program that the harness calls failed.
    #[error("{command} failed ({status}):\n{stderr}")]
    Tool {
        /// The program and its arguments.
        command: String,
        /// Its exit status.
        status: ExitStatus,
        /// Its output.
        stderr: String,
    },
    /// Building a program from its source failed.
    #[error("{command} failed ({status}):\n{log_tail}\nthe whole log: {}", log.display())]
    Build {
        /// The command line.
        command: String,
        /// Its exit status.
        status: ExitStatus,
        /// The end of its output.
        log_tail: String,
        /// The file with all of its output.
        log: PathBuf,
    },
    /// The kernel's configuration lacks options that were asked for.
    #[error(
        "the kernel's configuration does not have all of vm-tests/iommufd.config: {}; each of these options \
         depends on another that is not set, or is unknown to this kernel source",
        lost.join(", ")
    )]
    KernelConfig {
        /// The options, each with the value that it got.
        lost: Vec<String>,
    },
    /// A system call on a file or process failed.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// The operation.
        operation: &'static str,
        /// The file or program.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A Debian archive has no package of this name.
    #[error("{suite} has no package whose name matches {pattern}")]
    NoPackage {
        /// The pattern of its name.
        pattern: String,
        /// The searched Debian suites.
        suite: String,
    },
    /// This machine cannot run the guest at all, which is not a failure of the tested code.
    #[error("no guest can run here: {what}")]
    Unavailable {
        /// The missing thing, and how to get it if that is known.
        what: String,
        /// The error of the last attempt, if there was one.
        source: Option<Box<Error>>,
    },
    /// A file name that a tool's input format cannot express.
    #[error("{}: {reason}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The reason why it cannot be used.
        reason: &'static str,
    },
    /// QEMU failed to execute a command of the qtest protocol.
    #[error("qtest: {command}: {said}")]
    Qtest {
        /// The command.
        command: String,
        /// The answer, or the reason why there is none, with QEMU's standard error.
        said: String,
    },
    /// QEMU failed to execute a command of its machine protocol.
    #[error("QMP: {command}: {said}")]
    Qmp {
        /// The command.
        command: String,
        /// The answer, or the reason why there is none.
        said: String,
    },
    /// The guest never reported that its init runs, not even in the second try.
    #[error("the guest did not boot in {attempts} tries: {fault}\n{log_tail}")]
    Boot {
        /// The number of tries.
        attempts: u32,
        /// The fault of the last try.
        fault: GuestFault,
        /// The end of its kernel log, with QEMU's standard error.
        log_tail: String,
        /// The whole kernel log.
        console_log: PathBuf,
    },
    /// The guest ran, and then failed as a whole.
    #[error("{fault}\n{log_tail}")]
    Guest {
        /// The fault.
        fault: GuestFault,
        /// The report of everything until then.
        finished: Box<Report>,
        /// The end of its kernel log, with QEMU's standard error.
        log_tail: String,
    },
}

/// A failure of the guest as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GuestFault {
    /// The kernel log has a panic, an oops or a bug report.
    #[error("the guest's kernel failed: {0}")]
    Kernel(String),
    /// QEMU ended before the guest reported that it was done.
    #[error("QEMU ended early ({0})")]
    Died(String),
    /// There was no report within the time limit of the current step.
    #[error("the guest hung {during}: no report for {seconds} s")]
    Hung {
        /// The step: booting, running a task, powering off.
        during: String,
        /// The time limit.
        seconds: u64,
    },
    /// The guest's init failed.
    #[error("the guest's init failed: {0}")]
    Init(String),
    /// A report was lost, garbled or out of order.
    #[error("the guest's reports are invalid: {0}")]
    Protocol(String),
}

impl Error {
    /// Returns `true` if no guest can run on this machine; `false` if the guest failed.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::MissingTool { .. } | Self::Unavailable { .. })
    }

    /// Converts an I/O error: `.map_err(Error::io("opening", &path))`.
    pub(crate) fn io(
        operation: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { operation, path: path.into(), source }
    }

    /// Converts the error into one that says that no guest can run on this machine.
    pub(crate) fn into_unavailable(self, what: &str) -> Self {
        if self.is_unavailable() {
            return self;
        }
        Self::Unavailable { what: format!("{what}: {self}"), source: Some(Box::new(self)) }
    }
}
