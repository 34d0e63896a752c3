//! How many guards live. Without one the handler passes every signal on.

use std::sync::atomic::{AtomicUsize, Ordering};

static GUARDS: AtomicUsize = AtomicUsize::new(0);

/// Counts a guard.
pub(super) fn add() {
    GUARDS.fetch_add(1, Ordering::Relaxed);
}

/// Counts a guard no longer.
pub(super) fn remove() {
    GUARDS.fetch_sub(1, Ordering::Relaxed);
}

/// Returns whether copies survive faults now.
pub(super) fn is_guarded() -> bool {
    GUARDS.load(Ordering::Relaxed) != 0
}
