//! The log of `longshore serve`. A thread of its own prints it, so that the server never waits for a
//! slow reader.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use crate::output::print;

/// The most lines in the queue.
const LINES_MAX: usize = 1024;
/// The time that the ending server waits for the last lines to be printed.
const END_TIME: Duration = Duration::from_secs(1);

/// A line, for standard output or for standard error.
#[derive(Debug)]
pub(crate) enum Line {
    Out(String),
    Error(String),
}

/// The log, with its queue of lines.
pub(crate) struct Log {
    lines: Arc<SyncSender<Line>>,
    lost: Arc<AtomicU64>,
    ended: mpsc::Receiver<()>,
}

/// A handle for other threads, which can add lines until the log ends.
pub(crate) struct LogHandle {
    lines: Weak<SyncSender<Line>>,
    lost: Arc<AtomicU64>,
}

impl Log {
    /// Prints lines to standard output and standard error.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub(crate) fn start() -> std::io::Result<Self> {
        Self::to(|line| {
            // Errors are ignored: the server goes on if its output is closed.
            match line {
                Line::Out(line) => drop(print(&format!("{line}\n"))),
                Line::Error(line) => drop(writeln!(std::io::stderr(), "longshore: {line}")),
            }
        })
    }

    fn to(put: impl Fn(Line) + Send + 'static) -> std::io::Result<Self> {
        let (lines, waiting) = mpsc::sync_channel::<Line>(LINES_MAX);
        let (end, ended) = mpsc::channel();
        let lost = Arc::new(AtomicU64::new(0));
        let lost_too = Arc::clone(&lost);
        thread::Builder::new().name("longshore-log".to_owned()).spawn(move || {
            for line in waiting {
                put(line);
                let lost = lost_too.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    put(Line::Error(format!(
                        "{lost} lines were not printed, because the reader was too slow"
                    )));
                }
            }
            let _ = end.send(());
        })?;
        Ok(Self { lines: Arc::new(lines), lost, ended })
    }

    /// Queues a line to be printed. Never blocks.
    pub(crate) fn say(&self, line: Line) {
        say(&self.lines, &self.lost, line);
    }

    /// Returns a handle for another thread.
    pub(crate) fn handle(&self) -> LogHandle {
        LogHandle { lines: Arc::downgrade(&self.lines), lost: Arc::clone(&self.lost) }
    }

    /// Waits until the remaining lines are printed, at most [`END_TIME`].
    pub(crate) fn end(self) {
        drop(self.lines);
        let _ = self.ended.recv_timeout(END_TIME);
    }
}

impl LogHandle {
    /// Queues a line to be printed. Never blocks.
    pub(crate) fn say(&self, line: Line) {
        if let Some(lines) = self.lines.upgrade() {
            say(&lines, &self.lost, line);
        }
    }
}

fn say(lines: &SyncSender<Line>, lost: &AtomicU64, line: Line) {
    if lines.try_send(line).is_err() {
        lost.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_full_queue_does_not_block_and_lost_lines_are_counted() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let (gate, opened) = mpsc::channel::<()>();
        let said_too = Arc::clone(&said);
        let log = Log::to(move |line| {
            // Blocks until the sender `gate` is dropped.
            let _ = opened.recv();
            let (Line::Out(text) | Line::Error(text)) = line;
            said_too.lock().unwrap().push(text);
        });
        let log = log.unwrap();
        for number in 0..LINES_MAX + 100 {
            log.say(Line::Out(number.to_string()));
        }
        drop(gate);
        let Log { lines, ended, .. } = log;
        drop(lines);
        ended.recv().unwrap();
        let said = said.lock().unwrap();
        assert_eq!(said[0], "0");
        assert!(said[1].contains("lines were not printed"), "{}", said[1]);
        // The thread may have taken one line out of the queue before it was full.
        assert!((LINES_MAX + 1..=LINES_MAX + 2).contains(&said.len()), "{}", said.len());
    }
}
