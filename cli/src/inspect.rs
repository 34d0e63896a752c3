//! `longshore inspect`.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use longshore::formats::gguf::{Array, Value as GgufValue};
use longshore::formats::{Header, printable};
use longshore::load::{FileTensors, FormatChoice, Opened};
use longshore::mem::Granule;
use serde_json::{Value, json};

use crate::args::InspectArgs;
use crate::output::print;
use crate::units::Decimal;

pub(crate) fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let remote = args.server.remote();
    let sources = std::slice::from_ref(&args.file);
    let files = args.filter.files_anywhere(&remote, sources, FormatChoice::Auto, false)?;
    let choice = match files.as_slice() {
        [file] if !has_known_ending(file) => FormatChoice::from_content(&remote.open_file(file)?)?,
        _ => FormatChoice::Auto,
    };
    let opened = longshore::load::open_by(&files, choice, &remote)?;
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

/// Returns `true` if the name of the file determines its format.
fn has_known_ending(file: &Path) -> bool {
    let name = file.to_string_lossy();
    [".json", ".gguf"].iter().any(|end| name.ends_with(end))
}

fn table(opened: &Opened, file: &FileTensors, text: &mut String) -> std::fmt::Result {
    let source = opened.plan.files()[file.file_index].source();
    let header = &file.header;
    writeln!(
        text,
        "{}: {}, {} tensors, data from byte {}",
        printable(&source.path().to_string_lossy()),
        Decimal(source.len() as f64),
        header.tensor_count(),
        header.data_offset()
    )?;
    metadata(header, text)?;
    let rows: Vec<[String; 6]> = header
        .tensors()
        .map(|tensor| {
            let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
            let bytes = tensor.data.end - tensor.data.start;
            let alignment = Granule::from_value(tensor.data.start);
            [
                printable(tensor.name).into_owned(),
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

fn metadata(header: &Header, text: &mut String) -> std::fmt::Result {
    match header {
        Header::Safetensors(header) => {
            for (key, value) in &header.metadata {
                writeln!(text, "  {}: {}", printable(key), printable(value))?;
            }
        }
        Header::Gguf(header) => {
            for (key, value) in header.metadata.iter() {
                writeln!(text, "  {}: {}", printable(key), shown(value))?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// The most characters of a text in a table. Chat templates have several thousand.
const TEXT_CHARS_MAX: usize = 120;
/// The most elements of an array in a table. Vocabularies have more than a hundred thousand.
const TABLE_ELEMENTS_MAX: u64 = 8;
/// The most elements of an array in JSON.
const JSON_ELEMENTS_MAX: u64 = 64;

/// Formats a value in one line.
fn shown(value: GgufValue<'_>) -> String {
    match value {
        GgufValue::String(bytes) => {
            let text = String::from_utf8_lossy(bytes);
            let cut = text.char_indices().nth(TEXT_CHARS_MAX).map(|(at, _)| at);
            let all = printable(&text[..cut.unwrap_or(text.len())]);
            if cut.is_some() {
                format!("{all}… ({} bytes)", bytes.len())
            } else {
                all.into_owned()
            }
        }
        GgufValue::Array(array) => shown_array(array),
        GgufValue::U8(number) => number.to_string(),
        GgufValue::I8(number) => number.to_string(),
        GgufValue::U16(number) => number.to_string(),
        GgufValue::I16(number) => number.to_string(),
        GgufValue::U32(number) => number.to_string(),
        GgufValue::I32(number) => number.to_string(),
        GgufValue::U64(number) => number.to_string(),
        GgufValue::I64(number) => number.to_string(),
        GgufValue::F32(number) => number.to_string(),
        GgufValue::F64(number) => number.to_string(),
        GgufValue::Bool(truth) => truth.to_string(),
    }
}

fn shown_array(array: Array<'_>) -> String {
    let first: Vec<String> = array.values().take(TABLE_ELEMENTS_MAX as usize).map(shown).collect();
    let first = first.join(", ");
    if array.len() > TABLE_ELEMENTS_MAX {
        format!("[{first}, …] ({} of {})", array.len(), array.element_type())
    } else {
        format!("[{first}]")
    }
}

fn metadata_json(header: &Header) -> Value {
    match header {
        Header::Safetensors(header) => json!(header.metadata),
        Header::Gguf(header) => {
            let entries = header.metadata.iter();
            entries.map(|(key, value)| (key.to_owned(), value_json(value))).collect()
        }
        _ => Value::Null,
    }
}

/// Converts a value to JSON: a long array becomes its type and length, NaN and infinities become
/// strings, and bytes that are not UTF-8 are replaced.
fn value_json(value: GgufValue<'_>) -> Value {
    let float = |number: f64| match number.is_finite() {
        true => json!(number),
        false => json!(number.to_string()),
    };
    match value {
        GgufValue::String(bytes) => json!(String::from_utf8_lossy(bytes)),
        GgufValue::Array(array) if array.len() > JSON_ELEMENTS_MAX => {
            json!({"type": array.element_type().name(), "len": array.len()})
        }
        GgufValue::Array(array) => array.values().map(value_json).collect(),
        GgufValue::U8(number) => json!(number),
        GgufValue::I8(number) => json!(number),
        GgufValue::U16(number) => json!(number),
        GgufValue::I16(number) => json!(number),
        GgufValue::U32(number) => json!(number),
        GgufValue::I32(number) => json!(number),
        GgufValue::U64(number) => json!(number),
        GgufValue::I64(number) => json!(number),
        // The shortest decimal of the 32-bit value: 1e-5, not 9.999999747378752e-6.
        GgufValue::F32(number) => float(number.to_string().parse().unwrap_or(f64::NAN)),
        GgufValue::F64(number) => float(number),
        GgufValue::Bool(truth) => json!(truth),
    }
}

fn as_json(opened: &Opened) -> Value {
    let files: Vec<Value> = opened
        .tensors
        .iter()
        .map(|file| {
            let source = opened.plan.files()[file.file_index].source();
            let tensors: Vec<Value> = file
                .header
                .tensors()
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
                "bytes": source.len(),
                "format": file.header.format().to_string(),
                "data_offset": file.header.data_offset(),
                "metadata": metadata_json(&file.header),
                "tensors": tensors,
            })
        })
        .collect();
    json!({ "files": files })
}
