//! The parameters of a fill.

use crate::mode::ReadMode;

/// The parameters of a fill that determine its speed and its prefault window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    pub(crate) mode: ReadMode,
    pub(crate) populate_ahead_bytes: u64,
    pub(crate) piece_bytes: u64,
    pub(crate) depth: u32,
    pub(crate) use_uring: bool,
    pub(crate) workers: usize,
    pub(crate) connections: Option<usize>,
}
