//! The memory of bounce buffers over a burst of transfers: counted, not timed.

use std::fmt::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use longshore_domain::backend::Soft;
use longshore_domain::{Bounce, Direction, Domain, Error, Local, Mapping};

use super::parts::{Part, parts};
use super::plot;
use crate::access::random::{Random, shuffle};
use crate::harness::metric::{
    AT_REST_AFTER, CHUNKS_AT_REST, HALF_OVER_IN_FLIGHT, IN_FLIGHT, KINDS, PEAK_OVER_IN_FLIGHT,
    POOL_PEAK,
};
use crate::harness::{Candidate, CommonOptions, Sample, Session, Trouble};

pub(super) const CASE: &str = "pool memory over a burst";

const PAGE_BYTES: u64 = 4096;
const CHUNK_BYTES: u64 = 2 << 20;
/// The largest slot has so many pages.
const PAGES_MAX: u64 = 64;
/// How long what no transfer uses is kept, where that is not on request.
const FREE_AFTER: Duration = Duration::from_millis(20);
/// The longest that is waited for rest.
const PATIENCE: Duration = Duration::from_secs(5);
/// Looks at the pool in each part of a burst.
const LOOKS: usize = 16;

const DIRECTIONS: [Direction; 3] =
    [Direction::ToDevice, Direction::FromDevice, Direction::Bidirectional];

pub(super) fn run(options: &CommonOptions, session: &mut Session) -> Result<()> {
    if !options.wants(CASE) {
        return Ok(());
    }
    let count = if options.quick { 256 } else { 2048 };
    let memory = parts(1, PAGES_MAX * PAGE_BYTES)?[0];
    let burst = |name: &str, order: Order, freed: Freed| -> Box<dyn Candidate> {
        let name = name.to_owned();
        Box::new(Burst { name, transfers: mixed(count), order, freed, memory, plot: None })
    };
    let candidates = vec![
        burst("the oldest end first", Order::OldestFirst, Freed::OnRequest),
        burst("the newest end first", Order::NewestFirst, Freed::OnRequest),
        burst("they end in any order", Order::Any, Freed::OnRequest),
        burst("the oldest end first, freed after 20 ms", Order::OldestFirst, Freed::AfterTime),
        Box::new(WorstSize { count: count / 4, memory, worst_pages: 0 }),
    ];
    let measured = session.run(CASE, candidates);
    session.publish(measured.rows(session.bench(), &[]))
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

/// Of any length up to the largest slot's, and each direction.
fn mixed(count: usize) -> Vec<Transfer> {
    let mut random = Random::new(11);
    let transfer = |_| Transfer {
        len_bytes: 1 + random.below(PAGES_MAX * PAGE_BYTES),
        direction: DIRECTIONS[random.below(3) as usize],
    };
    (0..count).map(transfer).collect()
}

/// Which transfers end first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    OldestFirst,
    NewestFirst,
    Any,
}

/// When chunks are freed whose slots are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freed {
    /// Each time the pool is looked at, so that figures repeat.
    OnRequest,
    /// By the library, after a time.
    AfterTime,
}

struct Burst {
    name: String,
    transfers: Vec<Transfer>,
    order: Order,
    freed: Freed,
    memory: Part,
    plot: Option<String>,
}

/// What was seen at a moment.
#[derive(Clone, Copy, Debug)]
struct Look {
    since_start: Duration,
    in_flight_bytes: u64,
    pool_bytes: u64,
}

