//! `longshore repack`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use longshore::Progress;
use longshore::formats::{TensorView, printable};
use longshore::load::{FormatChoice, Opened, copy_file, repack};
use serde_json::json;

use crate::exit::failure;
use crate::output::print;
use crate::progress::Display;
use crate::signals;
use crate::sources::check_local;
use crate::units::{Alignment, Decimal};

/// Write a copy of a model with every tensor at a multiple of an alignment.
///
/// The tensors, their names and the metadata stay the same; the order of the data may change. A load
/// of the copy with --align reads all tensors directly into place, and programs that map the copy find
/// its tensors aligned. The safetensors format does not allow gaps, so a tensor of bytes named
/// __padding__.N fills each gap; with alignments up to 64, gaps are rare.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  Place tensors at multiples of 64 bytes, for vector instructions and JAX:
    longshore repack model.safetensors aligned.safetensors
  Place tensors at multiples of a page, so that each can be mapped by itself:
    longshore repack --align 4096 model.gguf aligned.gguf
  Repack all shards of a model into a folder:
    longshore repack model.safetensors.index.json aligned/
")]
pub(crate) struct RepackArgs {
    /// A model file, or the index of a sharded model.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// The file to write; for an index, a folder for the shards and the index.
    #[arg(value_name = "TARGET")]
    pub(crate) target: PathBuf,

    /// The alignment of tensors in bytes.
    #[arg(long, value_name = "SIZE", default_value = "64")]
    pub(crate) align: Alignment,

    /// Overwrite files that exist.
    #[arg(long)]
    pub(crate) force: bool,

    /// Print the result as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,

    /// Print only errors.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

pub(crate) fn run(args: &RepackArgs) -> anyhow::Result<()> {
    let cancel = signals::cancel_token()?;
    check_local(&args.file)?;
    check_local(&args.target)?;
    let opened = longshore::load::open(std::slice::from_ref(&args.file), FormatChoice::Auto)?;
    if opened.tensors.is_empty() {
        let name = args.file.display();
        return Err(failure(15, format!("no tensors were found in {name}: nothing to align")));
    }
    let Alignment(alignment) = args.align;
    let opened = opened.align(alignment)?;
    let targets = targets(args, &opened)?;
    for target in &targets {
        if !args.force && target.exists() {
            let name = target.display();
            return Err(failure(1, format!("{name} exists; --force overwrites it")));
        }
    }
    let mut display = Display::new(args.quiet || args.json);
    let total_bytes = opened.plan.files().iter().map(image_bytes).sum();
    let mut before_bytes = 0;
    let began = std::time::Instant::now();
    for (file, target) in opened.plan.files().iter().zip(&targets) {
        if let Some(folder) = target.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            let made = std::fs::create_dir_all(folder);
            made.with_context(|| format!("creating the folder {}", folder.display()))?;
        }
        repack(file, target, &cancel, |progress| {
            let done_bytes = before_bytes + progress.done_bytes;
            display.show(Progress::new(done_bytes, total_bytes, began.elapsed()));
        })?;
        before_bytes += image_bytes(file);
    }
    drop(display);
    // The index comes last, so that an incomplete folder has no index.
    if let Some(index) = targets.get(opened.plan.files().len()) {
        copy_file(&args.file, index)?;
    }
    if args.json {
        let files: Vec<_> = targets.iter().map(|target| target.to_string_lossy()).collect();
        let done = json!({
            "files": files,
            "bytes": total_bytes,
            "seconds": began.elapsed().as_secs_f64(),
            "alignment": alignment.bytes(),
            "paddings": paddings(&opened),
        });
        print(&format!("{done}\n"))?;
    } else if !args.quiet {
        let text = match paddings(&opened) {
            0 => String::new(),
            some => format!(", {some} gaps filled by tensors named __padding__.N"),
        };
        let names: Vec<_> = targets.iter().map(|target| target.to_string_lossy()).collect();
        let (names, bytes) = (names.join(", "), Decimal(total_bytes as f64));
        let names = printable(&names);
        print(&format!("{names}: {bytes}, tensors at multiples of {alignment}{text}\n"))?;
    }
    Ok(())
}

/// Returns a target for each file of the plan, and one more for an index.
fn targets(args: &RepackArgs, opened: &Opened) -> anyhow::Result<Vec<PathBuf>> {
    let files = opened.plan.files();
    if let [only] = files
        && only.source().path() == args.file
    {
        if args.target.is_dir() {
            let name = args.target.display();
            return Err(failure(1, format!("{name} is a folder; name the file to be written")));
        }
        return Ok(vec![args.target.clone()]);
    }
    if args.target.exists() && !args.target.is_dir() {
        let name = args.target.display();
        return Err(failure(
            1,
            format!("{name} is not a folder, and there are several files to write"),
        ));
    }
    let folder = args.file.parent().unwrap_or(Path::new(""));
    let below = |path: &Path| args.target.join(path.strip_prefix(folder).unwrap_or(path));
    let mut targets: Vec<_> = files.iter().map(|file| below(file.source().path())).collect();
    if !files.iter().any(|file| file.source().path() == args.file) {
        targets.push(below(&args.file));
    }
    Ok(targets)
}

fn image_bytes(file: &longshore::load::PlannedFile) -> u64 {
    let range = file.buffer_range();
    range.end - range.start
}

fn paddings(opened: &Opened) -> usize {
    let tensors = opened.tensors.iter().flat_map(|file| file.header.tensors());
    tensors.filter(TensorView::is_padding).count()
}
