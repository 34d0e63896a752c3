//! One case as a plot and as a table: every candidate with its spread and its ratios.

use super::super::contents::{Better, Chapter, Featured};
use super::super::figures::{Figures, median_of, ratio_of};
use super::super::html::{escape, put, slug};
use super::super::number;
use super::super::plot::{self, Form, Item, Kind, Mark, Plot};
use super::super::table::{self, Cell, Column, Group, Line, Table};
use super::chapter::warn;
use crate::harness::Row;

/// A candidate's rows of one metric, one for each of its baselines; all have the same median.
type Candidate<'r> = Vec<&'r Row>;

/// A column that is shown if a row of the case has its value.
type Cost = (&'static str, fn(&Row) -> Option<f64>);

const COSTS: [Cost; 2] =
    [("CPU, s", |row| row.cpu_seconds), ("peak memory, MiB", |row| row.peak_memory_mib)];

/// Writes the cases that a chapter shows first.
pub(super) fn write_featured(out: &mut String, figures: &Figures, chapter: &Chapter) {
    put!(out, "<div class=\"cases\">");
    for featured in &chapter.featured {
        write_one(out, figures, &chapter.bench, featured);
    }
    out.push_str("</div>");
}

fn write_one(out: &mut String, figures: &Figures, bench: &str, featured: &Featured) {
    let Featured { case, metric, title, scale, better, ours } = featured;
    let rows = figures.case(bench, case);
    put!(out, "<section class=\"case\"><h4>{}</h4>", escape(title));
    put!(out, "<p class=\"origin\">case ‘{}’", escape(case));
    if let Some((run, _)) = figures.origin(bench, case) {
        put!(out, ", of {}", escape(run));
    }
    out.push_str("</p>");
    write_not_measured(out, &rows);
    let candidates = candidates(&rows, metric);
    if candidates.is_empty() {
        let why = if rows.is_empty() {
            format!("the case ‘{case}’ was not run")
        } else {
            format!("no candidate has a value of {metric}")
        };
        put!(out, "<p class=\"without\">not run: {}</p></section>", escape(&why));
        return;
    }
    let is_ours = |row: &Row| ours.iter().any(|begin| row.candidate.starts_with(begin));
    let better = match better {
        Better::More => "more is better",
        Better::Less => "less is better",
    };
    let unit = unit_of(candidates[0][0]);
    let item = |row: &Row| {
        let kind = match (is_ours(row), row.candidate.starts_with("published")) {
            (true, _) => Kind::Ours,
            (_, true) => Kind::Published,
            _ => Kind::Peer,
        };
        let mark = Mark { kind, value: Ok(median_of(row).ok()?) };
        Some(Item { label: row.candidate.clone(), marks: vec![mark] })
    };
    let plot = Plot {
        form: Form::Bars,
        title: title.clone(),
        unit: format!("{unit}; {better}"),
        scale: *scale,
        reference: None,
        items: candidates.iter().filter_map(|candidate| item(candidate[0])).collect(),
        legend: Vec::new(),
    };
    let id = slug(&format!("{bench} {case} {metric}"));
    out.push_str("<div class=\"pair\">");
    plot::figure(out, &format!("{id}-p"), &plot);
    let line = |candidate: &Candidate<'_>| Line {
        is_ours: is_ours(candidate[0]),
        ..line_of(candidate, &rows, &[])
    };
    let mut lines: Vec<Line> = candidates.iter().map(line).collect();
    lines.extend(not_run(&rows, &[]));
    let caption = format!("{title}: {unit}, {better}");
    table::write(out, &Table::new(id, caption, "candidate", columns(&unit, &[]), lines));
    out.push_str("</div></section>");
}