impl Burst {
    fn run(&mut self) -> Result<Sample> {
        let kinds = kinds(&self.transfers, self.memory)?;
        let domain = match self.freed {
            Freed::OnRequest => domain(None)?,
            Freed::AfterTime => domain(Some(FREE_AFTER))?,
        };
        let local = domain.local();
        let mut watch = Watch::new(&domain, self.freed);
        let step = self.transfers.len().div_ceil(LOOKS);
        let mut mappings = Vec::new();
        for (nth, transfer) in self.transfers.iter().enumerate() {
            mappings.push(Some(map(&local, self.memory, *transfer)?));
            watch.in_flight_bytes += transfer.in_flight_bytes();
            if nth % step == step - 1 {
                watch.look()?;
            }
        }
        let peak = watch.look()?;
        for _ in 0..LOOKS / 4 {
            watch.look()?;
        }
        let mut order: Vec<usize> = (0..self.transfers.len()).collect();
        match self.order {
            Order::OldestFirst => {}
            Order::NewestFirst => order.reverse(),
            Order::Any => shuffle(&mut order, &mut Random::new(5)),
        }
        let mut half = None;
        for (ended, nth) in order.iter().enumerate() {
            if let Some(mapping) = mappings[*nth].take() {
                mapping.unmap().map_err(Error::from)?;
            }
            watch.in_flight_bytes -= self.transfers[*nth].in_flight_bytes();
            if ended % step == step - 1 {
                let look = watch.look()?;
                if half.is_none() && ended + 1 >= order.len() / 2 {
                    half = Some(look);
                }
            }
        }
        let ended = watch.began.elapsed();
        let rest = watch.wait_for_rest()?;
        ensure!(
            domain.counters().bounced == self.transfers.len() as u64,
            "not every transfer of the burst was bounced"
        );
        let mut sample = vec![
            (IN_FLIGHT, mebibytes(peak.in_flight_bytes)),
            (POOL_PEAK, mebibytes(domain.counters().pool_peak_bytes)),
            (KINDS, kinds as f64),
            (PEAK_OVER_IN_FLIGHT, over(peak, kinds)),
            (CHUNKS_AT_REST, (rest.pool_bytes / CHUNK_BYTES) as f64),
        ];
        if let (Freed::OnRequest, Some(half)) = (self.freed, half) {
            sample.push((HALF_OVER_IN_FLIGHT, over(half, kinds)));
        }
        if self.freed == Freed::AfterTime {
            sample.push((AT_REST_AFTER, (rest.since_start - ended).as_secs_f64() * 1e3));
            self.plot = Some(watch.plot());
        }
        Ok(sample)
    }
}

/// Looks at a domain's pool, again and again.
struct Watch<'d> {
    domain: &'d Domain,
    freed: Freed,
    began: Instant,
    in_flight_bytes: u64,
    looks: Vec<Look>,
}

impl<'d> Watch<'d> {
    fn new(domain: &'d Domain, freed: Freed) -> Self {
        Self { domain, freed, began: Instant::now(), in_flight_bytes: 0, looks: Vec::new() }
    }

    fn look(&mut self) -> Result<Look> {
        match self.freed {
            Freed::OnRequest => {
                self.domain.shrink(Duration::ZERO)?;
            }
            // So that the plot is one of time.
            Freed::AfterTime => thread::sleep(FREE_AFTER / 4),
        }
        let look = Look {
            since_start: self.began.elapsed(),
            in_flight_bytes: self.in_flight_bytes,
            pool_bytes: self.domain.counters().pool_bytes,
        };
        self.looks.push(look);
        Ok(look)
    }

    /// Looks until the pool has nothing left, or for a few times that chunks are kept for.
    fn wait_for_rest(&mut self) -> Result<Look> {
        let until = Instant::now() + PATIENCE;
        loop {
            let look = self.look()?;
            let over = self.freed == Freed::OnRequest || Instant::now() > until;
            if look.pool_bytes == 0 || over {
                return Ok(look);
            }
        }
    }

    fn plot(&self) -> String {
        let most = self.looks.iter().map(|look| look.pool_bytes.max(look.in_flight_bytes)).max();
        let most = most.unwrap_or(0);
        let line = |of: fn(&Look) -> u64| plot::line(self.looks.iter().map(of), most);
        let mut text = String::new();
        let took = self.looks.last().map_or(0.0, |look| look.since_start.as_secs_f64() * 1e3);
        let most = mebibytes(most);
        // Writing to a string does not fail.
        let _ = write!(text, "over {took:.0} ms, full height {most:.0} MiB:\n    ");
        let _ = write!(text, "in flight {}\n    ", line(|look| look.in_flight_bytes));
        let _ = write!(text, "pool      {}", line(|look| look.pool_bytes));
        text
    }
}

