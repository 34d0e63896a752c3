//! QEMU's machine protocol: commands to a running QEMU, as lines of JSON.
//!
//! Source: QEMU's `docs/interop/qmp-spec.rst`. Asynchronous events are ignored.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::error::{Error, Result};

/// The timeout of an answer. QEMU's main thread answers, which a busy host delays.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// A connection to a QEMU that was started with `-qmp unix:PATH,server=on,wait=off`.
#[derive(Debug)]
pub struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    /// Connects to QEMU's socket.
    ///
    /// # Errors
    ///
    /// Returns an error if QEMU does not listen or answer.
    pub fn connect(path: &Path) -> Result<Self> {
        let failed = |error| Error::io("connecting to", path)(error);
        let stream = UnixStream::connect(path).map_err(failed)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(failed)?;
        let mut qmp = Self { stream: BufReader::new(stream) };
        // QEMU first sends a greeting with its version.
        qmp.line("the greeting")?;
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Executes `command`, and returns its result.
    ///
    /// # Errors
    ///
    /// Returns an error if QEMU has ended or refuses the command.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let request = json!({ "execute": command, "arguments": arguments });
        // In one write, because QEMU executes the command at the last brace and may end before the
        // newline.
        let sent = self.stream.get_mut().write_all(format!("{request}\n").as_bytes());
        sent.map_err(|error| said(command, &error))?;
        loop {
            let mut answer = self.line(command)?;
            if let Some(error) = answer.get("error") {
                return Err(said(&request.to_string(), error));
            }
            if let Some(done) = answer.get_mut("return") {
                return Ok(done.take());
            }
        }
    }

    /// Migrates to `uri`, waits for the end, and returns QEMU's result. The machine is stopped then.
    ///
    /// # Errors
    ///
    /// Like [`execute`](Self::execute); also if the migration fails or exceeds `limit`.
    pub fn migrate(&mut self, uri: &str, limit: Duration) -> Result<Value> {
        let command = format!("migrate to {uri}");
        self.execute("migrate", &json!({ "uri": uri }))?;
        let deadline = Instant::now() + limit;
        loop {
            let state = self.execute("query-migrate", &json!({}))?;
            match state["status"].as_str() {
                Some("completed") => return Ok(state),
                Some("failed" | "cancelled") => return Err(said(&command, &state)),
                _ if Instant::now() > deadline => return Err(said(&command, &state)),
                _ => thread::sleep(POLL),
            }
        }
    }

    /// Ends QEMU.
    ///
    /// # Errors
    ///
    /// Like [`execute`](Self::execute).
    pub fn quit(mut self) -> Result<()> {
        self.execute("quit", &json!({})).map(drop)
    }

    fn line(&mut self, command: &str) -> Result<Value> {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line).map_err(|error| said(command, &error))?;
        if read == 0 {
            return Err(said(command, &"QEMU closed the connection"));
        }
        serde_json::from_str(&line).map_err(|error| said(command, &error))
    }
}

fn said(command: &str, said: &dyn std::fmt::Display) -> Error {
    Error::Qmp { command: command.to_owned(), said: said.to_string() }
}
