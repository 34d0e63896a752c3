//! Runs the `longshore` command.
#![expect(unsafe_code, reason = "prepares processes between fork and exec")]
#![allow(dead_code, reason = "each test program uses a part")]

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

pub(crate) const LONGSHORE: &str = env!("CARGO_BIN_EXE_longshore");

/// The result of a run.
pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    /// Parses standard output as one JSON object; panics if the run failed.
    pub(crate) fn json(&self) -> serde_json::Value {
        assert_eq!(self.code, 0, "{}", self.stderr);
        serde_json::from_str(&self.stdout).unwrap()
    }

    /// Checks the exit code and that the error message contains `words`.
    pub(crate) fn expect(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{}", self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "'{word}' in: {}", self.stderr);
        }
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
    }
}

pub(crate) fn longshore(arguments: &[&str]) -> Outcome {
    run(Command::new(LONGSHORE).args(arguments))
}

pub(crate) fn run(command: &mut Command) -> Outcome {
    let output = command.output().unwrap();
    Outcome {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Copies the `longshore` command to a place where any user can run it. Another process writes the copy:
/// if this process did, a child that another test forks at that time could inherit the open file, and
/// executing the copy would fail with `ETXTBSY`.
pub(crate) fn copy_longshore(to: &Path) {
    assert!(Command::new("cp").arg(LONGSHORE).arg(to).status().unwrap().success());
}

/// Lets SIGINT end the program, even if the tests run in the background of a shell, which ignores
/// SIGINT there.
pub(crate) fn heed_interrupts(command: &mut Command) {
    let install = || {
        // SAFETY: the default action runs no code of this program.
        match unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) } {
            libc::SIG_ERR => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // SAFETY: the closure makes only a system call between fork and exec.
    unsafe { command.pre_exec(install) };
}

/// Gives the program only the three standard descriptors, whatever this process has inherited.
pub(crate) fn inherit_no_descriptors(command: &mut Command) {
    let close_all = || {
        let flags = libc::CLOSE_RANGE_CLOEXEC as libc::c_int;
        // SAFETY: no pointer is passed; the descriptors are closed when the program is executed.
        match unsafe { libc::close_range(3, libc::c_uint::MAX, flags) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes only a system call between fork and exec.
    unsafe { command.pre_exec(close_all) };
}

/// Sends a signal by name to a child.
pub(crate) fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

/// Runs the program as the user `nobody` if this process is root, which may read every file.
pub(crate) fn as_nobody(command: &mut Command) {
    const NOBODY: u32 = 65534;
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
}

/// Passes this descriptor to the program as number 3, as a service manager does.
pub(crate) fn hand_over(command: &mut Command, descriptor: std::os::fd::OwnedFd) {
    use std::os::fd::AsRawFd;
    let install = move || {
        let check = |result: i32| match result {
            -1 => Err(std::io::Error::last_os_error()),
            fd => Ok(fd),
        };
        // If the descriptor already has the number 3, `dup2` does nothing and it stays close-on-exec.
        // SAFETY: no pointer is passed.
        let moved =
            check(unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 10) })?;
        // SAFETY: no pointer is passed; the old descriptor 3 is not needed any more.
        check(unsafe { libc::dup2(moved, 3) }).map(|_| ())
    };
    // SAFETY: the closure makes only two system calls between fork and exec.
    unsafe { command.pre_exec(install) };
}

/// Installs a seccomp filter that refuses `io_uring_setup` with `EPERM`, as container runtimes do.
pub(crate) fn refuse_io_uring(command: &mut Command) {
    const IO_URING_SETUP: u32 = 425;
    refuse_call(command, IO_URING_SETUP);
}

/// Installs a seccomp filter that refuses the system call with this number with `EPERM`.
pub(crate) fn refuse_call(command: &mut Command, number: u32) {
    // Classic BPF over `struct seccomp_data`, whose first word is the system call's number.
    let filter = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let program = [
        filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let install = move || {
        let mut program = program;
        let program = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
        let check = |result: i32| match result {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        };
        // SAFETY: no pointer is passed.
        check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
        // SAFETY: the filter lives until the call returns, and the kernel copies it.
        let installed = unsafe {
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
        };
        check(installed)
    };
    // SAFETY: the closure makes only two system calls between fork and exec.
    unsafe { command.pre_exec(install) };
}
