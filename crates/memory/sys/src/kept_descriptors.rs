//! Descriptors of untrusted users that this process keeps, counted by user.

use crate::account::{Account, Limits, OverLimit, Permit};
use crate::descriptors::{ROOM_FOR_MESSAGE, limit};
use crate::user::User;

static KEPT: Account = Account::new("descriptors");
static FILES: Account = Account::new("descriptors of mapped files");

/// Counts descriptors that this process keeps for a user, until the permit is dropped. Of [`limit`]
/// minus [`ROOM_FOR_MESSAGE`], one user can have a quarter, and all users a half.
///
/// # Errors
/// [`OverLimit`].
pub fn keep(user: User, count: u64) -> Result<Permit, OverLimit> {
    let room = limit().saturating_sub(ROOM_FOR_MESSAGE);
    KEPT.take(user, count, Limits { per_user: room / 4, all_users: room / 2 })
}

/// Counts descriptors like [`keep`], but never fails. It is for the descriptors of connections, whose
/// number a server limits itself.
pub fn keep_anyway(user: User, count: u64) -> Permit {
    KEPT.count(user, count)
}

/// Counts the descriptor of a mapped regular file that this process keeps for a user, until the permit
/// is dropped. Of [`limit`] minus [`ROOM_FOR_MESSAGE`], one user can have an eighth, and all users a
/// quarter. These are counted separately from those of [`keep`], so that a user who maps many files can
/// still have eventfds.
///
/// # Errors
/// [`OverLimit`].
pub fn keep_file(user: User) -> Result<Permit, OverLimit> {
    let room = limit().saturating_sub(ROOM_FOR_MESSAGE);
    FILES.take(user, 1, Limits { per_user: room / 8, all_users: room / 4 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_files_and_other_descriptors_are_counted_separately() {
        let user = User::from_uid(4_000_000_007);
        let room = limit().saturating_sub(ROOM_FOR_MESSAGE);
        let all_but_one = FILES.count(user, room / 8 - 1);
        let last = keep_file(user).unwrap();
        let others = keep(user, room / 4).unwrap();
        assert!(keep(user, 1).is_err() && keep_file(user).is_err());
        drop(others);
        assert!(keep_file(user).is_err());
        drop((all_but_one, last));
        keep_file(user).unwrap();
    }
}
