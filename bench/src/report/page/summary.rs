//! The first screen: the main ratios, and links to their chapters.

use super::super::contents::{Better, Chapter, Contents, Headline, PublishedValue, Value};
use super::super::figures::Figures;
use super::super::html::{escape, put};
use super::super::number;
use super::super::table::{Missing, Range};
use super::goals::{self, Verdicts};
use super::machines;
use crate::harness::published;

pub(super) fn write(
    out: &mut String,
    contents: &Contents,
    figures: &Figures,
    verdicts: &[Verdicts],
) {
    out.push_str("<header class=\"top\"><h1>Longshore, measured</h1>");
    out.push_str(
        "<p class=\"lead\">Published tables beside ours, and the programs people use today.</p>",
    );
    if let Some(machine) = machines::sentence(figures) {
        put!(out, "<p class=\"origin\">{}</p>", escape(&machine));
    }
    let (words, bar) = goals::tally(verdicts, None);
    put!(out, r#"<p class="goals"><b>{words}</b>{bar}</p>"#);
    out.push_str(r#"<nav aria-label="Chapters"><ul class="cards">"#);
    for Chapter { bench, title, headlines, .. } in &contents.chapters {
        put!(out, r##"<li class="card"><h2><a href="#{bench}">{title}</a></h2><dl>"##);
        for headline in headlines {
            write_one(out, figures, bench, headline);
        }
        let (words, bar) = goals::tally(verdicts, Some(bench));
        put!(out, r##"</dl><p class="goals"><a href="#{bench}-goals">{words}</a>{bar}</p></li>"##);
    }
    out.push_str("</ul></nav>");
    out.push_str("<p class=\"key\">A ratio is the median of rounds in which the candidates alternated, with the lowest and the highest in parentheses. It is grey if Longshore is behind. <span class=\"pub\">Published</span> figures come from other machines: only ratios are compared. <a href=\"#machines\">Machines and programs</a></p></header>");
}

fn write_one(out: &mut String, figures: &Figures, bench: &str, headline: &Headline) {
    let words = escape(&headline.words);
    out.push_str("<div>");
    match counted(figures, bench, &headline.value) {
        Ok((ratio, low, high)) => {
            let is_behind = match headline.better {
                Better::More => ratio < 1.0,
                Better::Less => ratio > 1.0,
            };
            let class = if is_behind { " class=\"behind\"" } else { "" };
            put!(out, "<dt{class}>{}<i>×</i></dt><dd>{words}", number::figure(ratio));
            if let Some(spread) = number::spread(low, high, number::figure) {
                put!(out, " <small>({spread})</small>");
            }
        }
        Err(Missing { word, why }) => {
            let why = escape(&why);
            put!(out, "<dt class=\"without\">{word}</dt><dd>{words} <small>({why})</small>");
        }
    }
    if let Some(published) = headline.published.as_ref().and_then(published) {
        put!(out, " <span class=\"pub\">published {}×</span>", number::figure(published));
    }
    out.push_str("</dd></div>");
}

/// Returns a ratio with its spread, or the reason why it must not be used.
fn counted(figures: &Figures, bench: &str, value: &Value) -> Result<Range, Missing> {
    if figures.is_quick(bench) {
        return Err(Missing::not_run("figures of --quick are not used"));
    }
    let case = value.case.as_deref().unwrap_or_default();
    if let Some(why) = figures.case(bench, case).iter().find_map(|row| row.not_measured.as_ref()) {
        return Err(Missing { word: "not measured", why: why.clone() });
    }
    value.measured(figures, bench, case, "")
}

fn published(of: &PublishedValue) -> Option<f64> {
    let csv = published::read(&of.file).ok()?;
    let lines: Vec<_> = csv.lines.iter().collect();
    let line = lines.iter().find(|line| line[0] == of.line)?;
    Some(of.value.published(&csv, &lines, line, &[])?.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::{kept, read};
    use super::*;
    use crate::harness::metric::SPEED;

    #[test]
    fn figures_of_quick_or_unmeasured_cases_are_no_headline() {
        let value = Value {
            ratio: Some(SPEED.name.to_owned()),
            case: Some("cold".to_owned()),
            candidate: Some("longshore".to_owned()),
            ..Value::default()
        };
        let counted_of = |quick: bool, not_measured: Option<&str>| {
            let environment = json!({"bench": "load", "environment": {"quick": quick}});
            let row = json!({
                "bench": "load", "case": "cold", "candidate": "longshore", "metric": "speed",
                "unit": "", "runs": 5, "median": 2.0, "baseline": "fio", "ratio": 0.9,
                "not_measured": not_measured,
            });
            let lines = format!("{environment}\n{row}");
            let run = read::lines(lines.as_bytes(), "x", "x").unwrap();
            counted(&Figures::new(vec![run]), "load", &value)
        };
        assert_eq!(counted_of(false, None), Ok((0.9, 0.9, 0.9)));
        assert_eq!(counted_of(true, None).unwrap_err().word, "not run");
        let why = "fio did not run".to_owned();
        let without_fio = counted_of(false, Some(&why));
        assert_eq!(without_fio, Err(Missing { word: "not measured", why }));
    }

    #[test]
    fn every_headline_has_a_figure_and_its_published_one() {
        let (contents, figures) = (Contents::read().unwrap(), kept());
        for chapter in &contents.chapters {
            for Headline { value, published: of, words, .. } in &chapter.headlines {
                assert!(counted(&figures, &chapter.bench, value).is_ok(), "{words}");
                assert!(of.as_ref().is_none_or(|of| published(of).is_some()), "{words}");
            }
        }
        let access = contents.chapters.iter().find(|chapter| chapter.bench == "access").unwrap();
        let first = access.headlines[0].published.as_ref().unwrap();
        assert_eq!(published(first), Some(1198.0 / 993.0));
    }
}
