//! The published tables, as they are in `bench/published/`.

use anyhow::{Context, Result, ensure};

/// A published table.
#[derive(Debug)]
pub(super) struct Csv {
    pub(super) about: String,
    pub(super) head: Vec<&'static str>,
    pub(super) lines: Vec<Vec<&'static str>>,
}

macro_rules! tables {
    ($($name:literal),*) => {
        /// The names of all tables, in alphabetical order.
        #[cfg(test)]
        pub(super) const NAMES: &[&str] = &[$($name),*];

        fn text_of(name: &str) -> Option<&'static str> {
            match name {
                $($name => Some(include_str!(concat!("../../published/", $name, ".csv"))),)*
                _ => None,
            }
        }
    };
}
tables!(
    "bounce",
    "checksum_bounds",
    "file_to_dmabuf",
    "iov_code_size",
    "iov_copy",
    "iova_access",
    "iova_access_locks",
    "unmap_latency",
    "unmap_latency_pages_only"
);

/// The table of that name.
///
/// # Errors
/// Where there is none, or one of its lines has not as many fields as the first.
pub(super) fn read(name: &str) -> Result<Csv> {
    let text = text_of(name).with_context(|| format!("no published table is called '{name}'"))?;
    parse(text).with_context(|| format!("bench/published/{name}.csv"))
}

pub(super) fn parse(text: &'static str) -> Result<Csv> {
    let (remarks, rest): (Vec<&str>, Vec<&str>) =
        text.lines().filter(|line| !line.is_empty()).partition(|line| line.starts_with('#'));
    let mut about = Vec::new();
    for remark in remarks {
        // Where the figures were found is a name in a list that the page does not have.
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
        ensure!(fields == columns, "'{}' has {fields} fields of {columns}", line.join(","));
    }
    Ok(Csv { about: about.join(" "), head, lines })
}

impl Csv {
    /// Returns the field of a line that the first line calls `name`.
    pub(super) fn field(&self, line: &[&'static str], name: &str) -> Option<&'static str> {
        line.get(self.head.iter().position(|head| *head == name)?).copied()
    }

    /// Returns a field as a number, a bound (`>0.99`) as the number that it names.
    pub(super) fn number(&self, line: &[&'static str], name: &str) -> Option<f64> {
        self.field(line, name)?.trim_start_matches('>').parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_table_is_read() {
        let lines: Vec<usize> = NAMES.iter().map(|name| read(name).unwrap().lines.len()).collect();
        assert_eq!(lines, [4, 5, 8, 15, 6, 8, 8, 8, 4]);
        for name in NAMES {
            let about = read(name).unwrap().about;
            assert!(!about.is_empty() && !about.contains("Source"), "{name}: {about}");
        }
        assert!(read("absent").is_err());
    }

    #[test]
    fn a_short_line_is_refused() {
        let error = parse("# a\nx,y\n1\n").unwrap_err().to_string();
        assert_eq!(error, "'1' has 1 fields of 2");
        assert!(parse("# only remarks\n").is_err());
    }

    #[test]
    fn a_bound_is_a_number_too() {
        let csv = parse("a,b\n>0.99,\n").unwrap();
        assert_eq!(csv.number(&csv.lines[0], "a"), Some(0.99));
        assert_eq!(csv.number(&csv.lines[0], "b"), None);
    }
}
