//! Measures sequential reads with each scheme of mapping, to compare bounce buffers with the others.
//!
//! ```text
//!   map           map, read, unmap             each transfer, with an invalidation
//!   map, batched  map, read … unmap together   as many as are in flight, with one invalidation
//!   bounce        slot, read, copy out         each transfer that fits into a slot
//!   policy        the choice of the calibration
//!   static        read                         mapped before the clock starts
//! ```
//!
//! Schemes take turns in each round, on one domain. All use the same buffers, twice as many as commands
//! are in flight. A turn has a warm-up, a pass that is timed as a whole, and a second pass that reads a
//! clock around each mapping and unmapping, which would slow down the first one.

use std::time::{Duration, Instant};

use longshore::domain::{Batch, Bounce, Counters, Domain, Local, Mapping};
use longshore::heap::{Buffer, Heap};
use longshore::mem::DmaMemory;
use longshore_nvme::{Controller, Hardware, Namespace, Opcode, Queue, Segment};
use serde::Serialize;

use crate::failure::{Failure, Result};

#[cfg(test)]
mod tests;

/// A scheme of mapping memory for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scheme {
    /// Each transfer is mapped and unmapped.
    Map,
    /// Each transfer is mapped, and several are unmapped at once.
    MapBatched,
    /// Each transfer is copied out of a bounce buffer.
    Bounce,
    /// Each transfer is mapped or bounced, as the calibration chose.
    Policy,
    /// All memory is mapped once.
    Static,
}

impl Scheme {
    /// All schemes, in the order of their turns.
    pub(crate) const ALL: [Self; 5] =
        [Self::Map, Self::Bounce, Self::Static, Self::Policy, Self::MapBatched];

    /// Returns the name in rows.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Map => "map",
            Self::MapBatched => "map, batched",
            Self::Bounce => "bounce",
            Self::Policy => "policy",
            Self::Static => "static",
        }
    }
}

/// The parameters of a measurement.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The length of a transfer in bytes: whole blocks.
    pub(crate) block_bytes: u64,
    /// The number of commands in flight.
    pub(crate) depth: u16,
    /// The number of turns of each scheme.
    pub(crate) rounds: u32,
    /// The number of transfers of a pass.
    pub(crate) ios: u64,
    /// The number of submissions after which the doorbell is written. It is also written before waiting.
    pub(crate) doorbell_batch: u16,
    /// The schemes that take turns.
    pub(crate) schemes: Vec<Scheme>,
    /// The choice of the calibration, for [`Scheme::Policy`].
    pub(crate) policy: Bounce,
}

/// The result of a turn. All fields but the last two are from the pass that is timed as a whole.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// The scheme's name.
    pub(crate) scheme: &'static str,
    /// The length of a transfer in bytes.
    pub(crate) block_bytes: u64,
    /// The number of commands in flight.
    pub(crate) depth: u16,
    /// The number of the turn, from 0.
    pub(crate) round: u32,
    /// The number of transfers.
    pub(crate) ios: u64,
    /// The number of bytes read.
    pub(crate) bytes: u64,
    /// The duration of the pass in seconds.
    pub(crate) seconds: f64,
    /// Transfers through bounce buffers.
    pub(crate) bounced: u64,
    /// Mappings made.
    pub(crate) maps: u64,
    /// Mappings that were unmapped.
    pub(crate) unmaps: u64,
    /// Bytes copied from and to bounce buffers.
    pub(crate) copied_bytes: u64,
    /// Invalidations.
    pub(crate) flushes: u64,
    /// The peak of the bytes in bounce buffers. Pools are empty before the turn, and free nothing before
    /// its end.
    pub(crate) pool_peak_bytes: u64,
    /// The sum of the times of map in the second pass, without the time of reading the clock.
    pub(crate) map_seconds: f64,
    /// The sum of the times of unmap, with the copy out of the bounce buffer, in the second pass.
    pub(crate) unmap_seconds: f64,
}

