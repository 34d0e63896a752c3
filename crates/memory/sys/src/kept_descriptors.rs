//! Descriptors of untrusted users that this process keeps, counted by user.

use crate::account::{Account, Limits, OverLimit, Permit};
use crate::descriptors::{ROOM_FOR_MESSAGE, limit};
use crate::user::User;

static KEPT: Account = Account::new("descriptors");

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
