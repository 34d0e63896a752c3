//! A bench's chapter: published tables, peers, goals, what was not run, every figure.

use std::collections::BTreeMap;

use anyhow::Result;

use super::super::contents::{Chapter, Contents};
use super::super::figures::Figures;
use super::super::html::{escape, put, table};
use super::super::model::{Cell, Column, Comparison, Group, Line, Over, Table};
use super::super::{plot, tables};
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
    put!(out, "<section class=\"chapter\" id=\"{bench}\" aria-labelledby=\"{bench}-title\">");
    put!(out, "<h2 id=\"{bench}-title\">{title}</h2><p class=\"lead\">{text}</p>");
    machines::write_runs(out, figures, bench);
    if figures.is_quick(bench) {
        out.push_str("<p class=\"warning\">Measured with --quick: every path was run once, and the figures mean nothing.</p>");
    }
    for run in figures.runs.iter().filter(|run| run.name == *bench) {
        if let Some(trouble) = &run.trouble {
            put!(out, "<p class=\"warning\">{}</p>", escape(trouble));
        }
    }
    let comparisons = tables::of_chapter(contents, chapter, figures)?;
    out.push_str("<nav class=\"within\" aria-label=\"Within this chapter\"><ul>");
    for comparison in &comparisons {
        let (name, title) = (&comparison.name, &comparison.title);
        put!(out, "<li><a href=\"#published-{name}\">{title}</a></li>");
    }
    put!(out, "<li><a href=\"#{bench}-peers\">Beside other programs</a></li>");
    put!(out, "<li><a href=\"#{bench}-goals\">Goals</a></li></ul></nav>");
    for comparison in &comparisons {
        write_comparison(out, comparison);
    }
    put!(out, "<h3 id=\"{bench}-peers\">Beside other programs</h3>");
    out.push_str("<p>Candidates ran by turns in the same minutes; a ratio is taken within a round, and is the median over the rounds with its lowest and highest. Bars are medians, whiskers reach from the lowest to the highest value.</p>");
    cases::write_featured(out, figures, chapter);
    goals::write(out, verdicts, bench);
    write_not_run(out, figures, bench);
    cases::write_all(out, figures, bench);
    out.push_str("</section>");
    Ok(())
}

fn write_comparison(out: &mut String, comparison: &Comparison) {
    let Comparison { name, title, text, about, plots, tables, remarks } = comparison;
    put!(out, "<section class=\"comparison\" aria-labelledby=\"published-{name}\">");
    put!(out, "<h3 id=\"published-{name}\"><span>published, and here</span> {title}</h3>");
    // Wider tables want the whole width.
    let beside = plots.len() == 1 && matches!(&tables[..], [one] if one.columns.len() < 7);
    put!(out, "<p>{text}</p><div class=\"{}\">", if beside { "pair" } else { "" });
    put!(out, "<div class=\"plots n{}\">", plots.len());
    for (nth, plot) in plots.iter().enumerate() {
        plot::figure(out, &format!("{name}-plot-{nth}"), plot);
    }
    out.push_str("</div>");
    for part in tables {
        table(out, part);
    }
    out.push_str("</div>");
    for remark in remarks {
        put!(out, "<p>{}</p>", escape(remark));
    }
    put!(
        out,
        "<p class=\"about\"><b>The published file says</b> (bench/published/{name}.csv): {}</p></section>",
        escape(about)
    );
}

/// What was not run, and why: each reason once, with the candidates and cases it kept from running.
fn write_not_run(out: &mut String, figures: &Figures, bench: &str) {
    let mut reasons: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for row in figures.rows(bench) {
        if let Some(why) = &row.not_run {
            let cases = reasons.entry((&row.candidate, why)).or_default();
            if !cases.contains(&row.case.as_str()) {
                cases.push(&row.case);
            }
        }
    }
    put!(out, "<h3 id=\"{bench}-not-run\">What was not run</h3>");
    if figures.rows(bench).next().is_none() {
        put!(out, "<p>All of it: no figures of ‘{bench}’ were given.</p>");
        return;
    }
    for doubled in figures.doubled.iter().filter(|said| said.contains(&format!("of {bench} is"))) {
        put!(out, "<p>{}</p>", escape(doubled));
    }
    if reasons.is_empty() {
        out.push_str("<p>Every candidate of every case in these runs gave its figures.</p>");
        return;
    }
    let line = |((candidate, why), cases): (&(&str, &str), &Vec<&str>)| {
        Line::of(candidate, vec![Cell::text(*why), Cell::text(cases.join("; "))])
    };
    let lines = reasons.iter().map(line).collect();
    let columns = vec![Column::text("why", Over::Nothing), Column::text("cases", Over::Nothing)];
    let id = format!("{bench}-not-run-table");
    let groups = vec![Group::plain(lines)];
    table(out, &Table::new(&id, "Candidates without figures", "candidate", columns, groups));
}
