//! A session that another thread has, while something is measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use longshore_access::Space;
use longshore_mem::Iova;

/// A thread with a session. It ends when this is dropped.
pub(crate) struct Other {
    stop: Arc<AtomicBool>,
    /// What a thread that sleeps waits for.
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Other {
    /// Returns when it has made an access at `at`, which must stay mapped, and with `busy` goes on making
    /// them.
    pub(crate) fn start(space: &Space, at: u64, busy: bool) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (wake, sleep) = mpsc::channel::<()>();
        let (ready, is_ready) = mpsc::channel();
        let (space, stopped) = (space.clone(), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let session = space.session();
            let access = || session.read_obj::<u64>(Iova::new(at)).expect("it is mapped");
            std::hint::black_box(access());
            // Whoever waits for this is there, or has given up and stops the thread.
            let _ = ready.send(());
            if !busy {
                let _ = sleep.recv();
            }
            while !stopped.load(Ordering::Relaxed) {
                std::hint::black_box(access());
            }
        });
        let other = Self { stop, wake: Some(wake), thread: Some(thread) };
        is_ready.recv().context("the other session's thread")?;
        Ok(other)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}
