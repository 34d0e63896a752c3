//! `membarrier(2)`, private and expedited: one thread has a full memory barrier executed on every
//! processor that runs a thread of this process.

use std::io;

use rustix::thread::{MembarrierCommand, membarrier};

/// Says that this process will call [`all_threads`]. Once is enough; again does no harm.
///
/// # Errors
/// `ENOSYS` or `EINVAL` where the kernel has no such barrier (before Linux 4.14, or forbidden by a
/// filter of system calls as `EPERM`).
pub fn register() -> io::Result<()> {
    Ok(membarrier(MembarrierCommand::RegisterPrivateExpedited)?)
}

/// Returns when every other thread of this process has executed a full barrier, or runs nowhere
/// and will execute one before it does. Itself a full barrier for the caller.
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
