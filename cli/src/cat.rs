//! `longshore cat`.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use longshore::formats::printable;
use longshore::load::{FormatChoice, Rows, Selection, StreamOptions};
use longshore::remote::without_secrets;
use longshore::{Loader, Progress, ReadMode};
use serde_json::json;

use crate::choices;
use crate::exit::failure;
use crate::progress::Display;
use crate::sources::{FilterArgs, ServerArgs};
use crate::units::{Decimal, Size};

/// Write the bytes of tensors to standard output.
///
/// The tensors follow each other without gaps, by file and offset, in the byte order of the file. Only
/// their bytes are read, in bounded memory and without the page cache.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  Compare a tensor of two versions of a model:
    cmp <(longshore cat old.safetensors --tensor lm_head.weight) \\
        <(longshore cat new.safetensors --tensor lm_head.weight)
  Compute a checksum of each layer's weights, without names and header:
    longshore cat model.safetensors.index.json --tensor 'model.layers.0.*' | sha256sum
  Show the first row of an embedding of 32-bit numbers:
    longshore cat model.gguf --tensor token_embd.weight --rows 0..1 | od -A d -t f4 | head
")]
pub(crate) struct CatArgs {
    /// The model: a safetensors or GGUF file, the index of a sharded model, the first of several splits, or a
    /// directory with a model. On a server: https://HOST/FILE, s3://BUCKET/KEY, gs://BUCKET/KEY,
    /// az://CONTAINER/KEY, or hf://ORG/NAME of the Hugging Face Hub.
    #[arg(required = true, value_name = "SOURCE")]
    pub(crate) files: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) filter: FilterArgs,

    #[command(flatten)]
    pub(crate) server: ServerArgs,

    /// The number of connections to servers, up to 256. [default: 16, and up to 128 while more are faster]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) connections: Option<u16>,

    /// The name of a tensor, or a pattern, in which * stands for any characters and ? for one. May be
    /// repeated. Without it, all tensors are written.
    #[arg(long, value_name = "NAME")]
    pub(crate) tensor: Vec<String>,

    /// Write only these rows of each selected tensor, such as 0..128, counted from 0; the end is not written.
    #[arg(long, value_name = "START..END", value_parser = parse_rows)]
    pub(crate) rows: Option<Rows>,

    /// The memory for tensors of 1 MiB and more. It must hold the largest. [default: 1GiB, or more if the
    /// largest tensor needs it]
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Size>,

    /// How files are read.
    #[arg(long, default_value = "auto", value_parser = choices::MODES)]
    pub(crate) mode: ReadMode,

    /// The format of the files; auto: by their names, and by their first bytes if a name has no extension.
    #[arg(long, default_value = "auto", value_parser = choices::FORMATS)]
    pub(crate) format: FormatChoice,

    /// Print the names, types, shapes and lengths of the written tensors, and the number of bytes read, as one
    /// JSON object on standard error.
    #[arg(long)]
    pub(crate) json: bool,

    /// Print only errors.
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// Write to a terminal, too.
    #[arg(long)]
    pub(crate) force: bool,
}

fn parse_rows(text: &str) -> Result<Rows, String> {
    let wrong = || "expected two numbers, such as 0..128".to_owned();
    let (start, end) = text.split_once("..").ok_or_else(wrong)?;
    let number = |text: &str| text.parse().map_err(|_| wrong());
    Ok(Rows::Range(number(start)?..number(end)?))
}

pub(crate) fn run(args: &CatArgs) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    if stdout.is_terminal() && !args.force {
        let text = "standard output is a terminal, and tensors are not text: redirect it to a file or a \
                    program, or use --force";
        return Err(failure(2, text.to_owned()));
    }
    // No handler of signals: it would not end a write to a program that does not read.
    let opened = args.filter.open(&args.server.remote(), &args.files, args.format, args.quiet)?;
    let mut selection = args.tensor.iter().fold(Selection::all(), |selection, name| {
        match name.contains(['*', '?']) {
            true => selection.pattern(name),
            false => selection.name(name),
        }
    });
    if let Some(rows) = &args.rows {
        selection = selection.rows(rows.clone());
    }
    let mut options = StreamOptions::new();
    if let Some(Size(bytes)) = args.memory {
        options = options.memory(bytes);
    }
    let mut loader = Loader::new().mode(args.mode);
    if let Some(count) = args.connections {
        loader = loader.connections(usize::from(count));
    }
    let stream = loader.stream(opened, &selection, &options)?;
    let total_bytes = stream.report().selected_bytes;
    let mut display = Display::new(args.quiet || args.json);
    let (mut done_bytes, mut written) = (0, Vec::new());
    while let Some(tensor) = stream.next_tensor()? {
        match stdout.write_all(&tensor).and_then(|()| stdout.flush()) {
            // The reader has all that it needs (`longshore cat MODEL | head`).
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            done => done.context("writing to standard output")?,
        }
        done_bytes += tensor.len() as u64;
        display.show(Progress::new(done_bytes, total_bytes, stream.report().elapsed));
        written.push(json!({
            "name": tensor.name(),
            "dtype": tensor.dtype().to_string(),
            "shape": tensor.shape(),
            "bytes": tensor.len(),
        }));
    }
    drop(display);
    let report = stream.report();
    if args.json {
        let done = json!({
            "tensors": written,
            "bytes": done_bytes,
            "bytes_read": report.read_bytes,
            "seconds": report.elapsed.as_secs_f64(),
        });
        eprintln!("{done}");
    } else if !args.quiet {
        let names = args.files.iter().map(|file| without_secrets(&file.to_string_lossy()));
        let names: Vec<_> = names.collect();
        let (bytes, read) = (Decimal(done_bytes as f64), Decimal(report.read_bytes as f64));
        let names = names.join(", ");
        let tensors = match written.len() {
            1 => "1 tensor".to_owned(),
            count => format!("{count} tensors"),
        };
        eprintln!("{}: {tensors}, {bytes}; {read} were read", printable(&names));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_two_numbers() {
        assert_eq!(parse_rows("3..17"), Ok(Rows::Range(3..17)));
        for text in ["", "3", "3..", "..3", "3..x", "-1..3", "3...5"] {
            assert!(parse_rows(text).is_err(), "{text}");
        }
    }
}
