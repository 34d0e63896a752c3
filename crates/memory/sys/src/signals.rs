//! The signal mask of a thread (`pthread_sigmask(3)`), and default actions (`signal(2)`).
#![expect(unsafe_code, reason = "changes the signal mask of a thread, and actions of signals")]

use std::io;
use std::mem::MaybeUninit;

/// Blocks all signals on the calling thread, so that the kernel delivers them to other threads. Threads
/// that this one starts inherit the mask.
///
/// This is for threads that must not run signal handlers, because they may be blocked in a system call
/// for a long time, or because they have another descriptor table. If such a thread faults, the process
/// is killed.
///
/// # Errors
/// Those of `pthread_sigmask(3)`, which has none for a valid set.
pub fn block_all() -> io::Result<()> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: there is room for a signal set.
    let filled = unsafe { libc::sigfillset(all.as_mut_ptr()) };
    if filled != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the set is initialized, and a null pointer means that the old mask is not returned.
    match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Makes a signal end the process, as it does by default. A handler of it is not called any more.
///
/// # Errors
/// `EINVAL` for a number that is not a signal, or SIGKILL or SIGSTOP.
pub fn set_default(signal: i32) -> io::Result<()> {
    // SAFETY: the default action calls no function of this process.
    match unsafe { libc::signal(signal, libc::SIG_DFL) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_blocks_all_signals_that_can_be_blocked() {
        let blocked = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
            u64::from_str_radix(mask.trim(), 16).unwrap()
        };
        let before = blocked();
        let mask = std::thread::spawn(move || {
            block_all().unwrap();
            blocked()
        });
        let mask = mask.join().unwrap();
        for signal in [libc::SIGTERM, libc::SIGCHLD, libc::SIGUSR1, libc::SIGRTMAX()] {
            assert_ne!(mask >> (signal - 1) & 1, 0, "signal {signal}");
        }
        assert_eq!(blocked(), before, "the masks of other threads do not change");
    }
}
