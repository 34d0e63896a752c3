//! The cases: a list of candidates for each.

use anyhow::Result;
use longshore_mem::isa::IsaToken;
use longshore_pagetable::Check;
use longshore_pagetable::cache_sync::Coherent;
use longshore_pagetable::format::Format;

use super::counts;
use super::layout::{GIB, KIB, Layout, MIB, shuffled};
use super::ours::{self, Ours, with_noncoherent};
use super::peers::{Aarch64Paging, X86_64};
use super::timed::{Work, candidate};
use crate::harness::metric::TIME_NS;
use crate::harness::{Against, Candidate, CommonOptions, Sample, Session};

const VTD: &str = "VT-d second stage";
const ARM: &str = "Arm stage 1";
const AARCH64_PAGING: &str = "aarch64-paging";
const X86_64_CRATE: &str = "x86_64";
const MULTIARCH: &str = "page_table_multiarch";
const LOOK_UPS: usize = 1 << 15;

const CHECKED: &[Check] = &[Check::Checked];
const TRUSTED: &[Check] = &[Check::Trusted];
const BOTH: &[Check] = &[Check::Checked, Check::Trusted];

/// A case: its ranges, its work and its candidates.
struct Case {
    name: &'static str,
    layout: Layout,
    work: Work,
    checks: &'static [Check],
    /// `true` to measure each instruction set.
    paths: bool,
}

impl Case {
    /// Returns `true` if a non-coherent walker makes a difference.
    fn changes_tables(&self) -> bool {
        !matches!(self.work, Work::LookUp(_) | Work::ScanDirty)
    }
}

/// Returns every case. Ranges are adjacent, and so few that their tables stay in the first-level cache
/// if those of a single range would.
fn cases(quick: bool) -> Vec<Case> {
    // A debug build takes seconds for each map of a gigabyte.
    let large_bytes = if quick { 16 * MIB } else { GIB };
    let page = || Layout::ranges(4 * KIB, 12, 4 * KIB, 256);
    let gib = |count| Layout::ranges(large_bytes, 12, large_bytes, count);
    let sparse = || Layout::ranges(4 * KIB, 12, 64 * MIB + 4 * KIB, 4096);
    let many = |len_bytes, count| Layout::ranges(len_bytes, 12, len_bytes, count);
    let pages = gib(1).pages();
    let (map, fresh) = (Work::Map { fresh: false }, Work::Map { fresh: true });
    let (unmap, finish) = (Work::Unmap, Work::UnmapAndFinish);
    let upwards = Work::LookUp(pages[..LOOK_UPS.min(pages.len())].to_vec());
    let arbitrary = Work::LookUp(shuffled(&pages, LOOK_UPS));
    let thin = Work::LookUp(shuffled(&sparse().pages(), LOOK_UPS));
    let case = |(name, layout, work, checks, paths)| Case { name, layout, work, checks, paths };
    [
        ("map 4K", page(), map, CHECKED, false),
        ("map 1G of 4K", gib(1), fresh.clone(), CHECKED, true),
        ("map 1G of 2M", Layout::ranges(GIB, 21, GIB, 1), fresh.clone(), CHECKED, false),
        ("map 4K, sparse over 256G", sparse(), fresh, CHECKED, false),
        ("unmap 4K", page(), unmap.clone(), BOTH, false),
        ("unmap 512K", many(512 * KIB, 16), unmap.clone(), BOTH, false),
        ("unmap 1M", many(MIB, 8), unmap.clone(), BOTH, false),
        ("unmap 1G of 4K", gib(1), unmap.clone(), CHECKED, true),
        ("unmap 1G of 4K, trusted", gib(4), unmap.clone(), TRUSTED, false),
        ("unmap 2M + 1M + 1M", Layout::mixed(16), unmap.clone(), BOTH, false),
        ("unmap 4K, sparse over 256G", sparse(), unmap, CHECKED, false),
        ("unmap and finish 4K", page(), finish.clone(), CHECKED, false),
        ("unmap and finish 1G of 4K", gib(1), finish, BOTH, false),
        ("lookup, sequential", gib(1), upwards, CHECKED, false),
        ("lookup, random in 1G", gib(1), arbitrary, CHECKED, false),
        ("lookup, random in sparse 256G", sparse(), thin, CHECKED, false),
        ("clean dirty scan 1G of 4K", gib(1), Work::ScanDirty, CHECKED, true),
    ]
    .map(case)
    .into()
}

