//! Which QEMU runs the guest.

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
    /// The machine's own; Debian 12 has 7.2.
    ///
    /// # Errors
    ///
    /// [`MissingTool`](crate::Error::MissingTool) if it is not installed.
    pub fn system() -> Result<Self> {
        Ok(Self { program: QEMU.find()?, leading_args: Vec::new() })
    }

    /// The machine's own that emulates AArch64.
    ///
    /// # Errors
    ///
    /// [`MissingTool`](crate::Error::MissingTool) if it is not installed.
    pub fn system_aarch64() -> Result<Self> {
        Ok(Self { program: QEMU_AARCH64.find()?, leading_args: Vec::new() })
    }

    /// QEMU 11, which knows vfio-user, from Debian's next release: downloaded (48 MB) and unpacked
    /// into the cache beside the machine's own, with every library it needs.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::Error::Unavailable) if it is not in the cache and cannot be had.
    pub fn v11() -> Result<Self> {
        Self::unpacked(&unpacked::X86_64)
    }

    /// QEMU 11 that emulates AArch64, had in the same way.
    ///
    /// # Errors
    ///
    /// As for [`v11`](Self::v11).
    pub fn v11_aarch64() -> Result<Self> {
        Self::unpacked(&unpacked::AARCH64)
    }

    fn unpacked(emulator: &unpacked::Emulator) -> Result<Self> {
        let unpacked = unpacked::obtain(emulator)?;
        Ok(Self { program: unpacked.loader, leading_args: unpacked.leading_args })
    }

    /// The version, as `--version` prints it on its first line.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub fn version(&self) -> Result<String> {
        let said = crate::tool::output(self.command()?.arg("--version"))?;
        let said = String::from_utf8_lossy(&said);
        Ok(said.lines().next().unwrap_or_default().to_owned())
    }

    /// A call of it that the kernel ends when the calling thread does, so that a harness that is
    /// killed leaves no guest burning a processor.
    pub(crate) fn command(&self) -> Result<Command> {
        let mut command = SETPRIV.command()?;
        command.args(["--pdeathsig", "KILL", "--"]).arg(&self.program).args(&self.leading_args);
        Ok(command)
    }
}
