//! The cases: accesses of each kind and size, mappings from one to many, beside other ways.

use std::sync::RwLock;
use std::time::Duration;

use anyhow::Result;

use super::memory::{Maps, Memory};
use super::ours::Ours;
use super::plain::Plain;
use super::stream::{Places, Work};
use super::timed::{Effort, Task, Timed};
use super::vm_memory::{v0_16, v0_18};
use crate::harness::metric::{ACCESS_RATE, CYCLES};
use crate::harness::{Against, Candidate, CommonOptions, Session};

pub(super) type Candidates<'a> = Vec<Box<dyn Candidate + 'a>>;

const OURS: &str = "longshore";
const PLAIN: &str = "plain copy";
const ONE_0_16: &str = "vm-memory 0.16.2, 1 region";
const ONE_0_18: &str = "vm-memory 0.18, 1 region";
const SLICE_0_16: &str = "vm-memory 0.16.2, 1 region, get_slice";
const SLICE_0_18: &str = "vm-memory 0.18, 1 region, get_slice";

pub(super) fn effort(options: &CommonOptions) -> Effort {
    let time = Duration::from_millis(if options.quick { 1 } else { 30 });
    Effort { time, quick: options.quick }
}

/// Which peers stand beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peers {
    /// One region, untranslated.
    OneRegion,
    /// And its IOMMU, with as many mappings as the case has.
    Iommu,
    /// And as many regions as there are mappings, and a bitmap.
    All,
}

struct Case {
    name: String,
    work: Work,
    places: Places,
    maps: usize,
    peers: Peers,
}

fn cases() -> Vec<Case> {
    let case = |work, places: Places, maps, peers| {
        let name = format!("{}, {}, {}", work_name(work), places_name(places), maps_name(maps));
        Case { name, work, places, maps, peers }
    };
    let mut cases = Vec::new();
    for places in [Places::Hot, Places::Random] {
        cases.push(case(Work::Mix, places, 1, Peers::OneRegion));
        cases.push(case(Work::Mix, places, 16, Peers::All));
        cases.push(case(Work::Mix, places, 4096, Peers::Iommu));
        cases.push(case(Work::Mix, places, 262_144, Peers::OneRegion));
    }
    for (places, maps) in [
        (Places::HotAligned, 16),
        (Places::HotScattered, 1),
        (Places::HotScattered, 16),
        (Places::HotScattered, 262_144),
    ] {
        cases.push(case(Work::Mix, places, maps, Peers::OneRegion));
    }
    for len in [8, 64, 512, 1024, 4096] {
        cases.push(case(Work::Read(len), Places::Hot, 16, Peers::OneRegion));
        cases.push(case(Work::Write(len), Places::Hot, 16, Peers::OneRegion));
    }
    for (places, maps) in [
        (Places::Hot, 1),
        (Places::Hot, 4096),
        (Places::Hot, 262_144),
        (Places::HotAligned, 16),
        (Places::HotScattered, 1),
        (Places::HotScattered, 262_144),
        (Places::Random, 1),
        (Places::Random, 16),
        (Places::Random, 262_144),
    ] {
        cases.push(case(Work::Read(8), places, maps, Peers::OneRegion));
    }
    cases
}

pub(super) fn run(options: &CommonOptions, memory: &Memory, session: &mut Session) -> Result<()> {
    for case in cases() {
        if options.wants(&case.name) {
            let candidates = candidates(&case, options, memory)?;
            let mut against = Vec::new();
            for baseline in [PLAIN, ONE_0_16, ONE_0_18, SLICE_0_16, SLICE_0_18] {
                against.push(Against { metric: CYCLES, baseline, only: Some(OURS) });
            }
            let iommu: Vec<String> = candidates
                .iter()
                .map(|candidate| candidate.name().to_owned())
                .filter(|name| name.contains("IOMMU"))
                .collect();
            for baseline in &iommu {
                against.push(Against { metric: CYCLES, baseline, only: Some(OURS) });
            }
            let others: Vec<String> =
                candidates.iter().map(|candidate| candidate.name().to_owned()).collect();
            for other in others.iter().filter(|name| *name != OURS) {
                against.push(Against { metric: CYCLES, baseline: PLAIN, only: Some(other) });
            }
            let measured = session.run(&case.name, candidates);
            session.publish(measured.rows(session.bench(), &against))?;
        }
    }
    dirty_logs(options, memory, session)?;
    two_threads(options, memory, session)
}

