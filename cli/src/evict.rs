//! `longshore evict` and `longshore pin`.

use std::path::{Path, PathBuf};

use clap::Args;
use longshore::formats::printable;
use longshore::load::{self, PublishProblem, PublishedModel, PublishedModels};
use serde_json::{Value, json};

use crate::exit::failure;
use crate::output::print;
use crate::sources::check_local;
use crate::units::Decimal;

/// Remove published models that no program uses.
///
/// A model disappears at once. Programs that have its files open or mapped keep them, and their memory
/// is freed when the last one closes them.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  Remove a model, unless a program uses it:
    longshore evict /models/llama
  Remove all models of a directory that are not in use and not pinned:
    longshore evict --unused /models
")]
pub(crate) struct EvictArgs {
    /// The models: DIR/NAME; with --unused, the directories.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Remove all models of these directories that are not in use and not pinned.
    #[arg(long, conflicts_with = "force")]
    unused: bool,

    /// Remove the models even if they are in use or pinned. Not with --unused.
    #[arg(long)]
    force: bool,

    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,

    /// Print only errors.
    #[arg(long, short)]
    quiet: bool,
}

/// Pin published models, so that `longshore serve --publish` does not evict them, or unpin them.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  Keep a model, whether a program uses it or not:
    longshore pin /models/llama
  Let a server evict it again:
    longshore pin --undo /models/llama
")]
pub(crate) struct PinArgs {
    /// The models: DIR/NAME.
    #[arg(required = true, value_name = "PATH")]
    models: Vec<PathBuf>,

    /// Unpin the models.
    #[arg(long)]
    undo: bool,

    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,

    /// Print only errors.
    #[arg(long, short)]
    quiet: bool,
}

pub(crate) fn run(args: &EvictArgs) -> anyhow::Result<()> {
    let (mut evicted, mut kept) = (Vec::new(), Vec::new());
    let say = |text: String| match args.json || args.quiet {
        true => Ok(()),
        false => print(&text),
    };
    let mut evict = |models: &PublishedModels, model: &PublishedModel| {
        models.evict(model, args.force)?;
        evicted.push(as_json(model));
        say(format!("{}: evicted\n", described(model)))
    };
    for path in &args.paths {
        if !args.unused {
            let (models, model) = find(path)?;
            evict(&models, &model)?;
            continue;
        }
        let models = PublishedModels::open(path)?;
        let listed = models.list()?;
        if listed.is_empty() {
            say(format!("no models are published in {}\n", path.display()))?;
        }
        for model in listed {
            let why = match model.usage().is_open {
                _ if model.is_pinned => "pinned",
                Ok(false) => match evict(&models, &model) {
                    Err(error) => match changed_meanwhile(&error) {
                        Some(why) => why,
                        None => return Err(error),
                    },
                    Ok(()) => continue,
                },
                Ok(true) => "in use",
                Err(_) => "its use is not known",
            };
            kept.push(as_json(&model));
            say(format!("{}: kept, {why}\n", described(&model)))?;
        }
    }
    if args.json {
        print(&format!("{}\n", json!({ "evicted": evicted, "kept": kept })))?;
    }
    Ok(())
}

pub(crate) fn run_pin(args: &PinArgs) -> anyhow::Result<()> {
    let mut pinned = Vec::new();
    for path in &args.models {
        let (_, mut model) = find(path)?;
        model.set_pinned(!args.undo)?;
        if args.json {
            pinned.push(as_json(&model));
        } else if !args.quiet {
            let done = if args.undo { "unpinned" } else { "pinned" };
            print(&format!("{}: {done}\n", described(&model)))?;
        }
    }
    if args.json {
        print(&format!("{}\n", json!({ "models": pinned })))?;
    }
    Ok(())
}

/// Finds a published model by its path.
fn find(path: &Path) -> anyhow::Result<(PublishedModels, PublishedModel)> {
    check_local(path)?;
    let path = std::path::absolute(path)?;
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        let message = format!("{} is not the path of a model (DIR/NAME)", path.display());
        return Err(failure(2, message));
    };
    let models = PublishedModels::open(directory)?;
    let model = models.find(&name.to_string_lossy())?;
    Ok((models, model))
}

/// Returns the state of a model that was not evicted because it has changed since it was looked at.
fn changed_meanwhile(error: &anyhow::Error) -> Option<&'static str> {
    match error.downcast_ref()? {
        load::Error::Publish { reason: PublishProblem::InUse, .. } => Some("in use"),
        load::Error::Publish { reason: PublishProblem::Pinned, .. } => Some("pinned"),
        load::Error::Publish { reason: PublishProblem::NotPublished, .. } => {
            Some("replaced or removed")
        }
        _ => None,
    }
}

fn described(model: &PublishedModel) -> String {
    let path = model.directory.to_string_lossy();
    format!("{} ({})", printable(&path), Decimal(model.content_bytes as f64))
}

fn as_json(model: &PublishedModel) -> Value {
    json!({
        "directory": model.directory.to_string_lossy(),
        "bytes": model.content_bytes,
        "pinned": model.is_pinned,
    })
}
