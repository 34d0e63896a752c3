//! The cases: one table of candidates for each.

use std::time::Duration;

use anyhow::Result;
use longshore_mem::isa::IsaToken;
use longshore_pagetable::Check;
use longshore_pagetable::cache_sync::{CacheSync, Coherent};
use longshore_pagetable::format::Format;

use super::counts;
use super::layout::{GIB, KIB, Layout, MIB, shuffled};
use super::ours::{self, Ours};
use super::peers::{Aarch64Paging, X86_64};
use super::tables::Tables;
use super::timed::{Effort, Timed, Unable, Work};
use crate::harness::metric::TIME_NS;
use crate::harness::{Against, Candidate, CommonOptions, Sample, Session};

pub(super) type Candidates = Vec<Box<dyn Candidate>>;

const VTD: &str = "VT-d second stage";
const ARM: &str = "Arm stage 1";
const AARCH64_PAGING: &str = "aarch64-paging";
const X86_64_CRATE: &str = "x86_64";
const MULTIARCH: &str = "page_table_multiarch";
const LOOK_UPS: usize = 1 << 15;

pub(super) fn effort(options: &CommonOptions) -> Effort {
    Effort { time: Duration::from_millis(if options.quick { 1 } else { 60 }) }
}

/// A case and what it is made of.
struct Case {
    name: &'static str,
    layout: Layout,
    work: Work,
    checks: &'static [Check],
    /// Whether walkers that do not snoop make a difference.
    noncoherent: bool,
    /// Whether each instruction set is of interest.
    paths: bool,
}

impl Case {
    fn unmap(name: &'static str, layout: Layout) -> Self {
        Self {
            name,
            layout,
            work: Work::Unmap,
            checks: &[Check::Checked],
            noncoherent: true,
            paths: false,
        }
    }

    fn trusted_too(self) -> Self {
        Self { checks: &[Check::Checked, Check::Trusted], ..self }
    }

    fn trusted_only(self) -> Self {
        Self { checks: &[Check::Trusted], ..self }
    }

    fn on_each_path(self) -> Self {
        Self { paths: true, ..self }
    }

    fn map(name: &'static str, layout: Layout, fresh: bool) -> Self {
        Self { work: Work::Map { fresh }, ..Self::unmap(name, layout) }
    }

    fn look_up(name: &'static str, layout: Layout, addresses: Vec<u64>) -> Self {
        let work = Work::LookUp(addresses);
        Self { work, noncoherent: false, ..Self::unmap(name, layout) }
    }

    fn finishing(self) -> Self {
        Self { work: Work::UnmapAndFinish, ..self }
    }
}

/// Every case. Ranges lie side by side, few enough that their tables stay in the first cache where
/// a single range's would.
fn cases() -> Vec<Case> {
    let page = || Layout::ranges(4 * KIB, 12, 4 * KIB, 256);
    let gib = |count| Layout::ranges(GIB, 12, GIB, count);
    let sparse = || Layout::ranges(4 * KIB, 12, 64 * MIB + 4 * KIB, 4096);
    let (upwards, arbitrary) = {
        let pages = gib(1).pages();
        (pages[..LOOK_UPS].to_vec(), shuffled(&pages, LOOK_UPS))
    };
    let thin = shuffled(&sparse().pages(), LOOK_UPS);
    let scan = Case {
        work: Work::ScanDirty,
        noncoherent: false,
        ..Case::unmap("clean dirty scan 1G of 4K", gib(1))
    };
    vec![
        Case::map("map 4K", page(), false),
        Case::map("map 1G of 4K", gib(1), true).on_each_path(),
        Case::map("map 1G of 2M", Layout::ranges(GIB, 21, GIB, 1), true),
        Case::map("map 4K, sparse over 256G", sparse(), true),
        Case::unmap("unmap 4K", page()).trusted_too(),
        Case::unmap("unmap 512K", Layout::ranges(512 * KIB, 12, 512 * KIB, 16)).trusted_too(),
        Case::unmap("unmap 1M", Layout::ranges(MIB, 12, MIB, 8)).trusted_too(),
        Case::unmap("unmap 1G of 4K", gib(1)).on_each_path(),
        Case::unmap("unmap 1G of 4K, trusted", gib(4)).trusted_only(),
        Case::unmap("unmap 2M + 1M + 1M", Layout::mixed(16)).trusted_too(),
        Case::unmap("unmap 4K, sparse over 256G", sparse()),
        Case::unmap("unmap and finish 4K", page()).finishing(),
        Case::unmap("unmap and finish 1G of 4K", gib(1)).finishing().trusted_too(),
        Case::look_up("lookup, sequential", gib(1), upwards),
        Case::look_up("lookup, random in 1G", gib(1), arbitrary),
        Case::look_up("lookup, random in sparse 256G", sparse(), thin),
        scan.on_each_path(),
    ]
}

