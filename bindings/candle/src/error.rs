//! The errors of making [`Weights`](crate::Weights).

use std::path::PathBuf;
use std::{error, fmt};

use longshore::load;

/// The result of making [`Weights`](crate::Weights).
pub type Result<T> = std::result::Result<T, Error>;

/// An error of making [`Weights`](crate::Weights).
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read, or is not valid in its format.
    Load(load::Error),
    /// Two files have a tensor of this name.
    Duplicate {
        /// The name.
        name: String,
        /// The second of the files.
        path: PathBuf,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load(error) => error.fmt(f),
            Self::Duplicate { name, path } => write!(
                f,
                "{} has the tensor {name:?}, which another file has, too; load the files apart",
                path.display()
            ),
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Load(error) => error.source(),
            Self::Duplicate { .. } => None,
        }
    }
}

impl From<load::Error> for Error {
    fn from(error: load::Error) -> Self {
        Self::Load(error)
    }
}
