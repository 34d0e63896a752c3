//! How a fill is run.

use crate::mode::ReadMode;

/// What decides how fast a fill is and how much memory it takes ahead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    pub(crate) mode: ReadMode,
    pub(crate) populate_ahead_bytes: u64,
    pub(crate) piece_bytes: u64,
    pub(crate) depth: u32,
    pub(crate) use_uring: bool,
    pub(crate) workers: usize,
}
