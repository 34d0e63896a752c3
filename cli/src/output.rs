//! Standard output.

use std::io::{self, ErrorKind, Write};

use anyhow::Context;

/// Prints `text`. It is not an error if the reader closes the pipe (`longshore inspect FILE | head`).
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("writing to standard output"),
    }
}
