//! The page: a summary of one screen, a chapter for each bench, the machines.

mod cases;
mod chapter;
mod featured;
mod goals;
mod machines;
mod summary;

use anyhow::Result;

use super::figures::Figures;
use super::html::put;

const STYLE: &str = include_str!("../style.css");
/// Nothing is loaded and nothing runs, whatever a figure's note says: the browser holds to it.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// What a chapter says of its bench.
struct Chapter {
    bench: &'static str,
    title: &'static str,
    text: &'static str,
    /// Its committed goals, as JSON.
    goals: &'static str,
}

const CHAPTERS: [Chapter; 5] = [
    Chapter {
        bench: "load",
        title: "Files into buffers",
        text: "Model weights and other large files into memory that a device or many processes can share: from the disk, from the page cache, beside the disk’s own limit and the loaders that people use.",
        goals: include_str!("../../../goals/load.json"),
    },
    Chapter {
        bench: "iov",
        title: "Cursors over memory",
        text: "One cursor for every kind of memory: what a walk costs, and copies, checksums and digests in bytes for each cycle of the core.",
        goals: include_str!("../../../goals/iov.json"),
    },
    Chapter {
        bench: "pagetable",
        title: "IO page tables",
        text: "Mapping, unmapping and looking up in the tables that an IOMMU walks. C: the walker snoops caches; NC: it does not, and changed lines are cleaned.",
        goals: include_str!("../../../goals/pagetable.json"),
    },
    Chapter {
        bench: "access",
        title: "Memory by IOVA",
        text: "A device model’s reads and writes at addresses that a driver mapped: translated, checked, and safe against unmapping at the same time. Cycles are those of the time-stamp counter.",
        goals: include_str!("../../../goals/access.json"),
    },
    Chapter {
        bench: "bounce",
        title: "Mappings and bounce buffers",
        text: "Memory for a device: mapped for each transfer, or copied through buffers that stay mapped. On the host over page tables of the process, and in a guest for an NVMe behind two virtual IOMMUs.",
        goals: include_str!("../../../goals/bounce.json"),
    },
];

/// The whole page.
///
/// # Errors
/// Where what is committed cannot be read: a published table, a goals file.
pub(super) fn document(figures: &Figures) -> Result<String> {
    let mut out = String::with_capacity(1 << 20);
    out.push_str("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">");
    put!(out, "<meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">");
    out.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    out.push_str("<meta name=\"color-scheme\" content=\"light dark\">");
    put!(out, "<title>Longshore, measured</title><style>{STYLE}</style></head><body>");
    out.push_str("<a class=\"skip\" href=\"#load\">To the figures</a>");
    let verdicts = goals::of_all(figures)?;
    summary::write(&mut out, figures, &verdicts);
    out.push_str("<main>");
    for chapter in &CHAPTERS {
        chapter::write(&mut out, figures, chapter, &verdicts)?;
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

    use super::super::read::Run;
    use super::super::{BENCHES, KEPT, read};
    use super::*;
    use crate::harness::Row;

    fn kept() -> Figures {
        Figures::new(KEPT.iter().map(|name| read::kept(name).unwrap()).collect())
    }

    #[test]
    fn every_bench_has_its_chapter() {
        assert!(CHAPTERS.iter().map(|chapter| chapter.bench).eq(BENCHES));
    }

    #[test]
    fn links_lead_to_elements_that_are_there_once() {
        let page = document(&kept()).unwrap();
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
        let page = document(&kept()).unwrap();
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
        let page = document(&Figures::new(vec![run])).unwrap();
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
        let page = document(&Figures::default()).unwrap();
        assert!(page.contains("not run") && page.contains("id=\"bounce\""));
        assert!(!page.contains("NaN") && !page.contains(">inf"));
    }

    #[test]
    fn no_cell_is_empty() {
        for page in [document(&kept()).unwrap(), document(&Figures::default()).unwrap()] {
            for end in ["</td>", "</th>"] {
                for cell in page.split(end) {
                    let tail: String = cell.chars().rev().take(200).collect();
                    assert!(!tail.starts_with(">\""), "{}", tail.chars().rev().collect::<String>());
                }
            }
        }
    }
}
