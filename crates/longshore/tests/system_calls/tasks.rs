//! The states of the threads of a process, from `/proc/PID/task`.

use std::fs;
use std::io;
use std::process;
use std::time::Duration;

/// The interval at which the states are polled.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Returns `true` if all threads of this process sleep except the first, which is the caller.
pub(crate) fn others_wait() -> bool {
    let own = process::id();
    all_wait(own, |thread| thread == own).unwrap_or(false)
}

/// Returns `true` if all threads of a process sleep.
pub(crate) fn wait_of(process: u32) -> bool {
    all_wait(process, |_| false).unwrap_or(false)
}

fn all_wait(process: u32, is_left_out: impl Fn(u32) -> bool) -> io::Result<bool> {
    for entry in fs::read_dir(format!("/proc/{process}/task"))? {
        let entry = entry?;
        let thread = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if thread.is_some_and(&is_left_out) {
            continue;
        }
        let status = fs::read_to_string(entry.path().join("stat"))?;
        // The state follows the name, which may have any characters.
        if !status.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S')) {
            return Ok(false);
        }
    }
    Ok(true)
}
