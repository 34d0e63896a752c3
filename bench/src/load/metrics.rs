//! What the cases of this bench measure.

use crate::harness::Metric;

/// Bytes of the file over the time from the call to the finished memory.
pub(crate) const SPEED: Metric = Metric { name: "speed", unit: "GB/s" };
/// From the call to the finished memory.
pub(crate) const TIME: Metric = Metric { name: "time", unit: "ms" };
/// By how much the file's share of the page cache grew.
pub(crate) const PAGE_CACHE: Metric = Metric { name: "page_cache_growth", unit: "MiB" };
/// The process's peak memory less the file's size; what a program holds before the load counts.
pub(crate) const PEAK: Metric = Metric { name: "peak_over_file", unit: "MiB" };
/// From the start of the interpreter's imports to their end.
pub(crate) const IMPORT: Metric = Metric { name: "import", unit: "ms" };

const MIB: f64 = 1_048_576.0;

pub(crate) fn gigabytes_per_second(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / 1e9 / seconds.max(1e-9)
}

pub(crate) fn mebibytes(bytes: i64) -> f64 {
    bytes as f64 / MIB
}
