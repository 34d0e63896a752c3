//! How much time of the serving thread each user takes.
//!
//! A client can make calls of the kernel on its own connection slow: each message that is sent or received
//! there wakes every epoll that lists the client's end, a million if it likes, and each close of a file
//! looks at all record locks of that file. So the serving thread measures what it does for a user, and
//! leaves that user alone for eight times as long once it has used up its allowance. Nothing is
//! refused: what the user wants waits.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::users::User;

/// How much time a user may take at once. An attachment takes the serving thread about 0.1 ms.
const ALLOWANCE: Duration = Duration::from_millis(100);
/// A user whose allowance is used up gets this part of the thread's time.
const PART: u32 = 8;
/// The most that counts, so that a server that was stopped leaves nobody alone for long.
const TAKEN_MAX: Duration = Duration::from_secs(2);

/// The time that users have taken, for those to whom limits apply.
#[derive(Debug, Default)]
pub(super) struct TimeBudget {
    users: Mutex<BTreeMap<User, Taken>>,
    /// `true` while time is measured. What is done meanwhile is measured already.
    is_measuring: AtomicBool,
}

/// What a user has taken.
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
    /// Does `work` for a user, and counts how long it takes. Work within other work counts for the user of
    /// the outer one.
    pub(super) fn spend<T>(&self, user: User, work: impl FnOnce() -> T) -> T {
        if !user.is_limited() || self.is_measuring.swap(true, Ordering::Relaxed) {
            return work();
        }
        let begin = Instant::now();
        let done = work();
        self.is_measuring.store(false, Ordering::Relaxed);
        self.count(user, begin.elapsed());
        done
    }

    /// Counts time that was taken for a user.
    pub(super) fn count(&self, user: User, time: Duration) {
        let now = Instant::now();
        let mut users = self.lock();
        let taken = users.entry(user).or_insert(Taken { time: Duration::ZERO, at: now });
        *taken = Taken { time: (taken.left(now) + time).min(TAKEN_MAX), at: now };
    }

    /// Returns whether this user is to be left alone for now.
    pub(super) fn is_used_up(&self, user: User) -> bool {
        user.is_limited()
            && self.lock().get(&user).is_some_and(|taken| taken.left(Instant::now()) > ALLOWANCE)
    }

    /// Returns when the next user that is left alone has time again.
    pub(super) fn next_time(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut users = self.lock();
        users.retain(|_, taken| !taken.left(now).is_zero());
        let too_much = users.values().filter_map(|taken| taken.left(now).checked_sub(ALLOWANCE));
        too_much.filter(|time| !time.is_zero()).min().map(|time| now + time * PART)
    }

    #[cfg(test)]
    pub(super) fn forget(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<User, Taken>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_user_whose_time_is_used_up_gets_a_part_of_it() {
        let budget = TimeBudget::default();
        let (hostile, other) = (User::limited(1), User::limited(2));
        budget.count(hostile, ALLOWANCE / 2);
        assert!(!budget.is_used_up(hostile) && budget.next_time().is_none());
        budget.count(hostile, ALLOWANCE);
        assert!(budget.is_used_up(hostile) && !budget.is_used_up(other));
        let again = budget.next_time().unwrap();
        let wait = again.saturating_duration_since(Instant::now());
        assert!(wait <= ALLOWANCE / 2 * PART, "{wait:?}");
        thread::sleep(wait + Duration::from_millis(1));
        assert!(!budget.is_used_up(hostile) && budget.next_time().is_none());
    }

    #[test]
    fn time_is_measured_once_and_not_for_trusted_users() {
        let budget = TimeBudget::default();
        let (outer, inner) = (User::limited(1), User::limited(2));
        let pause = || thread::sleep(2 * ALLOWANCE);
        budget.spend(User::trusted(), pause);
        assert!(!budget.is_used_up(User::trusted()) && budget.lock().is_empty());
        assert_eq!(budget.spend(outer, || budget.spend(inner, || (pause(), 7).1)), 7);
        assert!(budget.is_used_up(outer) && !budget.lock().contains_key(&inner));
        budget.spend(inner, pause);
        assert!(budget.is_used_up(inner), "it measures again");
    }

    #[test]
    fn a_user_is_left_alone_for_a_bounded_time() {
        let budget = TimeBudget::default();
        budget.count(User::limited(1), Duration::from_secs(3600));
        let wait = budget.next_time().unwrap().saturating_duration_since(Instant::now());
        assert!(wait <= TAKEN_MAX * PART, "{wait:?}");
    }

    #[test]
    fn users_that_have_taken_nothing_for_long_are_forgotten() {
        let budget = TimeBudget::default();
        budget.count(User::limited(1), Duration::from_nanos(1));
        thread::sleep(Duration::from_millis(1));
        assert!(budget.next_time().is_none() && budget.lock().is_empty());
    }
}
