//! One run of a guest: starts QEMU, follows its reports, and detects when they stop.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{
    error::{Error, GuestFault, Result},
    kernel_log,
    protocol::{self, Event},
    report::{Report, Transcript},
    tool,
};

/// A boot sometimes fails in the emulator, before our init runs. One retry is enough; more would hide a
/// guest that cannot boot.
const BOOTS_MAX: u32 = 2;

/// The maximum time of each step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// From starting QEMU until init is up.
    pub(crate) boot: Duration,
    /// Between tasks.
    pub(crate) idle: Duration,
    /// Beyond a task's own limit, at which the guest kills it.
    pub(crate) grace: Duration,
    /// From the last report until QEMU has ended.
    pub(crate) down: Duration,
}

impl Default for Limits {
    /// A boot takes 3 to 4 s on an idle host. The limits allow for a very busy host.
    fn default() -> Self {
        Self {
            boot: Duration::from_secs(90),
            idle: Duration::from_secs(60),
            grace: Duration::from_secs(60),
            down: Duration::from_secs(30),
        }
    }
}

/// The commands of a run, its kernel log and its limits.
pub(crate) struct Launch<'a> {
    /// Returns QEMU's command line for each try: of the first QEMU, and of its successor.
    pub(crate) command: &'a dyn Fn(Turn) -> Result<Command>,
    pub(crate) console_log: &'a Path,
    pub(crate) limits: Limits,
    /// How often the guest restarts before the run ends.
    pub(crate) restarts: u32,
    /// `true` if the guest continues in a second QEMU when the first one ends.
    pub(crate) is_handed_over: bool,
}

/// The first or the second QEMU of a guest that is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    First,
    Second,
}

/// The progress of a guest's reports, which continues in a second QEMU.
struct Progress {
    started: Instant,
    /// The start of the current step.
    step: Instant,
    /// The number of the next report.
    expected: u64,
    restarts_left: u32,
}

