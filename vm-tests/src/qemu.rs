//! The QEMU that runs a guest.

mod unpacked;

use std::{path::PathBuf, process::Command};

use crate::{
    error::Result,
    tool::{QEMU, QEMU_AARCH64, SETPRIV},
};

/// A QEMU that can be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qemu {
    program: PathBuf,
    leading_args: Vec<String>,
}

impl Qemu {
    /// Returns the host's own; Debian 12 has 7.2.
    ///
    /// # Errors
    ///
    /// Returns [`MissingTool`](crate::Error::MissingTool) if it is not installed.
    pub fn system() -> Result<Self> {
        Ok(Self { program: QEMU.find()?, leading_args: Vec::new() })
    }

    /// Returns the host's own for AArch64.
    ///
    /// # Errors
    ///
    /// Returns [`MissingTool`](crate::Error::MissingTool) if it is not installed.
    pub fn system_aarch64() -> Result<Self> {
        Ok(Self { program: QEMU_AARCH64.find()?, leading_args: Vec::new() })
    }

    /// Returns QEMU 11, which supports vfio-user, from Debian's next release. It is downloaded (48 MB)
    /// and unpacked into the cache, with every library that it needs.
    ///
    /// # Errors
    ///
    /// Returns [`Unavailable`](crate::Error::Unavailable) if it is not in the cache and cannot be
    /// downloaded.
    pub fn v11() -> Result<Self> {
        Self::unpacked(&unpacked::X86_64)
    }

    /// Returns QEMU 11 for AArch64, obtained in the same way.
    ///
    /// # Errors
    ///
    /// Like [`v11`](Self::v11).
    pub fn v11_aarch64() -> Result<Self> {
        Self::unpacked(&unpacked::AARCH64)
    }

    fn unpacked(emulator: &unpacked::Emulator) -> Result<Self> {
        let unpacked = unpacked::obtain(emulator)?;
        Ok(Self { program: unpacked.loader, leading_args: unpacked.leading_args })
    }

    /// Returns the version: the first line of `--version`.
    ///
    /// # Errors
    ///
    /// Returns an error if QEMU does not start.
    pub fn version(&self) -> Result<String> {
        let said = crate::tool::output(self.command()?.arg("--version"))?;
        let said = String::from_utf8_lossy(&said);
        Ok(said.lines().next().unwrap_or_default().to_owned())
    }

    /// Returns a command that the kernel kills when the calling thread ends, so that a killed harness
    /// leaves no guest that uses a processor.
    pub(crate) fn command(&self) -> Result<Command> {
        let mut command = SETPRIV.command()?;
        command.args(["--pdeathsig", "KILL", "--"]).arg(&self.program).args(&self.leading_args);
        Ok(command)
    }
}
