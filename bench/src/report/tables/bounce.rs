//! Bounce buffers against mapping each transfer.

use anyhow::Result;

use super::super::figures::{Figures, Key, ratio_of};
use super::super::model::{Cell, Column, Comparison, Group, Line, Over, Table};
use super::super::plot::{Curves, Kind, Plot, Scale, Series};
use super::super::{number, published};

const MAP: &str = "map + unmap";
const IOMMUS: [&str; 2] = ["virtio-iommu", "intel-iommu"];

pub(super) fn tables(figures: &Figures) -> Result<Vec<Comparison>> {
    let csv = published::read("bounce")?;
    let not_published = || Cell::not_published("the published table has no such figure");
    let mut throughput = Vec::new();
    let mut cuts = Vec::new();
    for line in &csv.lines {
        let [block, speed, unmap_cut, map_cut] = line[..] else { continue };
        let of = |iommu: &str, candidate: &str| {
            let case = format!("guest, {iommu}, {block}, depth 64");
            figures.ratio(key(&case, candidate, "speed"))
        };
        let cells = vec![
            published::number(speed).map_or_else(not_published, Cell::ratio),
            of(IOMMUS[0], "bounce"),
            of(IOMMUS[0], "policy"),
            of(IOMMUS[1], "bounce"),
            of(IOMMUS[1], "policy"),
        ];
        throughput.push(Line::of(block, cells).published(line));
        let shown = |field: &str| match (published::number(field), field.starts_with('>')) {
            (Some(cut), true) => Cell::text(format!("over {}%", number::grouped(cut * 100.0, 0))),
            (Some(cut), false) => Cell::text(percent(cut)),
            (None, _) => not_published(),
        };
        let cut = |iommu: &str, metric: &str| {
            let case = format!("guest, {iommu}, {block}, instructions");
            cut_of(figures, key(&case, "bounce", metric))
        };
        let cells = vec![
            shown(unmap_cut),
            cut(IOMMUS[0], "unmap_time"),
            cut(IOMMUS[1], "unmap_time"),
            shown(map_cut),
            cut(IOMMUS[0], "map_time"),
            cut(IOMMUS[1], "map_time"),
        ];
        cuts.push(Line::of(block, cells).published(line));
    }
    let tables = vec![
        Table::new(
            "bounce-throughput",
            "Throughput of reads with bounce buffers over that with a mapping for each, 64 in flight; policy: what the library chooses by itself",
            "block",
            vec![
                Column::number("virtio-iommu", Over::Published),
                Column::number("virtio-iommu", Over::Guest),
                Column::number("its policy", Over::Guest),
                Column::number("intel-iommu", Over::Guest),
                Column::number("its policy", Over::Guest),
            ],
            vec![Group::plain(throughput)],
        ),
        Table::new(
            "bounce-cuts",
            "Share of the time in unmap and in map, for each GB, that goes away; here in the guest’s instructions",
            "block",
            vec![
                Column::number("unmap, virtio-iommu", Over::Published),
                Column::number("unmap, virtio-iommu", Over::Guest),
                Column::number("unmap, intel-iommu", Over::Guest),
                Column::number("map, virtio-iommu", Over::Published),
                Column::number("map, virtio-iommu", Over::Guest),
                Column::number("map, intel-iommu", Over::Guest),
            ],
            vec![Group::plain(cuts)],
        ),
    ];
    Ok(vec![Comparison {
        name: "bounce",
        title: "Bounce buffers against a mapping for each transfer",
        text: "The published figures are of an NVMe behind virtio-iommu on real hardware; here the guest’s processor is emulated, and its NVMe is QEMU's. Time under emulation is not time on hardware, and a count of the guest’s instructions leaves out the trap to the hypervisor, which is what bouncing avoids; what is counted in unmap includes the copy. So neither column is the published one: what may be compared is whether bouncing pays, and where.",
        about: csv.about.clone(),
        plots: vec![
            throughput_plot(figures, &csv),
            cut_plot(figures, &csv, "unmap_time", "unmap", 2),
            cut_plot(figures, &csv, "map_time", "map", 3),
        ],
        tables,
        remarks: Vec::new(),
    }])
}

fn throughput_plot(figures: &Figures, csv: &published::Csv) -> Plot {
    let of = |iommu: &str| {
        let point = |line: &Vec<&str>| {
            let case = format!("guest, {iommu}, {}, depth 64", line[0]);
            figures.ratio_range(key(&case, "bounce", "speed"))
        };
        csv.lines.iter().map(point).collect()
    };
    let published = |line: &Vec<&str>| published::number(line[1]).map(|it| (it, it, it));
    Plot::Curves(Curves {
        title: "Throughput with bounce buffers".to_owned(),
        unit: "× that of map + unmap, by block; more is better".to_owned(),
        scale: Scale::Linear,
        reference: Some(1.0),
        places: csv.lines.iter().map(|line| line[0].to_owned()).collect(),
        series: vec![
            series("published", Kind::Published, csv.lines.iter().map(published).collect()),
            series("virtio-iommu, here", Kind::Ours, of(IOMMUS[0])),
            series("intel-iommu, here", Kind::OursToo, of(IOMMUS[1])),
        ],
    })
}

/// What is left of the time in one of both calls.
fn cut_plot(figures: &Figures, csv: &published::Csv, metric: &str, what: &str, at: usize) -> Plot {
    let of = |iommu: &str| {
        let point = |line: &Vec<&str>| {
            let case = format!("guest, {iommu}, {}, instructions", line[0]);
            let (left, low, high) = figures.ratio_range(key(&case, "bounce", metric))?;
            Some((left * 100.0, low * 100.0, high * 100.0))
        };
        csv.lines.iter().map(point).collect()
    };
    let published = |line: &Vec<&str>| {
        let left = (1.0 - published::number(line[at])?) * 100.0;
        Some((left, left, left))
    };
    let bound = csv.lines.iter().any(|line| line[at].starts_with('>'));
    let name = if bound { "published, at most" } else { "published" };
    Plot::Curves(Curves {
        title: format!("What is left of the time in {what}"),
        unit: "% of that of map + unmap, by block; less is better".to_owned(),
        scale: Scale::Linear,
        reference: None,
        places: csv.lines.iter().map(|line| line[0].to_owned()).collect(),
        series: vec![
            series(name, Kind::Published, csv.lines.iter().map(published).collect()),
            series("virtio-iommu, here", Kind::Ours, of(IOMMUS[0])),
            series("intel-iommu, here", Kind::OursToo, of(IOMMUS[1])),
        ],
    })
}

fn series(name: &str, kind: Kind, points: Vec<super::super::plot::Point>) -> Series {
    Series { name: name.to_owned(), kind, points }
}

/// The share that goes away, with its spread.
fn cut_of(figures: &Figures, key: Key<'_>) -> Cell {
    let row = match figures.find(key) {
        Ok(row) => row,
        Err(why) => return Cell::not_run(&why),
    };
    let Some(left) = row.ratio else { return ratio_of(row) };
    let spread = row.ratio_min.zip(row.ratio_max);
    Cell::Figure {
        value: percent(1.0 - left),
        spread: spread.and_then(|(min, max)| number::spread(1.0 - max, 1.0 - min, percent)),
    }
}

fn percent(share: f64) -> String {
    format!("{}%", number::grouped(share * 100.0, 1))
}

fn key<'a>(case: &'a str, candidate: &'a str, metric: &'a str) -> Key<'a> {
    Key { bench: "bounce", case, candidate, metric, baseline: Some(MAP) }
}
