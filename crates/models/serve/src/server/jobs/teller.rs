//! The reports of a job's thread to the serving thread.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;

use longshore_sys::event_fd;

use super::job::{Done, WithoutResult};

/// A report of a job.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) ticket: u64,
    pub(super) done: Done,
}

#[derive(Clone)]
pub(super) struct Teller {
    pub(super) ticket: u64,
    pub(super) sender: Sender<Said>,
    pub(super) event: Arc<OwnedFd>,
}

/// Makes sure that the end of a job is reported, also if its thread panics: clients wait for it.
pub(super) struct Promise {
    pub(super) teller: Teller,
    pub(super) without: Option<WithoutResult>,
}

impl Teller {
    pub(super) fn tell(&self, done: Done) {
        // A server that has ended receives no reports.
        if self.sender.send(Said { ticket: self.ticket, done }).is_ok() {
            let _ = event_fd::signal(&self.event);
        }
    }
}

impl Promise {
    pub(super) fn keep(mut self, done: Done) {
        self.without = None;
        self.teller.tell(done);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        // If there is no thread, there is no panic: the caller that wanted to start the thread reports
        // the failure.
        if let Some(without) = self.without.take().filter(|_| thread::panicking()) {
            let source = io::Error::other("it panicked");
            let operation = "a thread of the server";
            self.teller.tell(without(longshore_load::Error::Process { operation, source }));
        }
    }
}
