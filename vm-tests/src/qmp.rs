//! QEMU's machine protocol: commands to a QEMU that runs, as lines of JSON.
//!
//! Source: QEMU's `docs/interop/qmp-spec.rst`. What happens meanwhile ("events") is passed over.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::error::{Error, Result};

/// QEMU's main thread answers, which a busy host keeps waiting.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// A door to a QEMU that was started with `-qmp unix:PATH,server=on,wait=off`.
#[derive(Debug)]
pub struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    /// Connects.
    ///
    /// # Errors
    ///
    /// If nobody is there or answers.
    pub fn connect(path: &Path) -> Result<Self> {
        let failed = |error| Error::io("connecting to", path)(error);
        let stream = UnixStream::connect(path).map_err(failed)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(failed)?;
        let mut qmp = Self { stream: BufReader::new(stream) };
        // It begins with its version.
        qmp.line("the greeting")?;
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Has QEMU do `command`; what it returns.
    ///
    /// # Errors
    ///
    /// If it is gone or refuses.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let request = json!({ "execute": command, "arguments": arguments });
        // At once: QEMU does what it is told at the last brace, and may be gone at the line's end.
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

    /// Migrates to `uri` and waits until it is done; what QEMU says of it. The machine is stopped
    /// then.
    ///
    /// # Errors
    ///
    /// As [`execute`](Self::execute); if it fails, or takes longer than `limit`.
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
    /// As [`execute`](Self::execute).
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
