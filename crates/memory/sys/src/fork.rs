//! Detects that this process is a child of `fork(2)`.
#![expect(unsafe_code, reason = "registers a handler of forks")]

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of forks between the first call of [`Process::current`] in an ancestor and this process.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// An identity of a process, which a child does not have. Its ID alone is not enough: in a new PID namespace,
/// a child can have the same ID as its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pid: u32,
    forks: u64,
}

impl Process {
    /// Returns the identity of this process.
    pub fn current() -> Self {
        static REGISTERED: Once = Once::new();
        extern "C" fn count() {
            FORKS.fetch_add(1, Ordering::Relaxed);
        }
        REGISTERED.call_once(|| {
            // SAFETY: the handler only changes an atomic number. If there is no memory for it, the ID remains.
            unsafe { libc::pthread_atfork(None, None, Some(count)) };
        });
        Self { pid: std::process::id(), forks: FORKS.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_another_process() {
        let parent = Process::current();
        assert_eq!(Process::current(), parent);
        // SAFETY: the child only compares numbers and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let now = Process::current();
            let is_other = now != parent && now.forks == parent.forks + 1;
            // SAFETY: always safe.
            unsafe { libc::_exit(i32::from(!is_other)) };
        }
        let mut status = 0;
        // SAFETY: `status` is a place for the status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