/// Writes every case of a bench, for reference.
pub(super) fn write_all(out: &mut String, figures: &Figures, bench: &str) {
    let cases = figures.cases(bench);
    if cases.is_empty() {
        return;
    }
    let (count, lines) = (cases.len(), figures.rows(bench).count());
    put!(out, r#"<details class="all"><summary>Every figure of ‘{}’: "#, escape(bench));
    put!(out, "{count} cases, {lines} lines</summary>");
    for (nth, case) in cases.iter().enumerate() {
        let rows = figures.case(bench, case);
        let mut metrics: Vec<&str> = Vec::new();
        for row in rows.iter().filter(|row| row.not_run.is_none()) {
            if !metrics.contains(&row.metric.as_str()) {
                metrics.push(&row.metric);
            }
        }
        let has = |(_, of): &Cost| rows.iter().any(|row| of(row).is_some());
        let costs: Vec<Cost> = COSTS.into_iter().filter(has).collect();
        let group = |metric: &&str| {
            let candidates = candidates(&rows, metric);
            let line = |candidate| line_of(candidate, &rows, &costs);
            let lines = candidates.iter().map(line).collect();
            Group { title: Some(unit_of(candidates[0][0])), lines }
        };
        let mut groups: Vec<Group> = metrics.iter().map(group).collect();
        let missing = not_run(&rows, &costs);
        if !missing.is_empty() {
            groups.push(Group { title: Some("not run".to_owned()), lines: missing });
        }
        write_not_measured(out, &rows);
        let id = format!("{}-all-{nth}", slug(bench));
        let table = Table::new(id, *case, "candidate", columns("median", &costs), Vec::new());
        table::write(out, &Table { groups, ..table });
    }
    out.push_str("</details>");
}

/// Writes the reason above figures that must not be used.
fn write_not_measured(out: &mut String, rows: &[&Row]) {
    if let Some(why) = rows.iter().find_map(|row| row.not_measured.as_ref()) {
        warn(out, &format!("Not measured: {why}. Do not use these figures."));
    }
}

fn columns(median: &str, costs: &[Cost]) -> Vec<Column> {
    let numbers = [median, "runs"].into_iter().chain(costs.iter().map(|(title, _)| *title));
    numbers.map(Column::number).chain([Column::text("ratio, median (spread)")]).collect()
}

fn candidates<'r>(rows: &[&'r Row], metric: &str) -> Vec<Candidate<'r>> {
    let mut candidates: Vec<Candidate<'_>> = Vec::new();
    for &row in rows.iter().filter(|row| row.metric == metric && row.not_run.is_none()) {
        match candidates.iter_mut().find(|known| known[0].candidate == row.candidate) {
            Some(known) => known.push(row),
            None => candidates.push(vec![row]),
        }
    }
    candidates
}

/// Makes the line of a candidate. `rows` are all rows of the case, because others may use this candidate
/// as their baseline.
fn line_of(candidate: &Candidate<'_>, rows: &[&Row], costs: &[Cost]) -> Line {
    let row = candidate[0];
    let ratio = |row: &&Row| {
        let baseline = row.baseline.as_deref()?;
        let of = if baseline == row.candidate { "itself" } else { baseline };
        Some((ratio_of(row).ok()?, of.to_owned()))
    };
    let ratios: Vec<_> = candidate.iter().filter_map(ratio).collect();
    let is_baseline = |other: &&Row| {
        other.metric == row.metric && other.baseline.as_ref() == Some(&row.candidate)
    };
    let ratios = match &row.baseline {
        _ if !ratios.is_empty() => Cell::Ratios(ratios),
        None if rows.iter().any(is_baseline) => Cell::text("a baseline of other candidates"),
        None => Cell::without("none", "it has no baseline"),
        Some(baseline) => {
            let why = format!("{baseline} has no such figure in this case, or it is zero");
            Cell::without("none", &why)
        }
    };
    let runs = match row.runs {
        0 => Cell::without("published", "the number of published runs is not known"),
        runs => Cell::figure(runs.to_string()),
    };
    let note = row.note.as_deref().map(one_line);
    let cost = |(_, of): &Cost| match of(row) {
        Some(cost) => Cell::figure(number::figure(cost)),
        None => Cell::without("none", "it was not measured"),
    };
    let median = Cell::of(median_of(row), number::figure);
    let cells = [median, runs].into_iter().chain(costs.iter().map(cost)).chain([ratios]);
    Line { note, ..Line::of(&row.candidate, cells.collect()) }
}

