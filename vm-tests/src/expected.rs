//! The committed list of guest tests, and the comparison of a run with it.
//!
//! If a test vanishes from a run, because a machine or a registry line was removed, the run would look
//! successful. The list makes that a failure.

use std::collections::BTreeSet;

use crate::protocol::Outcome;

/// The prefix of tests that the test program `walkers` runs without a guest.
pub const WALKERS: &str = "walker::";

/// The prefix of tests that the guest of the test program `device` runs, with QEMU 11.
pub const DEVICE: &str = "device::";

/// A part of the names of suites that need a kernel with iommufd, which Debian's lacks.
pub const IOMMUFD: &str = "iommufd_";

/// The prefix of tests that guests of the test program `vhost` run.
pub const VHOST: &str = "vhost::";

/// Returns the tests of a list, which names one per line; `#` begins a comment.
///
/// # Errors
///
/// Returns a message if a name is listed twice.
pub fn parse(list: &str) -> Result<BTreeSet<String>, String> {
    let mut names = BTreeSet::new();
    for line in list.lines() {
        let name = line.split('#').next().unwrap_or_default().trim();
        if !name.is_empty() && !names.insert(name.to_owned()) {
            return Err(format!("{name} is in the list twice"));
        }
    }
    Ok(names)
}

/// Compares a run with the list, and returns one line for each deviation. The result is empty if each
/// expected test ran exactly once and no other did. A skipped test did not run.
#[must_use]
pub fn compare(expected: &BTreeSet<String>, ran: &[(String, Outcome)]) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut seen = BTreeSet::new();
    for (name, outcome) in ran {
        if !seen.insert(name) {
            complaints.push(format!("! {name}: ran twice"));
        } else if !expected.contains(name) {
            complaints.push(format!("+ {name}: not in the list; add it to the list"));
        } else if let Outcome::Skipped(why) = outcome {
            complaints.push(format!("- {name}: was skipped: {why}"));
        }
    }
    let missing = expected.iter().filter(|name| !seen.contains(name));
    complaints.extend(missing.map(|name| format!("- {name}: did not run")));
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(names: &[&str]) -> Vec<(String, Outcome)> {
        names.iter().map(|name| ((*name).to_owned(), Outcome::Passed)).collect()
    }

    #[test]
    fn comments_and_blank_lines_are_ignored() {
        let names = parse("# a list\n\n a::b  # why\nc::d\n").unwrap();
        assert_eq!(names.iter().collect::<Vec<_>>(), ["a::b", "c::d"]);
        assert!(parse("a\nb\na\n").unwrap_err().contains("a is in the list twice"));
    }

    #[test]
    fn the_same_tests_in_any_order_are_right() {
        let expected = parse("a\nb").unwrap();
        assert!(compare(&expected, &ran(&["b", "a"])).is_empty());
    }

    #[test]
    fn a_failed_test_did_run() {
        let expected = parse("a").unwrap();
        assert!(compare(&expected, &[("a".into(), Outcome::Failed("no".into()))]).is_empty());
    }

    #[test]
    fn each_deviation_is_named() {
        let expected = parse("a\nb\nc").unwrap();
        let mut run = ran(&["a", "a", "x"]);
        run.push(("b".into(), Outcome::Skipped("no disk".into())));
        assert_eq!(
            compare(&expected, &run),
            [
                "! a: ran twice",
                "+ x: not in the list; add it to the list",
                "- b: was skipped: no disk",
                "- c: did not run",
            ]
        );
    }
}
