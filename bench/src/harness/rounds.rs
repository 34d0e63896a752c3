//! Running candidates by turns.
//!
//! ```text
//!   round   0 (thrown away)   1         2         3
//!           A B C             A B C     B C A     C A B
//! ```
//!
//! By turns, because a machine's speed drifts; each round begins with another candidate, because
//! what ran before leaves its marks on memory and disk.

use crate::harness::candidate::{Candidate, Metric, Trouble};
use crate::harness::measured::{Entry, Measured};

/// How often candidates run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounds {
    /// Thrown away.
    pub(crate) warm_up: usize,
    pub(crate) counted: usize,
}

/// Runs every candidate in every round. One that cannot run, or fails, is left out from there on,
/// and what it gave before does not count.
///
/// `tell` hears of each run: the round, of how many, the candidate, and how it went. `out_of_time`
/// is asked before each run.
pub(crate) fn run(
    case: &str,
    rounds: Rounds,
    candidates: &mut [Box<dyn Candidate + '_>],
    mut tell: impl FnMut(usize, &str, &Result<Vec<(Metric, f64)>, Trouble>),
    out_of_time: impl Fn() -> Option<String>,
) -> Measured {
    let mut entries: Vec<Entry> =
        candidates.iter().map(|candidate| Entry::new(candidate.name())).collect();
    for round in 0..rounds.warm_up + rounds.counted {
        let first = round.saturating_sub(rounds.warm_up);
        for turn in 0..candidates.len() {
            let at = (first + turn) % candidates.len();
            let (candidate, entry) = (&mut candidates[at], &mut entries[at]);
            if entry.trouble.is_some() {
                continue;
            }
            let outcome = match out_of_time() {
                Some(why) => Err(Trouble::NotRun(why)),
                None => candidate.measure(),
            };
            tell(round, &entry.candidate, &outcome);
            match outcome {
                Ok(sample) if round >= rounds.warm_up => entry.add(sample),
                Ok(_) => {}
                Err(trouble) => entry.give_up(trouble, candidate.is_ours()),
            }
        }
    }
    for (candidate, entry) in candidates.iter().zip(&mut entries) {
        entry.note = candidate.note();
    }
    Measured::new(case, entries)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    const SPEED: Metric = Metric { name: "speed", unit: "GB/s" };

    struct Counted<'a> {
        name: &'static str,
        runs: f64,
        fails_at: Option<f64>,
        log: &'a RefCell<String>,
    }

    impl Candidate for Counted<'_> {
        fn name(&self) -> &str {
            self.name
        }

        fn measure(&mut self) -> Result<Vec<(Metric, f64)>, Trouble> {
            self.log.borrow_mut().push_str(self.name);
            self.runs += 1.0;
            if self.fails_at == Some(self.runs) {
                return Err(Trouble::NotRun("gone".to_owned()));
            }
            Ok(vec![(SPEED, self.runs)])
        }
    }

    #[test]
    fn candidates_take_turns_and_the_first_round_is_thrown_away() {
        let log = RefCell::new(String::new());
        let counted = |name, fails_at| -> Box<dyn Candidate + '_> {
            Box::new(Counted { name, runs: 0.0, fails_at, log: &log })
        };
        let mut candidates = [counted("a", None), counted("b", Some(3.0)), counted("c", None)];
        let rounds = Rounds { warm_up: 1, counted: 3 };
        let measured = run("case", rounds, &mut candidates, |_, _, _| {}, || None);
        assert_eq!(*log.borrow(), "abcabcbcaca", "b is left out after its third run");
        assert_eq!(measured.values("a", SPEED).unwrap(), [2.0, 3.0, 4.0]);
        assert_eq!(measured.values("b", SPEED), None);
    }

    #[test]
    fn time_that_is_over_is_said_so() {
        let log = RefCell::new(String::new());
        let candidate = Counted { name: "a", runs: 0.0, fails_at: None, log: &log };
        let rounds = Rounds { warm_up: 0, counted: 2 };
        let mut candidates: [Box<dyn Candidate + '_>; 1] = [Box::new(candidate)];
        let measured =
            run("case", rounds, &mut candidates, |_, _, _| {}, || Some("over".to_owned()));
        assert_eq!(measured.why_not("a").as_deref(), Some("over"));
        assert!(log.borrow().is_empty());
    }
}
