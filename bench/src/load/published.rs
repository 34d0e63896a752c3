//! The published table: the mean time of each scheme at each size, on a phone.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

const TABLE: &str = include_str!("../../published/file_to_dmabuf.csv");

/// How often each figure was measured, as the table's first line says.
pub(crate) const RUNS: usize = 5;

/// Nanoseconds by scheme and size, both as the table names them.
#[derive(Debug)]
pub(crate) struct Published(BTreeMap<(String, String), u64>);

impl Published {
    pub(crate) fn read() -> Result<Self> {
        parse(TABLE).context("published/file_to_dmabuf.csv")
    }

    /// `None` where the table has no such figure.
    pub(crate) fn millis(&self, scheme: &str, size: &str) -> Option<f64> {
        let nanos = self.0.get(&(scheme.to_owned(), size.to_owned()))?;
        Some(*nanos as f64 / 1e6)
    }
}

fn parse(text: &str) -> Result<Published> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let head = lines.next().context("it is empty")?;
    let sizes: Vec<&str> = head.split(',').skip(1).collect();
    let mut figures = BTreeMap::new();
    for line in lines {
        let mut fields = line.split(',');
        let scheme = fields.next().context("a line is empty")?;
        for size in &sizes {
            let field = fields.next().with_context(|| format!("'{scheme}' has no {size}"))?;
            figures.insert((scheme.to_owned(), (*size).to_owned()), field.trim().parse()?);
        }
    }
    Ok(Published(figures))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::schemes::{ALL, SIZES};

    #[test]
    fn every_scheme_has_its_published_figures() {
        let published = Published::read().unwrap();
        for scheme in ALL {
            for size in SIZES {
                let figure = scheme.published_name().map(|name| published.millis(name, size.name));
                assert_ne!(figure, Some(None), "{} at {}", scheme.name(), size.name);
            }
        }
        let normal = published.millis("normal (dma-heap + mmap + buffered read)", "3GB");
        assert_eq!(normal, Some(3_332.438_754));
    }

    #[test]
    fn a_short_line_is_refused() {
        assert!(parse("scheme,1GB,3GB\nnormal,5\n").is_err());
    }
}
