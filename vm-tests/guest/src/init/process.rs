//! Runs one process to its end or to its time limit, and forwards its output.

use std::{
    io::{BufRead, BufReader, Read},
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

use longshore_vm_tests::protocol::{Exit, MAX_TEXT_BYTES, Stream};
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process_group, pidfd_open, wait},
};

/// The maximum time that the streams of an ended process may stay open. Its process group is killed, so
/// only a descendant that left the group can hold them longer.
const CLOSING_LIMIT: Duration = Duration::from_secs(2);

/// Runs `command` and passes each line of its output to `on_line`. At its end, or after `timeout`, kills
/// every process of its group.
pub(super) fn supervise(
    mut command: Command,
    timeout: Duration,
    mut on_line: impl FnMut(Stream, String),
) -> Exit {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Exit::NotStarted(error.to_string()),
    };
    let (sender, messages) = mpsc::channel();
    let mut open_streams = 0;
    if let Some(out) = child.stdout.take() {
        forward(out, Stream::Out, sender.clone());
        open_streams += 1;
    }
    if let Some(err) = child.stderr.take() {
        forward(err, Stream::Err, sender.clone());
        open_streams += 1;
    }
    announce_end(&child, sender);

    let mut deadline = Instant::now() + timeout;
    let mut exit = None;
    while exit.is_none() || open_streams > 0 {
        match messages.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Message::Line(stream, text)) => on_line(stream, text),
            Ok(Message::Closed) => open_streams -= 1,
            Ok(Message::Ended) => {
                exit.get_or_insert_with(|| end(&mut child));
                deadline = Instant::now() + CLOSING_LIMIT;
            }
            Err(RecvTimeoutError::Timeout) if exit.is_none() => {
                end(&mut child);
                exit = Some(Exit::TimedOut);
                deadline = Instant::now() + CLOSING_LIMIT;
            }
            Err(_) => break,
        }
    }
    reap_orphans();
    exit.unwrap_or_else(|| end(&mut child))
}

enum Message {
    Line(Stream, String),
    Closed,
    Ended,
}

/// Sends the output of `from` line by line; a line that is too long is split.
fn forward(from: impl Read + Send + 'static, stream: Stream, to: Sender<Message>) {
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        loop {
            let mut line = Vec::new();
            let piece = from.by_ref().take(MAX_TEXT_BYTES as u64).read_until(b'\n', &mut line);
            if !matches!(piece, Ok(1..)) {
                break;
            }
            if line.last() == Some(&b'\n') {
                line.pop();
            }
            let text = String::from_utf8_lossy(&line).into_owned();
            if to.send(Message::Line(stream, text)).is_err() {
                break;
            }
        }
        // The receiver may be gone.
        let _ = to.send(Message::Closed);
    });
}

/// Sends a message when the process ends, without reaping it.
fn announce_end(child: &Child, to: Sender<Message>) {
    let pidfd = pid(child).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    thread::spawn(move || {
        if let Some(Ok(pidfd)) = pidfd {
            while poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None).is_err() {}
        }
        let _ = to.send(Message::Ended);
    });
}

/// Kills the rest of the process group, and returns how the process ended.
fn end(child: &mut Child) -> Exit {
    if let Some(pid) = pid(child) {
        // The group may be gone. The process is not reaped yet, so its number is not reused.
        let _ = kill_process_group(pid, Signal::KILL);
    }
    match child.wait() {
        Ok(status) => exit_of(status),
        Err(error) => Exit::NotStarted(format!("waiting for it: {error}")),
    }
}

fn exit_of(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::NotStarted(format!("it neither returned nor was killed: {status}")),
    }
}

fn pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// Reaps orphans, which process 1 inherits.
fn reap_orphans() {
    if rustix::process::getpid().is_init() {
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, timeout: Duration) -> (Exit, Vec<(Stream, String)>) {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        let mut lines = Vec::new();
        let exit = supervise(command, timeout, |stream, text| lines.push((stream, text)));
        (exit, lines)
    }

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn lines_of_both_streams_and_the_code_arrive() {
        let (exit, mut lines) = run("echo one; echo two >&2; printf three; exit 5", LONG);
        assert_eq!(exit, Exit::Code(5));
        lines.sort_by(|a, b| a.1.cmp(&b.1));
        assert_eq!(
            lines,
            [
                (Stream::Out, "one".to_owned()),
                (Stream::Out, "three".to_owned()),
                (Stream::Err, "two".to_owned()),
            ]
        );
    }

    #[test]
    fn a_line_that_is_too_long_is_split() {
        let script = format!("head -c {} /dev/zero | tr '\\0' x; echo", MAX_TEXT_BYTES + 10);
        let (exit, lines) = run(&script, LONG);
        assert_eq!(exit, Exit::Code(0));
        let lengths: Vec<_> = lines.iter().map(|(_, text)| text.len()).collect();
        assert_eq!(lengths, [MAX_TEXT_BYTES, 10]);
    }

    #[test]
    fn a_signal_differs_from_an_exit_code() {
        assert_eq!(run("kill -SEGV $$", LONG).0, Exit::Signal(11));
    }

    #[test]
    fn a_process_that_hangs_is_killed_with_its_children() {
        let started = Instant::now();
        let (exit, lines) = run("echo $$; sleep 600 & sleep 600", Duration::from_millis(300));
        assert_eq!(exit, Exit::TimedOut);
        assert!(started.elapsed() < Duration::from_secs(20));
        let group: i32 = lines[0].1.parse().unwrap();
        // The kernel may need a moment to end them.
        for _ in 0..100 {
            if rustix::process::test_kill_process_group(Pid::from_raw(group).unwrap()).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
        panic!("the group {group} is still there");
    }

    #[test]
    fn a_process_that_stays_behind_does_not_delay_the_end() {
        let started = Instant::now();
        // The child keeps the streams open and leaves the group, so it is not killed at once.
        let (exit, _) = run("setsid sleep 20 & exit 0", LONG);
        assert_eq!(exit, Exit::Code(0));
        assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    }

    #[test]
    fn a_program_that_cannot_be_started_has_a_reason() {
        let exit = supervise(Command::new("/no/such/program"), LONG, |_, _| {});
        assert!(matches!(exit, Exit::NotStarted(why) if why.contains("No such file")));
    }
}
