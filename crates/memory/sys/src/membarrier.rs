//! `membarrier(2)`, private and expedited: makes every processor that runs a thread of this process
//! execute a full memory barrier.

use std::io;

use rustix::thread::{MembarrierCommand, membarrier};

/// Registers this process for [`all_threads`]. One call is enough; repeated calls do no harm.
///
/// # Errors
/// `ENOSYS` or `EINVAL` if the kernel has no such barrier (before Linux 4.14), `EPERM` if a seccomp
/// filter forbids it.
pub fn register() -> io::Result<()> {
    Ok(membarrier(MembarrierCommand::RegisterPrivateExpedited)?)
}

/// Returns after every other thread of this process has executed a full barrier, or does not run now and
/// will execute one before it does. It is also a full barrier for the caller.
///
/// # Errors
/// `EPERM` before [`register`].
pub fn all_threads() -> io::Result<()> {
    Ok(membarrier(MembarrierCommand::PrivateExpedited)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registered_process_gets_its_barrier() {
        if let Err(error) = register() {
            println!("SKIPPED: no membarrier here: {error}");
            return;
        }
        all_threads().unwrap();
        register().unwrap();
        all_threads().unwrap();
    }
}
