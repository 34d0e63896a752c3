//! CPU seconds and peak memory of a run.

use std::fs;

use rustix::time::{ClockId, clock_gettime};

/// What a run cost besides its time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cost {
    /// User and system time.
    pub(crate) cpu_seconds: Option<f64>,
    /// The most that the process had resident, shared memory and mapped files included.
    pub(crate) peak_memory_bytes: Option<u64>,
}

impl Cost {
    /// Runs `work` and returns what it cost this process.
    pub(crate) fn of<R>(work: impl FnOnce() -> R) -> (R, Self) {
        reset_peak();
        let began = process_cpu_seconds();
        let done = work();
        let cpu_seconds = Some(process_cpu_seconds() - began);
        (done, Self { cpu_seconds, peak_memory_bytes: own_peak_bytes() })
    }

    /// The cost of work in this process that was timed for itself.
    pub(crate) fn of_stretch(cpu_seconds: f64) -> Self {
        Self { cpu_seconds: Some(cpu_seconds), peak_memory_bytes: own_peak_bytes() }
    }
}

/// CPU seconds of all threads of this process so far.
pub(crate) fn process_cpu_seconds() -> f64 {
    seconds(ClockId::ProcessCPUTime)
}

/// CPU seconds of the calling thread so far.
pub(crate) fn thread_cpu_seconds() -> f64 {
    seconds(ClockId::ThreadCPUTime)
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Lets the peak of this process begin anew (`man proc_pid_clear_refs`). Where the kernel refuses,
/// the peak is that of all runs so far.
pub(crate) fn reset_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// The peak of this process since [`reset_peak`].
pub(crate) fn own_peak_bytes() -> Option<u64> {
    status_bytes(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// A field of `/proc/PID/status`, which is in KiB.
pub(crate) fn status_bytes(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find(|line| line.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_and_memory_of_work_are_seen() {
        const BYTES: usize = 64 << 20;
        let (sum, cost) = Cost::of(|| {
            let bytes = std::hint::black_box(vec![1u8; BYTES]);
            bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>()
        });
        assert_eq!(sum, BYTES as u64);
        assert!(cost.cpu_seconds.unwrap() > 1e-4, "{cost:?}");
        assert!(cost.peak_memory_bytes.unwrap() >= BYTES as u64, "{cost:?}");
    }
}
