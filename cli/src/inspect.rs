//! `longshore inspect`.

use std::fmt::Write as _;

use anyhow::Context;
use longshore::load::format::{self, FileTensors, FormatChoice, Opened, printable};
use longshore::mem::Granule;
use serde_json::{Value, json};

use crate::args::InspectArgs;
use crate::output::print;
use crate::units::Decimal;

pub(crate) fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let name = args.file.to_string_lossy();
    let choice =
        if name.ends_with(".index.json") { FormatChoice::Auto } else { FormatChoice::Safetensors };
    let opened = format::open(std::slice::from_ref(&args.file), choice)?;
    let text = if args.json {
        format!("{}\n", as_json(&opened))
    } else {
        let mut text = String::new();
        for file in &opened.tensors {
            table(&opened, file, &mut text).context("writing a table")?;
        }
        text
    };
    print(&text)
}

fn table(opened: &Opened, file: &FileTensors, text: &mut String) -> std::fmt::Result {
    let source = opened.plan.files()[file.file_index].source();
    let header = &file.header;
    writeln!(
        text,
        "{}: {}, {} tensors, data from byte {}",
        source.path().display(),
        Decimal(source.len_bytes() as f64),
        header.tensors.len(),
        header.data_offset
    )?;
    for (key, value) in &header.metadata {
        writeln!(text, "  {}: {}", printable(key), printable(value))?;
    }
    let rows: Vec<[String; 6]> = header
        .tensors
        .iter()
        .map(|tensor| {
            let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
            let bytes = tensor.data.end - tensor.data.start;
            let alignment = Granule::of_value(tensor.data.start);
            [
                printable(&tensor.name).into_owned(),
                tensor.dtype.to_string(),
                format!("[{}]", shape.join(", ")),
                tensor.data.start.to_string(),
                bytes.to_string(),
                alignment.map_or_else(String::new, |granule| granule.to_string()),
            ]
        })
        .collect();
    let titles = ["tensor", "dtype", "shape", "offset", "bytes", "aligned to"].map(String::from);
    let width = |column: usize| {
        rows.iter().chain([&titles]).map(|row| row[column].chars().count()).max().unwrap_or(0)
    };
    let widths: [usize; 6] = std::array::from_fn(width);
    for row in [&titles].into_iter().chain(&rows) {
        let [name, dtype, shape, offset, bytes, alignment] = row;
        let [w_name, w_dtype, w_shape, w_offset, w_bytes, w_alignment] = widths;
        writeln!(
            text,
            "{name:<w_name$}  {dtype:<w_dtype$}  {shape:<w_shape$}  {offset:>w_offset$}  \
             {bytes:>w_bytes$}  {alignment:>w_alignment$}"
        )?;
    }
    Ok(())
}

fn as_json(opened: &Opened) -> Value {
    let files: Vec<Value> = opened
        .tensors
        .iter()
        .map(|file| {
            let source = opened.plan.files()[file.file_index].source();
            let tensors: Vec<Value> = file
                .header
                .tensors
                .iter()
                .map(|tensor| {
                    json!({
                        "name": tensor.name,
                        "dtype": tensor.dtype.to_string(),
                        "shape": tensor.shape,
                        "offset": tensor.data.start,
                        "bytes": tensor.data.end - tensor.data.start,
                    })
                })
                .collect();
            json!({
                "path": source.path().to_string_lossy(),
                "bytes": source.len_bytes(),
                "data_offset": file.header.data_offset,
                "metadata": file.header.metadata,
                "tensors": tensors,
            })
        })
        .collect();
    json!({ "files": files })
}
