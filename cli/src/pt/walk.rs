//! `longshore pt walk`.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use longshore::mem::Iova;
use longshore::pagetable::TraceStep;
use longshore::pagetable::format::{Entry, Format};
use longshore::pagetable::{Mapping, Trace, Walker};
use serde_json::{Value, json};

use super::args::WalkArgs;
use super::entry::{entry_json, entry_line, prot_words};
use super::format::{level_label, size, with_format};
use super::image::FileImage;
use super::{check_iova, hex, root_table, tell};
use crate::exit::told;

/// The result of a walk.
struct Outcome {
    steps: Vec<TraceStep>,
    mapping: Option<Mapping>,
    /// The exit code and the reason, if there is no mapping.
    ended: Option<(u8, String)>,
}

pub(super) fn run(args: &WalkArgs) -> Result<()> {
    let any = args.format.set_up()?;
    let iova = Iova::new(args.iova.0);
    let image = FileImage::open(&args.image)?;
    let (text, json, ended) = with_format!(&any, format => {
        check_iova(format, iova)?;
        let root = root_table(format, args.image.root)?;
        let steps: Vec<TraceStep> = Trace::new(format, &image, root, iova)?.collect();
        let mapping = Walker::new(format, &image, root).lookup(iova)?;
        image.check()?;
        let ended = why_not(format, &image, iova, &steps);
        let outcome = Outcome { steps, mapping, ended };
        let text = as_text(format, iova, &outcome).context("writing")?;
        (text, as_json(format, iova, &outcome), outcome.ended)
    });
    tell(args.json, &text, &json)?;
    match ended {
        Some((code, message)) => Err(told(code, message)),
        None => Ok(()),
    }
}

/// Returns the exit code and the reason, if the walk found no leaf.
fn why_not<F: Format>(
    format: &F,
    image: &FileImage,
    iova: Iova,
    steps: &[TraceStep],
) -> Option<(u8, String)> {
    let last = steps.last()?;
    let (level, table) = (level_label(format, last.level), last.table.raw());
    let what = match last.entry {
        Some((_, Entry::Leaf(_))) => return None,
        Some((_, Entry::Absent)) => "absent",
        Some(_) => "reserved",
        None => {
            // In 128 bits, because the address of an entry may exceed 2^64.
            let at = u128::from(table) + 8 * last.index as u128;
            let message = format!(
                "entry {} of the table at {table:#x} ({level}) is at {at:#x}, which is not in the \
                 image: {}",
                last.index,
                image.extent()
            );
            return Some((15, message));
        }
    };
    let index = last.index;
    let message = format!(
        "{iova:#x} is not mapped: entry {index} of the table at {table:#x} ({level}) is {what}"
    );
    Some((18, message))
}

fn as_text<F: Format>(
    format: &F,
    iova: Iova,
    outcome: &Outcome,
) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    for step in &outcome.steps {
        let label = level_label(format, step.level);
        write!(text, "{label:<9}  table {:#014x}  [{:>4}]  ", step.table.raw(), step.index)?;
        match step.entry {
            Some((entry, decoded)) => {
                writeln!(
                    text,
                    "{entry:#018x}  {}",
                    entry_line(format, step.level, entry, decoded)
                )?;
            }
            None => writeln!(text, "{:<18}  not in the image", "-")?,
        }
    }
    if let Some(mapping) = outcome.mapping {
        let bus = mapping.translate(iova).unwrap_or(mapping.bus);
        let (page, words) = (size(mapping.page_log2), prot_words(mapping.prot).join(", "));
        let dirty = if mapping.dirty { ", dirty" } else { "" };
        writeln!(text, "{iova:#x} -> {bus:#x}: {page} from {:#x}, {words}{dirty}", mapping.iova)?;
    }
    Ok(text)
}

fn as_json<F: Format>(format: &F, iova: Iova, outcome: &Outcome) -> Value {
    let steps: Vec<Value> = outcome
        .steps
        .iter()
        .map(|step| {
            let entry = step.entry.map(|(entry, _)| hex(entry));
            let is =
                step.entry.map(|(entry, decoded)| entry_json(format, step.level, entry, decoded));
            json!({
                "level": F::LEVEL_NAMES[step.level as usize],
                "table": hex(step.table.raw()),
                "index": step.index,
                "entry": entry,
                "is": is,
            })
        })
        .collect();
    let mapping = outcome.mapping.map(|mapping| {
        json!({
            "bus": hex(mapping.translate(iova).unwrap_or(mapping.bus).raw()),
            "page_iova": hex(mapping.iova.raw()),
            "page_bus": hex(mapping.bus.raw()),
            "page_bytes": 1u64 << mapping.page_log2,
            "permissions": prot_words(mapping.prot),
            "dirty": format.dirty_test().map(|_| mapping.dirty),
        })
    });
    json!({
        "format": F::NAME,
        "iova": hex(iova.raw()),
        "steps": steps,
        "mapping": mapping,
        "ended": outcome.ended.as_ref().map(|(_, why)| why),
        "exit_code": outcome.ended.as_ref().map_or(0, |(code, _)| *code),
    })
}
