//! The number of live guards. Without one, the handler passes every signal on.

use std::sync::atomic::{AtomicUsize, Ordering};

static GUARDS: AtomicUsize = AtomicUsize::new(0);

/// Adds a guard.
pub(super) fn add() {
    GUARDS.fetch_add(1, Ordering::Relaxed);
}

/// Removes a guard.
pub(super) fn remove() {
    GUARDS.fetch_sub(1, Ordering::Relaxed);
}

/// Returns `true` if copies survive faults now.
pub(super) fn is_guarded() -> bool {
    GUARDS.load(Ordering::Relaxed) != 0
}
