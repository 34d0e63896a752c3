//! A task of the guest.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

/// The default time limit of a test or command.
///
/// An emulated processor is about twenty times slower than the host, and the host may be busy.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// The work of a [`Task`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Work {
    /// All tests of one suite of the guest's registry, each with the task's time limit.
    Suite(String),
    /// One test of the registry, named `suite::test`.
    Test(String),
    /// A program in the guest's file system, with its arguments and its environment.
    Command {
        /// The program's path, then its arguments.
        argv: Vec<String>,
        /// The environment; nothing is inherited.
        env: BTreeMap<String, String>,
    },
}

/// A task of the guest, with a time limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// The name in reports. The reports of a suite have the names of its tests instead.
    pub name: String,
    /// The work.
    pub work: Work,
    /// The time limit in seconds, after which the task is killed with its process group.
    pub timeout_seconds: u64,
}

impl Task {
    /// Creates a task that runs all tests of the suite called `name`.
    #[must_use]
    pub fn suite(name: impl Into<String>) -> Self {
        let name = name.into();
        Self::new(name.clone(), Work::Suite(name))
    }

    /// Creates a task that runs the test called `name`, such as `kernel::memfd_becomes_dma_buf`.
    #[must_use]
    pub fn test(name: impl Into<String>) -> Self {
        let name = name.into();
        Self::new(name.clone(), Work::Test(name))
    }

    /// Creates a task that runs a program of the guest's file system. Its name is the whole command
    /// line.
    #[must_use]
    pub fn command<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        let argv: Vec<String> = argv.into_iter().map(Into::into).collect();
        Self::new(argv.join(" "), Work::Command { argv, env: BTreeMap::new() })
    }

    /// Sets the name of the task in reports.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Adds a variable to a command's environment. The environment of suites and tests is fixed.
    #[must_use]
    pub fn env(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        if let Work::Command { env, .. } = &mut self.work {
            env.insert(key.into(), value.into());
        }
        self
    }

    /// Sets the time limit, rounded up to whole seconds.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout_seconds = limit.as_secs() + u64::from(limit.subsec_nanos() > 0);
        self
    }

    fn new(name: String, work: Work) -> Self {
        Self { name, work, timeout_seconds: DEFAULT_TIMEOUT.as_secs() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_of_a_second_are_rounded_up() {
        assert_eq!(Task::suite("s").timeout(Duration::from_millis(1)).timeout_seconds, 1);
        assert_eq!(Task::suite("s").timeout(Duration::from_secs(2)).timeout_seconds, 2);
    }

    #[test]
    fn a_command_is_named_after_its_arguments() {
        let task = Task::command(["/bin/x", "--all"]).env("A", "1");
        assert_eq!(task.name, "/bin/x --all");
        let Work::Command { argv, env } = task.work else { panic!("not a command") };
        assert_eq!(argv, ["/bin/x", "--all"]);
        assert_eq!(env["A"], "1");
    }
}
