//! Executes another program, which inherits descriptors.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use rustix::io::FdFlags;

use crate::exit::failure;

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
    let error = command.exec();
    let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
    Err(failure(code, format!("cannot run {}: {error}", program.to_string_lossy())))
}
