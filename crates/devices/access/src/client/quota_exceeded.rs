//! The error if a limit on the mapped memory of clients is reached.

use longshore_sys::account::OverLimit;
use thiserror::Error;

/// The error if more files or addresses would be mapped for a user, or for all users, than the limits
/// allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(transparent)]
pub struct QuotaExceeded(pub(super) OverLimit);
