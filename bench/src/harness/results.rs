//! Kept runs: `bench/results/BENCH-NAME.jsonl`.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::harness::row::Row;

/// A run that is being saved. The file gets its name when the run is complete.
#[derive(Debug)]
pub(crate) struct Saving {
    out: BufWriter<File>,
    partial: PathBuf,
    complete: PathBuf,
}

/// A kept run.
#[derive(Debug)]
pub(crate) struct Saved {
    pub(crate) rows: Vec<Row>,
    pub(crate) quick: bool,
}

impl Saving {
    pub(crate) fn begin(bench: &str, name: &str) -> Result<Self> {
        let complete = path_of(bench, name)?;
        let partial = complete.with_extension("partial");
        fs::create_dir_all(folder())?;
        let file = File::create(&partial)
            .with_context(|| format!("creating a file for the results '{name}'"))?;
        Ok(Self { out: BufWriter::new(file), partial, complete })
    }

    pub(crate) fn put(&mut self, line: &Value) -> Result<()> {
        writeln!(self.out, "{line}")?;
        // After a crash the earlier lines are still in the file.
        Ok(self.out.flush()?)
    }

    pub(crate) fn end(mut self) -> Result<()> {
        self.out.flush()?;
        Ok(fs::rename(&self.partial, &self.complete)?)
    }
}

/// Reads the kept run `name` of `bench`.
pub(crate) fn read(bench: &str, name: &str) -> Result<Saved> {
    let path = path_of(bench, name)?;
    let text = fs::read_to_string(&path)
        .with_context(|| format!("there are no kept results of '{bench}' called '{name}'"))?;
    parse(&text).with_context(|| format!("{}", path.display()))
}

fn parse(text: &str) -> Result<Saved> {
    let mut saved = Saved { rows: Vec::new(), quick: false };
    for line in text.lines() {
        let value: Value = serde_json::from_str(line)?;
        match value.get("environment") {
            Some(environment) => saved.quick |= environment["quick"] == true,
            None => saved.rows.push(serde_json::from_value(value)?),
        }
    }
    Ok(saved)
}

fn path_of(bench: &str, name: &str) -> Result<PathBuf> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
        bail!(
            "'{name}' is not a valid name of results (expected letters, digits, '-', '_' and '.')"
        );
    }
    Ok(folder().join(format!("{bench}-{name}.jsonl")))
}

/// Returns the folder of kept runs.
pub(crate) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("results")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_run_is_read_back() {
        let row = Row::not_run("cold", "dd", "absent");
        let text = format!(
            "{}\n{}\n",
            serde_json::json!({"bench": "load", "environment": {"quick": true}}),
            serde_json::to_string(&row).unwrap()
        );
        let saved = parse(&text).unwrap();
        assert!(saved.quick);
        assert_eq!(saved.rows, [row]);
        assert!(parse("{\"no\": \"row\"}").is_err());
    }

    #[test]
    fn a_name_cannot_leave_the_folder() {
        assert!(path_of("load", "2026-01.quiet").is_ok());
        for name in ["", "..", "../x", "a/b", ".hidden"] {
            assert!(path_of("load", name).is_err(), "{name}");
        }
    }
}
