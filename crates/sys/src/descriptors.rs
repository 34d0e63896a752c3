//! How many descriptors this process may have (`RLIMIT_NOFILE`).

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How many descriptors this process may have.
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises that as far as it goes without a privilege; what it is then.
///
/// # Errors
/// Those of `setrlimit(2)`.
pub fn raise_limit() -> io::Result<u64> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    Ok(limit())
}
