//! Access to the guest's memory by a thread that serves a virtqueue.

use std::fmt;
use std::sync::atomic::Ordering;

use longshore_access::client::Stop;
use longshore_access::{Fault, Reason, Session, Word};
use longshore_mem::Iova;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::misses::{MissChannel, NoTranslation};

/// The number of times that a translation of one address is requested before the access fails. It limits
/// the work for a front-end that invalidates each translation at once.
const TRIES_MAX: u32 = 8;

/// The error of an access to the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The memory cannot be accessed.
    #[error("{0}")]
    Fault(Fault),
    /// The queue is to stop.
    #[error("the queue is to stop")]
    Stopped,
}

/// A session that requests missing translations from the front-end and waits for them.
///
/// All methods fail with [`AccessError::Fault`] if the memory cannot be accessed or the front-end has no
/// translation, and with [`AccessError::Stopped`] if the queue is to stop meanwhile.
pub struct QueueMemory<'q> {
    session: Session,
    /// `None` without an IOMMU.
    misses: Option<&'q MissChannel>,
    stop: &'q Stop,
    on_miss: Box<dyn Fn(Iova, bool) + 'q>,
}

impl fmt::Debug for QueueMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueMemory").field("session", &self.session).finish_non_exhaustive()
    }
}

impl<'q> QueueMemory<'q> {
    pub(crate) fn new(
        session: Session,
        misses: Option<&'q MissChannel>,
        stop: &'q Stop,
        on_miss: impl Fn(Iova, bool) + 'q,
    ) -> Self {
        Self { session, misses, stop, on_miss: Box::new(on_miss) }
    }

    /// Returns the session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Reads bytes at `iova`.
    ///
    /// # Errors
    /// [`AccessError`], as for all methods.
    pub fn read(&self, iova: u64, into: &mut [u8]) -> Result<(), AccessError> {
        let mut done = 0;
        self.retry(false, || {
            let at = Iova::new(iova.wrapping_add(done as u64));
            let read = self.session.read(at, &mut into[done..]);
            read.inspect_err(|fault| done += fault.done)
        })
    }

    /// Writes bytes at `iova`.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn write(&self, iova: u64, from: &[u8]) -> Result<(), AccessError> {
        let mut done = 0;
        self.retry(true, || {
            let at = Iova::new(iova.wrapping_add(done as u64));
            let written = self.session.write(at, &from[done..]);
            written.inspect_err(|fault| done += fault.done)
        })
    }

    /// Reads a value at `iova`.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn read_obj<T: FromBytes + IntoBytes>(&self, iova: u64) -> Result<T, AccessError> {
        self.retry(false, || self.session.read_obj(Iova::new(iova)))
    }

    /// Writes a value at `iova`.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn write_obj<T: IntoBytes + Immutable + Copy>(
        &self,
        iova: u64,
        value: T,
    ) -> Result<(), AccessError> {
        self.retry(true, || self.session.write_obj(Iova::new(iova), value))
    }

    /// Loads an aligned word at `iova` atomically.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn load<T: Word>(&self, iova: u64, order: Ordering) -> Result<T, AccessError> {
        self.retry(false, || self.session.load(Iova::new(iova), order))
    }

    /// Stores an aligned word at `iova` atomically.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn store<T: Word>(&self, iova: u64, value: T, order: Ordering) -> Result<(), AccessError> {
        self.retry(true, || self.session.store(Iova::new(iova), value, order))
    }

    /// Checks if a long operation may go on.
    ///
    /// # Errors
    /// [`AccessError::Stopped`] if the queue is to stop.
    pub fn check_stop(&self) -> Result<(), AccessError> {
        if self.stop.is_stopped() { Err(AccessError::Stopped) } else { Ok(()) }
    }

    /// Calls `access` until it succeeds; each call goes on at the byte where the last one stopped.
    fn retry<T>(
        &self,
        is_write: bool,
        mut access: impl FnMut() -> Result<T, Fault>,
    ) -> Result<T, AccessError> {
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
            // If a translation permits only reads, another one can be requested for writes.
            let may_come = matches!(fault.reason, Reason::Unmapped | Reason::Permission);
            let misses = self.misses.filter(|_| may_come && tries <= TRIES_MAX);
            let Some(misses) = misses else { return Err(AccessError::Fault(fault)) };
            (self.on_miss)(fault.iova, is_write);
            match misses.ask(fault.iova, is_write, self.stop) {
                Ok(()) => {}
                Err(NoTranslation::Stopped) => return Err(AccessError::Stopped),
                Err(NoTranslation::Refused | NoTranslation::ChannelLost) => {
                    return Err(AccessError::Fault(fault));
                }
            }
        }
    }
}
