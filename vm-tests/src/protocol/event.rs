//! The guest's reports, and their form on the serial line.

use serde::{Deserialize, Serialize};

/// The prefix of every line with an event. Other lines are ignored.
const PREFIX: &str = "@longshore ";

/// The maximum length of a line's text in bytes. The guest splits longer output lines, so that an event
/// stays a short line.
pub const MAX_TEXT_BYTES: usize = 8 * 1024;

/// One report from the guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// Init runs. A later failure is a failure of the guest and is never retried.
    Up {
        /// The kernel release, as `uname -r` prints it.
        kernel: String,
        /// MemTotal in bytes.
        memory_bytes: u64,
    },
    /// Init itself failed (a module, a mount, the plan).
    Fault {
        /// The failed operation and the reason.
        detail: String,
    },
    /// A test or command starts.
    Begin {
        /// The test's or command's name.
        task: String,
        /// The time after which the guest kills it.
        timeout_seconds: u64,
    },
    /// A line that a test or command wrote.
    Line {
        /// The test or command that wrote it.
        task: String,
        /// The stream that it was written to.
        stream: Stream,
        /// The line without its newline; bytes that are not UTF-8 are replaced.
        text: String,
    },
    /// A test has ended.
    End {
        /// The test's name.
        task: String,
        /// The outcome.
        outcome: Outcome,
        /// Wall-clock time in the guest, in seconds.
        seconds: f64,
    },
    /// A command has ended.
    Exit {
        /// The command's name.
        task: String,
        /// The exit.
        exit: Exit,
        /// Wall-clock time in the guest, in seconds.
        seconds: f64,
    },
    /// All tasks are done; the guest powers off.
    Down,
}

/// The stream that a line was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// The outcome of a test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", content = "detail", rename_all = "snake_case")]
pub enum Outcome {
    /// Its assertions hold.
    Passed,
    /// An assertion does not hold, or the test crashed or exceeded its time; with the reason.
    Failed(String),
    /// It could not run here; with the reason.
    Skipped(String),
}

/// The end of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", content = "value", rename_all = "snake_case")]
pub enum Exit {
    /// It returned this exit status.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
    /// It exceeded its time limit and was killed.
    TimedOut,
    /// It could not be started; with the reason.
    NotStarted(String),
}

/// The error of a line that begins like an event but is not one.
#[derive(Debug, thiserror::Error)]
#[error("the guest sent a broken report ({source}): {line}")]
pub struct DecodeError {
    line: String,
    source: serde_json::Error,
}

#[derive(Serialize)]
struct NumberedRef<'a> {
    n: u64,
    #[serde(flatten)]
    event: &'a Event,
}

#[derive(Deserialize)]
struct Numbered {
    n: u64,
    #[serde(flatten)]
    event: Event,
}

/// Returns the line, with its newline, for `event` with the number `n`.
///
/// # Panics
///
/// Never: every event has a JSON form.
#[must_use]
pub fn encode(n: u64, event: &Event) -> String {
    let json = serde_json::to_string(&NumberedRef { n, event }).expect("an event has a JSON form");
    format!("{PREFIX}{json}\n")
}

/// Returns the number and the event in `line`, or `None` if the line is not an event.
///
/// # Errors
///
/// Returns an error if the line begins like an event but does not parse: the serial line was garbled.
pub fn decode(line: &str) -> Option<Result<(u64, Event), DecodeError>> {
    let json = line.strip_prefix(PREFIX)?.trim_end();
    Some(match serde_json::from_str::<Numbered>(json) {
        Ok(numbered) => Ok((numbered.n, numbered.event)),
        Err(source) => Err(DecodeError { line: line.to_owned(), source }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_event() -> Vec<Event> {
        let task = || "suite::test".to_owned();
        let end = |outcome| Event::End { task: task(), outcome, seconds: 0.25 };
        let exit = |exit| Event::Exit { task: task(), exit, seconds: 1.5 };
        vec![
            Event::Up { kernel: "6.12".into(), memory_bytes: u64::MAX },
            Event::Fault { detail: "no disk".into() },
            Event::Begin { task: task(), timeout_seconds: 60 },
            Event::Line {
                task: task(),
                stream: Stream::Out,
                text: "a\n\"b\"\u{0}\t\u{fffd}".into(),
            },
            Event::Line { task: task(), stream: Stream::Err, text: String::new() },
            end(Outcome::Passed),
            end(Outcome::Failed("line one\nline two".into())),
            end(Outcome::Skipped("no such device".into())),
            exit(Exit::Code(-1)),
            exit(Exit::Signal(9)),
            exit(Exit::TimedOut),
            exit(Exit::NotStarted("no such file".into())),
            Event::Down,
        ]
    }

    #[test]
    fn every_event_is_read_back_from_its_line() {
        for (n, event) in every_event().into_iter().enumerate() {
            let line = encode(n as u64, &event);
            assert_eq!(line.matches('\n').count(), 1, "one event is one line: {line}");
            assert!(line.ends_with('\n'));
            let (number, decoded) = decode(&line).expect("has the prefix").expect("parses");
            assert_eq!((number, decoded), (n as u64, event));
        }
    }

    #[test]
    fn a_carriage_return_from_the_terminal_is_ignored() {
        let line = encode(1, &Event::Down).replace('\n', "\r\n");
        assert_eq!(decode(&line).unwrap().unwrap(), (1, Event::Down));
    }

    #[test]
    fn kernel_messages_are_not_events() {
        for line in ["", "[    2.385926] reboot: Power down", "{\"n\":1,\"event\":\"down\"}"] {
            assert!(decode(line).is_none(), "{line}");
        }
    }

    #[test]
    fn a_garbled_event_is_an_error_that_shows_the_line() {
        let whole = encode(3, &Event::Begin { task: "a".into(), timeout_seconds: 1 });
        for cut in PREFIX.len()..whole.len() - 1 {
            let error = decode(&whole[..cut]).expect("has the prefix").expect_err("is cut short");
            assert!(error.to_string().contains(&whole[..cut]));
        }
        assert!(decode("@longshore {\"n\":1,\"event\":\"unheard_of\"}").unwrap().is_err());
    }
}
