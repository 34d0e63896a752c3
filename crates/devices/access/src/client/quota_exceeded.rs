//! The error if a limit on the mapped memory of clients is reached.

use longshore_sys::account::OverLimit;
use thiserror::Error;

/// The error if the files or addresses that are mapped for a user, or for all users, would exceed a
/// limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(transparent)]
pub struct QuotaExceeded(pub(super) OverLimit);
