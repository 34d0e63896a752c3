//! The page: a summary of one screen, a chapter for each bench, the machines.

mod cases;
mod chapter;
mod goals;
mod machines;
mod summary;

use anyhow::Result;

use super::contents::Contents;
use super::figures::Figures;
use super::html::put;

const STYLE: &str = include_str!("../style.css");
/// Nothing is loaded and nothing runs, whatever a figure's note says: the browser holds to it.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// The whole page.
///
/// # Errors
/// Where what is committed cannot be read: a published table, a goals file.
pub(super) fn document(contents: &Contents, figures: &Figures) -> Result<String> {
    let mut out = String::with_capacity(1 << 20);
    out.push_str("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">");
    put!(out, "<meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">");
    out.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    out.push_str("<meta name=\"color-scheme\" content=\"light dark\">");
    put!(out, "<title>Longshore, measured</title><style>{STYLE}</style></head><body>");
    out.push_str("<a class=\"skip\" href=\"#load\">To the figures</a>");
    let verdicts = goals::of_all(figures)?;
    summary::write(&mut out, contents, figures, &verdicts);
    out.push_str("<main>");
    for chapter in &contents.chapters {
        chapter::write(&mut out, contents, figures, chapter, &verdicts)?;
    }
    machines::write(&mut out, figures);
    out.push_str("</main><footer><p>Written by ");
    put!(out, "longshore-bench {}", env!("CARGO_PKG_VERSION"));
    out.push_str(" report. The page loads nothing and runs nothing.</p></footer></body></html>\n");
    Ok(out)
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};

    use super::super::kept;
    use super::super::read::Run;
    use super::*;
    use crate::harness::Row;

    fn page(figures: &Figures) -> String {
        document(&Contents::read().unwrap(), figures).unwrap()
    }

    #[test]
    fn links_lead_to_elements_that_are_there_once() {
        let page = page(&kept());
        let names = |marker: &str| -> Vec<String> {
            let after = page.split(marker).skip(1);
            after.filter_map(|rest| Some(rest.split('"').next()?.to_owned())).collect()
        };
        let ids = names(" id=\"");
        let mut unique = ids.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(ids.len(), unique.len(), "names are given once");
        for link in names(" href=\"#") {
            assert!(unique.binary_search(&link).is_ok(), "#{link}");
        }
        for list in names(" aria-labelledby=\"") {
            for label in list.split(' ') {
                assert!(unique.binary_search(&label.to_owned()).is_ok(), "{label}");
            }
        }
    }

    #[test]
    fn the_page_needs_nothing_else() {
        let page = page(&kept());
        for word in [
            "<script", "<link", "<img", "<iframe", "@import", "url(", "http://", "https://",
            " src=",
        ] {
            assert!(!page.contains(word), "{word}");
        }
        assert!(page.len() < 4 << 20, "{} bytes", page.len());
    }

    #[test]
    fn what_runs_say_of_themselves_cannot_become_markup() {
        const HOSTILE: &str = "</td><script>alert(1)</script>\"' onload=x";
        let mut facts = Map::new();
        facts.insert(HOSTILE.to_owned(), Value::from(HOSTILE));
        facts.insert("date".to_owned(), Value::from(HOSTILE));
        facts.insert("disk".to_owned(), serde_json::json!({HOSTILE: [HOSTILE, {"x": HOSTILE}]}));
        let row = |case: &str, candidate: &str| Row {
            metric: HOSTILE.to_owned(),
            unit: HOSTILE.to_owned(),
            median: Some(1.0),
            ratio: Some(1.0),
            baseline: Some(HOSTILE.to_owned()),
            note: Some(HOSTILE.to_owned()),
            not_measured: Some(HOSTILE.to_owned()),
            not_run: None,
            ..Row::not_run("load", case, candidate, "")
        };
        let mut rows = vec![row(HOSTILE, HOSTILE), row("cold", "longshore")];
        rows.push(Row { metric: "speed".to_owned(), ..row("cold", "fio") });
        rows.push(Row::not_run("load", "cold", HOSTILE, HOSTILE));
        let run = Run {
            name: HOSTILE.to_owned(),
            environments: vec![("load".to_owned(), facts)],
            rows: rows.into_iter().map(|row| (row, 0)).collect(),
            trouble: Some(HOSTILE.to_owned()),
        };
        let page = page(&Figures::new(vec![run]));
        assert!(!page.contains("<script"), "a script came through");
        assert!(page.contains("&lt;script&gt;alert(1)"), "it is there as text");
        let tags = page.split('<').skip(1).filter_map(|tag| tag.split('>').next());
        for tag in tags {
            let outside: String = tag.split('"').step_by(2).collect();
            assert!(!outside.contains("onload"), "{tag}");
        }
    }

    #[test]
    fn without_any_figure_there_is_a_page_all_the_same() {
        let page = page(&Figures::default());
        assert!(page.contains("not run") && page.contains("id=\"bounce\""));
        assert!(!page.contains("NaN") && !page.contains(">inf"));
    }

    #[test]
    fn no_cell_is_empty() {
        for page in [page(&kept()), page(&Figures::default())] {
            for end in ["</td>", "</th>"] {
                for cell in page.split(end) {
                    let tail: String = cell.chars().rev().take(200).collect();
                    assert!(!tail.starts_with(">\""), "{}", tail.chars().rev().collect::<String>());
                }
            }
        }
    }
}
