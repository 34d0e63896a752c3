//! A whole program, timed from its start to its end, and its cost.
#![expect(unsafe_code, reason = "waits for a process together with its resource usage")]

use std::fs;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::Trouble;
use super::cost::{Cost, own_peak_bytes, reset_peak, status_bytes};

/// The interval at which a running program is sampled.
const GLANCE: Duration = Duration::from_millis(4);

/// A program that has ended successfully.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// The time from just before the start until the end.
    pub(crate) seconds: f64,
    pub(crate) cost: Cost,
    /// The bytes that the disk read for it (`read_bytes` in `/proc/PID/io`).
    pub(crate) read_bytes: Option<u64>,
    /// The peak of its anonymous memory in transparent huge pages, if that was sampled.
    pub(crate) huge_bytes: u64,
}

/// Runs a program to its end.
///
/// # Errors
/// [`Trouble::NotRun`] if it is not installed; [`Trouble::Failed`], with the end of what it printed,
/// if it fails.
pub(crate) fn run(command: &mut Command) -> Result<Ended, Trouble> {
    run_with(command, Stdio::piped(), false)
}

/// Like [`run`], with standard output discarded.
pub(crate) fn run_discarding(command: &mut Command) -> Result<Ended, Trouble> {
    run_with(command, Stdio::null(), false)
}

/// Like [`run`], and samples the program's huge pages, which takes some of its time.
pub(crate) fn run_counting_huge_pages(command: &mut Command) -> Result<Ended, Trouble> {
    run_with(command, Stdio::piped(), true)
}

fn run_with(
    command: &mut Command,
    stdout: Stdio,
    counts_huge_pages: bool,
) -> Result<Ended, Trouble> {
    let program = command.get_program().to_owned();
    let name = Path::new(&program).file_name().unwrap_or(&program).to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped());
    // A child's peak starts at its parent's peak, so keep that one low.
    reset_peak();
    let began = Instant::now();
    let child = match command.spawn() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Trouble::NotRun(format!("{name} is not installed")));
        }
        child => child.with_context(|| format!("starting {name}"))?,
    };
    let inherited_bytes = own_peak_bytes().unwrap_or(0);
    let (id, ended) = (child.id(), AtomicBool::new(false));
    let (out, err) = (child.stdout, child.stderr);
    let (usage, seen, stdout, stderr) = thread::scope(|scope| {
        let out = scope.spawn(|| out.map_or_else(String::new, read));
        let err = scope.spawn(|| err.map_or_else(String::new, read));
        let glances = scope.spawn(|| glance(id, &ended, counts_huge_pages));
        let usage = wait(id, began);
        ended.store(true, Ordering::Relaxed);
        let joined = "it does not panic";
        let seen = glances.join().expect(joined);
        (usage, seen, out.join().expect(joined), err.join().expect(joined))
    });
    let (status, usage, seconds, read_bytes) =
        usage.with_context(|| format!("waiting for {name}"))?;
    if !status.success() {
        let said = if stderr.trim().is_empty() { &stdout } else { &stderr };
        return Err(anyhow!("{name}: {status}: {}", last_lines(said)).into());
    }
    let (peak_seen_bytes, huge_bytes) = seen;
    let peak_bytes = usage.ru_maxrss.cast_unsigned() * 1024;
    let exact = peak_bytes > inherited_bytes;
    let seconds_of = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let cost = Cost {
        cpu_seconds: Some(seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime)),
        peak_memory_bytes: Some(if exact { peak_bytes } else { peak_seen_bytes }),
    };
    Ok(Ended { stdout, stderr, seconds, cost, read_bytes, huge_bytes })
}

/// Reads the rest of a stream. A read error ends it like the end of the file.
pub(super) fn read(mut stream: impl Read) -> String {
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    String::from_utf8_lossy(&said).into_owned()
}

/// Samples peak memory and huge pages of a process until it has ended.
fn glance(id: u32, ended: &AtomicBool, counts_huge_pages: bool) -> (u64, u64) {
    let (mut peak, mut huge) = (0, 0);
    let field = |file: &str, field: &str| {
        let text = fs::read_to_string(format!("/proc/{id}/{file}")).unwrap_or_default();
        status_bytes(&text, field).unwrap_or(0)
    };
    while !ended.load(Ordering::Relaxed) {
        peak = peak.max(field("status", "VmHWM:"));
        if counts_huge_pages {
            huge = huge.max(field("smaps_rollup", "AnonHugePages:"));
        }
        thread::sleep(GLANCE);
    }
    (peak, huge)
}

/// Waits for a process. Returns its exit status and resource usage, the seconds since `began`, and the
/// bytes that the disk read for it.
fn wait(id: u32, began: Instant) -> Result<(ExitStatus, libc::rusage, f64, Option<u64>)> {
    let id = id.cast_signed();
    let pid = Pid::from_raw(id).context("a process has a number")?;
    // With `NOWAIT` the process stays a zombie, so that its files in /proc can still be read.
    waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
    let seconds = began.elapsed().as_secs_f64();
    let io = fs::read_to_string(format!("/proc/{id}/io")).unwrap_or_default();
    let read_bytes = io.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok());
    let (mut status, mut usage) = (0, MaybeUninit::<libc::rusage>::uninit());
    // SAFETY: both may be written, and nothing else waits for this child.
    if unsafe { libc::wait4(id, &mut status, 0, usage.as_mut_ptr()) } != id {
        bail!(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it was written.
    let usage = unsafe { usage.assume_init() };
    Ok((ExitStatus::from_raw(status), usage, seconds, read_bytes))
}

/// Returns the last lines of a program's output, on one line: they usually contain the cause of an
/// error.
pub(crate) fn last_lines(said: &str) -> String {
    const LINES_MAX: usize = 3;
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(LINES_MAX)..].join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Result<Ended, Trouble> {
        run(Command::new("sh").args(["-c", script]))
    }

    #[test]
    fn time_cpu_time_and_memory_of_a_program_are_measured() {
        let ended =
            shell("i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done; echo out; echo err >&2");
        let ended = ended.unwrap();
        assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("out\n", "err\n"));
        let cpu_seconds = ended.cost.cpu_seconds.unwrap();
        assert!(cpu_seconds > 0.001 && cpu_seconds <= ended.seconds * 1.5, "{ended:?}");
        assert!(ended.cost.peak_memory_bytes.unwrap() > 100 << 10, "{ended:?}");
        assert!(ended.read_bytes.is_some(), "{ended:?}");
    }

    #[test]
    fn an_absent_program_is_not_run_and_a_failure_has_the_output() {
        let absent = run(&mut Command::new("no-such-program-at-all")).unwrap_err();
        assert!(matches!(absent, Trouble::NotRun(_)), "{absent}");
        let failed = shell("echo why >&2; exit 7").unwrap_err().to_string();
        assert!(failed.contains("status: 7") && failed.contains("why"), "{failed}");
    }

    #[test]
    fn the_last_lines_of_output_are_kept() {
        assert_eq!(last_lines("a\n\nb \nc\nd\n"), "b | c | d");
        assert_eq!(last_lines(""), "");
    }
}
