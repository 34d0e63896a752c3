//! Programs that are ended together with those that they have started (`setpgid(2)`).
#![expect(unsafe_code, reason = "prepares a process between fork and exec")]

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdout, Command, ExitStatus};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process_group,
    set_parent_process_death_signal, waitid,
};

/// A program in a process group of its own. Dropping it kills all processes of the group.
#[derive(Debug)]
pub struct ProcessGroup {
    child: Child,
    is_waited: bool,
}

impl ProcessGroup {
    /// Starts a program. If the calling thread ends before it, which includes that this process is killed, the
    /// kernel kills the program, but not the others of its group (`PR_SET_PDEATHSIG`).
    ///
    /// # Errors
    /// Those of [`Command::spawn`].
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        let parent = getpid();
        let end_with_parent = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            match getppid() == Some(parent) {
                true => Ok(()),
                false => Err(io::ErrorKind::BrokenPipe.into()),
            }
        };
        // SAFETY: the closure makes two system calls. It takes no lock and allocates nothing.
        unsafe { command.pre_exec(end_with_parent) };
        Ok(Self { child: command.process_group(0).spawn()?, is_waited: false })
    }

    /// Takes the pipe to which the program writes.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Returns `true` if the program has ended. Others of its group may run.
    ///
    /// # Errors
    /// Those of `waitid(2)`.
    pub fn has_ended(&self) -> io::Result<bool> {
        // Until the program is waited for, the number of its group belongs to no other one.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(self.pid()), options)?.is_some())
    }

    /// Kills all processes of the group, and returns the status of the program.
    ///
    /// # Errors
    /// Those of `wait(2)`.
    pub fn end(mut self) -> io::Result<ExitStatus> {
        self.kill();
        self.is_waited = true;
        self.child.wait()
    }

    fn kill(&self) {
        // It fails if all of them have ended.
        let _ = kill_process_group(self.pid(), Signal::KILL);
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if !self.is_waited {
            self.kill();
            // It has just been killed.
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::Stdio;

    use super::*;

    #[test]
    fn all_programs_of_a_group_end() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo started; wait"]).stdout(Stdio::piped());
        let mut group = ProcessGroup::spawn(&mut command).unwrap();
        let mut stdout = group.take_stdout().unwrap();
        let mut line = [0; 8];
        stdout.read_exact(&mut line).unwrap();
        assert!(!group.has_ended().unwrap());
        drop(group);
        // Both have the pipe open.
        assert_eq!(stdout.read(&mut line).unwrap(), 0);
    }

    #[test]
    fn a_program_ends_with_the_thread_that_started_it() {
        let start = || {
            let mut command = Command::new("sleep");
            ProcessGroup::spawn(command.arg("600").stdout(Stdio::piped())).unwrap()
        };
        let mut group = std::thread::spawn(start).join().unwrap();
        let mut stdout = group.take_stdout().unwrap();
        assert_eq!(stdout.read(&mut [0; 8]).unwrap(), 0);
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&group.end().unwrap()), Some(9));
    }

    #[test]
    fn the_status_of_a_program_that_ended_is_returned() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & exit 3"]).stdout(Stdio::piped());
        let mut group = ProcessGroup::spawn(&mut command).unwrap();
        let mut stdout = group.take_stdout().unwrap();
        while !group.has_ended().unwrap() {
            std::thread::yield_now();
        }
        assert_eq!(group.end().unwrap().code(), Some(3));
        assert_eq!(stdout.read(&mut [0; 8]).unwrap(), 0);
    }
}
