//! The cases: accesses of each kind and size, with one mapping or many, beside other crates.

use anyhow::Result;

use super::memory::{Maps, Memory};
use super::ours::{self, Log};
use super::plain::{Copies, Translated};
use super::stream::{Places, Work};
use super::timed::{Address, Task, candidate, shared};
use super::vm_memory::{v0_16, v0_18};
use crate::harness::metric::{ACCESS_RATE, CYCLES};
use crate::harness::{Against, Candidate, CommonOptions, Session};

const OURS: &str = "longshore";
const PLAIN: &str = "plain copy";
const ONE_0_16: &str = "vm-memory 0.16.2, 1 region";

/// The peers that a case compares with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peers {
    /// One region, untranslated.
    OneRegion,
    /// Also the crate's IOMMU, with as many mappings as the case has.
    Iommu,
    /// Also as many regions as there are mappings, and a bitmap.
    All,
}

fn cases() -> Vec<(Work, Places, usize, Peers)> {
    let mut cases = Vec::new();
    for places in [Places::Hot, Places::Random] {
        let peers = [
            (1, Peers::OneRegion),
            (16, Peers::All),
            (4096, Peers::Iommu),
            (262_144, Peers::OneRegion),
        ];
        cases.extend(peers.map(|(maps, peers)| (Work::Mix, places, maps, peers)));
    }
    for len in [8, 64, 512, 1024, 4096] {
        let works = [Work::Read(len), Work::Write(len)];
        cases.extend(works.map(|work| (work, Places::Hot, 16, Peers::OneRegion)));
    }
    for (places, maps) in [
        (Places::Hot, 1),
        (Places::Hot, 4096),
        (Places::Hot, 262_144),
        (Places::Random, 1),
        (Places::Random, 16),
        (Places::Random, 262_144),
    ] {
        cases.push((Work::Read(8), places, maps, Peers::OneRegion));
    }
    cases
}

pub(super) fn run(options: &CommonOptions, memory: &Memory, session: &mut Session) -> Result<()> {
    for (work, places, maps, peers) in cases() {
        let word = if maps == 1 { "map" } else { "maps" };
        let case = format!("{}, {}, {maps} {word}", work.name(), places.name());
        if !options.wants(&case) {
            continue;
        }
        let task = Task::new(work, places, options);
        let candidates = candidates(task, (memory, &Maps::new(maps)), peers)?;
        let names: Vec<String> = candidates.iter().map(|one| one.name.clone()).collect();
        // Compares the library with each of the others, and each of the others with a plain copy.
        let against = |baseline, only| Against::new(CYCLES, baseline).only(only);
        let others = || names.iter().filter(|name| *name != OURS);
        let mut rules: Vec<_> = others().map(|name| against(name.as_str(), OURS)).collect();
        rules.extend(others().map(|name| against(PLAIN, name)));
        session.compare(&case, candidates, &rules)?;
    }
    dirty_logs(options, memory, session)?;
    two_threads(options, memory, session)
}

fn candidates<'m>(task: Task, on: (&'m Memory, &Maps), peers: Peers) -> Result<Vec<Candidate<'m>>> {
    let (memory, maps) = on;
    let space = ours::space(memory, maps, Log::None)?;
    let mut all = vec![
        candidate(OURS, task, on, Address::Iova, move |_| Box::new(space.session())).ours(),
        candidate(PLAIN, task, on, Address::Host, shared(Copies(Translated))),
    ];
    macro_rules! version {
        ($name:literal, $version:ident) => {
            macro_rules! push {
                ($of:literal, $address:ident, $accessor:expr) => {
                    let (name, accessor) = (concat!($name, ", ", $of), shared($accessor));
                    all.push(candidate(name, task, on, Address::$address, accessor));
                };
            }
            push!("1 region", Offset, $version::one::<()>(memory)?);
            push!("1 region, get_slice", Offset, $version::BySlice($version::one(memory)?));
            if peers == Peers::All {
                push!("16 regions", Iova, $version::each(memory, maps)?);
                let bitmap = $version::one::<$version::AtomicBitmap>(memory)?;
                push!("1 region, bitmap", Offset, bitmap);
            }
        };
    }
    version!("vm-memory 0.16.2", v0_16);
    version!("vm-memory 0.18", v0_18);
    if peers != Peers::OneRegion {
        let name = format!("vm-memory 0.18, IOMMU, {} maps", maps.count());
        let accessor = shared(v0_18::iommu(memory, maps)?);
        all.push(candidate(name, task, on, Address::Iova, accessor));
    }
    Ok(all)
}