fn candidates<'m>(
    case: &Case,
    options: &CommonOptions,
    memory: &'m Memory,
) -> Result<Candidates<'m>> {
    let maps = &Maps::new(case.maps);
    let (work, places) = (case.work, case.places);
    let task = Task { work, places, threads: 1, speed: false, effort: effort(options) };
    let mut candidates = Candidates::new();
    let ours = Timed::new(OURS, Ours::new(memory, maps)?, task, memory, maps);
    candidates.push(Box::new(ours.ours()));
    candidates.push(Box::new(Timed::new(PLAIN, Plain::new(memory, maps), task, memory, maps)));
    macro_rules! regions {
        ($name:expr, $version:ident, $bitmap:ty, $regions:expr) => {
            let door = $version::ByBytes::<$bitmap>::new($regions, maps);
            candidates.push(Box::new(Timed::new($name, door, task, memory, maps)));
        };
    }
    macro_rules! one {
        ($name:expr, $by_slice:expr, $version:ident) => {
            regions!($name, $version, (), $version::Regions::one(memory)?);
            let door = $version::ByBytes::<()>::new($version::Regions::one(memory)?, maps);
            let door = $version::BySlice(door);
            candidates.push(Box::new(Timed::new($by_slice, door, task, memory, maps)));
        };
    }
    one!(ONE_0_16, SLICE_0_16, v0_16);
    one!(ONE_0_18, SLICE_0_18, v0_18);
    if case.peers == Peers::All {
        macro_rules! all {
            ($name:literal, $version:ident) => {
                let each = $version::Regions::each(memory, maps)?;
                regions!(concat!($name, ", 16 regions"), $version, (), each);
                let one = $version::Regions::one(memory)?;
                let name = concat!($name, ", 1 region, bitmap");
                regions!(name, $version, $version::AtomicBitmap, one);
            };
        }
        all!("vm-memory 0.16.2", v0_16);
        all!("vm-memory 0.18", v0_18);
    }
    if matches!(case.peers, Peers::Iommu | Peers::All) {
        let name = format!("vm-memory 0.18, IOMMU, {} maps", maps.count());
        let door = v0_18::ByIommu::<RwLock<_>>::new(memory, maps)?;
        candidates.push(Box::new(Timed::new(&name, door, task, memory, maps)));
        let door = v0_18::ByIommu::<v0_18::Fixed>::new(memory, maps)?;
        let fixed = Timed::new(format!("{name}, fixed"), door, task, memory, maps);
        let note = "without a lock: nothing can be mapped or unmapped";
        candidates.push(Box::new(fixed.with_note(note)));
    }
    Ok(candidates)
}

/// What it costs to note what is written.
fn dirty_logs(options: &CommonOptions, memory: &Memory, session: &mut Session) -> Result<()> {
    const OFF: &str = "longshore, no log";
    const NO_BITMAP: &str = "vm-memory 0.16.2, 1 region, no bitmap";
    let maps = &Maps::new(16);
    for work in [Work::Mix, Work::Write(8), Work::Write(64)] {
        let case = format!("dirty log, {}, hot, 16 maps", work_name(work));
        if !options.wants(&case) {
            continue;
        }
        let task =
            Task { work, places: Places::Hot, threads: 1, speed: false, effort: effort(options) };
        let mut candidates = Candidates::new();
        for (name, doors) in [
            (OFF, Ours::new(memory, maps)?),
            ("longshore, internal log", Ours::with_internal_log(memory, maps)?),
            ("longshore, external log", Ours::with_external_log(memory, maps)?),
        ] {
            candidates.push(Box::new(Timed::new(name, doors, task, memory, maps).ours()));
        }
        let door = v0_16::ByBytes::<()>::new(v0_16::Regions::one(memory)?, maps);
        candidates.push(Box::new(Timed::new(NO_BITMAP, door, task, memory, maps)));
        let regions = v0_16::Regions::one(memory)?;
        let door = v0_16::ByBytes::<v0_16::AtomicBitmap>::new(regions, maps);
        let name = "vm-memory 0.16.2, 1 region, bitmap";
        candidates.push(Box::new(Timed::new(name, door, task, memory, maps)));
        let measured = session.run(&case, candidates);
        let against = |baseline, only| Against { metric: CYCLES, baseline, only: Some(only) };
        let against = [
            against(OFF, "longshore, internal log"),
            against(OFF, "longshore, external log"),
            against(NO_BITMAP, name),
        ];
        session.publish(measured.rows(session.bench(), &against))?;
    }
    Ok(())
}

/// Twice the threads, each with data of its own.
fn two_threads(options: &CommonOptions, memory: &Memory, session: &mut Session) -> Result<()> {
    let maps = &Maps::new(16);
    for work in [Work::Mix, Work::Read(8)] {
        let case = format!("two threads, {}, hot, 16 maps", work_name(work));
        if !options.wants(&case) {
            continue;
        }
        let mut candidates = Candidates::new();
        let mut pairs = Vec::new();
        let places = Places::Hot;
        macro_rules! both {
            ($name:expr, $doors:expr, $finish:ident) => {
                for threads in [1, 2] {
                    let task = Task { work, places, threads, speed: true, effort: effort(options) };
                    let timed =
                        Timed::new(threads_name($name, threads), $doors, task, memory, maps);
                    candidates.push(Box::new(timed.$finish()));
                }
                pairs.push((threads_name($name, 2), threads_name($name, 1)));
            };
        }
        both!(OURS, Ours::new(memory, maps)?, ours);
        both!(PLAIN, Plain::new(memory, maps), theirs);
        let door =
            || -> Result<_> { Ok(v0_16::ByBytes::<()>::new(v0_16::Regions::one(memory)?, maps)) };
        both!(ONE_0_16, door()?, theirs);
        let name = "vm-memory 0.18, IOMMU, 16 maps";
        both!(name, v0_18::ByIommu::<RwLock<_>>::new(memory, maps)?, theirs);
        let measured = session.run(&case, candidates);
        let against: Vec<Against<'_>> = pairs
            .iter()
            .map(|(two, one)| Against { metric: ACCESS_RATE, baseline: one, only: Some(two) })
            .collect();
        session.publish(measured.rows(session.bench(), &against))?;
    }
    Ok(())
}

fn threads_name(of: &str, threads: u64) -> String {
    format!("{of}, {threads} thread{}", if threads == 1 { "" } else { "s" })
}

fn work_name(work: Work) -> String {
    match work {
        Work::Mix => "mix".to_owned(),
        Work::Read(len) => format!("read {len}"),
        Work::Write(len) => format!("write {len}"),
    }
}

fn places_name(places: Places) -> &'static str {
    match places {
        Places::Hot => "hot",
        Places::HotAligned => "hot, aligned",
        Places::HotScattered => "hot, scattered",
        Places::Random => "random",
    }
}

fn maps_name(count: usize) -> String {
    format!("{count} map{}", if count == 1 { "" } else { "s" })
}
