//! Closing descriptors that clients sent.
//!
//! To close a file may mean to wait for its file system, and that may be a process of the client's
//! (FUSE) which never answers. So what is not known to be a served file is closed by a thread of its
//! own, and a user who has had too many closed that way at once is not listened to.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// How many descriptors of one user may be waiting to be closed: those of one message, and some.
const WAITING_MAX: usize = 300;

/// What is being closed, by user.
#[derive(Debug, Default)]
pub(super) struct Closers {
    waiting: BTreeMap<u32, Arc<AtomicUsize>>,
}

impl Closers {
    /// Whether this user may send descriptors. Asked before anything is received, since what was
    /// received must be closed.
    pub(super) fn may_send(&self, uid: u32) -> bool {
        self.waiting.get(&uid).is_none_or(|count| count.load(Ordering::Relaxed) < WAITING_MAX)
    }

    /// Closes descriptors that this user sent, without waiting for it.
    pub(super) fn close(&mut self, uid: u32, descriptors: Vec<OwnedFd>) {
        self.waiting.retain(|_, count| count.load(Ordering::Relaxed) > 0);
        if descriptors.is_empty() {
            return;
        }
        let count = Arc::clone(self.waiting.entry(uid).or_default());
        let closing = descriptors.len();
        count.fetch_add(closing, Ordering::Relaxed);
        let waiting = Arc::clone(&count);
        let close = move || {
            drop(descriptors);
            waiting.fetch_sub(closing, Ordering::Relaxed);
        };
        let thread = thread::Builder::new().name("longshore-close".to_owned()).spawn(close);
        if thread.is_err() {
            // No thread is to be had: what it was given was dropped here and now.
            count.fetch_sub(closing, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::time::{Duration, Instant};

    use longshore_sys::event_fd;

    use super::*;

    #[test]
    fn what_was_sent_is_closed_and_users_are_counted_apart() {
        let mut closers = Closers::default();
        let event = event_fd::create().unwrap();
        let link = format!("/proc/self/fd/{}", event.as_raw_fd());
        closers.close(7, vec![event]);
        let begin = Instant::now();
        while std::path::Path::new(&link).exists() && begin.elapsed() < Duration::from_secs(10) {
            thread::yield_now();
        }
        let stuck = Arc::new(AtomicUsize::new(WAITING_MAX));
        closers.waiting.insert(8, stuck);
        assert!(!closers.may_send(8) && closers.may_send(9));
    }
}
