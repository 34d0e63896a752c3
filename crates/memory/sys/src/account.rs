//! Accounts of the resources of this process that untrusted users take, with a limit for each user and
//! one for all users together.
//!
//! ```
//! use longshore_sys::account::{Account, Limits};
//! use longshore_sys::closing::User;
//!
//! static THREADS: Account = Account::new("threads");
//! let limits = Limits { per_user: 1, all_users: 8 };
//!
//! let permit = THREADS.take(User::own(), 1, limits)?;
//! assert!(THREADS.take(User::own(), 1, limits).is_err());
//! drop(permit);
//! assert!(THREADS.take(User::own(), 1, limits).is_ok());
//! # Ok::<_, longshore_sys::account::OverLimit>(())
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::user::User;

/// An account of how much of a resource each user has.
#[derive(Debug)]
pub struct Account {
    resource: &'static str,
    held: Mutex<Held>,
}

/// The limits on a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The limit for each user.
    pub per_user: u64,
    /// The limit for all users together.
    pub all_users: u64,
}

#[derive(Debug)]
struct Held {
    /// The amounts of the users that have any.
    by_user: BTreeMap<User, u64>,
    total: u64,
}

impl Held {
    fn of(&self, user: User) -> u64 {
        self.by_user.get(&user).copied().unwrap_or(0)
    }

    fn add(&mut self, user: User, amount: u64) {
        if amount > 0 {
            *self.by_user.entry(user).or_default() += amount;
            self.total += amount;
        }
    }

    fn remove(&mut self, user: User, amount: u64) {
        self.total -= amount;
        match self.of(user) - amount {
            0 => self.by_user.remove(&user),
            rest => self.by_user.insert(user, rest),
        };
    }
}

impl Account {
    /// Makes an empty account. `resource` is the name of the resource in error messages, in the plural.
    pub const fn new(resource: &'static str) -> Self {
        Self { resource, held: Mutex::new(Held { by_user: BTreeMap::new(), total: 0 }) }
    }

    /// Counts `amount` more for `user` until the permit is dropped.
    ///
    /// # Errors
    /// [`OverLimit`]. Nothing is counted then.
    pub fn take(
        &'static self,
        user: User,
        amount: u64,
        limits: Limits,
    ) -> Result<Permit, OverLimit> {
        let mut permit = Permit { account: self, user, amount: 0 };
        permit.extend(amount, limits)?;
        Ok(permit)
    }

    /// Counts `amount` more for `user` until the permit is dropped, without checking limits. Use it for
    /// amounts that cannot be refused, so that they reduce what others can take.
    pub fn count(&'static self, user: User, amount: u64) -> Permit {
        self.lock().add(user, amount);
        Permit { account: self, user, amount }
    }

    /// Returns the amount that a user has.
    pub(crate) fn held(&self, user: User) -> u64 {
        self.lock().of(user)
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An amount that is counted for a user until this is dropped.
#[derive(Debug)]
pub struct Permit {
    account: &'static Account,
    user: User,
    amount: u64,
}

impl Permit {
    /// Counts `more` for the same user, too.
    ///
    /// # Errors
    /// [`OverLimit`]. The permit does not change then.
    pub fn extend(&mut self, more: u64, limits: Limits) -> Result<(), OverLimit> {
        let Self { account, user, .. } = *self;
        let mut held = account.lock();
        let check = |whose, held: u64, max| match held.checked_add(more) {
            Some(sum) if sum <= max => Ok(()),
            _ => Err(OverLimit { resource: account.resource, user, whose, held, more, max }),
        };
        check(Whose::User, held.of(user), limits.per_user)?;
        check(Whose::AllUsers, held.total, limits.all_users)?;
        held.add(user, more);
        self.amount += more;
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.amount > 0 {
            self.account.lock().remove(self.user, self.amount);
        }
    }
}

/// The error if a user cannot have more of a resource of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverLimit {
    /// The name of the resource, in the plural.
    pub resource: &'static str,
    /// The user that was refused.
    pub user: User,
    /// The limit that was reached.
    pub whose: Whose,
    /// The amount that the user, or all users, have already.
    pub held: u64,
    /// The additional amount that the user asked for.
    pub more: u64,
    /// The limit.
    pub max: u64,
}

/// The kind of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The limit for each user.
    User,
    /// The limit for all users together.
    AllUsers,
}

impl fmt::Display for OverLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, user, held, more, max, .. } = self;
        match self.whose {
            Whose::User => write!(
                f,
                "{user} has {held} {resource} in this process and cannot have {more} more: one user \
                 can have {max}"
            ),
            Whose::AllUsers => write!(
                f,
                "all users have {held} {resource} in this process and {user} cannot have {more} \
                 more: all users together can have {max}"
            ),
        }
    }
}

impl Error for OverLimit {}

impl From<OverLimit> for io::Error {
    fn from(error: OverLimit) -> Self {
        Self::new(io::ErrorKind::QuotaExceeded, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { per_user: 4, all_users: 6 };

    #[test]
    fn a_user_cannot_exceed_its_own_limit_or_that_of_all_users() {
        static ACCOUNT: Account = Account::new("things");
        let take = |uid, amount| ACCOUNT.take(User::from_uid(uid), amount, LIMITS);
        let _three = take(1, 3).unwrap();
        let refused = take(1, 2).unwrap_err();
        assert_eq!(
            (refused.whose, refused.held, refused.more, refused.max),
            (Whose::User, 3, 2, 4)
        );
        assert_eq!(
            refused.to_string(),
            "user 1 has 3 things in this process and cannot have 2 more: one user can have 4"
        );
        let _one = take(1, 1).unwrap();
        let two = take(2, 2).unwrap();
        let refused = take(3, 1).unwrap_err();
        assert_eq!((refused.whose, refused.held), (Whose::AllUsers, 6));
        assert_eq!(
            refused.to_string(),
            "all users have 6 things in this process and user 3 cannot have 1 more: all users \
             together can have 6"
        );
        drop(two);
        let _two = take(3, 2).unwrap();
        assert!(take(4, u64::MAX).is_err());
    }

    #[test]
    fn an_unchecked_amount_counts_against_the_limit() {
        static ACCOUNT: Account = Account::new("things");
        let counted = ACCOUNT.count(User::from_uid(1), 5);
        assert_eq!(ACCOUNT.take(User::from_uid(1), 1, LIMITS).unwrap_err().held, 5);
        drop(counted);
        ACCOUNT.take(User::from_uid(1), 1, LIMITS).unwrap();
    }

    #[test]
    fn permits_return_their_amount_and_refused_amounts_are_not_counted() {
        static ACCOUNT: Account = Account::new("things");
        let mut permit = ACCOUNT.take(User::from_uid(1), 1, LIMITS).unwrap();
        permit.extend(2, LIMITS).unwrap();
        permit.extend(2, LIMITS).unwrap_err();
        let other = ACCOUNT.take(User::from_uid(1), 1, LIMITS).unwrap();
        assert_eq!(ACCOUNT.lock().total, 4);
        drop(permit);
        assert_eq!(ACCOUNT.lock().of(User::from_uid(1)), 1);
        drop(other);
        ACCOUNT.take(User::from_uid(2), 5, LIMITS).unwrap_err();
        assert!(ACCOUNT.lock().by_user.is_empty() && ACCOUNT.lock().total == 0);
    }
}