/// Returns a note without its plots made of characters, which would need a fixed line layout.
fn one_line(note: &str) -> String {
    let words = note.lines().map(str::trim).filter(|line| !line.contains(['▁', '█']));
    words.collect::<Vec<_>>().join(" ").trim_end_matches(':').to_owned()
}

fn not_run(rows: &[&Row], costs: &[Cost]) -> Vec<Line> {
    let line = |row: &&Row| {
        let missing = Cell::without("not run", row.not_run.as_ref()?);
        let mut cells = vec![missing; 3 + costs.len()];
        cells[1] = Cell::figure("0");
        Some(Line::of(&row.candidate, cells))
    };
    rows.iter().filter_map(line).collect()
}

/// Returns a metric with its unit.
fn unit_of(row: &Row) -> String {
    let metric = row.metric.replace('_', " ");
    match row.unit.as_str() {
        "" => metric,
        // "TSC cycles" already contains "cycles".
        unit if unit.ends_with(&metric) => unit.to_owned(),
        unit => format!("{metric}, {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::contents::Contents;
    use super::super::super::{kept, read};
    use super::*;
    use crate::harness::metric::SPEED;

    #[test]
    fn every_featured_case_is_in_the_kept_runs() {
        let figures = kept();
        for chapter in Contents::read().unwrap().chapters {
            for Featured { case, metric, ours, .. } in &chapter.featured {
                let rows = figures.case(&chapter.bench, case);
                let shown = candidates(&rows, metric);
                assert!(shown.len() > 1, "{case} {metric}");
                let is_ours =
                    |it: &Candidate<'_>| ours.iter().any(|ours| it[0].candidate.starts_with(ours));
                assert!(shown.iter().any(is_ours), "{case} has none of ours");
            }
        }
    }

    #[test]
    fn a_candidate_has_one_line_with_all_its_ratios() {
        let row = |baseline: &str, ratio| Row {
            metric: SPEED.name.to_owned(),
            median: Some(2.0),
            runs: 5,
            baseline: Some(baseline.to_owned()),
            ratio: Some(ratio),
            not_run: None,
            ..Row::not_run("cold", "longshore", "")
        };
        let rows = [row("fio", 0.9), row("dd", 2.5)];
        let rows: Vec<&Row> = rows.iter().collect();
        let candidates = candidates(&rows, SPEED.name);
        assert_eq!(candidates.len(), 1);
        let ratio = |ratio, of: &str| ((ratio, ratio, ratio), of.to_owned());
        let expected = Cell::Ratios(vec![ratio(0.9, "fio"), ratio(2.5, "dd")]);
        assert_eq!(line_of(&candidates[0], &rows, &[]).cells[2], expected);
    }

    #[test]
    fn time_and_memory_are_columns_if_a_row_has_them() {
        let begin = r#"{"bench":"load","environment":{}}"#;
        let row = r#"{"bench":"load","case":"cold","candidate":"dd","metric":"speed","unit":"GB/s","runs":5,"median":2.0"#;
        let written = |costs: &str| {
            let other = row.replace("dd", "fio");
            let lines = format!("{begin}\n{row}{costs}}}\n{other}}}");
            let run = read::lines(lines.as_bytes(), "x", "x").unwrap();
            let mut out = String::new();
            write_all(&mut out, &Figures::new(vec![run]), "load");
            out
        };
        let both = written(r#","cpu_seconds":0.25,"peak_memory_mib":1234.5"#);
        assert!(both.contains(">CPU, s</th>") && both.contains(">peak memory, MiB</th>"), "{both}");
        assert!(both.contains(">0.25</span>") && both.contains(">1,234</span>"), "{both}");
        assert_eq!(both.matches("it was not measured").count(), 1, "{both}");
        let none = written("");
        assert!(!none.contains("CPU") && !none.contains("peak"), "{none}");
    }

    #[test]
    fn notes_are_shown_without_plots_of_characters() {
        assert_eq!(one_line("over 5 ms:\n  in flight ▁▁█\n  pool ▁█"), "over 5 ms");
        assert_eq!(one_line("plain"), "plain");
    }
}
