//! Longshore: domains over page tables of this process.

use std::hint::black_box;

use anyhow::Result;
use longshore_access::Space;
use longshore_domain::backend::Soft;
use longshore_domain::{Bounce, Direction, Domain, Error, Mapping};

use super::parts::{Part, STRETCH, each, parts, stretches};
use crate::access::other::Sessions;
use crate::harness::timed::Drive;

const PAGE_BYTES: u64 = 4096;
const BOTH: Direction = Direction::Bidirectional;

/// How the transfers of a stretch are made and ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// One after the other, by the thread's handle.
    Each,
    /// All of them mapped before the first is unmapped.
    AllAtOnce,
    /// The same, and unmapped as one batch.
    Batch,
    /// One after the other, by the domain's own handle, which locks.
    ByDomain,
    /// One after the other, of memory that the device only writes, and says how much it has written.
    Reported,
}

/// A domain, and memory that is mapped and unmapped, or bounced.
pub(super) struct Ours {
    domain: Domain,
    space: Space,
    /// For each thread.
    parts: Vec<Vec<Part>>,
    how: How,
    sessions: Sessions,
    /// A page that stays mapped, as a driver's rings do.
    kept: Part,
}

impl Ours {
    /// A domain that bounces or does not, with memory for each thread.
    pub(super) fn new(
        bounce: Bounce,
        parts_of: Vec<Vec<Part>>,
        how: How,
        sessions: Sessions,
    ) -> Result<Self> {
        let soft = Soft::new()?;
        let space = soft.space().clone();
        // Nothing but what is measured happens meanwhile.
        let domain = Domain::builder(soft).bounce(bounce).free_after(None).build();
        let kept = parts(1, PAGE_BYTES)?[0];
        Ok(Self { domain, space, parts: parts_of, how, sessions, kept })
    }

    /// Has stretches of the thread's transfers driven.
    pub(super) fn run(&self, thread: usize, drive: Drive<'_>) -> Result<()> {
        // Dropped in the reverse order: who accesses the page is gone before it is.
        let kept = self.domain.map(self.kept, BOTH).map_err(Error::from)?;
        let _others = self.sessions.start(&self.space, kept.iova())?;
        let (parts, local) = (&self.parts[thread], self.domain.local());
        match self.how {
            How::Each => each(parts, drive, |part| {
                let mapping = local.map(*part, BOTH).map_err(Error::from)?;
                black_box(mapping.iova());
                black_box(mapping.unmap().map_err(Error::from)?);
                Ok(())
            }),
            How::Reported => each(parts, drive, |part| {
                let mapping = local.map_reported(*part).map_err(Error::from)?;
                let written_bytes = mapping.len();
                black_box(mapping.iova());
                black_box(mapping.complete(written_bytes).map_err(Error::from)?);
                Ok(())
            }),
            How::ByDomain => each(parts, drive, |part| {
                let mapping = self.domain.map(*part, BOTH).map_err(Error::from)?;
                black_box(mapping.iova());
                black_box(mapping.unmap().map_err(Error::from)?);
                Ok(())
            }),
            How::AllAtOnce => {
                let mut mapped = Vec::with_capacity(STRETCH);
                stretches(parts, drive, |stretch| {
                    for part in stretch {
                        mapped.push(local.map(*part, BOTH).map_err(Error::from)?);
                    }
                    for mapping in mapped.drain(..) {
                        black_box(Mapping::unmap(mapping).map_err(Error::from)?);
                    }
                    Ok(())
                })
            }
            How::Batch => {
                let mut batch = local.batch();
                stretches(parts, drive, |stretch| {
                    for part in stretch {
                        let mapping = local.map(*part, BOTH).map_err(Error::from)?;
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
