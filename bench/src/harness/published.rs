//! The published tables, from `bench/published/`.

use anyhow::{Context, Result, ensure};

use super::{Metric, Row};

/// A published table.
#[derive(Debug)]
pub(crate) struct Csv {
    pub(crate) about: String,
    pub(crate) head: Vec<&'static str>,
    pub(crate) lines: Vec<Vec<&'static str>>,
}

/// The name and the text of each table, by name.
pub(crate) const TABLES: [(&str, &str); 9] = [
    ("bounce", include_str!("../../published/bounce.csv")),
    ("checksum_bounds", include_str!("../../published/checksum_bounds.csv")),
    ("file_to_dmabuf", include_str!("../../published/file_to_dmabuf.csv")),
    ("iov_code_size", include_str!("../../published/iov_code_size.csv")),
    ("iov_copy", include_str!("../../published/iov_copy.csv")),
    ("iova_access", include_str!("../../published/iova_access.csv")),
    ("iova_access_locks", include_str!("../../published/iova_access_locks.csv")),
    ("unmap_latency", include_str!("../../published/unmap_latency.csv")),
    ("unmap_latency_pages_only", include_str!("../../published/unmap_latency_pages_only.csv")),
];

/// Reads the table called `name`.
///
/// # Errors
/// Returns an error if there is no such table, or if a line has a different number of fields than the
/// first.
pub(crate) fn read(name: &str) -> Result<Csv> {
    let text = TABLES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text);
    let text = text.with_context(|| format!("no published table is called '{name}'"))?;
    parse(text).with_context(|| format!("bench/published/{name}.csv"))
}

pub(crate) fn parse(text: &'static str) -> Result<Csv> {
    let (remarks, rest): (Vec<&str>, Vec<&str>) =
        text.lines().filter(|line| !line.is_empty()).partition(|line| line.starts_with('#'));
    let mut about = Vec::new();
    for remark in remarks {
        // The page does not show the source of the figures.
        let remark = remark.trim_start_matches('#').trim();
        let remark = remark.find("Source:").map_or(remark, |at| remark[..at].trim_end());
        if !remark.is_empty() {
            about.push(remark);
        }
    }
    let mut lines = rest.iter().map(|line| line.split(',').map(str::trim).collect::<Vec<_>>());
    let head = lines.next().context("it is empty")?;
    let lines: Vec<Vec<&str>> = lines.collect();
    for line in &lines {
        let (fields, columns) = (line.len(), head.len());
        ensure!(fields == columns, "'{}' has {fields} of {columns} fields", line.join(","));
    }
    Ok(Csv { about: about.join(" "), head, lines })
}

/// Returns published figures as rows, each with its ratio to the figure of `baseline`.
pub(crate) fn rows(
    case: &str,
    metric: Metric,
    baseline: &str,
    figures: &[(String, f64)],
) -> impl Iterator<Item = Row> {
    let base = figures.iter().find(|(name, _)| name == baseline).map(|(_, figure)| *figure);
    figures.iter().map(move |(name, figure)| Row {
        median: Some(*figure),
        baseline: Some(baseline.to_owned()),
        ratio: base.map(|base| figure / base),
        ..Row::of(case, name, metric)
    })
}

impl Csv {
    /// Returns the field of a line in the column `name`.
    pub(crate) fn field(&self, line: &[&'static str], name: &str) -> Option<&'static str> {
        line.get(self.head.iter().position(|head| *head == name)?).copied()
    }

    /// Returns a field as a number; a bound (`>0.99`) is read as its number.
    pub(crate) fn number(&self, line: &[&'static str], name: &str) -> Option<f64> {
        self.field(line, name)?.trim_start_matches('>').parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_file_is_read() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("published");
        let files = std::fs::read_dir(folder).unwrap();
        assert_eq!(files.count(), TABLES.len());
        for (name, _) in TABLES {
            let Csv { about, lines, .. } = read(name).unwrap();
            assert!(lines.len() > 3 && !about.is_empty(), "{name}");
            assert!(!about.contains("Source"), "{name}: {about}");
        }
    }

    #[test]
    fn a_short_line_is_an_error_and_a_bound_is_a_number() {
        let error = parse("# a\nx,y\n1\n").unwrap_err().to_string();
        assert_eq!(error, "'1' has 1 of 2 fields");
        assert!(parse("# only remarks\n").is_err());
        let csv = parse("a,b\n>0.99,\n").unwrap();
        assert_eq!(csv.number(&csv.lines[0], "a"), Some(0.99));
        assert_eq!(csv.number(&csv.lines[0], "b"), None);
    }
}
