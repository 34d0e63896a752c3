//! Tests of the program.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// The limit of each wait.
const PATIENCE: Duration = Duration::from_secs(60);

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_longshore-vhost-example"))
}

fn run(args: &[&str]) -> (Output, String) {
    let mut command = program();
    let mut child =
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("the program does not exit: {args:?}");
        }
        thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

/// A running program that listens. It is killed when this is dropped.
struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    fn start(socket: &Path, disk: &Path) -> Self {
        let mut command = program();
        command.arg("--socket").arg(socket).arg("--disk").arg(disk).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (line, lines) = mpsc::channel();
        thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|it| line.send(it))
        });
        let running = Self { child, lines };
        running.read_until("listening at ");
        running
    }

    /// Reads lines up to one that starts with `beginning`, and returns that.
    fn read_until(&self, beginning: &str) -> String {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) if line.starts_with(beginning) => return line,
                Ok(_) => {}
                Err(error) => panic!("no line starts with {beginning:?}: {error}"),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn help_is_printed_and_invalid_arguments_are_refused() {
    let (output, _) = run(&["--help"]);
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert!(["--socket PATH", "--disk FILE", "iommu_platform"].iter().all(|it| help.contains(it)));
    for (args, why) in [
        (&[][..], "--socket PATH is missing"),
        (&["--socket", "x"], "--disk FILE is missing"),
        (&["--socket"], "--socket needs a path"),
        (&["--serial"], "--serial needs a name"),
        (&["--drive", "x"], "unknown option --drive"),
    ] {
        let (output, said) = run(args);
        assert_eq!(output.status.code(), Some(2));
        assert!(said.contains(why) && said.contains("--help"), "{said}");
    }
    let folder = tempfile::tempdir().unwrap();
    let [disk, odd] = ["disk", "odd"].map(|name| folder.path().join(name));
    fs::write(&disk, [0; 1024]).unwrap();
    fs::write(&odd, [0; 1000]).unwrap();
    let (disk, odd) = (disk.to_str().unwrap(), odd.to_str().unwrap());
    for (args, why) in [
        (["--socket", "x", "--disk", "/no/disk"], "/no/disk: No such file"),
        (["--socket", "x", "--disk", odd], "whole sectors of 512 bytes"),
        (["--socket", "/no/folder/x", "--disk", disk], "/no/folder/x: No such file"),
    ] {
        let (output, said) = run(&args);
        assert_eq!(output.status.code(), Some(1));
        assert!(said.contains(why), "{said}");
    }
    let long = ["--socket", "x", "--disk", disk, "--serial", "more than twenty bytes"];
    assert!(run(&long).1.contains("more than 20 bytes"));
}

#[test]
fn it_serves_one_front_end_after_the_other_and_can_be_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let [socket, disk] = ["disk.sock", "disk"].map(|name| folder.path().join(name));
    fs::write(&disk, [0; 1024]).unwrap();
    for _ in 0..2 {
        // In the second round, the socket of the first program, which was killed, still exists.
        let running = Running::start(&socket, &disk);
        let args = ["--socket", socket.to_str().unwrap(), "--disk", disk.to_str().unwrap()];
        let (taken, said) = run(&args);
        assert!(taken.status.code() == Some(1) && said.contains("in use"), "{said}");
        for round in 1..=3 {
            drop(UnixStream::connect(&socket).unwrap());
            let counts = running.read_until("so far: ");
            assert!(counts.starts_with(&format!("so far: clients={round} ")), "{counts}");
        }
    }
}
