//! Tests of the program.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use crate::driver::{Driver, SOURCE, TARGET};
use longshore::vfio_user::client::NoDmaMemory;
use longshore_device_example::layout::{opcode, outcome};

/// The limit of each wait.
const PATIENCE: Duration = Duration::from_secs(60);

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_longshore-device-example"))
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
    fn start(path: &Path) -> Self {
        let mut command = program();
        command.arg("--socket").arg(path).arg("--trace").stdout(Stdio::piped());
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
    assert!(["--socket PATH", "--trace", "vfio-user-pci"].iter().all(|it| help.contains(it)));
    for (args, why) in [
        (&[][..], "--socket PATH is missing"),
        (&["--socket"], "--socket needs a path"),
        (&["--sock", "x"], "unknown option --sock"),
    ] {
        let (output, said) = run(args);
        assert_eq!(output.status.code(), Some(2));
        assert!(said.contains(why) && said.contains("--help"), "{said}");
    }
    let (output, said) = run(&["--socket", "/no/such/folder/socket"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("/no/such/folder/socket: No such file or directory"), "{said}");
}

#[test]
fn it_serves_one_client_after_the_other_and_can_be_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device.sock");
    for _ in 0..2 {
        // In the second round, the socket of the first program, which was killed, still exists.
        let running = Running::start(&path);
        let (taken, said) = run(&["--socket", path.to_str().unwrap()]);
        assert!(taken.status.code() == Some(1) && said.contains("in use"), "{said}");
        for round in 1..=2 {
            let mut driver = Driver::over(UnixStream::connect(&path).unwrap(), NoDmaMemory);
            let found = driver.run(opcode::COPY, &[(SOURCE, 4096)], TARGET);
            assert_eq!(found.outcome, outcome::DONE);
            running.read_until("map 0x40000000 + 0x200000 rw");
            running.read_until("0x3e8: done, 4096 bytes");
            drop(driver);
            let counts = running.read_until("so far: ");
            let start =
                format!("so far: {round} clients, 0 resets; {0} maps, {0} unmaps", 3 * round);
            assert!(counts.starts_with(&start), "{counts}");
        }
    }
}
