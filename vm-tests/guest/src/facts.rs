//! Facts about this machine, for tests of the harness that check whether a machine has the requested
//! parts.

use std::{
    fs,
    hint::black_box,
    time::{Duration, Instant},
};

use longshore_vm_tests::pattern;
use serde_json::{Value, json};

/// Returns the kernel, its command line, processors, memory, disks by name, IOMMUs, and the processor's
/// speed.
pub(crate) fn gather() -> Value {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    json!({
        "kernel": text("/proc/sys/kernel/osrelease"),
        "command_line": text("/proc/cmdline"),
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "memory_bytes": longshore_sys::memory::meminfo_bytes("MemTotal:"),
        "disks": names_in("/dev/disk"),
        "mounts": text("/proc/mounts"),
        "iommus": names_in("/sys/class/iommu"),
        "iommu_groups": names_in("/sys/kernel/iommu_groups").len(),
        "computing_nanoseconds": u64::try_from(computing().as_nanos()).unwrap_or(u64::MAX),
    })
}

/// Returns the time of a fixed computation that uses only the processor. It is the minimum of some runs,
/// because in the others the kernel did work of its own.
fn computing() -> Duration {
    let mut bytes = [0; 4096];
    let mut run = || {
        let started = Instant::now();
        for offset in (0..4 << 20).step_by(bytes.len()) {
            pattern::fill(1, offset, black_box(&mut bytes));
        }
        started.elapsed()
    };
    (0..8).map(|_| run()).min().unwrap_or_default()
}

fn names_in(dir: &str) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
