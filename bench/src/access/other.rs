//! Sessions of other threads that exist during a measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use longshore_access::{Session, Space};
use longshore_mem::Iova;

/// The sessions that exist during a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sessions {
    None,
    /// Four, all quiescent.
    Parked,
    /// One that has made an access, and whose thread sleeps.
    Idle,
    /// One whose thread makes accesses without a pause.
    Busy,
}

impl Sessions {
    /// Each variant with the name of its candidate.
    pub(crate) const ALL: [(&str, Self); 4] = [
        ("no session", Self::None),
        ("all parked", Self::Parked),
        ("idle, unparked", Self::Idle),
        ("one busy", Self::Busy),
    ];

    pub(crate) fn cores(self) -> usize {
        if self == Self::Busy { 2 } else { 1 }
    }

    /// Starts the sessions. Each has made an access at `at`, which must stay mapped.
    pub(crate) fn start(self, space: &Space, at: Iova) -> Result<(Option<Other>, Vec<Session>)> {
        const PARKED: usize = 4;
        let other = match self {
            Self::Idle | Self::Busy => Some(Other::start(space, at, self == Self::Busy)?),
            Self::None | Self::Parked => None,
        };
        let parked = if self == Self::Parked { PARKED } else { 0 };
        let parked: Vec<Session> = (0..parked).map(|_| space.session()).collect();
        for session in &parked {
            session.read_obj::<u64>(at)?;
            session.park();
        }
        Ok((other, parked))
    }
}

/// A thread with a session. Dropping this ends the thread.
pub(crate) struct Other {
    stop: Arc<AtomicBool>,
    /// Dropping this wakes a sleeping thread.
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Other {
    fn start(space: &Space, at: Iova, busy: bool) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (wake, sleep) = mpsc::channel::<()>();
        let (ready, is_ready) = mpsc::channel();
        let (space, stopped) = (space.clone(), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let session = space.session();
            let access = || session.read_obj::<u64>(at).expect("it is mapped");
            std::hint::black_box(access());
            // The caller waits for this, or has given up and stops the thread.
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
            // The thread returns nothing.
            let _ = thread.join();
        }
    }
}
