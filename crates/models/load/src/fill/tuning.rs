//! The parameters of a fill.

use crate::mode::ReadMode;
use crate::plan::Plan;

/// The number of connections over which files of other machines are read.
const CONNECTIONS: usize = 16;

/// The parameters of a fill that determine its speed and its prefault window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    pub(crate) mode: ReadMode,
    pub(crate) populate_ahead_bytes: u64,
    pub(crate) piece_bytes: u64,
    pub(crate) depth: u32,
    pub(crate) use_uring: bool,
    pub(crate) workers: usize,
}

impl Tuning {
    /// Returns the number of threads for reads that are not direct. One that reads from another machine waits for
    /// it most of the time.
    pub(crate) fn workers_for(&self, plan: &Plan) -> usize {
        let is_remote = plan.files().iter().any(|file| file.source().object().is_some());
        if is_remote { self.workers.max(CONNECTIONS) } else { self.workers }
    }
}
