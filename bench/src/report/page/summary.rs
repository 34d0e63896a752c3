//! The first screen: what the figures come to, and where each is.

use super::super::figures::{Figures, Key};
use super::super::html::{escape, put};
use super::super::number;
use super::super::published;
use super::goals::{self, Verdicts};
use super::{CHAPTERS, machines};

/// One ratio of the summary.
struct Headline {
    bench: &'static str,
    case: &'static str,
    candidate: &'static str,
    metric: &'static str,
    baseline: &'static str,
    /// What the ratio is of, after the number.
    words: &'static str,
    more_is_better: bool,
    published: Option<Published>,
}

/// Which published figure a headline is seen beside.
#[derive(Clone, Copy)]
struct Published {
    table: &'static str,
    /// The first field of its line, and its column.
    at: (&'static str, usize),
    /// What it is divided by, in the same table.
    over: Option<(&'static str, usize)>,
}

const HEADLINES: [Headline; 15] = [
    Headline {
        bench: "load",
        case: "cold",
        candidate: "longshore",
        metric: "speed",
        baseline: "fio",
        words: "of the disk’s limit, cold",
        more_is_better: true,
        published: None,
    },
    Headline {
        bench: "load",
        case: "cold",
        candidate: "longshore",
        metric: "speed",
        baseline: "best peer",
        words: "the speed of the best other loader",
        more_is_better: true,
        published: None,
    },
    Headline {
        bench: "load",
        case: "schemes/3GB",
        candidate: "longshore auto",
        metric: "time",
        baseline: "normal",
        words: "the time of the normal way, 3\u{a0}GB",
        more_is_better: false,
        published: Some(Published {
            table: "file_to_dmabuf",
            at: ("alloc+read async direct (patch 1-4)", 4),
            over: Some(("normal (dma-heap + mmap + buffered read)", 4)),
        }),
    },
    Headline {
        bench: "iov",
        case: "kinds, pool",
        candidate: "PageVec",
        metric: "time",
        baseline: "OwnVec",
        words: "the time of one’s own memory, through pages",
        more_is_better: false,
        published: Some(Published { table: "iov_copy", at: ("bvec", 5), over: Some(("kvec", 5)) }),
    },
    Headline {
        bench: "iov",
        case: "copy, DRAM",
        candidate: "longshore",
        metric: "speed",
        baseline: "memcpy",
        words: "the speed of memcpy, beyond the caches",
        more_is_better: true,
        published: None,
    },
    Headline {
        bench: "iov",
        case: "copy+checksum, DRAM",
        candidate: "longshore",
        metric: "speed",
        baseline: "memcpy",
        words: "the speed of memcpy, with a checksum",
        more_is_better: true,
        published: None,
    },
    Headline {
        bench: "pagetable",
        case: "before and after, 1MB",
        candidate: "one sync per entry",
        metric: "time",
        baseline: "one sync per run",
        words: "the time with a sync per entry, 1\u{a0}MB",
        more_is_better: true,
        published: Some(Published {
            table: "unmap_latency",
            at: ("1MB", 1),
            over: Some(("1MB", 2)),
        }),
    },
    Headline {
        bench: "pagetable",
        case: "map 4K",
        candidate: "VT-d second stage, C",
        metric: "time",
        baseline: "x86_64",
        words: "the time of x86_64’s tables to map a page",
        more_is_better: false,
        published: None,
    },
    Headline {
        bench: "pagetable",
        case: "unmap 4K",
        candidate: "VT-d second stage, C",
        metric: "time",
        baseline: "x86_64",
        words: "the same to unmap it",
        more_is_better: false,
        published: None,
    },
    Headline {
        bench: "access",
        case: "schemes, mix, 1 VM",
        candidate: "longshore",
        metric: "cycles",
        baseline: "untranslated",
        words: "the cycles of untranslated access",
        more_is_better: false,
        published: Some(Published {
            table: "iova_access",
            at: ("vfio_dma_rw (references held)", 4),
            over: Some(("kvm_read_page/kvm_write_page", 4)),
        }),
    },
    Headline {
        bench: "access",
        case: "mix, hot, 16 maps",
        candidate: "longshore",
        metric: "cycles",
        baseline: "plain copy",
        words: "the cycles of a plain copy",
        more_is_better: false,
        published: None,
    },
    Headline {
        bench: "access",
        case: "mix, hot, 16 maps",
        candidate: "longshore",
        metric: "cycles",
        baseline: "vm-memory 0.18, 1 region, get_slice",
        words: "the cycles of vm-memory 0.18 at its shortest",
        more_is_better: false,
        published: None,
    },
    Headline {
        bench: "bounce",
        case: "guest, virtio-iommu, 4k, depth 64",
        candidate: "bounce",
        metric: "speed",
        baseline: "map + unmap",
        words: "the throughput of mapping, 4\u{a0}KiB",
        more_is_better: true,
        published: Some(Published { table: "bounce", at: ("4k", 1), over: None }),
    },
    Headline {
        bench: "bounce",
        case: "guest, virtio-iommu, 128k, depth 64",
        candidate: "bounce",
        metric: "speed",
        baseline: "map + unmap",
        words: "the same, 128\u{a0}KiB",
        more_is_better: true,
        published: Some(Published { table: "bounce", at: ("128k", 1), over: None }),
    },
    Headline {
        bench: "bounce",
        case: "bounce 4K",
        candidate: "longshore",
        metric: "time",
        baseline: "the copies alone",
        words: "the time of the copies alone, on the host",
        more_is_better: false,
        published: None,
    },
];

pub(super) fn write(out: &mut String, figures: &Figures, verdicts: &[Verdicts]) {
    out.push_str("<header class=\"top\"><h1>Longshore, measured</h1>");
    out.push_str(
        "<p class=\"lead\">Published tables beside ours, and the programs people use today.</p>",
    );
    if let Some(machine) = machines::sentence(figures) {
        put!(out, "<p class=\"origin\">{}</p>", escape(&machine));
    }
    let all = goals::tally(verdicts, None);
    put!(out, "<p class=\"goals\"><b>{}</b>", all.words());
    all.bar(out);
    out.push_str("</p><nav aria-label=\"Chapters\"><ul class=\"cards\">");
    for chapter in &CHAPTERS {
        let bench = chapter.bench;
        put!(out, "<li class=\"card\"><h2><a href=\"#{bench}\">{}</a></h2><dl>", chapter.title);
        for headline in HEADLINES.iter().filter(|headline| headline.bench == bench) {
            write_one(out, figures, headline);
        }
        let tally = goals::tally(verdicts, Some(bench));
        put!(out, "</dl><p class=\"goals\"><a href=\"#{bench}-goals\">{}</a>", tally.words());
        tally.bar(out);
        out.push_str("</p></li>");
    }
    out.push_str("</ul></nav>");
    out.push_str("<p class=\"key\">A ratio is the median over rounds that ran by turns, with its lowest and highest in parentheses; in grey what is behind. <span class=\"pub\">Published</span> figures come from other machines: only ratios are compared. <a href=\"#machines\">Machines and programs</a></p></header>");
}

fn write_one(out: &mut String, figures: &Figures, headline: &Headline) {
    let Headline { bench, case, candidate, metric, baseline, words, more_is_better, .. } =
        *headline;
    let key = Key { bench, case, candidate, metric, baseline: Some(baseline) };
    out.push_str("<div>");
    match counted(figures, key) {
        Ok((ratio, low, high)) => {
            let behind = if more_is_better { ratio < 1.0 } else { ratio > 1.0 };
            let class = if behind { " class=\"behind\"" } else { "" };
            put!(out, "<dt{class}>{}<i>×</i></dt><dd>{words}", number::ratio(ratio));
            if let Some(spread) = number::spread(low, high, number::ratio) {
                put!(out, " <small>({spread})</small>");
            }
        }
        Err((word, why)) => {
            let why = escape(&why);
            put!(out, "<dt class=\"without\">{word}</dt><dd>{words} <small>({why})</small>");
        }
    }
    if let Some(published) = published_of(headline) {
        put!(out, " <span class=\"pub\">published {}×</span>", number::ratio(published));
    }
    out.push_str("</dd></div>");
}

/// A ratio that counts, with its spread; or a word and the reason why there is none.
fn counted(figures: &Figures, key: Key<'_>) -> Result<(f64, f64, f64), (&'static str, String)> {
    if figures.is_quick(key.bench) {
        return Err(("not run", "figures of --quick do not count".to_owned()));
    }
    let row = figures.find(key).map_err(|why| ("not run", why))?;
    if let Some(why) = &row.not_measured {
        return Err(("not measured", why.clone()));
    }
    figures
        .ratio_range(key)
        .ok_or_else(|| ("not run", format!("{} has no such ratio", key.candidate)))
}

/// The published ratio that a headline is seen beside.
fn published_of(headline: &Headline) -> Option<f64> {
    let Published { table, at, over } = headline.published?;
    let csv = published::read(table).ok()?;
    let field = |(line, column): (&str, usize)| {
        let line = csv.lines.iter().find(|fields| fields[0] == line)?;
        published::number(line.get(column)?)
    };
    let value = field(at)?;
    match over {
        None => Some(value),
        Some(over) => Some(value / field(over)?),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::read::Run;
    use super::super::super::{KEPT, read};
    use super::*;
    use crate::harness::Row;

    #[test]
    fn what_does_not_count_is_no_headline() {
        let key = Key {
            bench: "load",
            case: "cold",
            candidate: "longshore",
            metric: "speed",
            baseline: Some("fio"),
        };
        let counted_of = |quick: bool, not_measured: Option<&str>| {
            let row = Row {
                metric: "speed".to_owned(),
                median: Some(2.0),
                baseline: Some("fio".to_owned()),
                ratio: Some(0.9),
                not_measured: not_measured.map(str::to_owned),
                not_run: None,
                ..Row::not_run("load", "cold", "longshore", "")
            };
            let facts = serde_json::json!({"quick": quick}).as_object().unwrap().clone();
            let run = Run {
                name: "x".to_owned(),
                environments: vec![("load".to_owned(), facts)],
                rows: vec![(row, 0)],
                trouble: None,
            };
            counted(&Figures::new(vec![run]), key)
        };
        assert_eq!(counted_of(false, None), Ok((0.9, 0.9, 0.9)));
        assert_eq!(counted_of(true, None).unwrap_err().0, "not run");
        let without_fio = counted_of(false, Some("fio did not run"));
        assert_eq!(without_fio, Err(("not measured", "fio did not run".to_owned())));
    }

    #[test]
    fn every_headline_has_its_figure_and_its_published_one() {
        let figures = Figures::new(KEPT.iter().map(|name| read::kept(name).unwrap()).collect());
        for headline in &HEADLINES {
            let Headline { bench, case, candidate, metric, baseline, .. } = *headline;
            let key = Key { bench, case, candidate, metric, baseline: Some(baseline) };
            assert!(figures.ratio_range(key).is_some(), "{}: {}", headline.case, headline.words);
            assert_eq!(published_of(headline).is_some(), headline.published.is_some(), "{case}");
        }
        let first_vm = published_of(&HEADLINES[9]).unwrap();
        assert!((first_vm - 1198.0 / 993.0).abs() < 1e-9);
    }
}