pub(super) fn run(options: &CommonOptions, session: &mut Session) -> Result<()> {
    for case in cases(options.quick) {
        if !options.wants(case.name) {
            continue;
        }
        let tracks = matches!(case.work, Work::ScanDirty);
        let mut candidates = Vec::new();
        of_format(VTD, ours::vtd(tracks), &case, options, &mut candidates);
        of_format(ARM, ours::arm(tracks), &case, options, &mut candidates);
        // Only coherent walkers are compared, because the peers support no others.
        let own: Vec<String> = candidates
            .iter()
            .map(|candidate| candidate.name.clone())
            .filter(|name| name.ends_with(", C") || name.ends_with(", C, trusted"))
            .collect();
        if !tracks {
            peers(&case, options, &mut candidates);
        }
        let against: Vec<Against<'_>> = own
            .iter()
            .flat_map(|name| {
                let baselines = [AARCH64_PAGING, X86_64_CRATE, MULTIARCH];
                baselines.map(|baseline| Against::new(TIME_NS, baseline).only(name))
            })
            .collect();
        session.compare(case.name, candidates, &against)?;
    }
    Ok(())
}

fn of_format<F: Format + 'static>(
    format_name: &str,
    format: F,
    case: &Case,
    options: &CommonOptions,
    candidates: &mut Vec<Candidate<'_>>,
) {
    let on = (&case.layout, &case.work);
    for check in case.checks {
        let trust = match check {
            Check::Checked => "",
            Check::Trusted => ", trusted",
        };
        let counted = counts::of(format, *check, &case.layout, &case.work);
        let name = format!("{format_name}, C{trust}");
        let tables = Ours::new(format, Coherent, *check);
        candidates.push(candidate(&name, tables, on, options, counted.clone()).ours());
        let others = IsaToken::all().filter(|token| token.isa() != IsaToken::active().isa());
        for token in others.filter(|_| case.paths) {
            let tables = Ours::new(format, Coherent, *check).with_isa(token);
            let name = format!("{name}, {}", token.isa());
            candidates.push(candidate(name, tables, on, options, Sample::new()).ours());
        }
        if case.changes_tables() {
            let name = format!("{format_name}, NC{trust}");
            candidates.push(with_noncoherent!(
                |sync| {
                    let tables = Ours::new(format, sync, *check);
                    candidate(&name, tables, on, options, counted)
                        .ours()
                        .with_note(format!("cleaned with {}", ours::cleaned_with()))
                },
                Candidate::unable(&name, ours::cleaned_with())
            ));
        }
    }
}

fn peers(case: &Case, options: &CommonOptions, candidates: &mut Vec<Candidate<'_>>) {
    let (on, none) = ((&case.layout, &case.work), Sample::new);
    let note = "does not check for holes when it unmaps, and frees tables at once";
    let arm = candidate(AARCH64_PAGING, Aarch64Paging::new(), on, options, none());
    let x86 = candidate(X86_64_CRATE, X86_64::new(), on, options, none());
    #[cfg(target_arch = "x86_64")]
    let multiarch = candidate(MULTIARCH, super::peers::Multiarch::new(), on, options, none());
    #[cfg(not(target_arch = "x86_64"))]
    let multiarch = Candidate::unable(MULTIARCH, "measured with its x86-64 tables only");
    candidates.extend([
        arm.with_note(note),
        x86.with_note("unmaps page by page; keeps its tables"),
        multiarch.with_note(note),
    ]);
}