impl Launch<'_> {
    /// Boots the guest and follows it to its end. A boot that never reaches init is tried once more; any
    /// later failure is final.
    pub(crate) fn run(&self, on_event: &mut dyn FnMut(&Event)) -> Result<Report> {
        let mut boots = 1;
        loop {
            let mut transcript = Transcript::default();
            let outcome = self.boot(&mut transcript, on_event)?;
            let log = self.kernel_log()?;
            let Err(Lost { fault, said }) = outcome else {
                transcript.report.boots = boots;
                return self.finish(transcript, &log);
            };
            let fault =
                kernel_log::fault(&log).map_or(fault, |line| GuestFault::Kernel(line.to_owned()));
            let log_tail = [kernel_log::tail(&log), said].join("\n").trim().to_owned();
            if transcript.up {
                transcript.report.boots = boots;
                transcript.report.console_log = self.console_log.to_owned();
                transcript.report.kernel_warnings = kernel_log::warnings(&log);
                let finished = Box::new(transcript.report);
                return Err(Error::Guest { fault, finished, log_tail });
            }
            if boots == BOOTS_MAX {
                let console_log = self.console_log.to_owned();
                return Err(Error::Boot { attempts: boots, fault, log_tail, console_log });
            }
            eprintln!("the guest did not boot ({fault}); trying once more");
            boots += 1;
        }
    }

    /// Returns the report of a run that reached its end, or an error if the kernel log has a fault.
    fn finish(&self, transcript: Transcript, log: &str) -> Result<Report> {
        let mut report = transcript.report;
        report.console_log = self.console_log.to_owned();
        report.kernel_warnings = kernel_log::warnings(log);
        match kernel_log::fault(log) {
            None => Ok(report),
            Some(line) => Err(Error::Guest {
                fault: GuestFault::Kernel(line.to_owned()),
                finished: Box::new(report),
                log_tail: kernel_log::tail(log),
            }),
        }
    }

    fn boot(
        &self,
        transcript: &mut Transcript,
        on_event: &mut dyn FnMut(&Event),
    ) -> Result<std::result::Result<(), Lost>> {
        // Remove the log of an earlier try.
        if self.console_log.exists() {
            fs::remove_file(self.console_log).map_err(Error::io("removing", self.console_log))?;
        }
        let started = Instant::now();
        let restarts_left = self.restarts;
        let mut progress = Progress { started, step: started, expected: 0, restarts_left };
        let mut qemu = Qemu::start((self.command)(Turn::First)?)?;
        let mut result = self.follow(&mut qemu, &mut progress, transcript, on_event);
        let mut said = qemu.end();
        if self.is_handed_over && transcript.up && matches!(result, Err(GuestFault::Died(_))) {
            qemu = Qemu::start((self.command)(Turn::Second)?)?;
            result = self.follow(&mut qemu, &mut progress, transcript, on_event);
            said += &qemu.end();
        }
        Ok(result.map_err(|fault| {
            transcript.abandon(&fault.to_string(), started.elapsed());
            Lost { fault, said }
        }))
    }

    fn follow(
        &self,
        qemu: &mut Qemu,
        progress: &mut Progress,
        transcript: &mut Transcript,
        on_event: &mut dyn FnMut(&Event),
    ) -> std::result::Result<(), GuestFault> {
        let Progress { started, step, expected, restarts_left } = progress;
        loop {
            let (during, limit) = self.current_step(transcript);
            // A task's lines do not extend its time, because the step starts when the task begins.
            let left = limit.saturating_sub(step.elapsed());
            let line = match qemu.lines.recv_timeout(left) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => {
                    // All tasks are done, so a QEMU that does not end is not an error.
                    if transcript.down {
                        return Ok(());
                    }
                    return Err(GuestFault::Hung { during, seconds: limit.as_secs() });
                }
                Err(RecvTimeoutError::Disconnected) if transcript.down => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(GuestFault::Died(qemu.status()));
                }
            };
            let Some(decoded) = protocol::decode(&line) else { continue };
            let (n, event) = decoded.map_err(|error| GuestFault::Protocol(error.to_string()))?;
            if n != *expected {
                let lost = format!("report {expected} is missing, got {n}");
                return Err(GuestFault::Protocol(lost));
            }
            *expected += 1;
            on_event(&event);
            let is_line = matches!(event, Event::Line { .. });
            if let Event::Fault { detail } = &event {
                transcript.up = true;
                return Err(GuestFault::Init(detail.clone()));
            }
            transcript.take(event.clone()).map_err(GuestFault::Protocol)?;
            if matches!(event, Event::Up { .. }) && *restarts_left == self.restarts {
                transcript.report.boot = started.elapsed();
            }
            if matches!(event, Event::Down) && self.restarts > 0 {
                if *restarts_left == 0 {
                    // The guest would restart again and again.
                    return Ok(());
                }
                *restarts_left -= 1;
                *expected = 0;
                transcript.down = false;
            }
            if !is_line {
                *step = Instant::now();
            }
        }
    }

    /// Returns the current step of the guest, in words, and its time limit.
    fn current_step(&self, transcript: &Transcript) -> (String, Duration) {
        if !transcript.up {
            ("while booting".into(), self.limits.boot)
        } else if transcript.down {
            ("while going down".into(), self.limits.down)
        } else if let Some(running) = transcript.running() {
            (format!("in {}", running.task), running.timeout + self.limits.grace)
        } else {
            ("between tasks".into(), self.limits.idle)
        }
    }

    fn kernel_log(&self) -> Result<String> {
        match fs::read(self.console_log) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            // QEMU ended before it created the file; its standard error has the reason.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(Error::io("reading", self.console_log)(error)),
        }
    }
}

/// A guest that did not reach its end.
struct Lost {
    fault: GuestFault,
    /// The standard error of QEMU.
    said: String,
}

/// A QEMU process. Dropping this kills it, so that no error path leaves one running.
struct Qemu {
    child: Child,
    lines: Receiver<String>,
    stderr: Option<JoinHandle<String>>,
}

impl Qemu {
    fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(Error::io("starting", tool::shown(&command)))?;
        let stdout = child.stdout.take().expect("stdout is piped");
        let mut stderr = child.stderr.take().expect("stderr is piped");
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let mut stdout = BufReader::new(stdout);
            let mut line = Vec::new();
            // An error ends the lines, like the end of the stream.
            while matches!(stdout.read_until(b'\n', &mut line), Ok(1..)) {
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
                line.clear();
            }
        });
        let stderr = thread::spawn(move || {
            let mut said = Vec::new();
            let _ = stderr.read_to_end(&mut said);
            String::from_utf8_lossy(&said).into_owned()
        });
        Ok(Self { child, lines, stderr: Some(stderr) })
    }

    /// Waits for QEMU and returns its status. Called after its output was closed, when it is ending.
    fn status(&mut self) -> String {
        match self.child.wait() {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }

    /// Kills QEMU if it still runs, and returns its standard error.
    fn end(mut self) -> String {
        self.kill();
        self.stderr.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }

    fn kill(&mut self) {
        // It may have ended already, so errors are ignored.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests;
