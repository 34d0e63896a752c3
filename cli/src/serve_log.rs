//! What `longshore serve` prints, by a thread of its own: whoever reads it may be slow, or read
//! nothing, and the server goes on.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::thread;
use std::time::Duration;

use crate::output::print;

/// How many lines may wait to be printed.
const LINES_MAX: usize = 1024;
/// How long the last lines are waited for in the end.
const END_TIME: Duration = Duration::from_secs(1);

/// Where a line goes.
#[derive(Debug)]
pub(crate) enum Line {
    Out(String),
    Error(String),
}

/// The lines that are to be printed.
pub(crate) struct Log {
    lines: SyncSender<Line>,
    lost: Arc<AtomicU64>,
    ended: mpsc::Receiver<()>,
}

impl Log {
    /// Prints lines to standard output and standard error.
    ///
    /// # Errors
    /// Where there is no thread to be had.
    pub(crate) fn start() -> std::io::Result<Self> {
        Self::to(|line| {
            // Whether or not anybody reads it.
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
                    put(Line::Error(format!("{lost} lines were not printed: nobody read them")));
                }
            }
            let _ = end.send(());
        })?;
        Ok(Self { lines, lost, ended })
    }

    /// Prints a line when there is time; never waits.
    pub(crate) fn say(&self, line: Line) {
        if self.lines.try_send(line).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits for what is left to be printed, but not for ever.
    pub(crate) fn end(self) {
        drop(self.lines);
        let _ = self.ended.recv_timeout(END_TIME);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn lines_that_nobody_reads_hold_nobody_up_and_are_counted() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let (gate, opened) = mpsc::channel::<()>();
        let said_too = Arc::clone(&said);
        let log = Log::to(move |line| {
            // Closed until the gate's sender is gone.
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
        // One more than there is room for was being printed, or not yet.
        assert!((LINES_MAX + 1..=LINES_MAX + 2).contains(&said.len()), "{}", said.len());
    }
}
