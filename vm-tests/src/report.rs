//! The results of a guest.

use std::{path::PathBuf, time::Duration};

use crate::protocol::{Event, Exit, Outcome, Stream};

/// The results of a guest, by test and by command.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// The kernel release that ran.
    pub kernel: String,
    /// The memory that the kernel found (MemTotal).
    pub memory_bytes: u64,
    /// The time from starting QEMU until init ran, without failed tries.
    pub boot: Duration,
    /// The number of boots: 1, or 2 if the first one never reached init.
    pub boots: u32,
    /// The tests, in the order in which they ran.
    pub tests: Vec<TestReport>,
    /// The commands, in the order in which they ran.
    pub commands: Vec<CommandReport>,
    /// Warnings in the kernel log, which alone are no failure.
    pub kernel_warnings: Vec<String>,
    /// The path of the kernel log.
    pub console_log: PathBuf,
}

/// The result of one test.
#[derive(Clone, Debug, PartialEq)]
pub struct TestReport {
    /// `suite::test`.
    pub name: String,
    /// The outcome.
    pub outcome: Outcome,
    /// The time in the guest.
    pub elapsed: Duration,
    /// The output.
    pub lines: Vec<(Stream, String)>,
}

/// The result of one command.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandReport {
    /// The task's name.
    pub name: String,
    /// The exit.
    pub exit: Exit,
    /// The time in the guest.
    pub elapsed: Duration,
    /// The output.
    pub lines: Vec<(Stream, String)>,
}

impl CommandReport {
    /// Returns `true` if it returned 0.
    #[must_use]
    pub fn success(&self) -> bool {
        self.exit == Exit::Code(0)
    }

    /// Returns its standard output.
    #[must_use]
    pub fn stdout(&self) -> String {
        self.lines
            .iter()
            .filter(|(stream, _)| *stream == Stream::Out)
            .flat_map(|(_, text)| [text.as_str(), "\n"])
            .collect()
    }
}

/// Collects events into a [`Report`].
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    pub(crate) report: Report,
    pub(crate) up: bool,
    pub(crate) down: bool,
    running: Option<Running>,
}

#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) task: String,
    pub(crate) timeout: Duration,
    lines: Vec<(Stream, String)>,
}

impl Transcript {
    /// Returns the task that has begun and not ended.
    pub(crate) fn running(&self) -> Option<&Running> {
        self.running.as_ref()
    }

    /// Handles the next event; returns a message if it is out of order.
    pub(crate) fn take(&mut self, event: Event) -> Result<(), String> {
        if self.down {
            return Err("an event arrived after the end".into());
        }
        if !self.up && !matches!(event, Event::Up { .. } | Event::Fault { .. }) {
            return Err("an event arrived before init was up".into());
        }
        match event {
            Event::Up { kernel, memory_bytes } => {
                self.up = true;
                self.report.kernel = kernel;
                self.report.memory_bytes = memory_bytes;
            }
            Event::Begin { task, timeout_seconds } => {
                if let Some(running) = &self.running {
                    return Err(format!("{task} began while {} ran", running.task));
                }
                let timeout = Duration::from_secs(timeout_seconds);
                self.running = Some(Running { task, timeout, lines: Vec::new() });
            }
            Event::Line { task, stream, text } => match &mut self.running {
                Some(running) if running.task == task => running.lines.push((stream, text)),
                _ => return Err(format!("{task} wrote a line although it is not running")),
            },
            Event::End { task, outcome, seconds } => {
                let (lines, elapsed) = self.end(&task, seconds)?;
                self.report.tests.push(TestReport { name: task, outcome, elapsed, lines });
            }
            Event::Exit { task, exit, seconds } => {
                let (lines, elapsed) = self.end(&task, seconds)?;
                self.report.commands.push(CommandReport { name: task, exit, elapsed, lines });
            }
            Event::Down => match &self.running {
                Some(running) => return Err(format!("the guest ended while {} ran", running.task)),
                None => self.down = true,
            },
            // The caller ends the run after a fault.
            Event::Fault { .. } => {}
        }
        Ok(())
    }

