//! `longshore pt decode` and `longshore pt index`.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use longshore::mem::Iova;
use longshore::pagetable::Prot;
use longshore::pagetable::format::{Entry, Field, Format};
use serde_json::{Value, json};

use super::args::{DecodeArgs, IndexArgs};
use super::format::{level_label, level_of, size, with_format};
use super::{check_iova, hex, tell};

/// The permissions and their names.
const WORDS: [(Prot, &str); 6] = [
    (Prot::READ, "read"),
    (Prot::WRITE, "write"),
    (Prot::EXECUTE, "execute"),
    (Prot::PRIVILEGED, "privileged"),
    (Prot::COHERENT, "coherent"),
    (Prot::DEVICE, "device"),
];

/// Returns the names of permissions.
pub(super) fn prot_words(prot: Prot) -> Vec<&'static str> {
    WORDS.into_iter().filter(|(flag, _)| prot.contains(*flag)).map(|(_, word)| word).collect()
}

/// Describes an entry in one line.
pub(super) fn entry_line<F: Format>(format: &F, level: u32, entry: u64, decoded: Entry) -> String {
    match decoded {
        Entry::Absent => "absent".into(),
        Entry::Reserved => "reserved".into(),
        Entry::Table(table) => format!("table {:#x}", table.raw()),
        Entry::Leaf(leaf) => {
            let geometry = format.geometry();
            let page_log2 = geometry.shift(level) + leaf.run_log2;
            let bus = leaf.bus.raw() & (u64::MAX << page_log2);
            let dirty = if is_dirty(format, entry) == Some(true) { " dirty" } else { "" };
            format!("{} -> {bus:#x} {}{dirty}", size(page_log2), format.prot(entry))
        }
    }
}

/// Describes an entry as JSON.
pub(super) fn entry_json<F: Format>(format: &F, level: u32, entry: u64, decoded: Entry) -> Value {
    match decoded {
        Entry::Absent => json!({ "kind": "absent" }),
        Entry::Reserved => json!({ "kind": "reserved" }),
        Entry::Table(table) => json!({ "kind": "table", "table": hex(table.raw()) }),
        Entry::Leaf(leaf) => {
            let shift = format.geometry().shift(level);
            json!({
                "kind": "leaf",
                "page_bytes": 1u64 << (shift + leaf.run_log2),
                "entries": 1u64 << leaf.run_log2,
                "bus": hex(leaf.bus.raw()),
                "permissions": prot_words(format.prot(entry)),
                "dirty": is_dirty(format, entry),
            })
        }
    }
}

fn is_dirty<F: Format>(format: &F, entry: u64) -> Option<bool> {
    Some(format.dirty_test()?.matches(entry))
}

/// Returns the fields of an entry, the highest bits first, and the bits that belong to no field.
fn fields_of<F: Format>(format: &F, level: u32, entry: u64) -> (Vec<Field>, u64) {
    let mut fields: Vec<Field> =
        format.fields(level, entry).iter().flat_map(|group| group.iter().copied()).collect();
    fields.sort_by_key(|field| std::cmp::Reverse(field.high));
    let named = fields.iter().fold(0, |named, field| named | field.mask());
    (fields, entry & !named)
}

fn bits(field: &Field) -> String {
    if field.high == field.low {
        field.high.to_string()
    } else {
        format!("{}:{}", field.high, field.low)
    }
}

pub(super) fn decode(args: &DecodeArgs) -> Result<()> {
    let any = args.format.set_up()?;
    let entry = args.entry.0;
    let (text, json) = with_format!(&any, format => {
        let level = match &args.level {
            Some(name) => level_of(format, name)?,
            None => 0,
        };
        (decoded_text(format, level, entry).context("writing")?, decoded_json(format, level, entry))
    });
    tell(args.json, &text, &json)
}

