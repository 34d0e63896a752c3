//! A bench's chapter: published tables, peers, goals, the candidates that were not run, every figure.

use std::collections::BTreeMap;

use anyhow::Result;

use super::super::comparisons::{self, Comparison};
use super::super::contents::{Chapter, Contents};
use super::super::figures::Figures;
use super::super::html::{escape, put};
use super::super::plot;
use super::super::table::{self, Cell, Column, Line, Table};
use super::goals::{self, Verdicts};
use super::{cases, machines};

pub(super) fn write(
    out: &mut String,
    contents: &Contents,
    figures: &Figures,
    chapter: &Chapter,
    verdicts: &[Verdicts],
) -> Result<()> {
    let Chapter { bench, title, text, .. } = chapter;
    put!(out, r#"<section class="chapter" id="{bench}" aria-labelledby="{bench}-title">"#);
    put!(out, r#"<h2 id="{bench}-title">{title}</h2><p class="lead">{text}</p>"#);
    machines::write_runs(out, figures, bench);
    if figures.is_quick(bench) {
        warn(out, "Measured with --quick: every path was run once, and the figures mean nothing.");
    }
    let of_bench = figures.runs.iter().filter(|run| run.name == *bench);
    for trouble in of_bench.filter_map(|run| run.trouble.as_ref()) {
        warn(out, trouble);
    }
    let comparisons = comparisons::of_chapter(contents, chapter, figures)?;
    out.push_str(r#"<nav class="within" aria-label="Within this chapter"><ul>"#);
    for Comparison { contents, .. } in &comparisons {
        put!(out, r##"<li><a href="#published-{}">{}</a></li>"##, contents.file, contents.title);
    }
    put!(out, r##"<li><a href="#{bench}-peers">Beside other programs</a></li>"##);
    put!(out, r##"<li><a href="#{bench}-goals">Goals</a></li></ul></nav>"##);
    for comparison in &comparisons {
        write_comparison(out, comparison);
    }
    put!(out, r#"<h3 id="{bench}-peers">Beside other programs</h3>"#);
    out.push_str("<p>The candidates alternated in the same minutes. A ratio is taken within a round; the median of the rounds is shown, with the lowest and the highest. Bars are medians, and whiskers extend from the lowest to the highest value.</p>");
    cases::write_featured(out, figures, chapter);
    goals::write(out, verdicts, bench);
    write_not_run(out, figures, bench);
    cases::write_all(out, figures, bench);
    out.push_str("</section>");
    Ok(())
}

pub(super) fn warn(out: &mut String, why: &str) {
    put!(out, r#"<p class="warning">{}</p>"#, escape(why));
}

fn write_comparison(out: &mut String, comparison: &Comparison<'_>) {
    let Comparison { contents, about, plots, tables, remarks } = comparison;
    let (name, title, text) = (&contents.file, &contents.title, &contents.text);
    put!(out, r#"<section class="comparison" aria-labelledby="published-{name}">"#);
    put!(out, r#"<h3 id="published-{name}"><span>published, and here</span> {title}</h3>"#);
    // A wide table needs the whole width.
    let beside = plots.len() == 1 && matches!(&tables[..], [one] if one.columns.len() < 7);
    put!(out, r#"<p>{text}</p><div class="{}">"#, if beside { "pair" } else { "" });
    put!(out, r#"<div class="plots n{}">"#, plots.len());
    for (nth, plot) in plots.iter().enumerate() {
        plot::figure(out, &format!("{name}-plot-{nth}"), plot);
    }
    out.push_str("</div>");
    for part in tables {
        table::write(out, part);
    }
    out.push_str("</div>");
    for remark in remarks {
        put!(out, "<p>{}</p>", escape(remark));
    }
    put!(out, r#"<p class="about"><b>The published file says</b> (bench/published/{name}.csv): "#);
    put!(out, "{}</p></section>", escape(about));
}

/// Writes the candidates that were not run: each reason once, with its candidates and cases.
fn write_not_run(out: &mut String, figures: &Figures, bench: &str) {
    put!(out, r#"<h3 id="{bench}-not-run">Not run</h3>"#);
    if figures.rows(bench).next().is_none() {
        put!(out, "<p>All of it: no figures of ‘{bench}’ were given.</p>");
        return;
    }
    for doubled in
        figures.doubled.iter().filter(|said| said.contains(&format!("of {bench} is also")))
    {
        put!(out, "<p>{}</p>", escape(doubled));
    }
    let mut reasons: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for row in figures.rows(bench) {
        let Some(why) = &row.not_run else { continue };
        let cases = reasons.entry((&row.candidate, why)).or_default();
        if !cases.contains(&row.case.as_str()) {
            cases.push(&row.case);
        }
    }
    if reasons.is_empty() {
        out.push_str("<p>Every candidate of every case in these runs has its figures.</p>");
        return;
    }
    let line = |((candidate, why), cases): (&(&str, &str), &Vec<&str>)| {
        Line::of(candidate, vec![Cell::text(*why), Cell::text(cases.join("; "))])
    };
    let lines = reasons.iter().map(line).collect();
    let columns = vec![Column::text("why"), Column::text("cases")];
    let id = format!("{bench}-not-run-table");
    table::write(out, &Table::new(id, "Candidates without figures", "candidate", columns, lines));
}