    /// Ends the running task as a failed test, because the guest will not report its outcome.
    pub(crate) fn abandon(&mut self, why: &str, elapsed: Duration) {
        if let Some(Running { task, lines, .. }) = self.running.take() {
            let outcome = Outcome::Failed(why.to_owned());
            self.report.tests.push(TestReport { name: task, outcome, elapsed, lines });
        }
    }

    fn end(
        &mut self,
        task: &str,
        seconds: f64,
    ) -> Result<(Vec<(Stream, String)>, Duration), String> {
        let elapsed = Duration::try_from_secs_f64(seconds)
            .map_err(|_| format!("{task} took {seconds} seconds"))?;
        match self.running.take() {
            Some(running) if running.task == task => Ok((running.lines, elapsed)),
            _ => Err(format!("{task} ended although it had not begun")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up() -> Transcript {
        let mut transcript = Transcript::default();
        transcript.take(Event::Up { kernel: "6.12".into(), memory_bytes: 1 << 30 }).unwrap();
        transcript
    }

    fn begin(task: &str) -> Event {
        Event::Begin { task: task.into(), timeout_seconds: 7 }
    }

    fn line(task: &str, stream: Stream, text: &str) -> Event {
        Event::Line { task: task.into(), stream, text: text.into() }
    }

    #[test]
    fn tests_and_commands_are_collected_with_their_lines() {
        let mut transcript = up();
        let exit = Event::Exit { task: "c".into(), exit: Exit::Code(0), seconds: 0.5 };
        let end = Event::End { task: "s::t".into(), outcome: Outcome::Passed, seconds: 1.5 };
        for event in [
            begin("s::t"),
            line("s::t", Stream::Err, "note"),
            end,
            begin("c"),
            line("c", Stream::Out, "1"),
            line("c", Stream::Err, "progress"),
            line("c", Stream::Out, "2"),
            exit,
            Event::Down,
        ] {
            transcript.take(event).unwrap();
        }
        let report = transcript.report;
        assert_eq!((report.kernel.as_str(), report.memory_bytes), ("6.12", 1 << 30));
        assert_eq!(report.tests[0].elapsed, Duration::from_millis(1500));
        assert_eq!(report.tests[0].lines, [(Stream::Err, "note".to_owned())]);
        assert_eq!(report.commands[0].stdout(), "1\n2\n");
        assert!(report.commands[0].success());
    }

    #[test]
    fn events_out_of_order_are_refused() {
        let end = || Event::End { task: "b".into(), outcome: Outcome::Passed, seconds: 0.0 };
        assert!(Transcript::default().take(begin("a")).is_err(), "before up");
        assert!(up().take(end()).is_err(), "without Begin");
        assert!(up().take(line("a", Stream::Out, "")).is_err(), "from a task that does not run");
        let mut transcript = up();
        transcript.take(begin("a")).unwrap();
        assert!(transcript.take(begin("b")).is_err(), "two at once");
        assert!(transcript.take(Event::Down).is_err(), "down in the middle");
        assert!(transcript.take(end()).is_err(), "the end of another task");
        let mut transcript = up();
        transcript.take(Event::Down).unwrap();
        assert!(transcript.take(begin("a")).is_err(), "after down");
    }

    #[test]
    fn an_invalid_time_is_refused() {
        let mut transcript = up();
        transcript.take(begin("a")).unwrap();
        let end = Event::End { task: "a".into(), outcome: Outcome::Passed, seconds: -1.0 };
        assert!(transcript.take(end).is_err());
    }

    #[test]
    fn a_task_that_runs_when_the_guest_is_lost_has_failed() {
        let mut transcript = up();
        transcript.take(begin("a")).unwrap();
        transcript.take(line("a", Stream::Out, "last words")).unwrap();
        assert_eq!(transcript.running().unwrap().timeout, Duration::from_secs(7));
        transcript.abandon("the guest hung", Duration::from_secs(9));
        assert_eq!(transcript.report.tests[0].outcome, Outcome::Failed("the guest hung".into()));
        assert_eq!(transcript.report.tests[0].lines[0].1, "last words");
        transcript.abandon("again", Duration::ZERO);
        assert_eq!(transcript.report.tests.len(), 1);
    }
}
