//! Standard output, and the output of a command that executes another program.

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

/// Prints the result of a command: to standard error if it will execute a program, which has standard
/// output to itself, else to standard output.
pub(crate) fn print_result(text: &str, executes: bool) -> anyhow::Result<()> {
    if !executes {
        return print(text);
    }
    // The program must run even if no process reads this.
    let _ = io::stderr().lock().write_all(text.as_bytes());
    Ok(())
}
