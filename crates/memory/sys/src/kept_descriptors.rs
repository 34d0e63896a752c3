//! Descriptors of untrusted users that this process keeps, counted by user.

use crate::account::{Account, Limits, OverLimit, Permit};
use crate::descriptors::{ROOM_FOR_MESSAGE, limit};
use crate::user::User;

static KEPT: Account = Account::new("descriptors");
static FILES: Account = Account::new("descriptors of mapped files");

/// Counts descriptors that this process keeps for a user, until the permit is dropped. One user can have a
/// quarter of [`limit`], and all users a half, after [`ROOM_FOR_MESSAGE`] is taken off.
///
/// # Errors
/// [`OverLimit`].
pub fn keep(user: User, count: u64) -> Result<Permit, OverLimit> {
    let room = limit().saturating_sub(ROOM_FOR_MESSAGE);
    KEPT.take(user, count, Limits { per_user: room / 4, all_users: room / 2 })
}

/// Counts descriptors as [`keep`] does, and never refuses: for those of a connection, of which a server has
/// only so many.
pub fn keep_anyway(user: User, count: u64) -> Permit {
    KEPT.count(user, count)
}

/// Counts the descriptor of a mapped regular file that this process keeps for a user, until the permit is
/// dropped. Returns `None` if the user has an eighth of [`limit`] already, or all users a quarter, after
/// [`ROOM_FOR_MESSAGE`] is taken off. These are counted apart from those of [`keep`], so that a user who maps
/// many files can still have eventfds.
pub fn keep_file(user: User) -> Option<Permit> {
    let room = limit().saturating_sub(ROOM_FOR_MESSAGE);
    FILES.take(user, 1, Limits { per_user: room / 8, all_users: room / 4 }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_files_and_other_descriptors_are_counted_apart() {
        let user = User::from_uid(4_000_000_007);
        let room = limit().saturating_sub(ROOM_FOR_MESSAGE);
        let all_but_one = FILES.count(user, room / 8 - 1);
        let last = keep_file(user).unwrap();
        let others = keep(user, room / 4).unwrap();
        assert!(keep(user, 1).is_err() && keep_file(user).is_none());
        drop(others);
        assert!(keep_file(user).is_none());
        drop((all_but_one, last));
        keep_file(user).unwrap();
    }
}
