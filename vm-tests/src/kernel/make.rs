//! Long calls of make: the output goes to a log, and progress to standard error.

use std::{
    collections::VecDeque,
    env,
    fs::File,
    io::{self, BufRead, BufReader, Write},
    path::Path,
    process::{Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use crate::{
    error::{Error, Result},
    tool::{self, MAKE, SETPRIV},
};

/// The interval of progress lines.
const REPORT_PERIOD: Duration = Duration::from_secs(10);

/// The lines of the log that an error shows. With several compilers at once, the error is not on the
/// last line.
const TAIL_LINES: usize = 40;

/// A folder to call make in, and the log of its output.
#[derive(Debug)]
pub(super) struct Make<'a> {
    pub(super) folder: &'a Path,
    pub(super) log: &'a Path,
}

impl Make<'_> {
    /// Makes `targets`, with `settings` of the form `NAME=value`.
    pub(super) fn run(&self, settings: &[String], targets: &[&str]) -> Result<()> {
        let mut shown = Command::new(MAKE.program);
        shown.args(settings).args(targets);
        // make gets SIGTERM when this thread ends, so that it does not continue to build in a folder
        // that another process then removes. make ends its child processes.
        let mut command = SETPRIV.command()?;
        command.args(["--pdeathsig", "TERM", "--"]).arg(MAKE.find()?);
        command.args(shown.get_args()).current_dir(self.folder);
        logged(command, tool::shown(&shown), self.log)
    }
}

/// Runs `command`, and appends its output to `log`. Messages call the command `shown`.
fn logged(mut command: Command, shown: String, log: &Path) -> Result<()> {
    // Keeps only the variables that programs need to be found: dozens of variables affect the kernel's
    // build, and a calling cargo sets some for make.
    command.env_clear().env("LC_ALL", "C");
    for name in ["PATH", "HOME", "TMPDIR"] {
        command.envs(env::var_os(name).map(|value| (name, value)));
    }
    let (status, tail) = File::options()
        .create(true)
        .append(true)
        .open(log)
        .and_then(|file| follow(command, file))
        .map_err(Error::io("building, with its log in", log))?;
    if status.success() {
        return Ok(());
    }
    let log_tail = tail.into_iter().collect::<Vec<_>>().join("\n");
    Err(Error::Build { command: shown, status, log_tail, log: log.to_owned() })
}

/// Runs `command` to its end, and returns its status and the last lines of the log.
fn follow(mut command: Command, mut log: File) -> io::Result<(ExitStatus, VecDeque<String>)> {
    let (said, to_us) = io::pipe()?;
    command.stdin(Stdio::null()).stdout(to_us.try_clone()?).stderr(to_us);
    let mut child = command.spawn()?;
    // The command holds copies of the pipe's write end, which would keep the pipe open.
    drop(command);
    let mut progress = Progress::new();
    let mut said = BufReader::new(said);
    let mut tail = VecDeque::new();
    let mut line = Vec::new();
    let copied = loop {
        line.clear();
        match said.read_until(b'\n', &mut line) {
            Ok(0) => break Ok(()),
            Ok(_) => {}
            Err(error) => break Err(error),
        }
        if let Err(error) = log.write_all(&line) {
            break Err(error);
        }
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        progress.take(&text);
        tail.push_back(text);
        if tail.len() > TAIL_LINES {
            tail.pop_front();
        }
    };
    if copied.is_err() {
        // Otherwise it would continue and block on the full pipe.
        let _ = child.kill();
    }
    let status = child.wait()?;
    copied.map(|()| (status, tail))
}

/// The progress of a build, printed at intervals.
struct Progress {
    started: Instant,
    told: Instant,
    steps: u64,
}

impl Progress {
    fn new() -> Self {
        let now = Instant::now();
        Self { started: now, told: now, steps: 0 }
    }

    /// Handles a line; a line that begins with two spaces is a step of the kernel's build.
    fn take(&mut self, line: &str) {
        if !line.starts_with("  ") {
            return;
        }
        self.steps += 1;
        if self.told.elapsed() >= REPORT_PERIOD {
            self.told = Instant::now();
            eprintln!("{}", told(self.steps, self.started.elapsed(), line));
        }
    }
}

fn told(steps: u64, elapsed: Duration, line: &str) -> String {
    let step = line.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("building the kernel: {steps} steps in {} s; {step}", elapsed.as_secs())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn run(script: &str) -> (tempfile::TempDir, Result<()>) {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("build.log");
        fs::write(&log, "before\n").unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        let ran = logged(command, "make image".into(), &log);
        (dir, ran)
    }

    #[test]
    fn the_log_has_all_output_and_the_callers_variables_are_not_passed_on() {
        let (dir, ran) = run("echo out; echo err >&2; echo \"[$CARGO_MANIFEST_DIR]\"");
        ran.unwrap();
        let log = fs::read_to_string(dir.path().join("build.log")).unwrap();
        assert_eq!(log, "before\nout\nerr\n[]\n");
    }

    #[test]
    fn a_failure_shows_the_end_and_the_path_of_the_log() {
        let (dir, ran) = run("seq 1 100; echo gelf.h: No such file >&2; printf '***'; exit 2");
        let said = ran.unwrap_err().to_string();
        let log = dir.path().join("build.log");
        let (head, tail) = said.split_once('\n').unwrap();
        assert_eq!(head, "make image failed (exit status: 2):");
        assert!(tail.starts_with("63\n64\n"), "{tail}");
        let end = format!("\n100\ngelf.h: No such file\n***\nthe whole log: {}", log.display());
        assert!(tail.ends_with(&end), "{tail}");
        assert!(fs::read_to_string(log).unwrap().starts_with("before\n1\n2\n"));
    }

    #[test]
    fn a_program_that_cannot_be_started_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("build.log");
        let error = logged(Command::new("/no/such/program"), "make".into(), &log).unwrap_err();
        assert!(error.to_string().contains("No such file"), "{error}");
    }

    #[test]
    fn a_step_is_printed_as_one_line() {
        assert_eq!(
            told(412, Duration::from_secs(63), "  CC      mm/slub.o"),
            "building the kernel: 412 steps in 63 s; CC mm/slub.o"
        );
    }
}
