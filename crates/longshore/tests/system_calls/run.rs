//! The run of one workload in a process of its own, with a filter from the beginning of one phase on.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::call::Call;
use crate::filter;
use crate::tasks;

/// The phases of a program's use of a crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Setup,
    Steady,
    Teardown,
}

impl Phase {
    pub(crate) const ALL: [Self; 3] = [Self::Setup, Self::Steady, Self::Teardown];
}

/// Writes the phase as the page does.
impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Setup => "setup",
            Self::Steady => "steady state",
            Self::Teardown => "teardown",
        })
    }
}

/// The run of a workload, which calls [`Run::begin`] at the beginning of each phase.
pub(crate) struct Run {
    under_test: Phase,
    permitted: BTreeSet<Call>,
}

impl Run {
    /// Makes a run that permits only these calls in one phase.
    pub(crate) fn new(under_test: Phase, permitted: BTreeSet<Call>) -> Self {
        let mut run = Self { under_test, permitted };
        // A panic writes a message.
        run.permit("write", libc::STDERR_FILENO);
        // A panic ends with the first, and a phase with the second.
        run.permitted.insert(Call::any(libc::SYS_exit_group));
        run.permitted.insert(Call::any(libc::SYS_pause));
        run
    }

    fn permit(&mut self, name: &str, descriptor: i32) {
        self.permitted.insert(Call::with_first(name, descriptor as u64));
    }

    /// Ends the phase before, if there was one, and begins this one.
    pub(crate) fn begin(&mut self, phase: Phase) {
        if phase > self.under_test {
            filter::finish();
        }
        if phase == self.under_test {
            // Calls that other threads still make belong to the phase before.
            while !tasks::others_wait() {
                std::thread::sleep(tasks::LOOK_EVERY);
            }
            filter::install(&self.permitted).expect("the test has seen a filter installed");
        }
    }

    /// Ends the last phase. It never returns, so local variables of the workload are not dropped.
    pub(crate) fn end(&self) -> ! {
        filter::finish()
    }

    /// Makes a gate for a thread, and its opener.
    pub(crate) fn gate(&mut self) -> (Opener, Gate) {
        let (opener, gate) = UnixStream::pair().unwrap();
        self.permit("write", opener.as_raw_fd());
        self.permit("read", gate.as_raw_fd());
        (Opener(File::from(OwnedFd::from(opener))), Gate(File::from(OwnedFd::from(gate))))
    }

    /// Starts another process for the other end of a connection. It has no filter, and runs its steps
    /// when the workload requests them.
    #[expect(clippy::zombie_processes, reason = "it ends after this program, whose end it notices")]
    pub(crate) fn peer(&mut self, name: &str) -> Peer {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([PEER, name]).stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null());
        let child = command.spawn().unwrap();
        let control = File::from(OwnedFd::from(ours));
        self.permit("read", control.as_raw_fd());
        self.permit("write", control.as_raw_fd());
        Peer { control, id: child.id() }
    }
}

/// Opens the gate of another thread.
pub(crate) struct Opener(File);

impl Opener {
    pub(crate) fn open(&mut self) {
        self.0.write_all(&[1]).unwrap();
    }
}

/// A gate where a thread waits until [`Opener::open`] is called. The filter permits the read of its
/// descriptor.
pub(crate) struct Gate(File);

impl Gate {
    pub(crate) fn wait(&mut self) {
        self.0.read_exact(&mut [0]).unwrap();
    }
}

/// The folders of a run and of its peers.
pub(crate) struct Files {
    /// The folder for sockets and for the report.
    pub(crate) run: PathBuf,
    /// The folder with a model, which all runs share.
    pub(crate) models: PathBuf,
}

impl Files {
    /// The environment variable with the folder of a run, whose parent is the folder of all runs.
    pub(crate) const VARIABLE: &str = "LONGSHORE_SYSTEM_CALLS";

    pub(crate) fn new() -> Self {
        let run = PathBuf::from(std::env::var_os(Self::VARIABLE).expect("of the test"));
        let models = run.parent().expect("of the test").to_owned();
        Self { run, models }
    }

    /// Returns the path of the report of a call that the filter does not permit.
    pub(crate) fn report(run: &Path) -> PathBuf {
        run.join("report")
    }
}

/// The first argument of a peer.
pub(crate) const PEER: &str = "--peer";

/// Another process, which runs its steps when the workload requests them.
pub(crate) struct Peer {
    control: File,
    id: u32,
}

impl Peer {
    /// Returns the process ID.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Requests the next step, and waits until it is done.
    pub(crate) fn step(&mut self) {
        self.start();
        self.finish();
    }

    /// Requests the next step.
    pub(crate) fn start(&mut self) {
        self.control.write_all(&[1]).unwrap();
    }

    /// Waits until the requested step is done.
    pub(crate) fn finish(&mut self) {
        self.control.read_exact(&mut [0]).expect("the peer has made its step");
    }
}

/// The peer's end of the connection over which the workload requests steps.
pub(crate) struct Steps(File);

impl Steps {
    pub(crate) fn new() -> Self {
        Self(File::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap()))
    }

    /// Waits until the workload requests a step, and runs it. Ends the process if the workload has
    /// ended.
    pub(crate) fn step<R>(&mut self, step: impl FnOnce() -> R) -> R {
        if self.0.read_exact(&mut [0]).is_err() {
            filter::exit(0);
        }
        let result = step();
        // The workload may have ended.
        let _ = self.0.write_all(&[1]);
        result
    }
}
