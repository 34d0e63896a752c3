//! Figures from JSON lines: files, kept runs, what a bench prints.

use std::collections::BTreeSet;
use std::fs;
use std::io::BufRead;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

use super::BENCHES;
use crate::harness::Row;
use crate::harness::results;

/// One run of one bench, or of several whose lines follow each other.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// As the page calls it.
    pub(super) name: String,
    /// Each with the bench it is of; of a guest's figures, the guest's.
    pub(super) environments: Vec<(String, Map<String, Value>)>,
    /// Each with the place of its environment.
    pub(super) rows: Vec<(Row, usize)>,
    /// What went wrong while it was measured.
    pub(super) trouble: Option<String>,
}

/// Reads what `--from` names: a file, or runs that are kept in `bench/results/`.
///
/// # Errors
/// Where there is none of that name, or one of its lines is no figure; the line is named.
pub(super) fn from(name: &str) -> Result<Vec<Run>> {
    paths_of(name)?.iter().map(|path| file(path)).collect()
}

/// Reads a run that is kept.
pub(super) fn kept(name: &str) -> Result<Run> {
    file(&results::folder().join(format!("{name}.jsonl")))
}

/// `load-quiet` is one run, `quiet` is all those of that name, and a path is a file.
fn paths_of(name: &str) -> Result<Vec<PathBuf>> {
    if name.contains('/') || Path::new(name).extension().is_some_and(|end| end == "jsonl") {
        return Ok(vec![PathBuf::from(name)]);
    }
    let folder = results::folder();
    let one = folder.join(format!("{name}.jsonl"));
    if one.is_file() {
        return Ok(vec![one]);
    }
    let of_benches = BENCHES.iter().map(|(bench, _)| folder.join(format!("{bench}-{name}.jsonl")));
    let found: Vec<PathBuf> = of_benches.filter(|path| path.is_file()).collect();
    if found.is_empty() {
        let known = known(&folder);
        bail!("no results are kept as '{name}' (there are: {known}); a file is named by its path");
    }
    Ok(found)
}

fn known(folder: &Path) -> String {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names: BTreeSet<String> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some(name.strip_suffix(".jsonl")?.to_owned())
        })
        .collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}

fn file(path: &Path) -> Result<Run> {
    let shown = path.display();
    let file = fs::File::open(path).with_context(|| format!("reading {shown}"))?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    lines(std::io::BufReader::new(file), &name, &shown.to_string())
}

/// Reads the lines that a bench prints with `--json`. `place` is where they come from, as errors
/// name it.
pub(super) fn lines(source: impl BufRead, name: &str, place: &str) -> Result<Run> {
    let mut run = Run { name: name.to_owned(), ..Run::default() };
    for (nth, line) in source.lines().enumerate() {
        let at = || format!("{place}:{}", nth + 1);
        let line = line.with_context(at)?;
        if line.trim().is_empty() {
            continue;
        }
        put(&mut run, &line).with_context(at)?;
    }
    ensure!(!run.rows.is_empty(), "{place}: it has no figure");
    Ok(run)
}

fn put(run: &mut Run, line: &str) -> Result<()> {
    const KINDS: &str = "an environment, a figure or a goal, as longshore-bench prints with --json";
    let mut value: Value =
        serde_json::from_str(line).with_context(|| format!("damaged: no JSON, but {KINDS}"))?;
    let bench = value.get("bench").and_then(Value::as_str);
    let bench = bench.with_context(|| format!("unknown: it names no bench; expected {KINDS}"))?;
    let known = BENCHES.map(|(name, _)| name);
    ensure!(known.contains(&bench), "unknown bench '{bench}': there are {}", known.join(", "));
    let bench = bench.to_owned();
    if let Some(environment) = value.get_mut("environment") {
        let Value::Object(facts) = environment.take() else {
            bail!("damaged: the environment is no object");
        };
        run.environments.push((bench, facts));
    } else if value.get("goal").is_some() {
        // What `--check` printed: goals are held against the figures anew.
    } else {
        let row: Row = serde_json::from_value(value)
            .with_context(|| format!("damaged: no figure, and neither {KINDS}"))?;
        check(&row)?;
        let mut known = run.environments.iter();
        let environment = known
            .rposition(|(of, _)| *of == bench)
            .with_context(|| format!("no environment of '{bench}' comes before this figure"))?;
        run.rows.push((row, environment));
    }
    Ok(())
}

