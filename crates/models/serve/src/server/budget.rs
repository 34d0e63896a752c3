//! The processor time that the serving thread spends for each user.
//!
//! A client can make system calls on its own connection slow: each message that is sent or received
//! there wakes every epoll that lists the client's end, a million if it likes, and each close of a file
//! walks all record locks of that file. So the serving thread measures its work for a user. Once the
//! user has used up its allowance, the thread does nothing for that user for eight times as long. No
//! request is refused: the requests of the user wait.
//!
//! Processor time is measured, because the time that the thread waits for a processor depends on other
//! programs.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use longshore_sys::thread_time;

use super::users::User;

/// The time that a user may take at once. An attachment takes the serving thread about 0.1 ms, and 7 ms
/// if the model has 120 files.
pub(super) const ALLOWANCE: Duration = Duration::from_millis(250);
/// A user whose allowance is used up gets this part of the thread's time.
const PART: u32 = 8;

/// The time that users have taken, for those to whom limits apply.
#[derive(Debug, Default)]
pub(super) struct TimeBudget {
    // One thread uses this, through shared references.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    users: BTreeMap<User, Taken>,
    /// The user for whom the thread works, and the thread's time when it began.
    current: Option<(User, Duration)>,
}

/// The time that a user has taken.
#[derive(Clone, Copy, Debug)]
struct Taken {
    /// How much it was at `at`, in time of the thread.
    time: Duration,
    at: Instant,
}

impl Taken {
    /// Returns how much of it counts now.
    fn left(self, now: Instant) -> Duration {
        self.time.saturating_sub(now.saturating_duration_since(self.at) / PART)
    }
}

impl TimeBudget {
    /// Does `work` for a user, and counts the time that it takes. Work for another user within it counts for
    /// that one.
    pub(super) fn spend<T>(&self, user: User, work: impl FnOnce() -> T) -> T {
        let outer = self.lock().work_for(Some(user));
        let done = work();
        self.lock().work_for(outer);
        done
    }

    /// Returns `true` if this user has used up its time.
    pub(super) fn is_used_up(&self, user: User, now: Instant) -> bool {
        let state = self.lock();
        let running = match state.current {
            Some((current, begin)) if current == user => thread_time().saturating_sub(begin),
            _ => Duration::ZERO,
        };
        let left = state.users.get(&user).map_or(Duration::ZERO, |taken| taken.left(now));
        user.is_limited() && left + running > ALLOWANCE
    }

    /// Returns the next time when one of the users that have used up their time has time again.
    pub(super) fn next_time(&self, now: Instant) -> Option<Instant> {
        let users = &mut self.lock().users;
        users.retain(|_, taken| !taken.left(now).is_zero());
        let too_much = users.values().filter_map(|taken| taken.left(now).checked_sub(ALLOWANCE));
        too_much.filter(|time| !time.is_zero()).min().map(|time| now + time * PART)
    }

    /// Counts time for a user, as if it was spent now.
    #[cfg(test)]
    pub(super) fn count(&self, user: User, time: Duration) {
        self.lock().count(user, time);
    }

    #[cfg(test)]
    pub(super) fn forget(&self) {
        self.lock().users.clear();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Works for another user from now on. Returns the one before.
    fn work_for(&mut self, user: Option<User>) -> Option<User> {
        let time = thread_time();
        let before = self.current.take();
        if let Some((before, begin)) = before {
            self.count(before, time.saturating_sub(begin));
        }
        self.current = user.map(|user| (user, time));
        before.map(|(before, _)| before)
    }

    fn count(&mut self, user: User, time: Duration) {
        if !user.is_limited() {
            return;
        }
        let now = Instant::now();
        let taken = self.users.entry(user).or_insert(Taken { time: Duration::ZERO, at: now });
        *taken = Taken { time: taken.left(now) + time, at: now };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes this much time of the processor.
    fn work(time: Duration) {
        let begin = thread_time();
        while thread_time() - begin < time {}
    }

    fn is_used_up(budget: &TimeBudget, user: User) -> bool {
        budget.is_used_up(user, Instant::now())
    }

    #[test]
    fn a_user_whose_time_is_used_up_gets_a_part_of_it() {
        let budget = TimeBudget::default();
        let (hostile, other) = (User::limited(1), User::limited(2));
        budget.count(hostile, ALLOWANCE / 2);
        assert!(!is_used_up(&budget, hostile) && budget.next_time(Instant::now()).is_none());
        budget.count(hostile, ALLOWANCE);
        assert!(is_used_up(&budget, hostile) && !is_used_up(&budget, other));
        let now = Instant::now();
        let again = budget.next_time(now).unwrap();
        assert!(again <= now + ALLOWANCE / 2 * PART);
        // At any time, a user is left alone or has a time at which it is not.
        let just_before = again.checked_sub(Duration::from_nanos(1000)).unwrap();
        assert!(budget.is_used_up(hostile, just_before));
        assert!(budget.next_time(just_before).is_some());
        assert!(!budget.is_used_up(hostile, again) && budget.next_time(again).is_none());
    }

    #[test]
    fn only_time_of_the_processor_counts_and_not_of_trusted_users() {
        let budget = TimeBudget::default();
        let user = User::limited(1);
        budget.spend(user, || std::thread::sleep(2 * ALLOWANCE));
        assert!(!is_used_up(&budget, user));
        budget.spend(User::trusted(), || work(2 * ALLOWANCE));
        assert!(!is_used_up(&budget, User::trusted()));
        budget.spend(user, || {
            work(2 * ALLOWANCE);
            assert!(is_used_up(&budget, user), "it is before the work has ended");
        });
        assert!(is_used_up(&budget, user));
    }

    #[test]
    fn work_within_other_work_counts_for_its_own_user() {
        let budget = TimeBudget::default();
        let (outer, inner) = (User::limited(1), User::limited(2));
        let done = budget.spend(outer, || budget.spend(inner, || (work(2 * ALLOWANCE), 7).1));
        assert_eq!(done, 7);
        assert!(!is_used_up(&budget, outer) && is_used_up(&budget, inner));
        budget.forget();
        budget.spend(outer, || {
            budget.spend(inner, || ());
            work(2 * ALLOWANCE);
        });
        assert!(is_used_up(&budget, outer) && !is_used_up(&budget, inner));
    }

    #[test]
    fn users_that_have_taken_nothing_for_long_are_forgotten() {
        let budget = TimeBudget::default();
        budget.count(User::limited(1), Duration::from_millis(1));
        assert!(budget.next_time(Instant::now() + Duration::from_secs(1)).is_none());
        assert!(budget.lock().users.is_empty());
    }
}
