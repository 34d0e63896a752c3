//! CPU seconds and peak memory of a run.

use std::fs;

use rustix::time::{ClockId, clock_gettime};

/// The cost of a run besides its time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cost {
    /// User and system time.
    pub(crate) cpu_seconds: Option<f64>,
    /// The peak resident memory of the process, including shared memory and mapped files.
    pub(crate) peak_memory_bytes: Option<u64>,
}

impl Cost {
    /// Runs `work` and returns its result and what it cost this process.
    pub(crate) fn of<R>(work: impl FnOnce() -> R) -> (R, Self) {
        reset_peak();
        let began = process_cpu_seconds();
        let done = work();
        let cpu_seconds = Some(process_cpu_seconds() - began);
        (done, Self { cpu_seconds, peak_memory_bytes: own_peak_bytes() })
    }

    /// Returns the cost of work in this process whose CPU time was measured separately.
    pub(crate) fn of_stretch(cpu_seconds: f64) -> Self {
        Self { cpu_seconds: Some(cpu_seconds), peak_memory_bytes: own_peak_bytes() }
    }
}

/// Returns the CPU seconds of all threads of this process so far.
pub(crate) fn process_cpu_seconds() -> f64 {
    seconds(ClockId::ProcessCPUTime)
}

/// Returns the CPU seconds of the calling thread so far.
pub(crate) fn thread_cpu_seconds() -> f64 {
    seconds(ClockId::ThreadCPUTime)
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Resets the peak of this process (`man proc_pid_clear_refs`). If the kernel refuses, the peak is that
/// of all runs so far.
pub(crate) fn reset_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Returns the peak of this process since [`reset_peak`].
pub(crate) fn own_peak_bytes() -> Option<u64> {
    status_bytes(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// Returns a field of `/proc/PID/status` in bytes; the file has KiB.
pub(crate) fn status_bytes(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find(|line| line.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_and_memory_of_work_are_measured() {
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
