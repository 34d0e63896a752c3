//! A process that does one job on command.
//!
//! ```text
//!   bench                         process
//!         ◄── {"say":"ready"}      imports are done, and a small job was done once
//!   (the bench prepares memory and page cache)
//!   go\n  ──►                      the process is timed from here
//!         ◄── {"say":"done"}       seconds
//!   (the bench reads peak memory and page cache)
//!   verify\n ──►                   the process compares the content with the expected bytes
//!         ◄── {"say":"verified"}
//! ```
//!
//! Each job has a process of its own, so that its peak memory is its own, and so that memory which one
//! candidate leaves in an allocator does not help the next.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};

use crate::harness::candidate::Trouble;
use crate::harness::cost::status_bytes;
use crate::harness::program::{last_lines, read};

/// The maximum time of any step of a job.
const PATIENCE: Duration = Duration::from_secs(900);

/// A message of a process, one JSON object a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(crate) enum Message {
    /// The process waits for `go`.
    Ready {
        /// The time of the imports.
        #[serde(default)]
        import_seconds: Option<f64>,
        #[serde(default)]
        note: Option<String>,
    },
    /// The job is done.
    Done {
        seconds: f64,
        /// The CPU time of the process during the job.
        cpu_seconds: f64,
        #[serde(default)]
        note: Option<String>,
        #[serde(default)]
        streamed: Option<Streamed>,
    },
    /// The content is the expected one.
    Verified,
    /// The job cannot run here.
    Unavailable { reason: String },
    /// The job failed, or the content is wrong.
    Failed { reason: String },
}

/// The figures of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Streamed {
    /// The time until the first tensor.
    pub(crate) first_seconds: f64,
    pub(crate) selected_bytes: u64,
    pub(crate) read_bytes: u64,
    /// The memory of the stream.
    pub(crate) memory_bytes: u64,
}

/// A running process. Dropping this kills it.
pub(crate) struct Subprocess {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    stderr: Option<JoinHandle<String>>,
}

impl Subprocess {
    pub(crate) fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().with_context(|| format!("starting {program}"))?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        let stderr = child.stderr.take().context("stderr is piped")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { break };
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let stderr = thread::spawn(move || read(stderr));
        let stdin = child.stdin.take();
        Ok(Self { child, stdin, lines, stderr: Some(stderr) })
    }

    /// Waits for the next message. `Unavailable`, `Failed`, an invalid line and a timeout are errors.
    pub(crate) fn hear(&mut self) -> std::result::Result<Message, Trouble> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(Message::Unavailable { reason }) => Err(Trouble::NotRun(reason)),
                Ok(Message::Failed { reason }) => Err(Trouble::Failed(anyhow!(reason))),
                Ok(message) => Ok(message),
                Err(_) => {
                    Err(Trouble::Failed(anyhow!("it printed a line that is no message: {line}")))
                }
            },
            Err(RecvTimeoutError::Timeout) => {
                Err(Trouble::Failed(anyhow!("it printed nothing for {} s", PATIENCE.as_secs())))
            }
            Err(RecvTimeoutError::Disconnected) => Err(Trouble::Failed(self.obituary())),
        }
    }

    /// Sends the process a word that makes it continue.
    pub(crate) fn tell(&mut self, word: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("stdin is piped")?;
        writeln!(stdin, "{word}").context("the process is gone")
    }

    /// Returns the peak resident memory so far, including shared memory and mapped files.
    pub(crate) fn peak_bytes(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        status_bytes(&status, "VmHWM:").context("the process is gone")
    }

    fn obituary(&mut self) -> anyhow::Error {
        let how = self.child.wait().map_or_else(|error| error.to_string(), |end| end.to_string());
        let said = self.stderr.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        anyhow!("the process ended early ({how}): {}", last_lines(&said))
    }
}

impl Drop for Subprocess {
    fn drop(&mut self) {
        // The process would end by itself when its input is closed, but that may take time.
        drop(self.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Subprocess {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Subprocess::start(command).unwrap()
    }

    #[test]
    fn messages_and_words_are_passed() {
        let mut process = shell(
            r#"echo '{"say":"ready"}'; read word; echo "{\"say\":\"done\",\"seconds\":1.5,\"cpu_seconds\":1,\"note\":\"$word\"}"; read end"#,
        );
        assert_eq!(process.hear().unwrap(), Message::Ready { import_seconds: None, note: None });
        assert!(process.peak_bytes().unwrap() > 0);
        process.tell("go").unwrap();
        let note = Some("go".to_owned());
        let done = Message::Done { seconds: 1.5, cpu_seconds: 1.0, note, streamed: None };
        assert_eq!(process.hear().unwrap(), done);
    }

    #[test]
    fn an_unavailable_job_a_failure_and_an_invalid_line_differ() {
        let unavailable = shell(r#"echo '{"say":"unavailable","reason":"no torch"}'"#).hear();
        assert!(matches!(unavailable, Err(Trouble::NotRun(reason)) if reason == "no torch"));
        let died = shell("echo why >&2; exit 7").hear().unwrap_err().to_string();
        assert!(died.contains("status: 7") && died.contains("why"), "{died}");
        assert!(shell("echo nonsense").hear().is_err());
    }
}
