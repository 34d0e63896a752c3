//! Accesses by IOVA, and the locks that each of them took.

use anyhow::Result;

use super::super::figures::{Figures, Key};
use super::super::model::{Cell, Column, Comparison, Group, Line, Over, Table};
use super::super::plot::{Item, Kind, Mark, Plot, Ranges, Scale};
use super::super::published;

/// An interface as the published table calls it, and what stands for it here.
const INTERFACES: [(&str, &str); 5] = [
    ("kvm_read_page/kvm_write_page", UNTRANSLATED),
    ("vfio_dma_rw (mutex)", "mutex"),
    ("vfio_dma_rw (rwsem for reading)", "rwlock for reading"),
    ("vfio_dma_rw (references held)", "references held"),
    ("vfio_dma_rw (references held; no task lock)", "references held, no task lock"),
];
const UNTRANSLATED: &str = "untranslated";
/// What a program would use instead; the last one is the library.
const OTHERS: [&str; 5] = [
    "parking_lot's rwlock",
    "arc-swap",
    "crossbeam-epoch",
    "longshore, without membarrier",
    "longshore",
];
/// A lock as the published table calls it, and its likeness here.
const LOCKS: [(&str, &str); 8] = [
    ("iommu->lock (mutex)", "mutex"),
    ("iommu->lock (rwsem read)", "rwlock for reading"),
    ("vfio.group_lock", "mutex"),
    ("group->unbound_lock", "mutex"),
    ("group->device_lock", "mutex"),
    ("group->mutex", "mutex"),
    ("kvm->srcu", "two full fences, as SRCU"),
    ("uncontended mutex", "mutex"),
];

pub(super) fn tables(figures: &Figures) -> Result<Vec<Comparison>> {
    Ok(vec![accesses(figures)?, locks(figures)?])
}

fn accesses(figures: &Figures) -> Result<Comparison> {
    let csv = published::read("iova_access")?;
    let mut groups = Vec::new();
    let mut plots = Vec::new();
    for (vms, words) in [("1", "one VM"), ("2", "two VMs at once")] {
        let case = if vms == "1" { "schemes, mix, 1 VM" } else { "schemes, mix, 2 VMs" };
        let key = |candidate, baseline| Key {
            bench: "access",
            case,
            candidate,
            metric: "cycles",
            baseline,
        };
        let of_case = csv.lines.iter().filter(|line| line[1] == vms);
        let base = of_case.clone().find(|line| here(line[0]) == Some(UNTRANSLATED));
        let base = base.and_then(|line| published::number(line[4]));
        let mut lines = Vec::new();
        let mut items = Vec::new();
        let measured = |candidate| {
            [
                figures.median(key(candidate, None), 1.0),
                figures.ratio(key(candidate, Some(UNTRANSLATED))),
            ]
        };
        let range = |candidate| figures.ratio_range(key(candidate, Some(UNTRANSLATED)));
        for line in of_case {
            let number = |field: &str| match published::number(field) {
                Some(value) => Cell::figure(value),
                None => {
                    Cell::not_published("of what holds references only the average is published")
                }
            };
            let over = published::number(line[4]).zip(base).map(|(it, base)| it / base);
            let candidate = here(line[0]).unwrap_or(line[0]);
            let published = [number(line[2]), number(line[3]), number(line[4]), {
                over.map_or_else(|| Cell::not_published("there is no average"), Cell::ratio)
            }];
            let cells = published.into_iter().chain(measured(candidate)).collect();
            let line = Line::of(line[0], cells).published(line);
            lines.push(line.note(format!("here: {candidate}")));
            if candidate != UNTRANSLATED {
                items.push(Item {
                    label: candidate.to_owned(),
                    marks: vec![
                        Mark::new(Kind::Published, over.map(|it| (it, it, it)), "not published"),
                        Mark::new(Kind::Ours, range(candidate), "not run"),
                    ],
                });
            }
        }
        for candidate in OTHERS {
            let why = "what a program would use instead is measured here only";
            let none = std::iter::repeat_n(Cell::not_published(why), 4);
            let line = Line::of(candidate, none.chain(measured(candidate)).collect());
            let is_ours = candidate == "longshore";
            lines.push(if is_ours { line.ours() } else { line });
            items.push(Item {
                label: candidate.to_owned(),
                marks: vec![Mark::new(Kind::Ours, range(candidate), "not run")],
            });
        }
        groups.push(Group::titled(words, lines));
        plots.push(Plot::Ranges(Ranges {
            title: format!("An access with {words}, beside an untranslated one"),
            unit: "× the cycles of untranslated access; less is better".to_owned(),
            scale: Scale::Linear,
            reference: Some(1.0),
            items,
            legend: vec![
                (Kind::Published, "published, in a kernel".to_owned()),
                (Kind::Ours, "here, in a process".to_owned()),
            ],
        }));
    }
    let columns = vec![
        Column::number("read", Over::Published),
        Column::number("write", Over::Published),
        Column::number("average", Over::Published),
        Column::number("×\u{a0}untranslated", Over::Published),
        Column::number("average", Over::Here),
        Column::number("×\u{a0}untranslated", Over::Here),
    ];
    let caption = "Cycles of an access of the published mix, by what it goes through";
    let table = Table::new("iova-access", caption, "interface", columns, groups);
    Ok(Comparison {
        name: "iova_access",
        title: "An access by IOVA, by what it locks",
        text: "The published cycles are those of a kernel of 2020 with a guest at work; here the same structure of locks and references is built in a process, before one lookup in the same page tables. What may be compared is each scheme’s cycles over those of untranslated access. The library translates, checks permissions and is safe against unmapping, and holds what it needs across calls.",
        about: csv.about,
        plots,
        tables: vec![table],
        remarks: Vec::new(),
    })
}

