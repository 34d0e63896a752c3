//! Loads kernel modules.

use std::fs::File;

use rustix::io::Errno;

use super::{Error, Result};

/// Loads the module in the file `path`, whose dependencies are already loaded.
pub(super) fn load(path: &str) -> Result<()> {
    let file = File::open(path).map_err(Error::system("opening", path))?;
    match rustix::system::finit_module(&file, c"", 0) {
        Ok(()) => Ok(()),
        // The kernel loads some modules by itself, such as a checksum's driver at its first use.
        Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(Error::system("loading the module", path)(error)),
    }
}