/// A figure without a reason for its absence has one.
fn check(row: &Row) -> Result<()> {
    let named = !row.case.is_empty() && !row.candidate.is_empty();
    ensure!(named, "damaged: the figure names no case or no candidate");
    let has_figure = row.median.is_some() || row.ratio.is_some();
    ensure!(
        has_figure || row.not_run.is_some(),
        "damaged: neither a figure nor why there is none ('not_run')"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENVIRONMENT: &str = r#"{"bench":"load","environment":{"quick":false}}"#;

    fn figure() -> String {
        let row =
            Row { median: Some(2.0), not_run: None, ..Row::not_run("load", "cold", "dd", "") };
        serde_json::to_string(&row).unwrap()
    }

    fn read(text: &str) -> Result<Run> {
        lines(text.as_bytes(), "x", "x.jsonl")
    }

    fn refusal(text: &str) -> String {
        format!("{:#}", read(text).unwrap_err())
    }

    #[test]
    fn every_kept_run_is_read() {
        for run in super::super::kept().runs {
            assert!(run.rows.len() > 3 && !run.environments.is_empty(), "{}", run.name);
        }
    }

    #[test]
    fn figures_belong_to_the_last_environment_of_their_bench() {
        let of_another = r#"{"bench":"iov","environment":{}}"#;
        let row = figure();
        let run =
            read(&format!("{ENVIRONMENT}\n{row}\n{ENVIRONMENT}\n{of_another}\n\n{row}")).unwrap();
        let places: Vec<usize> = run.rows.iter().map(|(_, place)| *place).collect();
        assert_eq!(places, [0, 1]);
    }

    #[test]
    fn a_goal_of_check_is_passed_over() {
        let goal = r#"{"bench":"load","goal":{},"outcome":"reached","seen":1.0,"why":null}"#;
        assert_eq!(read(&format!("{ENVIRONMENT}\n{}\n{goal}", figure())).unwrap().rows.len(), 1);
    }

    #[test]
    fn damage_is_named_with_file_and_line() {
        let begun = format!("{ENVIRONMENT}\n{}\n", figure());
        for (line, why) in [
            ("{\"bench\":\"load\",\"case\":\"co", "no JSON"),
            ("{\"bench\":\"load\",\"case\":\"cold\"}", "no figure"),
            ("{\"case\":\"cold\"}", "names no bench"),
            ("{\"bench\":\"elsewhere\",\"case\":\"cold\"}", "unknown bench 'elsewhere'"),
            ("{\"bench\":\"load\",\"environment\":3}", "no object"),
            ("[]", "names no bench"),
        ] {
            let refusal = refusal(&format!("{begun}{line}\n"));
            assert!(refusal.starts_with("x.jsonl:3") && refusal.contains(why), "{refusal}");
        }
        let empty = figure().replace("2.0", "null");
        assert!(refusal(&format!("{ENVIRONMENT}\n{empty}")).contains("x.jsonl:2"));
        assert!(refusal(&figure()).contains("no environment"));
        assert!(refusal(ENVIRONMENT).contains("no figure"));
        assert!(refusal("").contains("no figure"));
    }

    #[test]
    fn names_find_kept_runs_and_paths_find_files() {
        assert_eq!(paths_of("load-warm").unwrap().len(), 1);
        assert_eq!(paths_of("quiet").unwrap().len(), BENCHES.len());
        assert_eq!(paths_of("./a/b.jsonl").unwrap(), [PathBuf::from("./a/b.jsonl")]);
        let unknown = paths_of("absent").unwrap_err().to_string();
        assert!(unknown.contains("load-quiet"), "{unknown}");
    }
}
