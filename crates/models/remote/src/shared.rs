//! The state that an access to servers shares with the files that it has opened.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The longest time for which a server may send nothing.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The limit on the memory for first bytes of files.
const FIRST_BYTES_MAX: usize = 32 << 20;

/// The notes for the user. The files that were opened share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds a note, unless it is there. A file is opened more than once.
    pub(crate) fn push(&self, note: String) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
}

/// The limit on the time of all requests together. The files that were opened share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct TimeLimit {
    limit: Option<Duration>,
    deadline: Arc<Mutex<Option<Instant>>>,
}

impl TimeLimit {
    /// Makes the limit, which begins now.
    pub(crate) fn new(limit: Duration) -> Self {
        let new = Self { limit: Some(limit), deadline: Arc::default() };
        new.restart();
        new
    }

    /// Begins again.
    pub(crate) fn restart(&self) {
        let deadline = self.limit.and_then(|limit| Instant::now().checked_add(limit));
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner) = deadline;
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The share of a file in the memory for first bytes.
#[derive(Debug)]
pub(crate) struct KeptBytes {
    all: Arc<AtomicUsize>,
    len: usize,
}

impl KeptBytes {
    /// Counts `len` bytes until the result is dropped. Returns `None` if there would be too many.
    pub(crate) fn new(all: &Arc<AtomicUsize>, len: usize) -> Option<Self> {
        let before = all.fetch_add(len, Ordering::Relaxed);
        let counted = Self { all: Arc::clone(all), len };
        (before.saturating_add(len) <= FIRST_BYTES_MAX).then_some(counted)
    }
}

impl Drop for KeptBytes {
    fn drop(&mut self) {
        self.all.fetch_sub(self.len, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_for_first_bytes_is_limited_and_free_again() {
        let all = Arc::new(AtomicUsize::new(0));
        let kept = KeptBytes::new(&all, FIRST_BYTES_MAX);
        assert!(kept.is_some() && KeptBytes::new(&all, 1).is_none());
        assert_eq!(all.load(Ordering::Relaxed), FIRST_BYTES_MAX);
        drop(kept);
        assert_eq!(all.load(Ordering::Relaxed), 0);
        assert!(KeptBytes::new(&all, 1).is_some());
    }
}
