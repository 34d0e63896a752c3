//! A file's content into a buffer, by eight schemes.

use anyhow::Result;

use super::super::figures::{Figures, Key};
use super::super::model::{Cell, Column, Comparison, Group, Line, Over, Table};
use super::super::plot::{Item, Kind, Mark, Plot, Ranges, Scale};
use super::super::{number, published};

/// A scheme as the published table calls it, and as the bench does.
const SCHEMES: [(&str, &str); 8] = [
    ("normal (dma-heap + mmap + buffered read)", "normal"),
    ("udmabuf buffered", "udmabuf buffered"),
    ("sendfile buffered", "sendfile buffered"),
    ("alloc+read async buffered (patch 1-4)", "async buffered"),
    ("sendfile direct", "sendfile direct"),
    ("alloc+read sync direct (patch 1)", "sync direct"),
    ("udmabuf direct", "udmabuf direct"),
    ("alloc+read async direct (patch 1-4)", "async direct"),
];
const NORMAL: &str = "normal";
const OURS: &str = "longshore auto";

pub(super) fn tables(figures: &Figures) -> Result<Vec<Comparison>> {
    let csv = published::read("file_to_dmabuf")?;
    let sizes = &csv.head[1..];
    let normal = csv.lines.iter().find(|line| here(line[0]) == Some(NORMAL));
    let mut groups = Vec::new();
    let mut plots = Vec::new();
    for (nth, size) in sizes.iter().enumerate() {
        let base = normal.and_then(|line| published::number(line[nth + 1]));
        let case = format!("schemes/{size}");
        let guest = format!("guest/{case}");
        let ratio = |case: &str, scheme: &str, baseline: &str| {
            figures.ratio(key(case, scheme, Some(baseline)))
        };
        let range = |case: &str, scheme: &str| figures.ratio_range(key(case, scheme, Some(NORMAL)));
        let mut lines = Vec::new();
        let mut items = Vec::new();
        for line in &csv.lines {
            let nanos = published::number(line[nth + 1]);
            let over = nanos.zip(base).map(|(nanos, base)| nanos / base);
            let scheme = here(line[0]).unwrap_or(line[0]);
            let published = [
                nanos.map_or_else(not_published, |nanos| Cell::figure(nanos / 1e6)),
                over.map_or_else(not_published, Cell::ratio),
            ];
            let measured = [
                figures.median(key(&case, scheme, None), 1.0),
                ratio(&case, scheme, NORMAL),
                ratio(&guest, scheme, NORMAL),
            ];
            let cells = published.into_iter().chain(measured).collect();
            lines.push(Line::of(line[0], cells).published(line));
            if scheme != NORMAL {
                let published = over.map(|over| (over, over, over));
                items.push(Item {
                    label: scheme.to_owned(),
                    marks: vec![
                        Mark::new(Kind::Published, published, "not published"),
                        Mark::new(Kind::Ours, range(&case, scheme), "not run"),
                    ],
                });
            }
        }
        let why = "the library’s own way is not one of the published ones";
        let cells = vec![
            Cell::not_published(why),
            Cell::not_published(why),
            figures.median(key(&case, OURS, None), 1.0),
            ratio(&case, OURS, NORMAL),
            ratio(&guest, OURS, NORMAL),
        ];
        lines.push(Line::of("the library, mode auto", cells).ours());
        items.push(Item {
            label: "the library, mode auto".to_owned(),
            marks: vec![Mark::new(Kind::Ours, range(&case, OURS), "not run")],
        });
        groups.push(Group::titled(&spaced(size), lines));
        plots.push(Plot::Ranges(Ranges {
            title: format!("{}: time beside the normal way", spaced(size)),
            unit: "× the time of dma-heap + mmap + buffered read; less is better".to_owned(),
            scale: Scale::Log,
            reference: Some(1.0),
            items,
            legend: vec![
                (Kind::Published, "published, on a phone".to_owned()),
                (Kind::Ours, "here".to_owned()),
            ],
        }));
    }
    let columns = vec![
        Column::number("ms", Over::Published),
        Column::number("×\u{a0}normal", Over::Published),
        Column::number("ms", Over::Here),
        Column::number("×\u{a0}normal", Over::Here),
        Column::number("×\u{a0}normal", Over::Guest),
    ];
    let table = Table::new(
        "file-to-dmabuf",
        "Time to get a file’s content into a buffer, by scheme and size; × normal is that over the time of the first scheme",
        "scheme",
        columns,
        groups,
    );
    Ok(vec![Comparison {
        name: "file_to_dmabuf",
        title: "A file into a buffer, by eight schemes",
        text: "The published times are a phone’s, with a changed kernel: what may be compared is each scheme’s time over that of the normal way, in the same place. Where a kernel has no dma-heap or no udmabuf, a memfd stands for it. The guest’s processor is emulated.",
        about: csv.about,
        plots,
        tables: vec![table],
        remarks: [kinds(figures), overlap(figures)].into_iter().flatten().collect(),
    }])
}

/// What memory the kernels have that the schemes were measured on.
fn kinds(figures: &Figures) -> Option<String> {
    let told = |case: &str| {
        let (_, facts) = figures.origin("load", case)?;
        Some(facts.get("memory_kinds")?.as_str()?.to_owned())
    };
    match (told("schemes/1GB"), told("guest/schemes/1GB")) {
        (Some(here), Some(guest)) => Some(format!("Here, {here}; in the guest, {guest}.")),
        (Some(here), None) => Some(format!("Here, {here}.")),
        (None, Some(guest)) => Some(format!("In the guest, {guest}.")),
        (None, None) => None,
    }
}

/// What the published series is about: reading while memory is being made.
fn overlap(figures: &Figures) -> Option<String> {
    let key = Key {
        bench: "load",
        case: "overlap",
        candidate: "longshore",
        metric: "speed",
        baseline: Some("allocate, then read"),
    };
    let (ratio, low, high) = figures.ratio_range(key)?;
    Some(format!(
        "Reading while pages are made is {}× as fast here ({} to {}) as making all of them first (case ‘overlap’).",
        number::ratio(ratio),
        number::ratio(low),
        number::ratio(high)
    ))
}

fn here(published: &str) -> Option<&'static str> {
    SCHEMES.iter().find(|(name, _)| *name == published).map(|(_, here)| *here)
}

fn key<'a>(case: &'a str, candidate: &'a str, baseline: Option<&'a str>) -> Key<'a> {
    Key { bench: "load", case, candidate, metric: "time", baseline }
}

fn not_published() -> Cell {
    Cell::not_published("the published table has no such figure")
}

/// `512KB` as `512 KB`.
pub(super) fn spaced(size: &str) -> String {
    match size.find(|c: char| !c.is_ascii_digit()) {
        Some(at) if at > 0 => format!("{}\u{a0}{}", &size[..at], &size[at..]),
        _ => size.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_scheme_is_known_here() {
        for line in published::read("file_to_dmabuf").unwrap().lines {
            assert!(here(line[0]).is_some(), "{}", line[0]);
        }
    }

    #[test]
    fn sizes_have_a_space_that_does_not_break() {
        assert_eq!(spaced("512KB"), "512\u{a0}KB");
        assert_eq!(spaced("all"), "all");
    }
}