pub(super) fn run(options: &CommonOptions, session: &mut Session) -> Result<()> {
    let effort = effort(options);
    for case in cases() {
        if !options.wants(case.name) {
            continue;
        }
        let mut candidates: Candidates = Vec::new();
        if matches!(case.work, Work::ScanDirty) {
            of_format(VTD, ours::vtd_tracking(), &case, effort, &mut candidates);
            of_format(ARM, ours::arm_tracking(), &case, effort, &mut candidates);
        } else {
            of_format(VTD, ours::vtd(), &case, effort, &mut candidates);
            of_format(ARM, ours::arm(), &case, effort, &mut candidates);
        }
        // Only walkers that snoop are compared: the peers know no others.
        let own: Vec<String> = candidates
            .iter()
            .map(|candidate| candidate.name().to_owned())
            .filter(|name| name.ends_with(", C") || name.ends_with(", C, trusted"))
            .collect();
        peers(&case, effort, &mut candidates);
        let measured = session.run(case.name, candidates);
        let against: Vec<Against<'_>> = own
            .iter()
            .flat_map(|name| {
                let baselines = [AARCH64_PAGING, X86_64_CRATE, MULTIARCH];
                baselines.map(|baseline| Against { metric: TIME_NS, baseline, only: Some(name) })
            })
            .collect();
        session.publish(measured.rows(session.bench(), &against))?;
    }
    Ok(())
}

fn of_format<F: Format + 'static>(
    format_name: &str,
    format: F,
    case: &Case,
    effort: Effort,
    candidates: &mut Candidates,
) {
    for check in case.checks {
        let trust = match check {
            Check::Checked => "",
            Check::Trusted => ", trusted",
        };
        let counted = counts::of(format, *check, &case.layout, &case.work);
        let name = format!("{format_name}, C{trust}");
        let tables = Ours::new(format, Coherent, *check);
        let timed = Timed::new(&name, tables, &case.layout, &case.work, effort);
        candidates.push(Box::new(timed.ours(counted.clone())));
        if case.paths {
            let others = IsaToken::all().filter(|token| token.isa() != IsaToken::active().isa());
            for token in others {
                let tables = Ours::new(format, Coherent, *check).with_isa(token);
                let name = format!("{name}, {}", token.isa());
                let timed = Timed::new(name, tables, &case.layout, &case.work, effort);
                candidates.push(Box::new(timed.ours(Sample::new())));
            }
        }
        if !case.noncoherent {
            continue;
        }
        let name = format!("{format_name}, NC{trust}");
        with_noncoherent(
            name,
            NonCoherentCase { format, check: *check, case, effort, counted: &counted },
            candidates,
        );
    }
}

/// What is needed to make a candidate whose walker does not snoop.
struct NonCoherentCase<'a, F> {
    format: F,
    check: Check,
    case: &'a Case,
    effort: Effort,
    counted: &'a Sample,
}

impl<F: Format + 'static> NonCoherentCase<'_, F> {
    fn push<S: CacheSync + 'static>(self, name: String, sync: S, candidates: &mut Candidates) {
        let tables = Ours::new(self.format, sync, self.check);
        let timed = Timed::new(name, tables, &self.case.layout, &self.case.work, self.effort)
            .ours(self.counted.clone())
            .with_note(format!("cleaned with {}", ours::cleaned_with()));
        candidates.push(Box::new(timed));
    }
}

#[cfg(target_arch = "x86_64")]
fn with_noncoherent<F: Format + 'static>(
    name: String,
    case: NonCoherentCase<'_, F>,
    candidates: &mut Candidates,
) {
    match (ours::Clwb::new(), ours::ClFlushOpt::new()) {
        (Some(clwb), _) => case.push(name, clwb, candidates),
        (None, Some(clflushopt)) => case.push(name, clflushopt, candidates),
        (None, None) => candidates.push(Box::new(Unable::new(name, ours::cleaned_with()))),
    }
}

#[cfg(target_arch = "aarch64")]
fn with_noncoherent<F: Format + 'static>(
    name: String,
    case: NonCoherentCase<'_, F>,
    candidates: &mut Candidates,
) {
    case.push(name, ours::DcCvac::new(), candidates);
}

fn peers(case: &Case, effort: Effort, candidates: &mut Candidates) {
    type Make<'a> = Box<dyn FnOnce(&str) -> Box<dyn Candidate> + 'a>;
    let mut push = |name: &str, tables: Make<'_>| {
        candidates.push(tables(name));
        if case.noncoherent {
            let why = "it has no cache maintenance: a walker must snoop";
            candidates.push(Box::new(Unable::new(format!("{name}, NC"), why)));
        }
    };
    fn boxed<T: Tables + 'static>(
        name: &str,
        tables: T,
        case: &Case,
        effort: Effort,
        note: &str,
    ) -> Box<dyn Candidate> {
        let timed = Timed::new(name, tables, &case.layout, &case.work, effort);
        Box::new(timed.with_note(note))
    }
    let note = "looks at no hole when it unmaps, and frees tables at once";
    push(AARCH64_PAGING, Box::new(|name| boxed(name, Aarch64Paging::new(), case, effort, note)));
    let note = "unmaps by the page; tables stay";
    push(X86_64_CRATE, Box::new(|name| boxed(name, X86_64::new(), case, effort, note)));
    #[cfg(target_arch = "x86_64")]
    push(
        MULTIARCH,
        Box::new(|name| boxed(name, super::peers::Multiarch::new(), case, effort, note)),
    );
    #[cfg(not(target_arch = "x86_64"))]
    candidates.push(Box::new(Unable::new(MULTIARCH, "measured with its x86-64 tables only")));
}
