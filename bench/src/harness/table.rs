//! Rows as text tables.

use std::fmt::Write as _;

use crate::harness::row::Row;

/// A table with aligned columns: text to the left, figures to the right.
#[derive(Debug, Default)]
pub(crate) struct Table {
    lines: Vec<Vec<Cell>>,
}

/// One cell of a [`Table`]: its text, and whether it is a figure.
pub(crate) type Cell = (String, bool);

impl Table {
    pub(crate) fn push(&mut self, line: Vec<Cell>) {
        self.lines.push(line);
    }

    /// Returns the table as text, each line indented by two spaces.
    pub(crate) fn print(&self) -> String {
        let columns = self.lines.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.lines.iter().filter_map(|line| line.get(column));
            cells.map(|(text, _)| text.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for line in &self.lines {
            let mut printed = String::new();
            for ((text, is_figure), width) in line.iter().zip(&widths) {
                // Writing to a string cannot fail.
                let _ = match is_figure {
                    true => write!(printed, "  {text:>width$}"),
                    false => write!(printed, "  {text:<width$}"),
                };
            }
            text.push_str(printed.trim_end());
            text.push('\n');
        }
        text
    }
}

pub(crate) fn text(text: impl Into<String>) -> Cell {
    (text.into(), false)
}

pub(crate) fn number(text: impl Into<String>) -> Cell {
    (text.into(), true)
}

/// Formats a value with three significant digits.
pub(crate) fn figure(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 => 2,
        _ => 4,
    };
    format!("{value:.digits$}")
}

/// Formats the rows of one case, as a table for each metric.
pub(crate) fn of_rows(rows: &[Row]) -> String {
    let mut out = String::new();
    let Some(first) = rows.first() else { return out };
    let _ = writeln!(out, "{}", first.case);
    if let Some(why) = &first.not_measured {
        let _ = writeln!(out, "  not measured: {why}; do not use these figures");
    }
    let mut metrics: Vec<(&str, &str)> = Vec::new();
    for row in rows.iter().filter(|row| row.not_run.is_none()) {
        if !metrics.contains(&(&row.metric, &row.unit)) {
            metrics.push((&row.metric, &row.unit));
        }
    }
    for (metric, unit) in metrics {
        let mut table = Table::default();
        let unit = if unit.is_empty() { metric.to_owned() } else { format!("{metric}, {unit}") };
        table.push(
            [text(unit)]
                .into_iter()
                .chain(["median", "min", "max", "runs", "CPU s", "peak MiB"].map(number))
                .chain(["ratio", "ratio min", "ratio max"].map(number))
                .chain([text("against")])
                .collect(),
        );
        for row in rows.iter().filter(|row| row.metric == metric && row.not_run.is_none()) {
            table.push(line_of(row));
        }
        out.push_str(&table.print());
    }
    for row in rows {
        if let Some(why) = &row.not_run {
            let _ = writeln!(out, "  not run: {}: {why}", row.candidate);
        }
    }
    let mut told: Vec<(&str, &str)> = Vec::new();
    for row in rows {
        if let Some(note) = &row.note
            && !told.contains(&(row.candidate.as_str(), note.as_str()))
        {
            let _ = writeln!(out, "  {}: {note}", row.candidate);
            told.push((&row.candidate, note));
        }
    }
    out
}

fn line_of(row: &Row) -> Vec<Cell> {
    let shown = |value: Option<f64>| number(value.map_or_else(|| "-".to_owned(), figure));
    let ratio =
        |value: Option<f64>| number(value.map_or_else(String::new, |of| format!("{of:.3}")));
    vec![
        text(&row.candidate),
        shown(row.median),
        shown(row.min),
        shown(row.max),
        number(row.runs.to_string()),
        number(row.cpu_seconds.map_or_else(|| "-".to_owned(), seconds)),
        shown(row.peak_memory_mib),
        ratio(row.ratio),
        ratio(row.ratio_min),
        ratio(row.ratio_max),
        text(row.baseline.clone().unwrap_or_default()),
    ]
}

/// Formats seconds, from microseconds to hours.
fn seconds(value: f64) -> String {
    if value < 0.001 { format!("{value:.1e}") } else { format!("{value:.3}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::metric::SPEED;

    #[test]
    fn columns_line_up() {
        let mut table = Table::default();
        table.push(vec![text("a"), number("10")]);
        table.push(vec![text("long"), number("5"), text("x")]);
        assert_eq!(table.print(), "  a     10\n  long   5  x\n");
    }

    #[test]
    fn values_keep_three_digits() {
        let shown: Vec<String> =
            [0.0, 1234.5, 12.34, 1.239, 0.001_25, -3.0].into_iter().map(figure).collect();
        assert_eq!(shown, ["0", "1234", "12.3", "1.24", "0.0013", "-3.00"]);
    }

    #[test]
    fn a_table_has_the_reasons_for_missing_and_unusable_figures() {
        let mut rows = vec![
            Row {
                metric: SPEED.name.to_owned(),
                unit: SPEED.unit.to_owned(),
                median: Some(2.0),
                runs: 3,
                baseline: Some("fio".to_owned()),
                not_run: None,
                ..Row::not_run("cold", "longshore", "")
            },
            Row::not_run("cold", "fio", "fio is not installed"),
        ];
        rows[0].not_measured = Some("fio did not run".to_owned());
        let table = of_rows(&rows);
        assert!(table.contains("not measured: fio did not run"), "{table}");
        assert!(table.contains("not run: fio: fio is not installed"), "{table}");
        assert!(table.contains("longshore      2.00"), "{table}");
    }
}
