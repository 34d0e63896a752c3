//! A limit on the lines that each user can make a server log.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The most lines that a user can cause at once.
const BURST: u32 = 1000;
/// The time after which a user can cause one more line.
const PERIOD: Duration = Duration::from_millis(50);
/// The most users with a bucket of their own; all others share one. Together with the bucket of the
/// server itself, that allows at most 18,000 lines at once and 360 a second, even if one person has many
/// user ids.
const USERS_MAX: usize = 16;

/// A token bucket for each user.
#[derive(Debug, Default)]
pub(crate) struct RateLimit {
    buckets: HashMap<Key, Bucket>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    User(u32),
    /// All users without a bucket of their own.
    OtherUsers,
    /// The server itself, whose lines no user can use up.
    NoUser,
}

#[derive(Debug)]
struct Bucket {
    lines: u32,
    filled: Instant,
    suppressed: u64,
}

/// The answer for one line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Print it. Since the last printed line of the user, this many were suppressed.
    Print { suppressed: u64 },
    /// Instead of it, print that lines of this user are suppressed from now on.
    Announce,
    /// Do not print it.
    Suppress,
}

impl RateLimit {
    /// Counts a line that the user `uid`, or the server itself if `None`, causes at the time `now`.
    pub(crate) fn count(&mut self, uid: impl Into<Option<u32>>, now: Instant) -> Verdict {
        let mut key = uid.into().map_or(Key::NoUser, Key::User);
        if key != Key::NoUser && self.has_all_users() && !self.buckets.contains_key(&key) {
            // A full bucket is equal to a new one, so it can be removed.
            self.buckets.retain(|_, bucket| {
                bucket.fill(now);
                bucket.lines < BURST || bucket.suppressed > 0
            });
            if self.has_all_users() {
                key = Key::OtherUsers;
            }
        }
        let full = Bucket { lines: BURST, filled: now, suppressed: 0 };
        let bucket = self.buckets.entry(key).or_insert(full);
        bucket.fill(now);
        if bucket.lines == 0 {
            bucket.suppressed += 1;
            return if bucket.suppressed == 1 { Verdict::Announce } else { Verdict::Suppress };
        }
        bucket.lines -= 1;
        Verdict::Print { suppressed: std::mem::take(&mut bucket.suppressed) }
    }

    /// Returns `true` if no other user can get a bucket of its own.
    fn has_all_users(&self) -> bool {
        self.buckets.keys().filter(|key| matches!(key, Key::User(_))).count() >= USERS_MAX
    }
}

impl Bucket {
    fn fill(&mut self, now: Instant) {
        let periods = now.saturating_duration_since(self.filled).as_nanos() / PERIOD.as_nanos();
        let periods = u32::try_from(periods).unwrap_or(u32::MAX).min(BURST);
        if periods == BURST {
            self.filled = now;
        } else {
            self.filled += PERIOD * periods;
        }
        self.lines = (self.lines + periods).min(BURST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_limited_and_others_are_not() {
        let (mut limit, start) = (RateLimit::default(), Instant::now());
        for _ in 0..BURST {
            assert_eq!(limit.count(1, start), Verdict::Print { suppressed: 0 });
        }
        assert_eq!(limit.count(1, start), Verdict::Announce);
        assert_eq!(limit.count(1, start + PERIOD / 2), Verdict::Suppress);
        assert_eq!(limit.count(2, start), Verdict::Print { suppressed: 0 });
        assert_eq!(limit.count(1, start + PERIOD), Verdict::Print { suppressed: 2 });
        assert_eq!(limit.count(1, start + PERIOD), Verdict::Announce);
        // The half period that had passed before still counts.
        assert_eq!(limit.count(1, start + PERIOD * 2), Verdict::Print { suppressed: 1 });
        let later = start + PERIOD * (BURST + 2);
        for _ in 0..BURST {
            assert_eq!(limit.count(1, later), Verdict::Print { suppressed: 0 });
        }
        assert_eq!(limit.count(1, later), Verdict::Announce);
    }

    #[test]
    fn the_lines_of_all_users_together_are_limited() {
        let (mut limit, start) = (RateLimit::default(), Instant::now());
        let mut printed = 0;
        for uid in (0..500).map(Some).chain([None]) {
            let verdicts = (0..BURST).map(|_| limit.count(uid, start));
            printed += verdicts.filter(|it| matches!(it, Verdict::Print { .. })).count();
        }
        assert_eq!(printed, (USERS_MAX + 2) * BURST as usize);
        assert_eq!(printed, 18_000);
    }

    #[test]
    fn no_user_can_use_up_the_lines_of_the_server_itself() {
        let (mut limit, start) = (RateLimit::default(), Instant::now());
        for uid in 0..500 {
            (0..=BURST).for_each(|_| _ = limit.count(uid, start));
        }
        for _ in 0..BURST {
            assert_eq!(limit.count(None, start), Verdict::Print { suppressed: 0 });
        }
        assert_eq!(limit.count(None, start), Verdict::Announce);
    }

    #[test]
    fn further_users_share_a_bucket_until_others_are_removed() {
        let (mut limit, start) = (RateLimit::default(), Instant::now());
        for uid in 0..USERS_MAX as u32 {
            assert_eq!(limit.count(uid, start), Verdict::Print { suppressed: 0 });
        }
        for uid in (USERS_MAX as u32..).take(BURST as usize) {
            assert_eq!(limit.count(uid, start), Verdict::Print { suppressed: 0 });
        }
        assert_eq!(limit.count(u32::MAX, start), Verdict::Announce);
        assert_eq!(limit.count(0, start), Verdict::Print { suppressed: 0 });
        assert_eq!(limit.buckets.len(), USERS_MAX + 1);
        // All are removed but the shared one and the two that are not full.
        assert_eq!(limit.count(u32::MAX, start + PERIOD), Verdict::Print { suppressed: 0 });
        assert_eq!(limit.buckets.len(), 3);
    }
}
