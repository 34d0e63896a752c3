//! `longshore pt formats`.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use clap::ValueEnum;
use longshore::mem::Granule;
use longshore::pagetable::format::Format;
use serde_json::{Value, json};

use super::args::{FormatArgs, FormatsArgs};
use super::format::{FormatName, size, with_format};
use super::tell;
use crate::units::Size;

pub(super) fn run(args: &FormatsArgs) -> Result<()> {
    let (mut text, mut json) = (String::new(), Vec::new());
    for name in FormatName::value_variants() {
        describe(*name, &mut text).context("writing")?;
        json.push(as_json(*name)?);
    }
    text += "The page sizes are those without options; --no-runs, --output-bits and --pages-512g \
             change them.\n";
    tell(args.json, &text, &json!({ "formats": json }))
}

/// Returns the base-2 logarithms of the page sizes for a granule.
fn page_sizes(name: FormatName, granule: Granule) -> Result<Vec<u32>> {
    let granule = Some(Size(granule.bytes()));
    let any = FormatArgs { granule, ..FormatArgs::plain(name) }.set_up()?;
    let sizes = with_format!(&any, format => format.geometry().page_sizes());
    Ok((0..64).filter(|log2| sizes >> log2 & 1 != 0).collect())
}

/// Formats numbers as `25 to 52` or `48, 57`.
fn bits(all: &[u32]) -> String {
    match all {
        [first, .., last] if *last as usize - *first as usize + 1 == all.len() && all.len() > 2 => {
            format!("{first} to {last}")
        }
        _ => all.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
    }
}

fn describe(name: FormatName, text: &mut String) -> Result<()> {
    let (least, most) = name.output_bits();
    writeln!(text, "{}: {}", name.name(), name.title())?;
    writeln!(text, "  input bits   {}", bits(&name.input_bits()))?;
    writeln!(text, "  output bits  {least} to {most}")?;
    for granule in name.granules() {
        let sizes = page_sizes(name, *granule)?;
        let all_between = sizes.windows(2).all(|pair| pair[0] + 1 == pair[1]) && sizes.len() > 4;
        let sizes = match (sizes.first(), sizes.last()) {
            (Some(first), Some(last)) if all_between => {
                format!("every power of two from {} to {}", size(*first), size(*last))
            }
            _ => sizes.into_iter().map(size).collect::<Vec<_>>().join(", "),
        };
        writeln!(text, "  page sizes   {sizes}")?;
    }
    writeln!(text, "  features     {}\n", name.features().join(", "))?;
    Ok(())
}

fn as_json(name: FormatName) -> Result<Value> {
    let (least, most) = name.output_bits();
    let mut granules = Vec::new();
    for granule in name.granules() {
        let sizes = page_sizes(name, *granule)?;
        let sizes: Vec<u64> = sizes.into_iter().map(|log2| 1 << log2).collect();
        granules.push(json!({ "granule_bytes": granule.bytes(), "page_bytes": sizes }));
    }
    Ok(json!({
        "format": name.name(),
        "title": name.title(),
        "input_bits": name.input_bits(),
        "output_bits_least": least,
        "output_bits_most": most,
        "granules": granules,
        "features": name.features(),
    }))
}
