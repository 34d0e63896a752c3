//! Executes another program, which inherits descriptors.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use rustix::fs::Access;
use rustix::io::{Errno, FdFlags};

use crate::exit::failure;

/// The directories that `execvp` searches if `PATH` is not set.
const PATH_DEFAULT: &str = "/bin:/usr/bin";

/// Checks that the program `words` can be executed, before anything is loaded for it. It is searched as
/// `execvp` does. The errors have the exit codes of [`become_program`].
pub(crate) fn check_program(words: &[OsString]) -> anyhow::Result<()> {
    let Some(program) = words.first() else { return Ok(()) };
    let path = env::var_os("PATH").unwrap_or_else(|| PATH_DEFAULT.into());
    find_program(program, &path).map_err(|error| cannot_run(words, &error))
}

fn find_program(program: &OsStr, path: &OsStr) -> io::Result<()> {
    if program.is_empty() {
        return Err(Errno::NOENT.into());
    }
    if program.as_bytes().contains(&b'/') {
        return check_executable(Path::new(program));
    }
    let mut result = Errno::NOENT.into();
    // An empty directory is the current one: joined with the program, it is a relative path.
    for directory in env::split_paths(path) {
        match check_executable(&directory.join(program)) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => result = error,
            Err(_) => {}
        }
    }
    Err(result)
}

fn check_executable(path: &Path) -> io::Result<()> {
    rustix::fs::access(path, Access::EXEC_OK)?;
    if path.is_dir() { Err(Errno::ACCESS.into()) } else { Ok(()) }
}

/// Returns the error of a program that cannot be executed.
pub(crate) fn cannot_run(words: &[OsString], error: &io::Error) -> anyhow::Error {
    let not_found = error.kind() == io::ErrorKind::NotFound;
    let program = words.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    let mut message = format!("cannot run '{program}': {error}");
    if not_found && words.len() == 1 && program.split_whitespace().nth(1).is_some() {
        let separate: Vec<&str> = program.split_whitespace().collect();
        message += &format!(
            "; give the program and its arguments as separate words: --exec {}",
            separate.join(" ")
        );
    }
    failure(if not_found { 127 } else { 126 }, message)
}

/// Replaces this process by the program `words`, which inherits the descriptors. Each number is in the
/// environment variable beside it; a variable without a descriptor is unset. `LONGSHORE_BYTES` is the
/// length of the content. Returns without an error only if `words` is empty.
pub(crate) fn become_program(
    words: &[OsString],
    len_bytes: u64,
    descriptors: &[(&str, Option<BorrowedFd<'_>>)],
) -> anyhow::Result<()> {
    let Some((program, arguments)) = words.split_first() else {
        return Ok(());
    };
    let mut command = Command::new(program);
    command.args(arguments).env("LONGSHORE_BYTES", len_bytes.to_string());
    for (name, fd) in descriptors {
        match fd {
            Some(fd) => {
                let kept = rustix::io::fcntl_setfd(fd, FdFlags::empty());
                kept.context("keeping a descriptor open for the program")?;
                command.env(name, fd.as_raw_fd().to_string());
            }
            None => {
                command.env_remove(name);
            }
        }
    }
    Err(cannot_run(words, &command.exec()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn programs_are_searched_as_execvp_searches_them() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str, mode| {
            let path = folder.path().join(name);
            fs::write(&path, "#!/bin/sh\n").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let (good, plain) = (make("good", 0o755), make("plain", 0o644));
        fs::create_dir(folder.path().join("directory")).unwrap();
        let path = env::join_paths([Path::new("/no/such"), folder.path()]).unwrap();
        let find = |name: &OsStr| find_program(name, &path).map_err(|error| error.kind());
        assert_eq!(find("good".as_ref()), Ok(()));
        assert_eq!(find(good.as_ref()), Ok(()));
        assert_eq!(find("absent".as_ref()), Err(io::ErrorKind::NotFound));
        assert_eq!(find("".as_ref()), Err(io::ErrorKind::NotFound));
        for refused in ["plain".as_ref(), plain.as_os_str(), "directory".as_ref()] {
            assert_eq!(find(refused), Err(io::ErrorKind::PermissionDenied), "{refused:?}");
        }
    }
}
