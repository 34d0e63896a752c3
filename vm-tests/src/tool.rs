//! Programs of the host that the harness calls.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use crate::error::{Error, Result};

/// A program, and the Debian package that contains it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tool {
    pub(crate) program: &'static str,
    pub(crate) package: &'static str,
}

pub(crate) const APT_GET: Tool = Tool { program: "apt-get", package: "apt" };
pub(crate) const APT_CACHE: Tool = Tool { program: "apt-cache", package: "apt" };
pub(crate) const DPKG_DEB: Tool = Tool { program: "dpkg-deb", package: "dpkg" };
pub(crate) const TAR: Tool = Tool { program: "tar", package: "tar" };
pub(crate) const XZ: Tool = Tool { program: "xz", package: "xz-utils" };
pub(crate) const DF: Tool = Tool { program: "df", package: "coreutils" };
pub(crate) const MAKE: Tool = Tool { program: "make", package: "make" };
pub(crate) const GCC: Tool = Tool { program: "gcc", package: "gcc" };
pub(crate) const LD: Tool = Tool { program: "ld", package: "binutils" };
pub(crate) const FLEX: Tool = Tool { program: "flex", package: "flex" };
pub(crate) const BISON: Tool = Tool { program: "bison", package: "bison" };
pub(crate) const BC: Tool = Tool { program: "bc", package: "bc" };
pub(crate) const DEPMOD: Tool = Tool { program: "depmod", package: "kmod" };
pub(crate) const MODPROBE: Tool = Tool { program: "modprobe", package: "kmod" };
pub(crate) const MKE2FS: Tool = Tool { program: "mke2fs", package: "e2fsprogs" };
pub(crate) const DEBUGFS: Tool = Tool { program: "debugfs", package: "e2fsprogs" };
pub(crate) const MKFS_XFS: Tool = Tool { program: "mkfs.xfs", package: "xfsprogs" };
pub(crate) const MKFS_EROFS: Tool = Tool { program: "mkfs.erofs", package: "erofs-utils" };
pub(crate) const SETPRIV: Tool = Tool { program: "setpriv", package: "util-linux" };
pub(crate) const QEMU: Tool = Tool { program: "qemu-system-x86_64", package: "qemu-system-x86" };
pub(crate) const QEMU_AARCH64: Tool =
    Tool { program: "qemu-system-aarch64", package: "qemu-system-arm" };

impl Tool {
    /// Returns the path of the program: from PATH, or from the administrator's folders. Debian leaves
    /// those out of an ordinary user's PATH, although `modprobe` and `mke2fs` are useful to one.
    pub(crate) fn find(self) -> Result<PathBuf> {
        let path = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&path)
            .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
            .map(|dir| dir.join(self.program))
            .find(|candidate| candidate.is_file())
            .ok_or(Error::MissingTool { program: self.program, package: self.package })
    }

    /// Returns a command for the program, in the C locale because its messages are parsed or shown.
    pub(crate) fn command(self) -> Result<Command> {
        let mut command = Command::new(self.find()?);
        command.env("LC_ALL", "C").stdin(Stdio::null());
        Ok(command)
    }

    /// Runs the program and returns its standard output.
    pub(crate) fn run<S: AsRef<OsStr>>(self, args: impl IntoIterator<Item = S>) -> Result<Vec<u8>> {
        output(self.command()?.args(args))
    }
}

/// Runs `command` to its end and returns its standard output. If it fails, the error has its messages.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let Output { status, stdout, stderr } =
        command.output().map_err(Error::io("starting", command.get_program()))?;
    if status.success() {
        return Ok(stdout);
    }
    // Some tools print errors to standard output.
    let said = if stderr.is_empty() { &stdout } else { &stderr };
    Err(Error::Tool {
        command: shown(command),
        status,
        stderr: String::from_utf8_lossy(said).trim_end().to_owned(),
    })
}

/// Returns the command line, for messages.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words: Vec<_> =
        [program].into_iter().chain(command.get_args()).map(OsStr::to_string_lossy).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_names_its_package() {
        let tool = Tool { program: "no-such-program-anywhere", package: "some-package" };
        let error = tool.find().unwrap_err();
        assert!(error.is_unavailable());
        let said = error.to_string();
        assert!(said.contains("no-such-program-anywhere"), "{said}");
        assert!(said.contains("apt install some-package"), "{said}");
    }

    #[test]
    fn a_failure_has_the_command_its_status_and_its_output() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo it is broken >&2; exit 3"]);
        let said = output(&mut command).unwrap_err().to_string();
        for part in ["sh -c", "exit status: 3", "it is broken"] {
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn success_returns_the_output() {
        let mut command = Command::new("/bin/sh");
        assert_eq!(output(command.args(["-c", "echo out; echo err >&2"])).unwrap(), b"out\n");
    }
}