/// Runs the measurement, and passes each row to `each`. The domain must not free bounce buffers by
/// itself ([`Builder::free_after`](longshore::domain::Builder::free_after) with `None`).
pub(crate) fn run<'d, H: Hardware>(
    domain: &'d Domain,
    controller: &Controller<'d, H>,
    namespace: &Namespace,
    plan: &Plan,
    mut each: impl FnMut(Row),
) -> Result<()> {
    let depth = usize::from(plan.depth);
    let buffers = (0..2 * depth).map(|_| {
        let mut buffer = Heap::Memfd.allocate(plan.block_bytes)?;
        // The pages exist before the measurement, as in a program that reads again and again.
        buffer.write()?.fill(1);
        Ok(buffer)
    });
    let mut idle = buffers.collect::<Result<Vec<_>>>()?;
    for round in 0..plan.rounds {
        for scheme in &plan.schemes {
            domain.set_bounce(match scheme {
                Scheme::Map | Scheme::MapBatched | Scheme::Static => Bounce::Never,
                Scheme::Bounce => Bounce::Always,
                Scheme::Policy => plan.policy,
            });
            let shrunk = domain.shrink(Duration::ZERO);
            shrunk.map_err(Failure::Shrink)?;
            // All schemes use the same buffers, because the cost of mapping one depends on its pages.
            idle.sort_by_key(|buffer| buffer.host().cast::<u8>().addr());
            let local = domain.local();
            let mut turn = Turn {
                local: &local,
                queue: controller.queue(plan.depth)?,
                batch: local.batch(),
                namespace,
                plan,
                scheme: *scheme,
                idle,
                mapped: Vec::with_capacity(depth),
                lba: 0,
                map_time: Duration::ZERO,
                unmap_time: Duration::ZERO,
                clock: reading_a_clock(),
            };
            each(turn.run(round)?);
            idle = turn.idle;
        }
    }
    Ok(())
}

/// A scheme's turn.
struct Turn<'a, 'c, 'd, 'l, H: Hardware> {
    /// Declared before `local`, which made the mappings in flight.
    queue: Queue<'c, 'd, H, Mapping<'l, Buffer, Local<'d>>>,
    batch: Batch<'l, Buffer, Local<'d>>,
    /// Mappings that are not in flight.
    mapped: Vec<Mapping<'l, Buffer, Local<'d>>>,
    local: &'l Local<'d>,
    namespace: &'a Namespace,
    plan: &'a Plan,
    scheme: Scheme,
    idle: Vec<Buffer>,
    lba: u64,
    map_time: Duration,
    unmap_time: Duration,
    /// The time of reading the clock, which is subtracted.
    clock: Duration,
}

/// Returns the time between two reads of the clock. If reading the clock is a system call, as in a guest
/// whose time-stamp counter is not trusted, this is more than the time of a bounce.
fn reading_a_clock() -> Duration {
    let least = (0..1000).map(|_| Instant::now().elapsed()).min();
    least.unwrap_or(Duration::ZERO)
}

impl<'l, 'd, H: Hardware> Turn<'_, '_, 'd, 'l, H> {
    fn run(&mut self, round: u32) -> Result<Row> {
        let Plan { block_bytes, depth, ios, .. } = *self.plan;
        if self.scheme == Scheme::Static {
            for _ in 0..depth {
                let mapping = self.map::<false>()?;
                self.mapped.push(mapping);
            }
        }
        self.pass::<false>(ios.min(2 * u64::from(depth)))?;

        let before = self.local.domain().counters();
        let started = Instant::now();
        self.pass::<false>(ios)?;
        let seconds = started.elapsed().as_secs_f64();
        let after = self.local.domain().counters();

        self.pass::<true>(ios)?;
        while let Some(mapping) = self.mapped.pop() {
            self.unmap::<false>(mapping)?;
        }
        let delta = |of: fn(&Counters) -> u64| of(&after) - of(&before);
        Ok(Row {
            scheme: self.scheme.name(),
            block_bytes,
            depth,
            round,
            ios,
            bytes: ios * block_bytes,
            seconds,
            bounced: delta(|counters| counters.bounced),
            maps: delta(|counters| counters.maps),
            unmaps: delta(|counters| counters.unmaps),
            copied_bytes: delta(|counters| counters.copied_bytes),
            flushes: delta(|counters| counters.flushes),
            pool_peak_bytes: after.pool_bytes,
            map_seconds: self.map_time.as_secs_f64(),
            unmap_seconds: self.unmap_time.as_secs_f64(),
        })
    }