/// What the pool has beside one chunk for each kind, over what is in flight.
fn over(look: Look, kinds: u64) -> f64 {
    let beside = look.pool_bytes.saturating_sub(kinds * CHUNK_BYTES);
    beside as f64 / look.in_flight_bytes as f64
}

/// How many classes and directions the transfers have: one chunk was made for each.
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

fn map<'l, 'd>(
    local: &'l Local<'d>,
    memory: Part,
    transfer: Transfer,
) -> Result<Mapping<'l, Part, Local<'d>>> {
    let part = memory.first(transfer.len_bytes as usize);
    Ok(local.map(part, transfer.direction).map_err(Error::from)?)
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

impl Candidate for Burst {
    fn name(&self) -> &str {
        &self.name
    }

    fn measure(&mut self) -> Result<Sample, Trouble> {
        Ok(self.run()?)
    }

    fn note(&self) -> Option<String> {
        self.plot.clone()
    }

    fn is_ours(&self) -> bool {
        true
    }
}

/// A burst of transfers that are all of one size, for the size that is worst.
struct WorstSize {
    count: usize,
    memory: Part,
    worst_pages: u64,
}

impl WorstSize {
    fn run(&mut self) -> Result<Sample> {
        let mut worst = 0.0;
        for pages in 1..=PAGES_MAX {
            let domain = domain(None)?;
            let local = domain.local();
            let len_bytes = pages * PAGE_BYTES;
            // Nothing is copied in.
            let mapping = || local.map_reported(self.memory.first(len_bytes as usize));
            let mappings: Vec<_> = (0..self.count)
                .map(|_| mapping().map_err(Error::from))
                .collect::<Result<_, _>>()?;
            let look = Look {
                since_start: Duration::ZERO,
                in_flight_bytes: mappings.len() as u64 * len_bytes,
                pool_bytes: domain.counters().pool_bytes,
            };
            if over(look, 1) > worst {
                worst = over(look, 1);
                self.worst_pages = pages;
            }
        }
        Ok(vec![(PEAK_OVER_IN_FLIGHT, worst)])
    }
}

impl Candidate for WorstSize {
    fn name(&self) -> &str {
        "all of one size, the worst"
    }

    fn measure(&mut self) -> Result<Sample, Trouble> {
        Ok(self.run()?)
    }

    fn note(&self) -> Option<String> {
        Some(format!("{} transfers of {} pages", self.count, self.worst_pages))
    }

    fn is_ours(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_burst_is_counted_and_comes_to_rest() {
        let memory = parts(1, PAGES_MAX * PAGE_BYTES).unwrap()[0];
        for (order, freed) in [
            (Order::OldestFirst, Freed::OnRequest),
            (Order::NewestFirst, Freed::OnRequest),
            (Order::Any, Freed::AfterTime),
        ] {
            let name = String::new();
            let transfers = mixed(64);
            let mut burst = Burst { name, transfers, order, freed, memory, plot: None };
            let sample = burst.run().unwrap();
            let of = |metric: crate::harness::Metric| {
                sample.iter().find(|(one, _)| *one == metric).unwrap().1
            };
            assert!(of(IN_FLIGHT) > 0.0 && of(POOL_PEAK) >= of(IN_FLIGHT), "{sample:?}");
            assert!(of(KINDS) > 1.0 && of(PEAK_OVER_IN_FLIGHT) <= 1.25, "{sample:?}");
            assert_eq!(of(CHUNKS_AT_REST), 0.0, "{sample:?}");
            assert_eq!(burst.plot.is_some(), freed == Freed::AfterTime);
        }
    }

    #[test]
    fn what_is_in_flight_is_whole_pages_and_a_chunk_for_each_kind_is_free() {
        let transfer = Transfer { len_bytes: 4097, direction: Direction::ToDevice };
        assert_eq!(transfer.in_flight_bytes(), 8192);
        let look = Look {
            since_start: Duration::ZERO,
            in_flight_bytes: CHUNK_BYTES,
            pool_bytes: 4 * CHUNK_BYTES,
        };
        assert_eq!((over(look, 3), over(look, 5)), (1.0, 0.0));
    }
}
