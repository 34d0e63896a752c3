//! What can go wrong on the host's side of a guest.

use std::{io, path::PathBuf, process::ExitStatus};

use crate::report::Report;

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong on the host's side of a guest.
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
    /// A program that the harness calls said no.
    #[error("{command} failed ({status}):\n{stderr}")]
    Tool {
        /// The program and its arguments.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// What it said.
        stderr: String,
    },
    /// Building a program from its source failed.
    #[error("{command} failed ({status}):\n{log_tail}\nthe whole log: {}", log.display())]
    Build {
        /// What was called.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of what it said.
        log_tail: String,
        /// All that it said.
        log: PathBuf,
    },
    /// The kernel's configuration came out otherwise than it was asked for.
    #[error(
        "not all of vm-tests/iommufd.config can be had: {}; each needs an option that is not there, or \
         that the kernel's source no longer knows",
        lost.join(", ")
    )]
    KernelConfig {
        /// The options, each with what became of it.
        lost: Vec<String>,
    },
    /// A system call on a file or process failed.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// What was being done.
        operation: &'static str,
        /// To what.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A Debian archive has no package of the kind looked for.
    #[error("{suite} has no package whose name matches {pattern}")]
    NoPackage {
        /// The pattern of its name.
        pattern: String,
        /// The Debian suites searched.
        suite: String,
    },
    /// This machine cannot run the guest at all: not a failure of what is tested.
    #[error("no guest here: {what}")]
    Unavailable {
        /// What is missing, and how to get it where that is known.
        what: String,
        /// What was tried and failed, if anything was.
        source: Option<Box<Error>>,
    },
    /// A file name that a tool's input format cannot express.
    #[error("{}: {reason}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// Why it cannot be used.
        reason: &'static str,
    },
    /// QEMU did not do what it was asked by the qtest protocol.
    #[error("qtest: {command}: {said}")]
    Qtest {
        /// What it was asked.
        command: String,
        /// What it answered, or why it did not, with what it wrote to standard error.
        said: String,
    },
    /// QEMU did not do what it was asked by its machine protocol.
    #[error("QMP: {command}: {said}")]
    Qmp {
        /// What it was asked.
        command: String,
        /// What it answered, or why it did not.
        said: String,
    },
    /// The guest never reported that its init runs, not even at the second try.
    #[error("the guest did not boot in {attempts} tries: {fault}\n{log_tail}")]
    Boot {
        /// How often it was tried.
        attempts: u32,
        /// What the last try ended in.
        fault: GuestFault,
        /// The end of its kernel log, with what QEMU said.
        log_tail: String,
        /// The whole kernel log.
        console_log: PathBuf,
    },
    /// The guest ran, and then something went wrong that is not one test's failure.
    #[error("{fault}\n{log_tail}")]
    Guest {
        /// What went wrong.
        fault: GuestFault,
        /// What had been done by then.
        finished: Box<Report>,
        /// The end of its kernel log, with what QEMU said.
        log_tail: String,
    },
}

/// What can go wrong with a guest as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GuestFault {
    /// The kernel log has a panic, an oops or a bug report.
    #[error("the guest's kernel failed: {0}")]
    Kernel(String),
    /// QEMU ended before the guest said that it was done.
    #[error("QEMU ended early ({0})")]
    Died(String),
    /// Nothing was heard for longer than the current step may take.
    #[error("the guest hung {during}: nothing heard for {seconds} s")]
    Hung {
        /// What it was doing: booting, running a task, going down.
        during: String,
        /// For how long nothing was heard.
        seconds: u64,
    },
    /// The guest's init could not do its work.
    #[error("the guest's init failed: {0}")]
    Init(String),
    /// A report was lost, garbled or out of order.
    #[error("the guest's reports do not add up: {0}")]
    Protocol(String),
}

impl Error {
    /// Whether the guest cannot be had on this machine, as against failing on it.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::MissingTool { .. } | Self::Unavailable { .. })
    }

    /// Adapts an I/O error: `.map_err(Error::io("opening", &path))`.
    pub(crate) fn io(
        operation: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { operation, path: path.into(), source }
    }

    /// The same failure, as one for want of which this machine has no guest.
    pub(crate) fn into_unavailable(self, what: &str) -> Self {
        if self.is_unavailable() {
            return self;
        }
        Self::Unavailable { what: format!("{what}: {self}"), source: Some(Box::new(self)) }
    }
}
