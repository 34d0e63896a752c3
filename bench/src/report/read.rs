//! Figures from JSON lines: from files, kept runs and the output of a bench.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

use super::BENCHES;
use crate::harness::{Row, results};

/// One run of one bench, or of several benches whose lines follow each other.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// The name on the page.
    pub(super) name: String,
    /// The environments, each with its bench; for figures in a guest, the guest's environment.
    pub(super) environments: Vec<(String, Map<String, Value>)>,
    /// The rows, each with the index of its environment.
    pub(super) rows: Vec<(Row, usize)>,
    /// The error that ended the measurement.
    pub(super) trouble: Option<String>,
}

/// Reads the argument of `--from`: a file, or runs that are kept in `bench/results/`.
///
/// # Errors
/// Returns an error if nothing has that name, or if a line is invalid; the error names the line.
pub(super) fn from(name: &str) -> Result<Vec<Run>> {
    paths_of(name)?.iter().map(|path| file(path)).collect()
}

/// Reads a kept run.
pub(super) fn kept(name: &str) -> Result<Run> {
    file(&results::folder().join(format!("{name}.jsonl")))
}

/// Returns the files of a name: `load-quiet` is one run, `quiet` is every bench's run of that name, and
/// a path is a file.
fn paths_of(name: &str) -> Result<Vec<PathBuf>> {
    if name.contains('/') || name.ends_with(".jsonl") {
        return Ok(vec![PathBuf::from(name)]);
    }
    let path = |name: &str| results::folder().join(format!("{name}.jsonl"));
    let of_benches = BENCHES.iter().map(|bench| path(&format!("{}-{name}", bench.name)));
    let one = path(name);
    let found =
        if one.is_file() { vec![one] } else { of_benches.filter(|path| path.is_file()).collect() };
    if found.is_empty() {
        let entries = fs::read_dir(results::folder()).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let known: BTreeSet<String> =
            names.filter_map(|name| Some(name.strip_suffix(".jsonl")?.to_owned())).collect();
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        bail!(
            "there are no kept results called '{name}' (there are: {known}); name a file by its path"
        );
    }
    Ok(found)
}

fn file(path: &Path) -> Result<Run> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("reading {shown}"))?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    lines(BufReader::new(file), &name, &shown.to_string())
}

/// Reads the lines that a bench prints with `--json`. Errors name the source as `place`.
///
/// # Errors
/// Returns an error if a line cannot be read or is invalid, or if there is no figure.
pub(super) fn lines(source: impl BufRead, name: &str, place: &str) -> Result<Run> {
    let mut run = Run { name: name.to_owned(), ..Run::default() };
    for (nth, line) in source.lines().enumerate() {
        let at = || format!("{place}:{}", nth + 1);
        let line = line.with_context(at)?;
        if !line.trim().is_empty() {
            put(&mut run, &line).with_context(at)?;
        }
    }
    ensure!(!run.rows.is_empty(), "{place}: there is no figure");
    Ok(run)
}

fn put(run: &mut Run, line: &str) -> Result<()> {
    const KINDS: &str = "an environment, a figure or a goal, as longshore-bench prints with --json";
    let mut value: Value = serde_json::from_str(line)
        .with_context(|| format!("damaged: not JSON (expected {KINDS})"))?;
    let bench = value.get("bench").and_then(Value::as_str).map(str::to_owned);
    let bench = bench.with_context(|| format!("unknown: it names no bench (expected {KINDS})"))?;
    let known = BENCHES.map(|bench| bench.name);
    let is_known = known.contains(&bench.as_str());
    ensure!(is_known, "unknown bench '{bench}' (expected one of: {})", known.join(", "));
    match value.get_mut("environment").map(Value::take) {
        Some(Value::Object(facts)) => run.environments.push((bench, facts)),
        Some(_) => bail!("damaged: the environment is not an object"),
        // A line of `--check`. It is ignored, because the page compares goals and figures itself.
        None if value.get("goal").is_some() => {}
        None => {
            let row: Row = serde_json::from_value(value)
                .with_context(|| format!("damaged: not a figure (expected {KINDS})"))?;
            let is_named = !row.case.is_empty() && !row.candidate.is_empty();
            ensure!(is_named, "damaged: the figure has no case or no candidate");
            let is_there = row.median.or(row.ratio).is_some() || row.not_run.is_some();
            ensure!(
                is_there,
                "damaged: neither a figure nor a reason why there is none ('not_run')"
            );
            let environment = run.environments.iter().rposition(|(of, _)| *of == bench);
            let environment = environment
                .with_context(|| format!("no environment of '{bench}' precedes this figure"))?;
            run.rows.push((row, environment));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENVIRONMENT: &str = r#"{"bench":"load","environment":{"quick":false}}"#;
    const FIGURE: &str = r#"{"bench":"load","case":"cold","candidate":"dd","metric":"","unit":"","runs":1,"median":2.0}"#;

    #[test]
    fn figures_belong_to_the_last_environment_of_their_bench() {
        let of_another = r#"{"bench":"iov","environment":{}}"#;
        let goal = r#"{"bench":"load","goal":{},"outcome":"reached","seen":1.0,"why":null}"#;
        let text = [ENVIRONMENT, FIGURE, ENVIRONMENT, of_another, "", FIGURE, goal].join("\n");
        let run = lines(text.as_bytes(), "x", "x.jsonl").unwrap();
        let places: Vec<usize> = run.rows.iter().map(|(_, place)| *place).collect();
        assert_eq!(places, [0, 1]);
    }

    #[test]
    fn errors_name_the_file_and_the_line() {
        let refusal =
            |text: &str| format!("{:#}", lines(text.as_bytes(), "x", "x.jsonl").unwrap_err());
        for (line, why) in [
            ("{\"bench\":\"load\",\"case\":\"co", "not JSON"),
            ("{\"bench\":\"load\",\"case\":\"cold\"}", "not a figure"),
            ("{\"case\":\"cold\"}", "names no bench"),
            ("{\"bench\":\"elsewhere\",\"case\":\"cold\"}", "unknown bench 'elsewhere'"),
            ("{\"bench\":\"load\",\"environment\":3}", "not an object"),
            ("[]", "names no bench"),
            (&FIGURE.replace("2.0", "null"), "neither a figure"),
            (&FIGURE.replace("\"dd\"", "\"\""), "no candidate"),
        ] {
            let refusal = refusal(&format!("{ENVIRONMENT}\n{FIGURE}\n{line}\n"));
            assert!(refusal.starts_with("x.jsonl:3") && refusal.contains(why), "{refusal}");
        }
        assert!(refusal(FIGURE).contains("no environment"));
        assert!(refusal(ENVIRONMENT).contains("no figure"));
    }

    #[test]
    fn names_find_kept_runs_and_paths_find_files() {
        assert_eq!(paths_of("load-warm").unwrap().len(), 1);
        assert_eq!(paths_of("quiet").unwrap().len(), BENCHES.len());
        assert_eq!(paths_of("./a/b.jsonl").unwrap(), [PathBuf::from("./a/b.jsonl")]);
    }
}
