//! The thread that frees bounce buffers which no transfer uses.
//!
//! There is one for all domains of the process, while any of their pools has a chunk that is to be
//! freed some day. It looks at each domain twice in the time after which that is.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::domain::Inner;

/// The domains. Held while they are looked at, so never by whoever maps: the keeper waits for those.
static DOMAINS: Mutex<Vec<Arc<Inner>>> = Mutex::new(Vec::new());

static SIGNAL: Mutex<Signal> = Mutex::new(Signal { has_grown: false, is_running: false });
static GROWN: Condvar = Condvar::new();

struct Signal {
    /// Whether a pool has grown since the domains were looked at.
    has_grown: bool,
    is_running: bool,
}

/// Has the keeper look after a domain.
pub(crate) fn add(inner: &Arc<Inner>) {
    lock(&DOMAINS).push(Arc::clone(inner));
}

/// Has it forget the domain. When this returns, it does not use it any more.
pub(crate) fn remove(inner: &Arc<Inner>) {
    lock(&DOMAINS).retain(|kept| !Arc::ptr_eq(kept, inner));
}

/// Says that a pool has grown. Where there can be no thread, chunks are freed on request alone.
pub(crate) fn wake() {
    let mut signal = lock(&SIGNAL);
    signal.has_grown = true;
    if !signal.is_running {
        let started = thread::Builder::new().name("longshore-pools".to_owned()).spawn(keep);
        signal.is_running = started.is_ok();
    }
    drop(signal);
    GROWN.notify_one();
}

fn keep() {
    loop {
        let next = look();
        let mut signal = lock(&SIGNAL);
        if !signal.has_grown {
            let Some(next) = next else {
                signal.is_running = false;
                return;
            };
            let woken = GROWN.wait_timeout(signal, next);
            signal = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        signal.has_grown = false;
    }
}

/// Frees what has been idle for long enough. When to look again; `None` where there is nothing left.
fn look() -> Option<Duration> {
    let domains = lock(&DOMAINS);
    let after = |inner: &Arc<Inner>| {
        let idle = inner.idle()?;
        // What cannot be unmapped is leaked, and counts as held.
        let _ = inner.shrink(idle);
        (inner.pools.held_bytes() != 0).then(|| (idle / 2).max(Duration::from_millis(1)))
    };
    domains.iter().filter_map(after).min()
}

fn lock<T>(of: &'static Mutex<T>) -> MutexGuard<'static, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
