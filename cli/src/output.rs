//! Standard output.

use std::io::{self, ErrorKind, Write};

use anyhow::Context;

/// Prints `text`. Whoever reads may have seen enough (`longshore inspect FILE | head`): that is no
/// error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("writing to standard output"),
    }
}
