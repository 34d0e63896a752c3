//! The page: a summary that fits on a screen, a chapter for each bench, the machines.

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
/// The browser loads and runs nothing, whatever text a figure's note contains.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// Returns the whole page.
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
    out.push_str(
        " report. The page loads nothing and runs no scripts.</p></footer></body></html>\n",
    );
    Ok(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::read;
    use super::*;

    #[test]
    fn the_text_of_a_run_cannot_become_markup() {
        const HOSTILE: &str = "</td><script>alert(1)</script>\"' onload=x";
        let facts = json!({HOSTILE: HOSTILE, "date": HOSTILE, "disk": {HOSTILE: [HOSTILE]}});
        let mut lines = json!({"bench": "load", "environment": facts}).to_string();
        for (case, candidate, metric) in
            [(HOSTILE, HOSTILE, HOSTILE), ("cold", "longshore", HOSTILE), ("cold", "fio", "speed")]
        {
            let row = json!({
                "bench": "load", "case": case, "candidate": candidate, "metric": metric,
                "unit": HOSTILE, "runs": 1, "median": 1.0, "ratio": 1.0, "baseline": HOSTILE,
                "note": HOSTILE, "not_measured": HOSTILE,
            });
            let not_run = json!({
                "bench": "load", "case": case, "candidate": HOSTILE, "metric": "", "unit": "",
                "runs": 0, "not_run": HOSTILE,
            });
            put!(lines, "\n{row}\n{not_run}");
        }
        let mut run = read::lines(lines.as_bytes(), HOSTILE, "").unwrap();
        run.trouble = Some(HOSTILE.to_owned());
        let figures = Figures::new(vec![run]);
        let page = document(&Contents::read().unwrap(), &figures).unwrap();
        assert!(!page.contains("<script"), "the page contains a script");
        assert!(page.contains("&lt;script&gt;alert(1)"), "the script is shown as text");
        for tag in page.split('<').skip(1).filter_map(|tag| tag.split('>').next()) {
            let outside: String = tag.split('"').step_by(2).collect();
            assert!(!outside.contains("onload"), "{tag}");
        }
    }

    #[test]
    fn a_page_without_figures_is_complete() {
        let page = document(&Contents::read().unwrap(), &Figures::default()).unwrap();
        assert!(page.contains("not run") && page.contains("id=\"bounce\""));
        assert!(!page.contains("NaN") && !page.contains(">inf"));
    }
}
