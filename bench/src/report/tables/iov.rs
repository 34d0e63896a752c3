//! Cursors: copies through each kind, their machine code, and bounds of checksums.

use anyhow::Result;

use super::super::figures::{Figures, Key};
use super::super::model::{Cell, Column, Comparison, Group, Line, Over, Table};
use super::super::plot::{Item, Kind, Mark, Plot, Ranges, Scale};
use super::super::{number, published};

/// A kind as the kernel calls it, and as it is called here.
const KINDS: [(&str, &str); 6] = [
    ("ubuf", "ForeignBuf"),
    ("iovec", "ForeignVec"),
    ("bvec", "PageVec"),
    ("bvec_split", "PageVec, split"),
    ("kvec", OWN),
    ("xarray", "SparsePages"),
];
/// The kernel's own memory, and what it is called here.
const KVEC: &str = "kvec";
const OWN: &str = "OwnVec";

/// A function of the kernel, and what does the same here; or why nothing does.
const FUNCTIONS: [(&str, Result<&str, &str>); 15] = [
    ("__copy_from_iter_mc", Err(MACHINE_CHECKS)),
    ("_copy_from_iter", Ok("read")),
    ("_copy_from_iter_flushcache", Err("no copy here flushes caches behind itself")),
    (
        "_copy_from_iter_nocache",
        Err("whether caches are passed by is the copy’s own choice, by size"),
    ),
    ("_copy_mc_to_iter", Ok("write")),
    ("_copy_to_iter", Ok("write")),
    ("copy_page_from_iter_atomic.part.0", Err(PAGES)),
    ("copy_page_to_iter_nofault.part.0", Err(PAGES)),
    ("copyin", Err(STEPS)),
    ("copyout", Err(STEPS)),
    ("copyout_mc", Err(MACHINE_CHECKS)),
    ("csum_and_copy_from_iter", Ok("read_checksummed")),
    ("csum_and_copy_to_iter", Ok("write_checksummed")),
    ("iov_iter_zero", Ok("zero")),
    ("memcpy_from_iter.isra.0", Err(STEPS)),
];
/// Walks of one kind, which the kernel's table has not.
const KNOWN: [&str; 6] = [
    "read_foreign_buf",
    "read_foreign_vec",
    "read_own_vec",
    "read_page_vec",
    "read_sparse_pages",
    "read_page_queue",
];
const MACHINE_CHECKS: &str =
    "memory that fails is an error of any fault-tolerant copy here, and no walk of its own";
const PAGES: &str = "pages are a kind of memory here, and a fault is an error of any copy";
const STEPS: &str = "a step, which is part of every walk here and no function of its own";

/// A bound that was named, and the case and candidates that it is held against.
const BOUNDS: [(&str, &str, &[&str]); 5] = [
    (
        "internet checksum easily reached",
        "checksum, 4 KiB",
        &["longshore", "longshore, scalar", "internet-checksum", "smoltcp"],
    ),
    ("internet checksum with adcx/adox", "checksum, 4 KiB", &["longshore", "longshore, scalar"]),
    ("rep movs copy", "copy, 4 KiB", &["longshore", "memcpy"]),
    ("rep movs copy to a 32-byte-aligned destination", "copy, 4 KiB", &["longshore", "memcpy"]),
    (
        "fused copy+checksum needed to match a separate copy and checksum",
        "copy+checksum, 4 KiB",
        &["longshore", "memcpy, then internet-checksum"],
    ),
];

pub(super) fn tables(figures: &Figures) -> Result<Vec<Comparison>> {
    Ok(vec![kinds(figures)?, bounds(figures)?, code_size(figures)?])
}

