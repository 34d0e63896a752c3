//! The candidate Longshore: domains over page tables of this process.

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

/// The order of the calls in a stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Maps and unmaps one transfer after the other, by the thread's local handle.
    Each,
    /// Maps all transfers before it unmaps the first.
    AllAtOnce,
    /// Maps and unmaps one transfer after the other, with one flush for all of them.
    Batch,
    /// Maps and unmaps one transfer after the other, by the domain's own handle, which locks.
    ByDomain,
    /// Like `Each`, with memory that the device only writes; the length that it wrote is reported.
    Reported,
}

/// A domain, and memory that is mapped and unmapped, or bounced.
pub(super) struct Ours {
    domain: Domain,
    space: Space,
    /// The transfers of each thread.
    parts: Vec<Vec<Part>>,
    how: How,
    sessions: Sessions,
    /// A page that stays mapped, as a driver's rings do.
    kept: Part,
}

impl Ours {
    /// Creates a domain that bounces always or never, with memory for each thread.
    pub(super) fn new(
        bounce: Bounce,
        parts_of: Vec<Vec<Part>>,
        how: How,
        sessions: Sessions,
    ) -> Result<Self> {
        let soft = Soft::new()?;
        let space = soft.space().clone();
        // Without automatic freeing, nothing runs beside the measured work.
        let domain = Domain::builder(soft).bounce(bounce).free_after(None).build();
        let kept = parts(1, PAGE_BYTES)?[0];
        Ok(Self { domain, space, parts: parts_of, how, sessions, kept })
    }

    /// Runs the transfers of one thread under `drive`.
    pub(super) fn run(&self, thread: usize, drive: Drive<'_>) -> Result<()> {
        // Fields are dropped in reverse order, so the sessions that access the page end before it is
        // unmapped.
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
