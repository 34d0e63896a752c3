//! Files of other machines, which are read by ranges.

use std::fmt;

use longshore_mem::VolatileSliceMut;

/// A file of another machine, of one version.
pub trait Object: fmt::Debug + Send + Sync {
    /// Returns the length in bytes.
    fn len(&self) -> u64;

    /// Returns `true` if the file is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the version that the server sends: different content has a different version. `None` if it sends
    /// none.
    fn version(&self) -> Option<&str> {
        None
    }

    /// Returns a name of the server and of the file on it, without secrets. Two files can have equal versions, but not
    /// also equal names. `None` if there is no such name.
    fn origin(&self) -> Option<&str> {
        None
    }

    /// Returns the SHA-256 checksum in hexadecimal digits, if the server sends it.
    fn sha256(&self) -> Option<&str> {
        None
    }

    /// Fills `memory` from `offset`, and blocks until that is done. The range is within the file. A transfer
    /// that breaks off is resumed. Calls `stop` at least once a second, and ends if it returns `true`.
    ///
    /// # Errors
    /// [`ObjectError`].
    fn read(
        &self,
        memory: &mut VolatileSliceMut<'_>,
        offset: u64,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), ObjectError>;
}

/// The error of a read of an [`Object`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The file is another version than the one that was opened.
    #[error("the file changed on the server")]
    Changed,
    /// The caller stopped the read.
    #[error("the read was stopped")]
    Stopped,
    /// The read failed, also after several tries.
    #[error(transparent)]
    Failed(#[from] Box<dyn std::error::Error + Send + Sync>),
}
