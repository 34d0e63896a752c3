//! The memory of bounce buffers over a burst of transfers: counted, not timed.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use longshore_domain::backend::Soft;
use longshore_domain::{Bounce, Direction, Domain, Error};

use super::parts::{Part, parts};
use crate::access::random::{Random, shuffle};
use crate::harness::metric::{
    AT_REST_AFTER, CHUNKS_AT_REST, HALF_OVER_IN_FLIGHT, IN_FLIGHT, KINDS, PEAK_OVER_IN_FLIGHT,
    POOL_PEAK,
};
use crate::harness::{Candidate, CommonOptions, Run, Sample, Session};

pub(super) const CASE: &str = "pool memory over a burst";

const PAGE_BYTES: u64 = 4096;
const CHUNK_BYTES: u64 = 2 << 20;
/// The pages of the largest slot.
const PAGES_MAX: u64 = 64;
/// How long the library keeps unused chunks, in the case without calls of `shrink`.
const FREE_AFTER: Option<Duration> = Some(Duration::from_millis(20));
/// The maximum wait until the pool is at rest.
const PATIENCE: Duration = Duration::from_secs(5);

const DIRECTIONS: [Direction; 3] =
    [Direction::ToDevice, Direction::FromDevice, Direction::Bidirectional];

pub(super) fn run(options: &CommonOptions, session: &mut Session) -> Result<()> {
    if !options.wants(CASE) {
        return Ok(());
    }
    let count = if options.quick { 256 } else { 2048 };
    let memory = parts(1, PAGES_MAX * PAGE_BYTES)?[0];
    let transfers = &mixed(count);
    let mut candidates = Vec::new();
    for (name, order, free_after) in [
        ("the oldest end first", Order::OldestFirst, None),
        ("the newest end first", Order::NewestFirst, None),
        ("they end in any order", Order::Any, None),
        ("the oldest end first, freed after 20 ms", Order::OldestFirst, FREE_AFTER),
    ] {
        let run = move || Ok(burst(transfers, memory, order, free_after)?);
        candidates.push(Candidate::new(name, run).ours());
    }
    let name = "all of one size, the worst";
    candidates.push(Candidate::new(name, || Ok(worst_size(count / 4, memory)?)).ours());
    session.compare(CASE, candidates, &[])
}

/// A transfer.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    len_bytes: u64,
    direction: Direction,
}

impl Transfer {
    fn in_flight_bytes(self) -> u64 {
        self.len_bytes.next_multiple_of(PAGE_BYTES)
    }
}

/// Returns transfers of any length up to the largest slot's, in all directions.
fn mixed(count: usize) -> Vec<Transfer> {
    let mut random = Random::new(11);
    let transfer = |_| Transfer {
        len_bytes: 1 + random.below(PAGES_MAX * PAGE_BYTES),
        direction: DIRECTIONS[random.below(3) as usize],
    };
    (0..count).map(transfer).collect()
}

/// The order in which transfers end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    OldestFirst,
    NewestFirst,
    Any,
}

/// Runs a burst of transfers. The library frees unused chunks after `free_after`; if that is `None`,
/// this function frees them each time before it reads the pool's size, so that figures are repeatable.
fn burst(
    transfers: &[Transfer],
    memory: Part,
    order: Order,
    free_after: Option<Duration>,
) -> Result<Sample> {
    let kinds = kinds(transfers, memory)?;
    let domain = domain(free_after)?;
    let local = domain.local();
    let pool_bytes = || -> Result<u64> {
        if free_after.is_none() {
            domain.shrink(Duration::ZERO)?;
        }
        Ok(domain.counters().pool_bytes)
    };
    let mut in_flight_bytes = 0;
    let mut mappings = Vec::new();
    for transfer in transfers {
        let part = memory.first(transfer.len_bytes as usize);
        mappings.push(Some(local.map(part, transfer.direction).map_err(Error::from)?));
        in_flight_bytes += transfer.in_flight_bytes();
    }
    let mut sample = vec![
        (IN_FLIGHT, mebibytes(in_flight_bytes)),
        (PEAK_OVER_IN_FLIGHT, over(pool_bytes()?, in_flight_bytes, kinds)),
    ];
    let mut ends: Vec<usize> = (0..transfers.len()).collect();
    match order {
        Order::OldestFirst => {}
        Order::NewestFirst => ends.reverse(),
        Order::Any => shuffle(&mut ends, &mut Random::new(5)),
    }
    for (ended, nth) in ends.iter().enumerate() {
        if let Some(mapping) = mappings[*nth].take() {
            mapping.unmap().map_err(Error::from)?;
        }
        in_flight_bytes -= transfers[*nth].in_flight_bytes();
        if ended + 1 == ends.len() / 2 && free_after.is_none() {
            sample.push((HALF_OVER_IN_FLIGHT, over(pool_bytes()?, in_flight_bytes, kinds)));
        }
    }
    let ended = Instant::now();
    let mut rest_bytes = pool_bytes()?;
    while let Some(time) = free_after
        && rest_bytes > 0
        && ended.elapsed() < PATIENCE
    {
        thread::sleep(time / 4);
        rest_bytes = pool_bytes()?;
    }
    let counters = domain.counters();
    ensure!(counters.bounced == transfers.len() as u64, "a transfer of the burst was not bounced");
    sample.extend([
        (POOL_PEAK, mebibytes(counters.pool_peak_bytes)),
        (KINDS, kinds as f64),
        (CHUNKS_AT_REST, (rest_bytes / CHUNK_BYTES) as f64),
    ]);
    if free_after.is_some() {
        sample.push((AT_REST_AFTER, ended.elapsed().as_secs_f64() * 1e3));
    }
    Ok(sample)
}

