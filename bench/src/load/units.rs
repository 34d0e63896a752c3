//! Conversions to the units of metrics.

const MIB: f64 = 1_048_576.0;

pub(crate) fn gigabytes_per_second(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / 1e9 / seconds.max(1e-9)
}

pub(crate) fn mebibytes(bytes: i64) -> f64 {
    bytes as f64 / MIB
}