fn locks(figures: &Figures) -> Result<Comparison> {
    const CASE: &str = "locks";
    let csv = published::read("iova_access_locks")?;
    let key = |candidate, baseline| Key {
        bench: "access",
        case: CASE,
        candidate,
        metric: "cycles",
        baseline,
    };
    let base = csv.lines.iter().find(|line| line[0] == "uncontended mutex");
    let base = base.and_then(|line| published::number(line[1]));
    let mut lines = Vec::new();
    let mut items = Vec::new();
    for line in &csv.lines {
        let candidate = LOCKS.iter().find(|(name, _)| *name == line[0]).map(|(_, here)| *here);
        let candidate = candidate.unwrap_or(line[0]);
        let number = |field: &str| match published::number(field) {
            Some(value) => Cell::figure(value),
            None => Cell::not_published("with two VMs only the locks they share were published"),
        };
        let one = published::number(line[1]);
        let over = one.zip(base).map(|(it, base)| it / base);
        let cells = vec![
            number(line[1]),
            number(line[2]),
            over.map_or_else(|| Cell::not_published("there is no figure"), Cell::ratio),
            figures.median(key(candidate, None), 1.0),
            figures.ratio(key(candidate, Some("mutex"))),
        ];
        lines.push(Line::of(line[0], cells).published(line).note(format!("here: {candidate}")));
        items.push(Item {
            label: line[0].to_owned(),
            marks: vec![
                Mark::new(Kind::Published, one.map(|it| (it, it, it)), "not published"),
                Mark::new(Kind::Ours, figures.median_range(key(candidate, None), 1.0), "not run"),
            ],
        });
    }
    let columns = vec![
        Column::number("one VM", Over::Published),
        Column::number("two VMs", Over::Published),
        Column::number("×\u{a0}a mutex", Over::Published),
        Column::number("nobody else wants it", Over::Here),
        Column::number("×\u{a0}a mutex", Over::Here),
    ];
    let caption = "Cycles of each lock by itself";
    let groups = vec![Group::plain(lines)];
    let table = Table::new("iova-access-locks", caption, "lock", columns, groups);
    Ok(Comparison {
        name: "iova_access_locks",
        title: "The locks, each by itself",
        text: "The published cycles are those of the kernel’s locks where each access took them; here it is a lock in a loop that nobody else wants, which is the least that it can cost.",
        about: csv.about,
        plots: vec![Plot::Ranges(Ranges {
            title: "Cycles of each lock".to_owned(),
            unit: "cycles of the time-stamp counter; less is better".to_owned(),
            scale: Scale::Linear,
            reference: None,
            items,
            legend: vec![
                (Kind::Published, "published, one VM".to_owned()),
                (Kind::Ours, "here".to_owned()),
            ],
        })],
        tables: vec![table],
        remarks: Vec::new(),
    })
}

fn here(interface: &str) -> Option<&'static str> {
    INTERFACES.iter().find(|(name, _)| *name == interface).map(|(_, here)| *here)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_interface_and_lock_has_its_likeness() {
        for line in published::read("iova_access").unwrap().lines {
            assert!(here(line[0]).is_some(), "{}", line[0]);
        }
        for line in published::read("iova_access_locks").unwrap().lines {
            assert!(LOCKS.iter().any(|(name, _)| *name == line[0]), "{}", line[0]);
        }
    }
}
