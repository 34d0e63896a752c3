//! The published tables, each beside what was measured here.
//!
//! A line of a published table is a line here: beside it a figure, or the reason why there is none.

mod access;
mod bounce;
mod iov;
mod load;
mod pagetable;

use anyhow::Result;

use super::figures::Figures;
use super::model::Comparison;

/// The published tables that a bench measures anew.
///
/// # Errors
/// Where a published table cannot be read.
pub(super) fn of_bench(bench: &str, figures: &Figures) -> Result<Vec<Comparison>> {
    match bench {
        "load" => load::tables(figures),
        "iov" => iov::tables(figures),
        "pagetable" => pagetable::tables(figures),
        "access" => access::tables(figures),
        "bounce" => bounce::tables(figures),
        _ => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{Cell, Column, Line, Over, Table};
    use super::super::{BENCHES, KEPT, published, read};
    use super::*;

    fn all(figures: &Figures) -> Vec<Comparison> {
        BENCHES.iter().flat_map(|bench| of_bench(bench, figures).unwrap()).collect()
    }

    fn kept() -> Figures {
        Figures::new(KEPT.iter().map(|name| read::kept(name).unwrap()).collect())
    }

    fn check(table: &Table) {
        for line in table.groups.iter().flat_map(|group| &group.lines) {
            assert_eq!(line.cells.len(), table.columns.len(), "{}: {}", table.id, line.head);
            for cell in &line.cells {
                let filled = match cell {
                    Cell::Text(text) => !text.trim().is_empty(),
                    Cell::Figure { value, .. } => value.chars().any(|c| c.is_ascii_digit()),
                    Cell::Ratios(ratios) => !ratios.is_empty(),
                    Cell::State(state) => !state.is_empty(),
                    Cell::Without { why, .. } => !why.trim().is_empty(),
                };
                assert!(filled, "{}: {}: {cell:?}", table.id, line.head);
            }
        }
    }

    /// Every line of every published table is there, and beside it a figure or a reason.
    fn check_all(comparisons: &[Comparison]) {
        let mut names: Vec<&str> = comparisons.iter().map(|comparison| comparison.name).collect();
        let mut expected = published::NAMES.to_vec();
        names.sort_unstable();
        expected.sort_unstable();
        assert_eq!(names, expected);
        for comparison in comparisons {
            let table = published::read(comparison.name).unwrap();
            for line in &table.lines {
                let is_shown = |table: &&Table| {
                    let mut lines = table.groups.iter().flat_map(|group| &group.lines);
                    lines.any(|shown| {
                        let is_it = |of: &Vec<String>| of.iter().eq(line.iter());
                        let beside = shown.cells.iter().zip(&table.columns);
                        shown.published.as_ref().is_some_and(is_it)
                            && beside.filter(|(_, column)| column.over != Over::Published).count()
                                > 0
                    })
                };
                let shown = comparison.tables.iter().any(|table| is_shown(&table));
                assert!(shown, "{}: {}", comparison.name, line.join(","));
            }
            assert!(!comparison.plots.is_empty(), "{}", comparison.name);
            comparison.tables.iter().for_each(check);
        }
    }

    #[test]
    fn every_published_line_is_there_beside_a_figure_or_a_reason() {
        check_all(&all(&kept()));
    }

    #[test]
    fn without_figures_every_published_line_has_a_reason() {
        let nothing = all(&Figures::default());
        check_all(&nothing);
        for table in nothing.iter().flat_map(|comparison| &comparison.tables) {
            for line in table.groups.iter().flat_map(|group| &group.lines) {
                for (cell, column) in line.cells.iter().zip(&table.columns) {
                    let is_measured = matches!(column.over, Over::Here | Over::Guest);
                    let is_figure = matches!(cell, Cell::Figure { .. } | Cell::Ratios(_));
                    assert!(!(is_measured && is_figure), "{}: {}: {cell:?}", table.id, line.head);
                }
            }
        }
    }

    #[test]
    fn with_the_kept_figures_most_published_lines_have_one_beside_them() {
        for comparison in all(&kept()) {
            let lines = || {
                comparison.tables.iter().flat_map(|table| {
                    let lines = table.groups.iter().flat_map(|group| &group.lines);
                    let published = lines.filter(|line| line.published.is_some());
                    published.map(|line| (line, &table.columns[..]))
                })
            };
            let has_figure = |(line, columns): (&Line, &[Column])| {
                let mut cells = line.cells.iter().zip(columns);
                cells.any(|(cell, column)| {
                    column.over != Over::Published && matches!(cell, Cell::Figure { .. })
                })
            };
            let with = lines().filter(|both| has_figure(*both)).count();
            // Most of the kernel's functions have no likeness here.
            let expected = if comparison.name == "iov_code_size" { 6 } else { lines().count() };
            assert_eq!(with, expected, "{}", comparison.name);
        }
    }
}