fn kinds(figures: &Figures) -> Result<Comparison> {
    let csv = published::read("iov_copy")?;
    let base = csv.lines.iter().find(|line| line[0] == KVEC).and_then(|line| three(&line[4..]));
    let key =
        |case, candidate, baseline| Key { bench: "iov", case, candidate, metric: "time", baseline };
    let mut lines = Vec::new();
    let mut items = Vec::new();
    for line in &csv.lines {
        let here =
            KINDS.iter().find(|(kind, _)| *kind == line[0]).map_or(line[0], |(_, here)| here);
        let (before, after) = (three(&line[1..4]), three(&line[4..]));
        let over = after.zip(base).map(|((it, ..), (base, ..))| it / base);
        let shown = |runs: Option<(f64, f64, f64)>| match runs {
            None => Cell::not_published("the published table has not three runs"),
            Some((middle, low, high)) => Cell::Figure {
                value: number::figure(middle),
                spread: number::spread(low, high, number::figure),
            },
        };
        let cells = vec![
            shown(before),
            shown(after),
            over.map_or_else(|| Cell::not_published("there is no kvec"), Cell::ratio),
            figures.median(key("kinds, pool", here, None), 1.0),
            figures.ratio(key("kinds, pool", here, Some(OWN))),
            figures.median(key("kinds, DRAM", here, None), 1.0),
            figures.ratio(key("kinds, DRAM", here, Some(OWN))),
        ];
        lines.push(Line::of(line[0], cells).published(line).note(format!("here: {here}")));
        let range = |case| figures.ratio_range(key(case, here, Some(OWN)));
        items.push(Item {
            label: format!("{}, here {here}", line[0]),
            marks: vec![
                Mark::new(Kind::Published, over.map(|it| (it, it, it)), "not published"),
                Mark::new(Kind::Ours, range("kinds, pool"), "not run"),
                Mark::new(Kind::OursToo, range("kinds, DRAM"), "not run"),
            ],
        });
    }
    let columns = vec![
        Column::number("macros, µs", Over::Published),
        Column::number("inlined, µs", Over::Published),
        Column::number("×\u{a0}kvec", Over::Published),
        Column::number("pool, µs", Over::Here),
        Column::number("×\u{a0}OwnVec", Over::Here),
        Column::number("DRAM, µs", Over::Here),
        Column::number("×\u{a0}OwnVec", Over::Here),
    ];
    let caption = "Time to copy the same bytes through each kind of memory (here in segments of 4 KiB, out of 256 KiB again and again: pool; and each byte once: DRAM)";
    let groups = vec![Group::plain(lines)];
    Ok(Comparison {
        name: "iov_copy",
        title: "A copy through each kind of memory",
        text: "The published microseconds are a kernel’s unit benchmark before and after its steps were inlined, three runs each; how many bytes it copies is not said. So what may be compared is each kind over the kernel’s own memory (kvec, OwnVec here): how much of the time is the walk.",
        about: csv.about,
        plots: vec![Plot::Ranges(Ranges {
            title: "Each kind beside one’s own memory".to_owned(),
            unit: "× the time of kvec, or OwnVec; less is better".to_owned(),
            scale: Scale::Linear,
            reference: Some(1.0),
            items,
            legend: vec![
                (Kind::Published, "published, inlined".to_owned()),
                (Kind::Ours, "here, pool".to_owned()),
                (Kind::OursToo, "here, DRAM".to_owned()),
            ],
        })],
        tables: vec![Table::new("iov-copy", caption, "kind", columns, groups)],
        remarks: through_pointers(figures).into_iter().collect(),
    })
}

/// The published table says what a call through a pointer costs beside a copy; here it is beside a
/// step that does nothing.
fn through_pointers(figures: &Figures) -> Option<String> {
    let key = |candidate| Key {
        bench: "iov",
        case: "empty step",
        candidate,
        metric: "cycles",
        baseline: None,
    };
    let inlined = figures.median_range(key(OWN), 1.0)?.0;
    let called = figures.median_range(key("OwnVec, through a pointer"), 1.0)?.0;
    Some(format!(
        "Published: calling steps through pointers costs about 16%. Here a segment of OwnVec with an empty step takes {} cycles inlined and {} through a pointer.",
        number::figure(inlined),
        number::figure(called)
    ))
}

/// The middle, the lowest and the highest of three runs.
fn three(fields: &[&str]) -> Option<(f64, f64, f64)> {
    let mut runs: Vec<f64> =
        fields.iter().map(|field| published::number(field)).collect::<Option<_>>()?;
    runs.sort_by(f64::total_cmp);
    let [low, middle, high] = runs[..] else { return None };
    Some((middle, low, high))
}

fn bounds(figures: &Figures) -> Result<Comparison> {
    let csv = published::read("checksum_bounds")?;
    let mut groups = Vec::new();
    let mut items = Vec::new();
    for line in &csv.lines {
        let bound = published::number(line[1]);
        let mut lines = Vec::new();
        let mut marks =
            vec![Mark::new(Kind::Published, bound.map(|it| (it, it, it)), "not published")];
        let known = BOUNDS.iter().find(|(what, ..)| *what == line[0]);
        let (case, candidates) = known.map_or(("", &[][..]), |(_, case, of)| (*case, *of));
        for (nth, candidate) in candidates.iter().enumerate() {
            let key = Key { bench: "iov", case, candidate, metric: "speed", baseline: None };
            let over = match (figures.median_range(key, 1.0), bound) {
                (Some((median, low, high)), Some(bound)) => Cell::Figure {
                    value: number::ratio(median / bound),
                    spread: number::spread(low / bound, high / bound, number::ratio),
                },
                (Some(_), None) => Cell::not_published("there is no bound"),
                (None, _) => figures.median(key, 1.0),
            };
            let cells = vec![
                bound.map_or_else(|| Cell::not_published("there is no bound"), Cell::figure),
                figures.median(key, 1.0),
                over,
            ];
            let shown = Line::of(candidate, cells).published(line);
            lines.push(if nth == 0 { shown.ours() } else { shown });
            if nth == 0 {
                let range = figures.median_range(key, 1.0);
                marks.push(Mark::new(Kind::Ours, range, "not run"));
            }
        }
        groups.push(Group::titled(line[0], lines));
        items.push(Item { label: line[0].to_owned(), marks });
    }
    let columns = vec![
        Column::number("B/clock", Over::Published),
        Column::number("B/clock", Over::Here),
        Column::number("×\u{a0}published", Over::Here),
    ];
    let caption =
        "Bytes for each cycle of the core, of 4 KiB that lie in the first cache; more is better";
    Ok(Comparison {
        name: "checksum_bounds",
        title: "Checksums and copies, in bytes per cycle",
        text: "The published bounds were named where code for x86 was discussed. Beside each is the library, and for scale its code without vectors, the C library’s copy, and two crates that sum.",
        about: csv.about,
        plots: vec![Plot::Ranges(Ranges {
            title: "The library beside the bounds".to_owned(),
            unit: "bytes per clock, 4 KiB; more is better".to_owned(),
            scale: Scale::Linear,
            reference: None,
            items,
            legend: vec![
                (Kind::Published, "published".to_owned()),
                (Kind::Ours, "longshore, here".to_owned()),
            ],
        })],
        tables: vec![Table::new("checksum-bounds", caption, "candidate", columns, groups)],
        remarks: Vec::new(),
    })
}

