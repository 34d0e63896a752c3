//! Access to the guest's memory by a ring's thread: what is not translated yet is asked for.

use longshore_access::{Fault, Plain, Reason, Session, Word};
use longshore_mem::Iova;
use std::sync::atomic::Ordering;

use crate::misses::{Misses, NoTranslation};
use crate::stop::Stop;
use crate::trace::Counts;

/// How often one address is asked for before the access is given up. Each time the front-end says
/// that it has translated it; one that invalidates at once again does so no more often than this.
const TRIES_MAX: u32 = 8;

/// Why an access was not done.
#[derive(Debug)]
pub(crate) enum Halt {
    /// The memory cannot be reached.
    Fault(Fault),
    /// The thread is to stop.
    Stopped,
}

/// A session, and whom it asks for translations.
pub(crate) struct Dma<'t> {
    pub(crate) session: Session,
    /// `None` where nothing is translated.
    pub(crate) misses: Option<&'t Misses>,
    pub(crate) stop: &'t Stop,
    pub(crate) counts: &'t Counts,
}

impl Dma<'_> {
    pub(crate) fn read(&self, iova: u64, into: &mut [u8]) -> Result<(), Halt> {
        let mut done = 0;
        self.retry(false, || {
            let at = Iova::new(iova.wrapping_add(done as u64));
            let read = self.session.read(at, &mut into[done..]);
            read.inspect_err(|fault| done += fault.done)
        })
    }

    pub(crate) fn write(&self, iova: u64, from: &[u8]) -> Result<(), Halt> {
        let mut done = 0;
        self.retry(true, || {
            let at = Iova::new(iova.wrapping_add(done as u64));
            let written = self.session.write(at, &from[done..]);
            written.inspect_err(|fault| done += fault.done)
        })
    }

    pub(crate) fn read_obj<T: Plain>(&self, iova: u64) -> Result<T, Halt> {
        self.retry(false, || self.session.read_obj(Iova::new(iova)))
    }

    pub(crate) fn write_obj<T: Plain>(&self, iova: u64, value: T) -> Result<(), Halt> {
        self.retry(true, || self.session.write_obj(Iova::new(iova), value))
    }

    pub(crate) fn load<T: Word>(&self, iova: u64, order: Ordering) -> Result<T, Halt> {
        self.retry(false, || self.session.load(Iova::new(iova), order))
    }

    pub(crate) fn store<T: Word>(&self, iova: u64, value: T, order: Ordering) -> Result<(), Halt> {
        self.retry(true, || self.session.store(Iova::new(iova), value, order))
    }

    /// In what takes long: whether to go on.
    pub(crate) fn check_stop(&self) -> Result<(), Halt> {
        if self.stop.is_stopped() { Err(Halt::Stopped) } else { Ok(()) }
    }

    /// Does `access`, which goes on where it stopped before, until it is done.
    fn retry<T>(
        &self,
        is_write: bool,
        mut access: impl FnMut() -> Result<T, Fault>,
    ) -> Result<T, Halt> {
        let mut tries = 0;
        loop {
            let fault = match access() {
                Ok(done) => return Ok(done),
                Err(fault) => fault,
            };
            if fault.done > 0 {
                tries = 0;
            }
            tries += 1;
            // What is translated for reads alone may be asked for again, for writes.
            let may_come = matches!(fault.reason, Reason::Unmapped | Reason::Permission);
            let misses = self.misses.filter(|_| may_come && tries <= TRIES_MAX);
            let Some(misses) = misses else { return Err(Halt::Fault(fault)) };
            self.counts.miss(fault.iova, is_write);
            match misses.ask(fault.iova, is_write, self.stop) {
                Ok(()) => {}
                Err(NoTranslation::Stopped) => return Err(Halt::Stopped),
                Err(NoTranslation::Refused | NoTranslation::ChannelLost) => {
                    return Err(Halt::Fault(fault));
                }
            }
        }
    }
}
