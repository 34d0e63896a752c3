//! Decides what happens if no guest can run: on a developer's machine the tests are skipped with a
//! message; in CI they fail.

use std::{
    env,
    io::{self, Write},
};

use crate::{
    error::Result,
    kernel::{Flavor, Kernel},
    qemu::Qemu,
};

/// Checks that this machine can run the guest. Missing files are downloaded.
///
/// # Errors
///
/// Returns an error if it cannot; [`is_unavailable`](crate::Error::is_unavailable) distinguishes a
/// missing requirement from a failure.
pub fn check() -> Result<()> {
    Qemu::system()?;
    Kernel::obtain(Flavor::Debian)?;
    Ok(())
}

/// Returns `true` if a missing guest is a failure: in CI (`CI=true`), or with
/// `LONGSHORE_REQUIRE_GUEST=1`.
#[must_use]
pub fn is_required() -> bool {
    let set = |key| env::var(key).ok();
    required_by(set("CI").as_deref(), set("LONGSHORE_REQUIRE_GUEST").as_deref())
}

/// Returns the value, or `None` after a message that `what` is skipped and why.
///
/// # Panics
///
/// Panics if the error is not a missing requirement, or the guest is required.
pub fn or_skip<T>(what: &str, value: Result<T>) -> Option<T> {
    match value {
        Ok(value) => Some(value),
        Err(error) if error.is_unavailable() && !is_required() => {
            skip(what, &error);
            None
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

/// Prints that `what` is skipped, and why. The line bypasses the capture of a test's output.
pub fn skip(what: &str, why: &dyn std::fmt::Display) {
    // An error is ignored: without standard error there is no place to report it.
    let _ = writeln!(io::stderr(), "SKIPPED {what}: {why}");
}

fn required_by(ci: Option<&str>, own: Option<&str>) -> bool {
    let own = own.filter(|value| !value.is_empty());
    own.map_or(ci == Some("true"), |value| value != "0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn ci_requires_the_guest_and_longshores_variable_overrides_it() {
        assert!(!required_by(None, None));
        assert!(required_by(Some("true"), None));
        assert!(!required_by(Some("false"), None));
        assert!(required_by(None, Some("1")));
        assert!(!required_by(Some("true"), Some("0")));
        assert!(required_by(Some("true"), Some("")));
    }

    #[test]
    #[should_panic(expected = "a test: /x: broken")]
    fn a_failure_is_never_skipped() {
        or_skip::<()>("a test", Err(Error::Unsupported { path: "/x".into(), reason: "broken" }));
    }
}
