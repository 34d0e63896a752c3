//! Look-ups in `/proc/self` that other users cannot delay.
//!
//! Looking up a name that the kernel has not cached takes the lock of the directory. A user can hold
//! that lock: `getdents64(2)` keeps it while it writes to memory whose file is on a FUSE server that
//! does not answer, and a writer that queues behind it blocks all further readers. Every user may list
//! `/proc/PID`, so its entries must be in the cache whenever a server looks them up. Only processes that
//! may trace this one can list `fd` and `fdinfo`, so look-ups in these need no such care.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::fs::{CWD, Mode, OFlags, openat};

/// The entries of `/proc/self` that this crate uses while a server runs.
const ENTRIES: [&str; 3] = ["/proc/self/fd", "/proc/self/fdinfo", "/proc/self/mountinfo"];

/// Open descriptors of the entries. The kernel caches an entry, and the directories above it, while a
/// descriptor of it is open.
static PINNED: OnceLock<Vec<OwnedFd>> = OnceLock::new();

/// Keeps the entries in the kernel's cache until the process ends. Without `/proc` it does nothing.
pub(crate) fn pin() {
    PINNED.get_or_init(|| {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        ENTRIES.iter().filter_map(|path| openat(CWD, *path, flags, Mode::empty()).ok()).collect()
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entry_is_pinned_once() {
        pin();
        let numbers = || PINNED.get().unwrap().iter().map(std::os::fd::AsRawFd::as_raw_fd);
        let before: Vec<_> = numbers().collect();
        assert_eq!(before.len(), ENTRIES.len());
        pin();
        assert!(numbers().eq(before));
    }
}
