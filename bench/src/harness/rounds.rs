//! Runs candidates in alternation.
//!
//! ```text
//!   round   0 (discarded)     1         2         3
//!           A B C             A B C     B C A     C A B
//! ```
//!
//! Candidates alternate because a machine's speed drifts. Each round begins with another candidate,
//! because a run leaves traces in memory and on the disk that affect the next one.

use crate::harness::candidate::{Candidate, Run, Trouble};
use crate::harness::measured::{Entry, Measured};

/// The number of rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounds {
    /// The first rounds, which are discarded.
    pub(crate) warm_up: usize,
    pub(crate) counted: usize,
}

/// Runs every candidate in every round. A candidate that cannot run, or fails, is left out from then on,
/// and its earlier values are discarded.
///
/// `tell` is called after each run, with the round, the candidate and the outcome. `out_of_time` is
/// called before each run; if it returns a reason, the rounds end, and only complete rounds are kept.
pub(crate) fn run(
    case: &str,
    rounds: Rounds,
    candidates: &mut [Candidate<'_>],
    mut tell: impl FnMut(usize, &str, &Result<Run, Trouble>),
    out_of_time: impl Fn() -> Option<String>,
) -> Measured {
    let mut entries: Vec<Entry> =
        candidates.iter().map(|candidate| Entry::new(&candidate.name)).collect();
    let strides = strides(candidates.len());
    'rounds: for round in 0..rounds.warm_up + rounds.counted {
        let first = round.saturating_sub(rounds.warm_up);
        for turn in 0..candidates.len() {
            let at = (first + turn * strides[first % strides.len()]) % candidates.len();
            if entries[at].trouble.is_some() {
                continue;
            }
            if let Some(why) = out_of_time() {
                for entry in &mut entries {
                    entry.end_after(first, &why);
                }
                break 'rounds;
            }
            let (candidate, entry) = (&mut candidates[at], &mut entries[at]);
            let outcome = candidate.run();
            tell(round, &entry.candidate, &outcome);
            match outcome {
                Ok(run) => {
                    if run.note.is_some() {
                        entry.note = run.note;
                    }
                    if round >= rounds.warm_up {
                        entry.add(run.sample, run.cost.unwrap_or_default());
                    }
                }
                Err(trouble) => entry.give_up(trouble, candidate.is_ours),
            }
        }
    }
    for (candidate, entry) in candidates.iter().zip(&mut entries) {
        entry.note = entry.note.take().or_else(|| candidate.note.clone());
    }
    Measured::new(case, entries)
}

/// Returns the strides that reach every one of `count` places.
fn strides(count: usize) -> Vec<usize> {
    const fn common_divisor(one: usize, other: usize) -> usize {
        if other == 0 { one } else { common_divisor(other, one % other) }
    }
    (1..count.max(2)).filter(|stride| common_divisor(count, *stride) == 1).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::harness::metric::SPEED;

    /// Makes a candidate whose value is the number of its run, and that fails in run `fails_at`.
    fn counted<'a>(
        name: &'static str,
        fails_at: Option<f64>,
        log: &'a RefCell<String>,
    ) -> Candidate<'a> {
        let mut runs = 0.0;
        Candidate::new(name, move || {
            log.borrow_mut().push_str(name);
            runs += 1.0;
            if fails_at == Some(runs) {
                return Err(Trouble::NotRun("gone".to_owned()));
            }
            Ok(vec![(SPEED, runs)])
        })
    }

    #[test]
    fn candidates_alternate_and_the_first_round_is_discarded() {
        let log = RefCell::new(String::new());
        let counted = |name, fails_at| counted(name, fails_at, &log);
        let mut candidates = [counted("a", None), counted("b", Some(3.0)), counted("c", None)];
        let rounds = Rounds { warm_up: 1, counted: 3 };
        let measured = run("case", rounds, &mut candidates, |_, _, _| {}, || None);
        assert_eq!(*log.borrow(), "abcabcbacca", "b is left out after its third run");
        assert_eq!(measured.values("a", SPEED).unwrap(), [2.0, 3.0, 4.0]);
        assert_eq!(measured.values("b", SPEED), None);
    }

    #[test]
    fn when_time_is_over_only_complete_rounds_are_kept() {
        let log = RefCell::new(String::new());
        let counted = |name| counted(name, None, &log);
        let rounds = Rounds { warm_up: 0, counted: 3 };
        let run_until = |runs: usize| {
            log.borrow_mut().clear();
            let over = || (log.borrow().len() >= runs).then(|| "over".to_owned());
            run("case", rounds, &mut [counted("a"), counted("b")], |_, _, _| {}, over)
        };
        let measured = run_until(3);
        assert_eq!(*log.borrow(), "abb", "the second round began with b");
        for name in ["a", "b"] {
            assert_eq!(measured.values(name, SPEED).unwrap(), [1.0], "{name}");
        }
        let measured = run_until(1);
        for name in ["a", "b"] {
            assert_eq!(measured.why_not(name).as_deref(), Some("over"), "{name}");
        }
    }
}