fn code_size(figures: &Figures) -> Result<Comparison> {
    let csv = published::read("iov_code_size")?;
    let key = |candidate| Key {
        bench: "iov",
        case: "code size",
        candidate,
        metric: "code",
        baseline: None,
    };
    let mut lines = Vec::new();
    let mut items = Vec::new();
    for line in &csv.lines {
        let [function, before, after] = line[..] else { continue };
        let (before, after) = (published::number(before), published::number(after));
        let published = |value: Option<f64>| {
            value.map_or_else(
                || Cell::not_published("the published table has no such figure"),
                Cell::figure,
            )
        };
        let known = FUNCTIONS.iter().find(|(name, _)| *name == function);
        let here = known.map_or(Err("nothing here is known to do the same"), |(_, here)| *here);
        let mut cells = vec![published(before), published(after)];
        match here {
            Ok(name) => {
                cells.push(Cell::text(name));
                cells.push(figures.median(key(name), 1.0));
            }
            Err(why) => {
                cells.extend([Cell::without("none", why), Cell::without("no counterpart", why)]);
            }
        }
        lines.push(Line::of(function, cells).published(line));
        if let Ok(name) = here {
            let range = figures.median_range(key(name), 1.0);
            items.push(Item {
                label: format!("{function}, here {name}"),
                marks: vec![
                    Mark::new(Kind::Published, after.map(|it| (it, it, it)), "not published"),
                    Mark::new(Kind::Ours, range, "not run"),
                ],
            });
        }
    }
    for name in KNOWN {
        let why = "a walk of one known kind is measured here only";
        let none = || Cell::not_published(why);
        let cells = vec![none(), none(), Cell::text(name), figures.median(key(name), 1.0)];
        lines.push(Line::of("of a known kind", cells));
    }
    let columns = vec![
        Column::number("before, B", Over::Published),
        Column::number("after, B", Over::Published),
        Column::text("function", Over::Here),
        Column::number("B", Over::Here),
    ];
    let caption = "Bytes of machine code of each walk";
    let groups = vec![Group::plain(lines)];
    Ok(Comparison {
        name: "iov_code_size",
        title: "The machine code of each walk",
        text: "Here a walk that learns its kind when it runs holds the steps of every kind; a program that knows the kind has the walk of that kind alone.",
        about: csv.about,
        plots: vec![Plot::Ranges(Ranges {
            title: "Machine code of each walk".to_owned(),
            unit: "bytes; less is better".to_owned(),
            scale: Scale::Linear,
            reference: None,
            items,
            legend: vec![
                (Kind::Published, "published, after".to_owned()),
                (Kind::Ours, "here".to_owned()),
            ],
        })],
        tables: vec![Table::new(
            "iov-code-size",
            caption,
            "the kernel’s function",
            columns,
            groups,
        )],
        remarks: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_line_is_known_here() {
        let known = |name: &str, all: Vec<&str>| {
            for line in published::read(name).unwrap().lines {
                assert!(all.contains(&line[0]), "{name}: {}", line[0]);
            }
        };
        known("iov_copy", KINDS.iter().map(|(kind, _)| *kind).collect());
        known("iov_code_size", FUNCTIONS.iter().map(|(name, _)| *name).collect());
        known("checksum_bounds", BOUNDS.iter().map(|(what, ..)| *what).collect());
    }

    #[test]
    fn of_three_runs_the_middle_one_counts() {
        assert_eq!(three(&["3", "1", "2"]), Some((2.0, 1.0, 3.0)));
        assert_eq!(three(&["3", "1"]), None);
        assert_eq!(three(&["3", "1", ""]), None);
    }
}