fn decoded_text<F: Format>(format: &F, level: u32, entry: u64) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    let geometry = format.geometry();
    let decoded = format.decode(level, entry);
    writeln!(text, "{entry:#018x}: {}, {}", F::NAME, level_label(format, level))?;
    match decoded {
        Entry::Absent => writeln!(text, "  kind         absent: a walk ends here")?,
        Entry::Reserved => writeln!(text, "  kind         reserved: a walk ends here")?,
        Entry::Table(table) => {
            writeln!(text, "  kind         table of {}", level_label(format, level - 1))?;
            writeln!(text, "  address      {:#x}", table.raw())?;
        }
        Entry::Leaf(leaf) => {
            let page_log2 = geometry.shift(level) + leaf.run_log2;
            write!(text, "  kind         leaf, {}", size(page_log2))?;
            if leaf.run_log2 > 0 {
                write!(text, ", one of {} entries", 1u64 << leaf.run_log2)?;
            }
            writeln!(text, "\n  address      {:#x}", leaf.bus)?;
            let prot = format.prot(entry);
            writeln!(text, "  permissions  {prot} ({})", prot_words(prot).join(", "))?;
            if let Some(dirty) = is_dirty(format, entry) {
                writeln!(text, "  dirty        {}", if dirty { "yes" } else { "no" })?;
            }
        }
    }
    let (fields, unnamed) = fields_of(format, level, entry);
    let width = fields.iter().map(|field| field.name.len()).max().unwrap_or(0);
    for field in &fields {
        let value = field.value(entry);
        let meaning = field.meaning(entry).map_or_else(String::new, |it| format!("  {it}"));
        writeln!(text, "  [{:>5}]  {:<width$}  {value:#x}{meaning}", bits(field), field.name)?;
    }
    if unnamed != 0 {
        writeln!(text, "  set bits that belong to no field: {unnamed:#x}")?;
    }
    Ok(text)
}

fn decoded_json<F: Format>(format: &F, level: u32, entry: u64) -> Value {
    let (fields, unnamed) = fields_of(format, level, entry);
    let fields: Vec<Value> = fields
        .iter()
        .map(|field| {
            json!({
                "name": field.name,
                "high": field.high,
                "low": field.low,
                "value": hex(field.value(entry)),
                "meaning": field.meaning(entry),
            })
        })
        .collect();
    json!({
        "format": F::NAME,
        "level": F::LEVEL_NAMES[level as usize],
        "entry": hex(entry),
        "is": entry_json(format, level, entry, format.decode(level, entry)),
        "fields": fields,
        "unnamed_bits": hex(unnamed),
    })
}

pub(super) fn index(args: &IndexArgs) -> Result<()> {
    let any = args.format.set_up()?;
    let iova = Iova::new(args.iova.0);
    let (text, json) = with_format!(&any, format => {
        check_iova(format, iova)?;
        (index_text(format, iova).context("writing")?, index_json(format, iova))
    });
    tell(args.json, &text, &json)
}

/// Returns the levels from the root downwards: level, highest and lowest bit, index.
fn indices<F: Format>(format: &F, iova: Iova) -> Vec<(u32, u32, u32, usize)> {
    let geometry = format.geometry();
    let va = geometry.va(iova).unwrap_or_default();
    (0..geometry.levels())
        .rev()
        .map(|level| {
            let low = geometry.shift(level);
            (level, low + geometry.slots_log2(level) - 1, low, geometry.index(level, va))
        })
        .collect()
}

fn index_text<F: Format>(format: &F, iova: Iova) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    let geometry = format.geometry();
    let granule = size(geometry.granule_log2());
    writeln!(text, "{iova:#x}: {}, {granule} pages, {} bits", F::NAME, geometry.input_bits())?;
    for (level, high, low, index) in indices(format, iova) {
        let (label, bits) = (level_label(format, level), format!("[{high}:{low}]"));
        writeln!(text, "  {label:<9}  {bits:<8} {index:>5} = {index:#05x}  {} a slot", size(low))?;
    }
    let below = geometry.granule_log2();
    let bits = format!("[{}:0]", below - 1);
    let offset = iova.raw() & ((1 << below) - 1);
    writeln!(text, "  {:<9}  {bits:<8} {offset:>5} = {offset:#x}", "offset")?;
    Ok(text)
}

fn index_json<F: Format>(format: &F, iova: Iova) -> Value {
    let levels: Vec<Value> = indices(format, iova)
        .into_iter()
        .map(|(level, high, low, index)| {
            json!({
                "level": F::LEVEL_NAMES[level as usize],
                "high": high,
                "low": low,
                "index": index,
                "slot_log2": low,
            })
        })
        .collect();
    let below = (1u64 << format.geometry().granule_log2()) - 1;
    json!({
        "format": F::NAME,
        "iova": hex(iova.raw()),
        "levels": levels,
        "offset": iova.raw() & below,
    })
}