    /// Reads `ios` times, from the start of the namespace on, and starts again at its end. No command is
    /// in flight before and after this.
    fn pass<const TIMED: bool>(&mut self, ios: u64) -> Result<()> {
        let first = ios.min(u64::from(self.plan.depth));
        let (mut given, mut ended) = (first, 0);
        self.lba = 0;
        for _ in 0..first {
            let mapping = self.next::<TIMED>()?;
            self.submit(mapping)?;
        }
        while ended < ios {
            // This writes the doorbells first.
            let mut next = Some(self.queue.wait()?);
            let mut not_rung = 0;
            while let Some(done) = next {
                done.result?;
                ended += 1;
                if self.scheme == Scheme::Static {
                    self.mapped.push(done.payload);
                } else {
                    self.unmap::<TIMED>(done.payload)?;
                }
                if given < ios {
                    given += 1;
                    let mapping = self.next::<TIMED>()?;
                    self.submit(mapping)?;
                    not_rung += 1;
                    if not_rung == self.plan.doorbell_batch {
                        self.queue.ring();
                        not_rung = 0;
                    }
                }
                next = self.queue.take()?;
            }
        }
        self.queue.ring();
        self.flush::<TIMED>()
    }

    #[inline]
    fn submit(&mut self, mapping: Mapping<'l, Buffer, Local<'d>>) -> Result<()> {
        let blocks = self.plan.block_bytes >> self.namespace.block_log2;
        if self.lba + blocks > self.namespace.blocks {
            self.lba = 0;
        }
        let segment = Segment { iova: mapping.iova(), len_bytes: self.plan.block_bytes };
        self.queue.submit(Opcode::Read, self.namespace, self.lba, &[segment], mapping)?;
        self.lba += blocks;
        Ok(())
    }

    /// Returns memory that is mapped for the device.
    #[inline]
    fn next<const TIMED: bool>(&mut self) -> Result<Mapping<'l, Buffer, Local<'d>>> {
        match self.mapped.pop() {
            Some(mapping) => Ok(mapping),
            None => self.map::<TIMED>(),
        }
    }

    #[inline]
    fn map<const TIMED: bool>(&mut self) -> Result<Mapping<'l, Buffer, Local<'d>>> {
        if self.idle.is_empty() {
            self.flush::<TIMED>()?;
        }
        let buffer = self.idle.pop().expect("there are more buffers than commands");
        let started = TIMED.then(Instant::now);
        let mapping = self.local.map_reported(buffer).map_err(longshore::domain::Error::from)?;
        if let Some(started) = started {
            self.map_time += started.elapsed().saturating_sub(self.clock);
        }
        Ok(mapping)
    }

    #[inline]
    fn unmap<const TIMED: bool>(&mut self, mapping: Mapping<'l, Buffer, Local<'d>>) -> Result<()> {
        let started = TIMED.then(Instant::now);
        if self.scheme == Scheme::MapBatched {
            mapping.unmap_deferred(&mut self.batch).map_err(longshore::domain::Error::from)?;
        } else {
            let buffer = mapping.complete(self.plan.block_bytes);
            self.idle.push(buffer.map_err(longshore::domain::Error::from)?);
        }
        if let Some(started) = started {
            self.unmap_time += started.elapsed().saturating_sub(self.clock);
        }
        Ok(())
    }

    fn flush<const TIMED: bool>(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let started = TIMED.then(Instant::now);
        self.batch.flush(|buffer| self.idle.push(buffer))?;
        if let Some(started) = started {
            self.unmap_time += started.elapsed().saturating_sub(self.clock);
        }
        Ok(())
    }
}
