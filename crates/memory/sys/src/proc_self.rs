//! Look-ups in `/proc/self` and `/proc/sys` that other users cannot delay.
//!
//! Looking up a name that the kernel has not cached takes the lock of the directory. A user can hold
//! that lock: `getdents64(2)` keeps it while it writes to memory whose file is on a FUSE server that
//! does not answer, and a writer that queues behind it blocks all further readers. Every user may list
//! `/proc/PID`, so its entries must be in the cache whenever a server looks them up. Only processes that
//! may trace this one can list `fd` and `fdinfo`, so look-ups in these need no such care.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::bounded;

/// The entries that this crate and the C library use while a server runs. glibc reads the last one when it
/// first returns memory of a thread's arena to the kernel.
const ENTRIES: [&str; 5] = [
    "/proc/self/fd",
    "/proc/self/fdinfo",
    "/proc/self/mountinfo",
    "/proc/sys/vm/max_map_count",
    "/proc/sys/vm/overcommit_memory",
];

/// Open descriptors of the entries. The kernel caches an entry, and the directories above it, while a
/// descriptor of it is open.
static PINNED: OnceLock<Vec<OwnedFd>> = OnceLock::new();

/// Keeps the entries in the kernel's cache until the process ends. Without `/proc`, and if a user delays
/// this look-up, it does nothing.
pub(crate) fn pin() {
    PINNED.get_or_init(|| {
        let open =
            |path: &&str| openat(CWD, *path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
        bounded::look(move || ENTRIES.iter().filter_map(open).collect()).unwrap_or_default()
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
