//! The machines that figures were measured on, and with what.

use serde_json::{Map, Value};

use super::super::figures::Figures;
use super::super::html::{escape, put};
use super::super::number;
use super::super::table::{self, Cell, Column, Line, Table};

type Facts = Map<String, Value>;

/// In short, which runs a chapter's figures are of.
pub(super) fn write_runs(out: &mut String, figures: &Figures, bench: &str) {
    out.push_str("<p class=\"origin\">");
    let mut any = false;
    for (nth, run) in figures.runs.iter().enumerate() {
        let of_bench = run.environments.iter().filter(|(of, _)| of == bench);
        let Some((_, facts)) = of_bench.clone().next() else { continue };
        any = true;
        let name = escape(&run.name);
        put!(out, "<span class=\"run\"><a href=\"#run-{nth}\">{name}</a>, {}", escape(&day(facts)));
        let others = of_bench.count() - 1;
        if others > 0 {
            put!(out, ", and {others} in guests");
        }
        out.push_str("</span> ");
    }
    if !any {
        out.push_str("<span class=\"without\">not run: no figures of this bench were given</span>");
    }
    out.push_str("</p>");
}

/// The machine of most runs, in a sentence.
pub(super) fn sentence(figures: &Figures) -> Option<String> {
    let run = figures.runs.iter().find(|run| !run.environments.is_empty())?;
    let facts = &run.environments[0].1;
    let mut days: Vec<String> = figures
        .runs
        .iter()
        .filter_map(|run| run.environments.first())
        .map(|(_, facts)| day(facts))
        .collect();
    days.sort();
    days.dedup();
    let virtual_machine = facts.get("virtual_machine") == Some(&Value::Bool(true));
    let machine = if virtual_machine { "A virtual machine" } else { "A machine" };
    let known = |name: &str| {
        facts.get(name).filter(|value| !value.is_null()).map(|value| words(name, value))
    };
    let mut parts = Vec::new();
    match (known("cores"), known("cpu")) {
        (Some(cores), Some(cpu)) => parts.push(format!("{cores} cores of {cpu}")),
        (Some(cores), None) => parts.push(format!("{cores} cores")),
        (None, cpu) => parts.extend(cpu),
    }
    parts.extend(known("memory_bytes").map(|memory| format!("{memory} of memory")));
    parts.extend(known("kernel").map(|kernel| format!("Linux {kernel}")));
    let with = if parts.is_empty() { String::new() } else { format!(" with {}", parts.join(", ")) };
    Some(format!("{machine}{with}; measured {}.", days.join(", ")))
}

/// Every run with what it was measured on and with.
pub(super) fn write(out: &mut String, figures: &Figures) {
    out.push_str("<section class=\"chapter\" id=\"machines\" aria-labelledby=\"machines-title\"><h2 id=\"machines-title\">Machines and programs</h2>");
    if figures.runs.iter().all(|run| run.environments.is_empty()) {
        out.push_str("<p>No run has an environment.</p></section>");
        return;
    }
    let mut lines = Vec::new();
    for run in &figures.runs {
        for (nth, (bench, facts)) in run.environments.iter().enumerate() {
            let guest = facts.get("machine").and_then(Value::as_str);
            let iommu = facts.get("iommu").and_then(Value::as_str);
            let counts = facts.get("counts_instructions") == Some(&Value::Bool(true));
            let mut note = guest.map(str::to_owned);
            if let (Some(note), Some(iommu)) = (&mut note, iommu) {
                let clock = if counts { ", by a clock of instructions" } else { "" };
                put!(*note, "; {iommu}{clock}");
            }
            let cells = vec![
                Cell::text(bench),
                Cell::text(day_or(facts, run.environments.first().map(|(_, first)| first), nth)),
                Cell::text(shown(facts, "cpu")),
                Cell::text(shown(facts, "kernel")),
                Cell::text(shown(facts, "commit")),
                Cell::text(if nth > 0 && guest.is_some() {
                    "as its host".to_owned()
                } else {
                    compiler(facts)
                }),
            ];
            let name = if nth == 0 { run.name.clone() } else { format!("{}, guest", run.name) };
            lines.push(Line { note, ..Line::of(&name, cells) });
        }
    }
    let titles = ["bench", "measured", "processor", "kernel", "commit", "compiler"];
    let columns = titles.map(Column::text).into();
    table::write(
        out,
        &Table::new("machines-table", "Each run and its machine", "run", columns, lines),
    );
    for (nth, run) in figures.runs.iter().enumerate() {
        put!(
            out,
            "<details class=\"facts\" id=\"run-{nth}\"><summary>The environment of {}</summary>",
            escape(&run.name)
        );
        for (bench, facts) in &run.environments {
            put!(out, "<dl aria-label=\"{}\">", escape(bench));
            for (name, value) in facts {
                put!(
                    out,
                    "<div><dt>{}</dt><dd>{}</dd></div>",
                    escape(&named(name)),
                    escape(&words(name, value))
                );
            }
            out.push_str("</dl>");
        }
        out.push_str("</details>");
    }
    out.push_str("</section>");
}

fn shown(facts: &Facts, name: &str) -> String {
    facts.get(name).map_or_else(|| "unknown".to_owned(), |value| words(name, value))
}

/// The compiler without the commit it was built from.
fn compiler(facts: &Facts) -> String {
    let told = shown(facts, "rustc");
    told.split(" (").next().unwrap_or(&told).to_owned()
}

/// The date without its time.
fn day(facts: &Facts) -> String {
    let date = facts.get("date").and_then(Value::as_str);
    date.map_or("on an unknown day", |date| date.split('T').next().unwrap_or(date)).to_owned()
}

/// A guest without a date was measured when its host was.
fn day_or(facts: &Facts, host: Option<&Facts>, nth: usize) -> String {
    match (facts.contains_key("date"), host) {
        (false, Some(host)) if nth > 0 => day(host),
        _ => day(facts),
    }
}

/// A fact's name in words; bytes have a unit of their own.
fn named(name: &str) -> String {
    name.strip_suffix("_bytes").unwrap_or(name).replace('_', " ")
}

/// A fact in words.
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
    fn facts_are_told_in_words() {
        assert_eq!(words("memory_bytes", &json!(1_073_741_824)), "1.00 GiB");
        assert_eq!(words("quick", &json!(false)), "no");
        assert_eq!(words("commit", &Value::Null), "unknown");
        assert_eq!(
            words("peers", &json!({"numpy": "2.2.6", "torch": null})),
            "numpy 2.2.6, torch unknown"
        );
        assert_eq!(
            words("calibration", &json!([{"len_bytes": 4096, "mapped_ns": 5}])),
            "len 4.00 KiB, mapped ns 5"
        );
        assert_eq!(words("peers", &json!({})), "none");
    }

    #[test]
    fn a_guest_without_a_date_has_its_hosts() {
        let host = json!({"date": "2026-11-22T02:03:30Z"});
        let host = host.as_object();
        assert_eq!(day(host.unwrap()), "2026-11-22");
        assert_eq!(day_or(&Facts::new(), host, 1), "2026-11-22");
        assert_eq!(day_or(&Facts::new(), None, 0), "on an unknown day");
    }
}
