//! Interrupts: eventfds of the client, signalled at once from any thread.
//!
//! The client shares them and may make them block, so they are signalled and closed by
//! [`SharedEvent`], which never waits.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longshore_sys::account::Permit;
use longshore_sys::closing::Disposable;
use longshore_sys::event_fd::{self, SharedEvent};
use longshore_sys::kept_descriptors;

use crate::Errno;
use crate::description::IrqDescription;
use crate::wire::{IrqData, SetIrqs};

/// The interrupts of a device. Clones are handles of the same interrupts.
#[derive(Clone)]
pub struct Interrupts(Arc<Mutex<Vec<Kind>>>);

#[derive(Debug)]
struct Kind {
    irqs: IrqDescription,
    lines: Vec<Line>,
}

#[derive(Debug, Default)]
struct Line {
    event: Option<SharedEvent>,
    /// The permit that counts the descriptor of `event`.
    permit: Option<Permit>,
    is_masked: bool,
    /// `true` if the interrupt was raised while it was masked.
    is_pending: bool,
}

impl Interrupts {
    /// Makes interrupts without eventfds, unmasked and not pending.
    pub fn new(irqs: &[IrqDescription]) -> Self {
        let kind = |irqs: &IrqDescription| {
            let lines = (0..irqs.count).map(|_| Line::default()).collect();
            Kind { irqs: *irqs, lines }
        };
        Self(Arc::new(Mutex::new(irqs.iter().map(kind).collect())))
    }

    /// Raises interrupt `line` of kind `index`. Returns `true` if the client was notified, and `false`
    /// if it has attached no eventfd or has masked the interrupt; a masked interrupt is delivered when
    /// the client unmasks it.
    ///
    /// This holds a lock while the kernel signals an eventfd. It never blocks, even if the client has
    /// filled the eventfd and cleared `O_NONBLOCK`.
    ///
    /// # Errors
    /// `EINVAL` if the device has no such interrupt.
    pub fn raise(&self, index: u32, line: u32) -> Result<bool, Errno> {
        let mut kinds = self.lock();
        let kind = kinds.get_mut(index as usize).ok_or(Errno::EINVAL)?;
        let automasked = kind.irqs.automasked;
        kind.lines.get_mut(line as usize).ok_or(Errno::EINVAL)?.raise(automasked)
    }

    /// Executes the client's request. Its descriptors are counted for the user that sent them.
    pub(crate) fn set(
        &self,
        request: &SetIrqs<'_>,
        events: Vec<Disposable<OwnedFd>>,
    ) -> Result<(), Errno> {
        let mut former = Vec::new();
        let done = self.set_locked(request, events, &mut former);
        SharedEvent::close_all(former);
        done
    }

    /// As [`set`](Self::set). Moves the eventfds that it replaces to `former`.
    fn set_locked(
        &self,
        request: &SetIrqs<'_>,
        events: Vec<Disposable<OwnedFd>>,
        former: &mut Vec<SharedEvent>,
    ) -> Result<(), Errno> {
        let SetIrqs { action, index, start, count, data } = *request;
        let mut kinds = self.lock();
        let kind = kinds.get_mut(index as usize).ok_or(Errno::EINVAL)?;
        if (start, count, data, action) == (0, 0, IrqData::None, SetIrqs::TRIGGER) {
            former.extend(kind.lines.iter_mut().filter_map(Line::reset));
            return Ok(());
        }
        let irqs = kind.irqs;
        let end = start.checked_add(count).filter(|_| count > 0).ok_or(Errno::EINVAL)?;
        let lines = kind.lines.get_mut(start as usize..end as usize).ok_or(Errno::EINVAL)?;
        if action != SetIrqs::TRIGGER && !(irqs.maskable || irqs.automasked) {
            return Err(Errno::EINVAL);
        }
        if data == IrqData::EventFds {
            return attach(lines, action, events, former);
        }
        let is_meant = |at: usize| match data {
            IrqData::Bools(bools) => bools.get(at).is_some_and(|meant| *meant != 0),
            _ => true,
        };
        for (_, line) in lines.iter_mut().enumerate().filter(|(at, _)| is_meant(*at)) {
            match action {
                SetIrqs::MASK => line.is_masked = true,
                SetIrqs::UNMASK => line.unmask(irqs.automasked)?,
                _ => line.raise(irqs.automasked).map(drop)?,
            }
        }
        Ok(())
    }

    /// Closes all the client's descriptors.
    pub(crate) fn forget_client(&self) {
        let mut kinds = self.lock();
        let lines = kinds.iter_mut().flat_map(|kind| &mut kind.lines);
        let events = lines.filter_map(Line::reset).collect();
        drop(kinds);
        SharedEvent::close_all(events);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Kind>> {
        // No code here panics between two changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Interrupts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock().fmt(f)
    }
}

/// Gives each line its eventfd, or without any takes those of all lines. Moves the replaced ones to
/// `former`.
fn attach(
    lines: &mut [Line],
    action: u32,
    events: Vec<Disposable<OwnedFd>>,
    former: &mut Vec<SharedEvent>,
) -> Result<(), Errno> {
    if action != SetIrqs::TRIGGER {
        // Eventfds that report masking serve passthrough of interrupts by a kernel, which is not done
        // here.
        return Err(Errno::EOPNOTSUPP);
    }
    let Some(user) = events.first().map(Disposable::user) else {
        for line in lines {
            former.extend(line.event.take());
            line.permit = None;
        }
        return Ok(());
    };
    if events.len() != lines.len() {
        return Err(Errno::EINVAL);
    }
    for event in &events {
        // Only eventfds can be signalled.
        if !event_fd::is_one(event)? {
            return Err(Errno::EINVAL);
        }
    }
    // A line that has an eventfd keeps its permit; only the other lines need one.
    let more = lines.iter().filter(|line| line.permit.is_none());
    let more: Result<Vec<_>, _> = more.map(|_| kept_descriptors::keep(user, 1)).collect();
    let mut more = more.map_err(|_over_limit| Errno::ENOSPC)?;
    for (line, event) in lines.iter_mut().zip(events) {
        former.extend(line.event.replace(SharedEvent::new(event)));
        line.permit = line.permit.take().or_else(|| more.pop());
    }
    Ok(())
}

impl Line {
    /// Clears the line, and returns its eventfd.
    fn reset(&mut self) -> Option<SharedEvent> {
        std::mem::take(self).event
    }

    fn raise(&mut self, automasked: bool) -> Result<bool, Errno> {
        if self.is_masked {
            self.is_pending = true;
            return Ok(false);
        }
        let Some(event) = &self.event else { return Ok(false) };
        event.signal()?;
        self.is_masked = automasked;
        Ok(true)
    }

    fn unmask(&mut self, automasked: bool) -> Result<(), Errno> {
        self.is_masked = false;
        if std::mem::take(&mut self.is_pending) {
            self.raise(automasked)?;
        }
        Ok(())
    }
}
