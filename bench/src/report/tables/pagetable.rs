//! Unmapping with one sync per entry, and with one sync per run.

use anyhow::Result;

use super::super::figures::{Figures, Key};
use super::super::model::{Cell, Column, Comparison, Group, Line, Over, Table};
use super::super::plot::{Curves, Kind, Plot, Point, Scale, Series};
use super::super::published;
use super::load::spaced;

const BEFORE: &str = "one sync per entry";
const AFTER: &str = "one sync per run";
const BY_PAGE: &str = "one unmap per page";

pub(super) fn tables(figures: &Figures) -> Result<Vec<Comparison>> {
    Ok(vec![
        table(
            figures,
            "unmap_latency",
            "before and after",
            "Unmapping, one sync per entry against one per run",
            "The published times are those of a DMA benchmark’s whole unmapping, of which the tables are a part; here it is the page tables alone, Arm stage 1, with each changed line cleaned for a walker that does not snoop. What may be compared is what one sync per run saves. From 2 MB on the tables hold blocks, and there is hardly anything left to save.",
        )?,
        table(
            figures,
            "unmap_latency_pages_only",
            "before and after, pages only",
            "The same, with 4 KiB pages at every size",
            "On a machine that is forced to 4 KiB pages the entries do not end at 2 MB, and neither does what is saved.",
        )?,
    ])
}

fn table(
    figures: &Figures,
    name: &'static str,
    cases: &str,
    title: &'static str,
    text: &'static str,
) -> Result<Comparison> {
    let csv = published::read(name)?;
    let mut lines = Vec::new();
    let mut places = Vec::new();
    let mut points: [Vec<Point>; 6] = Default::default();
    for line in &csv.lines {
        let [size, before, after] = line[..] else { continue };
        let case = format!("{cases}, {size}");
        let key = |candidate, baseline| Key {
            bench: "pagetable",
            case: &case,
            candidate,
            metric: "time",
            baseline,
        };
        let (before, after) = (published::number(before), published::number(after));
        let over = before.zip(after).map(|(before, after)| before / after);
        let published = |value: Option<f64>, show: fn(f64) -> Cell| {
            value
                .map_or_else(|| Cell::not_published("the published table has no such figure"), show)
        };
        let cells = vec![
            published(before, Cell::figure),
            published(after, Cell::figure),
            published(over, Cell::ratio),
            figures.median(key(BY_PAGE, None), 1e-3),
            figures.median(key(BEFORE, None), 1e-3),
            figures.median(key(AFTER, None), 1e-3),
            figures.ratio(key(BEFORE, Some(AFTER))),
        ];
        lines.push(Line::of(&spaced(size), cells).published(line));
        places.push(size.replace("KB", "K").replace("MB", "M"));
        let alone = |value: Option<f64>| value.map(|value| (value, value, value));
        let all = [
            alone(before),
            alone(after),
            figures.median_range(key(BEFORE, None), 1e-3),
            figures.median_range(key(AFTER, None), 1e-3),
            alone(over),
            figures.ratio_range(key(BEFORE, Some(AFTER))),
        ];
        for (points, point) in points.iter_mut().zip(all) {
            points.push(point);
        }
    }
    let [before, after, here_before, here_after, saved, here_saved] = points;
    let series = |name: &str, kind, points| Series { name: name.to_owned(), kind, points };
    let plots = vec![
        Plot::Curves(Curves {
            title: "What one sync per run saves".to_owned(),
            unit: "time before over time after, by size; more is better".to_owned(),
            scale: Scale::Log,
            reference: Some(1.0),
            places: places.clone(),
            series: vec![
                series("published", Kind::Published, saved),
                series("here", Kind::Ours, here_saved),
            ],
        }),
        Plot::Curves(Curves {
            title: "Time of an unmapping".to_owned(),
            unit: "µs, by size; less is better".to_owned(),
            scale: Scale::Log,
            reference: None,
            places,
            series: vec![
                series("published, before", Kind::Published, before),
                series("published, after", Kind::PublishedToo, after),
                series("here, per entry", Kind::OursToo, here_before),
                series("here, per run", Kind::Ours, here_after),
            ],
        }),
    ];
    let columns = vec![
        Column::number("before, µs", Over::Published),
        Column::number("after, µs", Over::Published),
        Column::number("before / after", Over::Published),
        Column::number("per page, µs", Over::Here),
        Column::number("per entry, µs", Over::Here),
        Column::number("per run, µs", Over::Here),
        Column::number("entry / run", Over::Here),
    ];
    let caption = format!("{title}: µs for each unmapping, by size");
    let id = name.replace('_', "-");
    Ok(Comparison {
        name,
        title,
        text,
        about: csv.about,
        plots,
        tables: vec![Table::new(&id, &caption, "size", columns, vec![Group::plain(lines)])],
        remarks: Vec::new(),
    })
}
