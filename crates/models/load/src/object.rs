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
    /// that breaks off is resumed. Calls [`ReadControl::should_stop`] at least once a second.
    ///
    /// # Errors
    /// [`ObjectError`].
    fn read(
        &self,
        memory: &mut VolatileSliceMut<'_>,
        offset: u64,
        control: &dyn ReadControl,
    ) -> Result<(), ObjectError>;
}

/// The control of a read of an [`Object`]. A closure is one that returns `true` to end the read.
pub trait ReadControl: Sync {
    /// Returns `true` if the read is to end with [`ObjectError::Stopped`].
    fn should_stop(&self) -> bool;

    /// Reports that `bytes` bytes of the memory are filled, in any order. This is for the display of progress:
    /// fewer can be filled later, if a part of the read is repeated.
    fn filled(&self, bytes: usize) {
        let _ = bytes;
    }
}

impl<F: Fn() -> bool + Sync> ReadControl for F {
    fn should_stop(&self) -> bool {
        self()
    }
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
