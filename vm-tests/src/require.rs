//! What happens where the guest cannot run: a test run on a developer's machine says so and goes
//! on; one that is meant to prove something fails.

use std::{
    env,
    io::{self, Write},
};

use crate::{
    error::Result,
    kernel::{Flavor, Kernel},
    qemu::Qemu,
};

/// Whether this machine can run the guest. What is only a matter of downloading is downloaded.
///
/// # Errors
///
/// If it cannot; [`is_unavailable`](crate::Error::is_unavailable) tells that from a failure.
pub fn check() -> Result<()> {
    Qemu::system()?;
    Kernel::obtain(Flavor::Debian)?;
    Ok(())
}

/// Whether a guest that is not available is a failure: in CI (`CI=true`), or if
/// `LONGSHORE_REQUIRE_GUEST=1`.
#[must_use]
pub fn is_required() -> bool {
    let set = |key| env::var(key).ok();
    required_by(set("CI").as_deref(), set("LONGSHORE_REQUIRE_GUEST").as_deref())
}

/// Gives `value`, or `None` after saying loudly why `what` is skipped.
///
/// # Panics
///
/// If the error is not one of availability, or the guest is required.
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

/// Says that `what` is skipped, and why, past the capture of a test's output.
pub fn skip(what: &str, why: &dyn std::fmt::Display) {
    // If standard error is gone there is no one to tell.
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
    fn ci_requires_the_guest_and_the_own_variable_decides() {
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
