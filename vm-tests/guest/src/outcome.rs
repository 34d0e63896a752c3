//! The outcome of a test, and its way from the test's process to init.

use std::{error::Error, fs, io, path::Path};

use longshore_vm_tests::protocol::Outcome;

/// The result of a test function. Any error fails the test.
pub(crate) type TestResult = Result<Passed, Box<dyn Error>>;

/// A test that did not fail.
#[derive(Debug)]
pub(crate) enum Passed {
    /// Its assertions hold.
    Yes,
    /// It cannot run here; with the reason.
    Skipped(String),
}

/// The file in which a test's process leaves its outcome for init.
pub(crate) const OUTCOME_PATH: &str = "/run/outcome";

/// Returns an error from the calling test if the condition is false: `ensure!(a == b, "a is {a}")`.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+).into());
        }
    };
}
pub(crate) use ensure;

/// Converts a test's result; an error is shown with all its causes.
pub(crate) fn of(result: TestResult) -> Outcome {
    match result {
        Ok(Passed::Yes) => Outcome::Passed,
        Ok(Passed::Skipped(why)) => Outcome::Skipped(why),
        Err(error) => Outcome::Failed(described(&*error)),
    }
}

/// Returns an error and its causes in one line.
pub(crate) fn described(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Writes `outcome` for init.
pub(crate) fn leave(path: &Path, outcome: &Outcome) -> io::Result<()> {
    fs::write(path, serde_json::to_vec(outcome)?)
}

/// Returns and removes the outcome of a test; `None` if it left none.
pub(crate) fn collect(path: &Path) -> io::Result<Option<Outcome>> {
    match fs::read(path) {
        Ok(bytes) => {
            fs::remove_file(path)?;
            Ok(Some(serde_json::from_slice(&bytes)?))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_shown_with_its_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("loading failed")]
        struct Outer(#[source] io::Error);
        let error = Outer(io::ErrorKind::NotFound.into());
        assert_eq!(
            of(Err(error.into())),
            Outcome::Failed("loading failed: entity not found".into())
        );
    }

    #[test]
    fn an_outcome_is_collected_once() {
        let path = std::env::temp_dir().join(format!("longshore-outcome-{}", std::process::id()));
        leave(&path, &Outcome::Skipped("no disk".into())).unwrap();
        assert_eq!(collect(&path).unwrap(), Some(Outcome::Skipped("no disk".into())));
        assert_eq!(collect(&path).unwrap(), None);
    }
}
