//! One workload in a program of its own, with a filter from the beginning of one phase on.

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

/// As the page calls it, and as an argument.
impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Setup => "setup",
            Self::Steady => "steady state",
            Self::Teardown => "teardown",
        })
    }
}

/// The workload's view of its run: it says which phase begins.
pub(crate) struct Run {
    under_test: Phase,
    permitted: BTreeSet<Call>,
}

impl Run {
    /// A run that permits only these calls in one phase.
    pub(crate) fn new(under_test: Phase, permitted: BTreeSet<Call>) -> Self {
        let mut run = Self { under_test, permitted };
        // The messages of panics.
        run.permit("write", libc::STDERR_FILENO);
        // The end of a panic, and of a phase.
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
            // What threads still do belongs to the phase before.
            while !tasks::others_wait() {
                std::thread::sleep(tasks::LOOK_EVERY);
            }
            filter::install(&self.permitted).expect("the test has seen a filter installed");
        }
    }

    /// Ends the last phase: what the workload drops now is no part of it.
    pub(crate) fn end(&self) -> ! {
        filter::finish()
    }

    /// A gate for a thread.
    pub(crate) fn gate(&mut self) -> (Opener, Gate) {
        let (opener, gate) = UnixStream::pair().unwrap();
        self.permit("write", opener.as_raw_fd());
        self.permit("read", gate.as_raw_fd());
        (Opener(File::from(OwnedFd::from(opener))), Gate(File::from(OwnedFd::from(gate))))
    }

    /// Starts another program for the other end of a connection. Its steps are made when the workload says
    /// so, and no filter is installed there.
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

/// Where a thread waits until it is told to go on, by a call that the filter permits on this descriptor.
pub(crate) struct Gate(File);

impl Gate {
    pub(crate) fn wait(&mut self) {
        self.0.read_exact(&mut [0]).unwrap();
    }
}

/// The folders of a run, and of its peers.
pub(crate) struct Files {
    /// For sockets.
    pub(crate) run: PathBuf,
    /// The folder with a model, which all runs share.
    pub(crate) models: PathBuf,
}

impl Files {
    /// The environment variable with the folder of a run, which is in that of all runs.
    pub(crate) const VARIABLE: &str = "LONGSHORE_SYSTEM_CALLS";

    pub(crate) fn new() -> Self {
        let run = PathBuf::from(std::env::var_os(Self::VARIABLE).expect("of the test"));
        let models = run.parent().expect("of the test").to_owned();
        Self { run, models }
    }

    /// The file for the report of a call that the filter does not permit.
    pub(crate) fn report(run: &Path) -> PathBuf {
        run.join("report")
    }
}

/// The first argument of a peer.
pub(crate) const PEER: &str = "--peer";

/// Another program, which makes its steps when it is asked to.
pub(crate) struct Peer {
    control: File,
    id: u32,
}

impl Peer {
    /// The other program's process.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Has the other program make its next step, and returns when it is made.
    pub(crate) fn step(&mut self) {
        self.start();
        self.finish();
    }

    /// Has the other program begin its next step.
    pub(crate) fn start(&mut self) {
        self.control.write_all(&[1]).unwrap();
    }

    /// Waits for the step that was begun.
    pub(crate) fn finish(&mut self) {
        self.control.read_exact(&mut [0]).expect("the peer has made its step");
    }
}

/// The other program's view: when to make a step.
pub(crate) struct Steps(File);

impl Steps {
    pub(crate) fn new() -> Self {
        Self(File::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap()))
    }

    /// Waits until the workload asks for a step, and makes it. Ends the program if the workload has ended.
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
