//! The events of a server that manages published models.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use longshore_formats::printable;
use longshore_load::{self as load, Outcome, Published};
use longshore_mem::ByteSize;

use crate::error::with_causes;

/// An event of a [`PublishManager`](super::PublishManager). Displayed as one line without control
/// characters.
#[derive(Debug)]
#[non_exhaustive]
pub enum PublishEvent {
    /// A model was found at the start. Nothing was read.
    Adopted {
        /// The name.
        name: String,
        /// The number of bytes of its files.
        content_bytes: u64,
        /// `true` if it is pinned.
        is_pinned: bool,
    },
    /// A model of [`PublishOptions::preload`](super::PublishOptions::preload) was published, or a new
    /// version of it.
    Published {
        /// The name.
        name: String,
        /// The source.
        source: PathBuf,
        /// The published model.
        published: Published,
    },
    /// A source cannot be published. An older version of it stays.
    Failed {
        /// The source.
        source: PathBuf,
        /// The reason.
        error: load::Error,
    },
    /// A model was removed. Programs that have its files open keep them.
    Evicted {
        /// The name.
        name: String,
        /// The number of bytes of its files.
        content_bytes: u64,
        /// The reason.
        why: Eviction,
    },
    /// All models of the start are published, and the directory is managed.
    Ready {
        /// The directory.
        directory: PathBuf,
        /// The number of models.
        models: usize,
    },
    /// The server has a problem with a model, and goes on.
    Trouble {
        /// The model or the directory.
        path: PathBuf,
        /// The problem.
        problem: PublishTrouble,
    },
    /// The server stops. The models stay.
    Stopping,
}

/// The reason why a model was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Eviction {
    /// No program has used it for this time.
    Unused(Duration),
    /// The machine or the control group is short of memory.
    Pressure,
    /// Its memory was needed for another model.
    Room,
}

/// A problem with a published model.
#[derive(Debug)]
#[non_exhaustive]
pub enum PublishTrouble {
    /// Files of the model are missing, or have other lengths.
    Incomplete,
    /// The kernel does not report whether programs have the model's files open, so it is not evicted.
    UseUnknown(std::io::Error),
    /// The model cannot be evicted, or the directory cannot be listed.
    Failed(load::Error),
    /// The kernel does not report memory pressure, so no model is evicted for it.
    NoPressure,
}

impl fmt::Display for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unused(time) => write!(f, "unused for {} s", time.as_secs()),
            Self::Pressure => f.write_str("memory is short"),
            Self::Room => f.write_str("its memory was needed for another model"),
        }
    }
}

impl fmt::Display for PublishTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Incomplete => f.write_str(
                "files are missing or have other lengths; publish it again, or remove it (longshore \
                 evict)",
            ),
            Self::UseUnknown(error) => write!(
                f,
                "the kernel does not report whether programs have its files open, so it is not \
                 evicted: {error}"
            ),
            Self::Failed(error) => f.write_str(&with_causes(error)),
            Self::NoPressure => f.write_str(
                "the kernel does not report memory pressure (CONFIG_PSI), so no model is evicted for it",
            ),
        }
    }
}

impl fmt::Display for PublishEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = match self {
            Self::Adopted { name, content_bytes, is_pinned } => {
                let pinned = if *is_pinned { ", pinned" } else { "" };
                format!("{name}: found, {}{pinned}", ByteSize(*content_bytes))
            }
            Self::Published { name, source, published } => {
                let bytes = ByteSize(published.content_bytes);
                match published.outcome {
                    Outcome::AlreadyPublished => {
                        format!("{name}: {} is published already ({bytes})", source.display())
                    }
                    Outcome::AccessChanged => {
                        format!("{name}: the permissions of {} have changed", source.display())
                    }
                    outcome => format!(
                        "{name}: {} {} ({bytes}) in {:.3} s, {} pages",
                        if outcome == Outcome::Replaced { "replaced by" } else { "published" },
                        source.display(),
                        published.elapsed.as_secs_f64(),
                        published.pages
                    ),
                }
            }
            Self::Failed { source, error } => {
                format!("{} is not published: {}", source.display(), with_causes(error))
            }
            Self::Evicted { name, content_bytes, why } => {
                format!("{name}: evicted, {}: {why}", ByteSize(*content_bytes))
            }
            Self::Ready { directory, models } => {
                let models =
                    if *models == 1 { "1 model".to_owned() } else { format!("{models} models") };
                format!("managing {models} in {}", directory.display())
            }
            Self::Trouble { path, problem } => format!("{}: {problem}", path.display()),
            Self::Stopping => "stopping; the published models stay".to_owned(),
        };
        f.write_str(&printable(&line))
    }
}
