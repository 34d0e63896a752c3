//! The machines and programs that produced the figures.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::super::figures::Figures;
use super::super::html::{escape, put};
use super::super::number;
use super::super::read::Run;
use super::super::table::{self, Cell, Column, Line, Table};

type Facts = Map<String, Value>;

/// Writes a short list of the runs that a chapter's figures come from.
pub(super) fn write_runs(out: &mut String, figures: &Figures, bench: &str) {
    out.push_str(r#"<p class="origin">"#);
    let before = out.len();
    for (nth, run) in figures.runs.iter().enumerate() {
        let mut of_bench = run.environments.iter().filter(|(of, _)| of == bench);
        let Some((_, facts)) = of_bench.next() else { continue };
        let (name, day) = (escape(&run.name), escape(&day(facts)));
        put!(out, r##"<span class="run"><a href="#run-{nth}">{name}</a>, {day}"##);
        match of_bench.count() {
            0 => out.push_str("</span> "),
            guests => put!(out, ", and {guests} in guests</span> "),
        }
    }
    if out.len() == before {
        out.push_str(
            r#"<span class="without">not run: no figures of this bench were given</span>"#,
        );
    }
    out.push_str("</p>");
}

/// Returns a sentence about the machine of the first run, and the days of all runs.
pub(super) fn sentence(figures: &Figures) -> Option<String> {
    let firsts = figures.runs.iter().filter_map(|run| run.environments.first());
    let (_, facts) = firsts.clone().next()?;
    let days: BTreeSet<String> = firsts.map(|(_, facts)| day(facts)).collect();
    let is_virtual = facts.get("virtual_machine") == Some(&Value::Bool(true));
    let machine = if is_virtual { "A virtual machine" } else { "A machine" };
    let known = |(name, before, after)| {
        let value = facts.get(name).filter(|value| !value.is_null())?;
        Some(format!("{before}{}{after}", words(name, value)))
    };
    let parts = [
        ("cores", "", " cores"),
        ("cpu", "", ""),
        ("memory_bytes", "", " of memory"),
        ("kernel", "Linux ", ""),
    ];
    let parts: Vec<String> = parts.into_iter().filter_map(known).collect();
    let with = if parts.is_empty() { String::new() } else { format!(" with {}", parts.join(", ")) };
    let days = days.into_iter().collect::<Vec<_>>().join(", ");
    Some(format!("{machine}{with}; measured {days}.").replacen(" cores, ", " cores of ", 1))
}

/// Writes every run with its machine and programs.
pub(super) fn write(out: &mut String, figures: &Figures) {
    out.push_str(r#"<section class="chapter" id="machines" aria-labelledby="machines-title">"#);
    out.push_str(r#"<h2 id="machines-title">Machines and programs</h2>"#);
    let lines: Vec<Line> = figures.runs.iter().flat_map(lines_of).collect();
    if lines.is_empty() {
        out.push_str("<p>No run has an environment.</p></section>");
        return;
    }
    let titles = ["bench", "measured", "processor", "kernel", "commit", "compiler"];
    let columns = titles.map(Column::text).into();
    let machines = Table::new("machines-table", "Each run and its machine", "run", columns, lines);
    table::write(out, &machines);
    for (nth, run) in figures.runs.iter().enumerate() {
        let name = escape(&run.name);
        put!(out, r#"<details class="facts" id="run-{nth}">"#);
        put!(out, "<summary>The environment of {name}</summary>");
        for (bench, facts) in &run.environments {
            put!(out, r#"<dl aria-label="{}">"#, escape(bench));
            for (name, value) in facts {
                let (name, value) = (escape(&named(name)), escape(&words(name, value)));
                put!(out, "<div><dt>{name}</dt><dd>{value}</dd></div>");
            }
            out.push_str("</dl>");
        }
        out.push_str("</details>");
    }
    out.push_str("</section>");
}

fn lines_of(run: &Run) -> impl Iterator<Item = Line> {
    run.environments.iter().enumerate().map(|(nth, (bench, facts))| {
        let host = &run.environments[0].1;
        let text = |name: &str| facts.get(name).and_then(Value::as_str);
        let (guest, clock) = (text("machine"), facts.get("counts_instructions"));
        let note = guest.map(|guest| {
            let iommu = text("iommu").map_or_else(String::new, |iommu| format!("; {iommu}"));
            let is_counted = !iommu.is_empty() && clock == Some(&Value::Bool(true));
            format!(
                "{guest}{iommu}{}",
                if is_counted { ", by a clock of instructions" } else { "" }
            )
        });
        let compiler = shown(facts, "rustc");
        // Without the commit of the compiler.
        let compiler = compiler.split(" (").next().unwrap_or_default();
        let cells: [&str; 6] = [
            bench,
            // A guest without a date has the date of its host.
            &day(if text("date").is_some() { facts } else { host }),
            &shown(facts, "cpu"),
            &shown(facts, "kernel"),
            &shown(facts, "commit"),
            if nth > 0 && guest.is_some() { "as its host" } else { compiler },
        ];
        let name = if nth == 0 { run.name.clone() } else { format!("{}, guest", run.name) };
        Line { note, ..Line::of(&name, cells.map(Cell::text).into()) }
    })
}

fn shown(facts: &Facts, name: &str) -> String {
    facts.get(name).map_or_else(|| "unknown".to_owned(), |value| words(name, value))
}

/// Returns the date without the time.
fn day(facts: &Facts) -> String {
    let date = facts.get("date").and_then(Value::as_str);
    date.map_or("on an unknown day", |date| date.split('T').next().unwrap_or(date)).to_owned()
}

/// Returns a fact's name in words; bytes get a unit of their own.
fn named(name: &str) -> String {
    name.strip_suffix("_bytes").unwrap_or(name).replace('_', " ")
}

/// Returns a fact's value in words.
fn words(name: &str, value: &Value) -> String {
    match value {
        Value::Null => "unknown".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) if text.is_empty() => "unknown".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(count) if name.ends_with("_bytes") => {
            count.as_f64().map_or_else(|| count.to_string(), number::bytes)
        }
        Value::Number(count) => count.to_string(),
        Value::Array(all) if all.is_empty() => "none".to_owned(),
        Value::Array(all) => all.iter().map(|one| words("", one)).collect::<Vec<_>>().join("; "),
        Value::Object(of) if of.is_empty() => "none".to_owned(),
        Value::Object(of) => {
            let pair = |(name, value): (&String, &Value)| {
                format!("{} {}", named(name), words(name, value))
            };
            of.iter().map(pair).collect::<Vec<_>>().join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn facts_are_written_in_words() {
        for (name, value, expected) in [
            ("memory_bytes", json!(1_073_741_824), "1.00 GiB"),
            ("quick", json!(false), "no"),
            ("commit", Value::Null, "unknown"),
            ("peers", json!({"numpy": "2.2.6", "torch": null}), "numpy 2.2.6, torch unknown"),
            ("runs", json!([{"len_bytes": 4096, "mapped_ns": 5}]), "len 4.00 KiB, mapped ns 5"),
            ("peers", json!({}), "none"),
        ] {
            assert_eq!(words(name, &value), expected);
        }
    }

    #[test]
    fn a_guest_without_a_date_has_that_of_its_host() {
        let facts = |facts: Value| ("bounce".to_owned(), facts.as_object().unwrap().clone());
        let host = facts(json!({"date": "2026-11-22T02:03:30Z", "cores": 2, "cpu": "X"}));
        let guest = facts(json!({"machine": "QEMU", "iommu": "I", "counts_instructions": true}));
        let run = Run { environments: vec![host, guest], ..Run::default() };
        let lines: Vec<Line> = lines_of(&run).collect();
        assert_eq!(lines[1].note.as_deref(), Some("QEMU; I, by a clock of instructions"));
        assert_eq!(lines[1].cells[1], Cell::text("2026-11-22"));
        assert_eq!(lines[1].cells[5], Cell::text("as its host"));
        let said = sentence(&Figures::new(vec![run])).unwrap();
        assert_eq!(said, "A machine with 2 cores of X; measured 2026-11-22.");
    }
}