/// Measures the cost of a dirty log.
fn dirty_logs(options: &CommonOptions, memory: &Memory, session: &mut Session) -> Result<()> {
    const OFF: &str = "longshore, no log";
    const INTERNAL: &str = "longshore, internal log";
    const EXTERNAL: &str = "longshore, external log";
    const NO_BITMAP: &str = "vm-memory 0.16.2, 1 region, no bitmap";
    const BITMAP: &str = "vm-memory 0.16.2, 1 region, bitmap";
    let on = (memory, &Maps::new(16));
    for work in [Work::Mix, Work::Write(8), Work::Write(64)] {
        let case = format!("dirty log, {}, hot, 16 maps", work.name());
        if !options.wants(&case) {
            continue;
        }
        let task = Task::new(work, Places::Hot, options);
        let mut candidates = Vec::new();
        for (name, log) in [(OFF, Log::None), (INTERNAL, Log::Internal), (EXTERNAL, Log::External)]
        {
            let space = ours::space(memory, on.1, log)?;
            let open = move |_| Box::new(space.session());
            candidates.push(candidate(name, task, on, Address::Iova, open).ours());
        }
        let accessor = shared(v0_16::one::<()>(memory)?);
        candidates.push(candidate(NO_BITMAP, task, on, Address::Offset, accessor));
        let accessor = shared(v0_16::one::<v0_16::AtomicBitmap>(memory)?);
        candidates.push(candidate(BITMAP, task, on, Address::Offset, accessor));
        let pairs = [(OFF, INTERNAL), (OFF, EXTERNAL), (NO_BITMAP, BITMAP)];
        let against = pairs.map(|(baseline, only)| Against::new(CYCLES, baseline).only(only));
        session.compare(&case, candidates, &against)?;
    }
    Ok(())
}

/// Compares one thread with two, each with its own data.
fn two_threads(options: &CommonOptions, memory: &Memory, session: &mut Session) -> Result<()> {
    let on = (memory, &Maps::new(16));
    for work in [Work::Mix, Work::Read(8)] {
        let case = format!("two threads, {}, hot, 16 maps", work.name());
        if !options.wants(&case) {
            continue;
        }
        let (mut candidates, mut pairs) = (Vec::new(), Vec::new());
        macro_rules! both {
            ($name:expr, $address:expr, $open:expr $(, $ours:ident)?) => {
                let [one, two] = ["1 thread", "2 threads"].map(|count| format!("{}, {count}", $name));
                for (threads, name) in [(1, &one), (2, &two)] {
                    let task = Task::new(work, Places::Hot, options).threads(threads);
                    candidates.push(candidate(name, task, on, $address, $open)$(.$ours())?);
                }
                pairs.push((one, two));
            };
        }
        let space = ours::space(memory, on.1, Log::None)?;
        let session_of = || {
            let space = space.clone();
            move |_| Box::new(space.session())
        };
        both!(OURS, Address::Iova, session_of(), ours);
        both!(PLAIN, Address::Host, shared(Copies(Translated)));
        both!(ONE_0_16, Address::Offset, shared(v0_16::one::<()>(memory)?));
        let iommu = "vm-memory 0.18, IOMMU, 16 maps";
        both!(iommu, Address::Iova, shared(v0_18::iommu(memory, on.1)?));
        let against: Vec<Against<'_>> =
            pairs.iter().map(|(one, two)| Against::new(ACCESS_RATE, one).only(two)).collect();
        session.compare(&case, candidates, &against)?;
    }
    Ok(())
}
