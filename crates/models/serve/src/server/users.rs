//! The users between whom a server divides its resources.

use std::fmt;
use std::fs;
use std::ops::Range;

use crate::passwd;

/// A user, together with its subordinate user ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct User {
    uid: u32,
    /// `true` if the limits for one user apply to it.
    is_limited: bool,
}

impl User {
    /// A user by its id alone.
    #[cfg(test)]
    pub(super) const fn limited(uid: u32) -> Self {
        Self { uid, is_limited: true }
    }

    /// A user without limits.
    #[cfg(test)]
    pub(super) const fn trusted() -> Self {
        Self { uid: 0, is_limited: false }
    }

    /// Returns its id.
    pub(super) fn uid(self) -> u32 {
        self.uid
    }

    /// Returns `true` if the limits for one user apply to it.
    pub(super) fn is_limited(self) -> bool {
        self.is_limited
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {}", self.uid)
    }
}

/// The user to whom each id belongs.
///
/// A user with a range in `/etc/subuid` can run processes under any id of that range. They all count
/// as that user. The limits do not apply to root and to the server's own user, but they do apply to
/// the subordinate ids of these two, which together count as one more user.
#[derive(Debug)]
pub struct Users {
    own: u32,
    ranges: Vec<(Range<u32>, u32)>,
}

impl Users {
    /// Reads `/etc/subuid`. Ranges that are defined elsewhere are not known.
    pub fn of_system() -> Self {
        let subuid = fs::read_to_string("/etc/subuid").unwrap_or_default();
        Self::parse(longshore_sys::effective_uid(), &subuid, &passwd::text())
    }

    /// Lines that are malformed, or whose owner is unknown, are ignored, as `newuidmap` does.
    pub(super) fn parse(own: u32, subuid: &str, passwd: &str) -> Self {
        let range = |line: &str| {
            let mut fields = line.trim().split(':');
            let (owner, first, count) = (fields.next()?, fields.next()?, fields.next()?);
            let first: u32 = first.parse().ok()?;
            let end = first.saturating_add(count.parse().ok()?);
            let uid = owner.parse().ok().or_else(|| passwd::uid_of(owner, passwd))?;
            Some((first..end, uid))
        };
        Self { own, ranges: subuid.lines().filter_map(range).collect() }
    }

    /// Returns the id of the user to whom a process with this id is charged: the owner of a subordinate
    /// id.
    pub fn owner_of(&self, uid: u32) -> u32 {
        self.of(uid).uid
    }

    /// Returns the user to whom a process with this id is charged.
    pub(super) fn of(&self, uid: u32) -> User {
        if uid == 0 || uid == self.own {
            return User { uid, is_limited: false };
        }
        let owner = self.ranges.iter().find(|(range, _)| range.contains(&uid));
        User { uid: owner.map_or(uid, |(_, owner)| *owner), is_limited: true }
    }

    /// Returns the server's own user.
    pub(super) fn own(&self) -> User {
        self.of(self.own)
    }
}

/// The users whose descriptors are counted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Of {
    One(User),
    /// All users to whom the limits apply.
    Limited,
    /// All users, the server itself, and models in memory without attachments.
    All,
}

impl Of {
    pub(super) fn contains(self, user: User) -> bool {
        match self {
            Self::One(one) => one == user,
            Self::Limited => user.is_limited(),
            Self::All => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subordinate_ids_count_as_their_owner() {
        let passwd = "root:x:0:0::/:/bin/sh\nalice:x:1000:1000::/:/bin/sh\n";
        let subuid = "alice:100000:65536\n1001:200000:10\nroot:300000:5\nabsent:400000:5\n\
                      alice:500000\nalice:x:1\n900:4294967290:100\n\n";
        let users = Users::parse(900, subuid, passwd);
        let limited = User::limited;
        for (uid, user) in [
            (1000, limited(1000)),
            (99_999, limited(99_999)),
            (100_000, limited(1000)),
            (165_535, limited(1000)),
            (165_536, limited(165_536)),
            (200_009, limited(1001)),
            (200_010, limited(200_010)),
            (400_000, limited(400_000)),
            (500_000, limited(500_000)),
            // Not the same as root and the server's user, which have no limits.
            (300_000, limited(0)),
            (4_294_967_294, limited(900)),
        ] {
            assert_eq!((users.of(uid), users.owner_of(uid)), (user, user.uid()), "{uid}");
        }
        for uid in [0, 900] {
            assert!(!users.of(uid).is_limited(), "{uid}");
        }
        assert_eq!(users.own(), users.of(900));
    }

    #[test]
    fn a_range_that_contains_root_does_not_limit_root() {
        let users = Users::parse(900, "1000:0:4294967295\n", "");
        assert!(!users.of(0).is_limited() && !users.of(900).is_limited());
        assert_eq!(users.of(5), User::limited(1000));
    }
}
