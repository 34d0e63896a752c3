//! Longshore: domains over page tables of this process.

use std::hint::black_box;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use longshore_access::{Session, Space};
use longshore_domain::backend::Soft;
use longshore_domain::{Bounce, Direction, Domain, Error, Mapping};
use longshore_heap::{Buffer, Heap};

use super::parts::{Part, parts, turns};
use super::timed::{Drive, STRETCH, Work};
use crate::access::other::Other;

const PAGE_BYTES: u64 = 4096;
/// Parked sessions, where all are.
const PARKED: usize = 4;

/// What else there is in the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beside {
    /// Nothing: its tables come and go with each mapping.
    Nothing,
    /// A page that stays mapped, as a driver's rings do, and no session.
    Page,
    /// And sessions that are parked.
    Parked,
    /// And a session that has made an access, and whose thread sleeps.
    Idle,
    /// And a session whose thread makes accesses without a pause.
    Busy,
}

/// How the transfers of a stretch are made and ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// One after the other, by the thread's door.
    Each,
    /// All of them mapped before the first is unmapped.
    AllAtOnce,
    /// The same, and unmapped as one batch.
    Batch,
    /// One after the other, by the domain's own door, which locks.
    ByDomain,
    /// One after the other, of memory that the device only writes, and says how much it has written.
    Reported,
}

/// A domain, and memory that is mapped and unmapped, or bounced.
pub(super) struct Ours {
    domain: Domain,
    space: Space,
    parts: Vec<Vec<Part>>,
    how: How,
    direction: Direction,
    beside: Beside,
    /// The page that stays mapped.
    kept: Part,
}

impl Ours {
    /// A domain that bounces or does not, with memory for each thread.
    pub(super) fn new(bounce: Bounce, parts_of: Vec<Vec<Part>>, how: How) -> Result<Self> {
        let (domain, space) = domain(bounce)?;
        Ok(Self {
            domain,
            space,
            parts: parts_of,
            how,
            direction: Direction::Bidirectional,
            beside: Beside::Page,
            kept: parts(1, PAGE_BYTES)?[0],
        })
    }

    /// What else there is; a page that stays mapped where this is not asked for.
    pub(super) fn beside(self, beside: Beside) -> Self {
        Self { beside, ..self }
    }

    /// Who reads and who writes; both do where this is not asked for.
    pub(super) fn direction(self, direction: Direction) -> Self {
        Self { direction, ..self }
    }

    fn drive(&self, thread: usize, drive: Drive<'_>) -> Result<()> {
        let (mut turns, direction) = (turns(&self.parts[thread]), self.direction);
        let local = self.domain.local();
        match self.how {
            How::Each => drive(&mut || {
                for part in turns.next_stretch() {
                    let mapping = local.map(*part, direction).map_err(Error::from)?;
                    black_box(mapping.iova());
                    black_box(mapping.unmap().map_err(Error::from)?);
                }
                Ok(())
            }),
            How::Reported => drive(&mut || {
                for part in turns.next_stretch() {
                    let mapping = local.map_reported(*part).map_err(Error::from)?;
                    let written_bytes = mapping.len();
                    black_box(mapping.iova());
                    black_box(mapping.complete(written_bytes).map_err(Error::from)?);
                }
                Ok(())
            }),
            How::ByDomain => drive(&mut || {
                for part in turns.next_stretch() {
                    let mapping = self.domain.map(*part, direction).map_err(Error::from)?;
                    black_box(mapping.iova());
                    black_box(mapping.unmap().map_err(Error::from)?);
                }
                Ok(())
            }),
            How::AllAtOnce => {
                let mut mapped = Vec::with_capacity(STRETCH);
                drive(&mut || {
                    for part in turns.next_stretch() {
                        mapped.push(local.map(*part, direction).map_err(Error::from)?);
                    }
                    for mapping in mapped.drain(..) {
                        black_box(Mapping::unmap(mapping).map_err(Error::from)?);
                    }
                    Ok(())
                })
            }
            How::Batch => {
                let mut batch = local.batch();
                drive(&mut || {
                    for part in turns.next_stretch() {
                        let mapping = local.map(*part, direction).map_err(Error::from)?;
                        mapping.unmap_deferred(&mut batch).map_err(Error::from)?;
                    }
                    batch.flush(|part| {
                        black_box(part);
                    })?;
                    Ok(())
                })
            }
        }
    }
}

impl Work for Ours {
    fn run(&self, thread: usize, drive: Drive<'_>) -> Result<()> {
        if self.beside == Beside::Nothing {
            return self.drive(thread, drive);
        }
        // Dropped in the reverse order: who accesses the page is gone before it is.
        let kept = self.domain.map(self.kept, Direction::Bidirectional).map_err(Error::from)?;
        let at = kept.iova();
        let _other = match self.beside {
            Beside::Idle => Some(Other::start(&self.space, at.raw(), false)?),
            Beside::Busy => Some(Other::start(&self.space, at.raw(), true)?),
            Beside::Nothing | Beside::Page | Beside::Parked => None,
        };
        let parked = if self.beside == Beside::Parked { PARKED } else { 0 };
        let parked: Vec<Session> = (0..parked).map(|_| self.space.session()).collect();
        for session in &parked {
            session.read_obj::<u64>(at)?;
            session.park();
        }
        self.drive(thread, drive)
    }
}

/// Buffers of the heap, each moved into its mapping and out of it.
pub(super) struct Buffers {
    domain: Domain,
    buffers: Mutex<Vec<Option<Buffer>>>,
}

impl Buffers {
    pub(super) fn new() -> Result<Self> {
        let buffer = |_| Ok(Some(Heap::Memfd.allocate(PAGE_BYTES)?));
        let buffers = (0..STRETCH).map(buffer).collect::<Result<_>>()?;
        Ok(Self { domain: domain(Bounce::Never)?.0, buffers: Mutex::new(buffers) })
    }
}

impl Work for Buffers {
    fn run(&self, _thread: usize, drive: Drive<'_>) -> Result<()> {
        let kept = parts(1, PAGE_BYTES)?[0];
        let _kept = self.domain.map(kept, Direction::Bidirectional).map_err(Error::from)?;
        let local = self.domain.local();
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        drive(&mut || {
            for place in &mut *buffers {
                let buffer = place.take().context("a buffer was lost")?;
                let mapping = local.map(buffer, Direction::Bidirectional).map_err(Error::from)?;
                black_box(mapping.iova());
                *place = Some(mapping.unmap().map_err(Error::from)?);
            }
            Ok(())
        })
    }
}

fn domain(bounce: Bounce) -> Result<(Domain, Space)> {
    let soft = Soft::new()?;
    let space = soft.space().clone();
    // Nothing but what is measured happens meanwhile.
    Ok((Domain::builder(soft).bounce(bounce).free_after(None).build(), space))
}