/// Runs bursts of transfers of one size, and reports the worst size.
fn worst_size(count: usize, memory: Part) -> Result<Run> {
    let (mut worst, mut worst_pages) = (0.0, 0);
    for pages in 1..=PAGES_MAX {
        let domain = domain(None)?;
        let local = domain.local();
        let len_bytes = pages * PAGE_BYTES;
        // Nothing is copied in.
        let mapping = |_| local.map_reported(memory.first(len_bytes as usize));
        let mappings: Vec<_> =
            (0..count).map(mapping).collect::<Result<_, _>>().map_err(Error::from)?;
        let over = over(domain.counters().pool_bytes, mappings.len() as u64 * len_bytes, 1);
        if over > worst {
            (worst, worst_pages) = (over, pages);
        }
    }
    let note = Some(format!("{count} transfers of {worst_pages} pages"));
    Ok(Run { sample: vec![(PEAK_OVER_IN_FLIGHT, worst)], note, cost: None })
}

/// Returns the pool's bytes, minus one chunk for each kind, divided by the bytes in flight.
fn over(pool_bytes: u64, in_flight_bytes: u64, kinds: u64) -> f64 {
    pool_bytes.saturating_sub(kinds * CHUNK_BYTES) as f64 / in_flight_bytes as f64
}

/// Returns the number of classes and directions of the transfers: the pool allocates one chunk for each.
fn kinds(transfers: &[Transfer], memory: Part) -> Result<u64> {
    let domain = domain(None)?;
    for transfer in transfers {
        let mapping = domain.map(memory.first(transfer.len_bytes as usize), transfer.direction);
        mapping.map_err(Error::from)?.unmap().map_err(Error::from)?;
    }
    Ok(domain.counters().pool_grows)
}

fn domain(free_after: Option<Duration>) -> Result<Domain> {
    Ok(Domain::builder(Soft::new()?).bounce(Bounce::Always).free_after(free_after).build())
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_burst_is_measured_and_its_chunks_are_freed() {
        let memory = parts(1, PAGES_MAX * PAGE_BYTES).unwrap()[0];
        for (order, free_after) in
            [(Order::OldestFirst, None), (Order::NewestFirst, None), (Order::Any, FREE_AFTER)]
        {
            let sample = burst(&mixed(64), memory, order, free_after).unwrap();
            let of = |metric: crate::harness::Metric| {
                sample.iter().find(|(one, _)| *one == metric).unwrap().1
            };
            assert!(of(IN_FLIGHT) > 0.0 && of(POOL_PEAK) >= of(IN_FLIGHT), "{sample:?}");
            assert!(of(KINDS) > 1.0 && of(PEAK_OVER_IN_FLIGHT) <= 1.25, "{sample:?}");
            assert_eq!(of(CHUNKS_AT_REST), 0.0, "{sample:?}");
        }
    }

    #[test]
    fn bytes_in_flight_are_whole_pages_and_one_chunk_for_each_kind_is_subtracted() {
        let transfer = Transfer { len_bytes: 4097, direction: Direction::ToDevice };
        assert_eq!(transfer.in_flight_bytes(), 8192);
        let over = |kinds| over(4 * CHUNK_BYTES, CHUNK_BYTES, kinds);
        assert_eq!((over(3), over(5)), (1.0, 0.0));
    }
}
