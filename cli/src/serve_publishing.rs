//! `longshore serve --publish`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use longshore::formats::directory::ModelFilter;
use longshore::load::{self, FoundModel, HubName, Manifest, locate};
use longshore::remote::{Remote, is_remote, without_secrets};
use longshore::serve::{Keep, PublishEvent, PublishManager, PublishOptions, RemoteSource, Stop};
use serde_json::{Value, json};

use crate::publish;
use crate::serve_log::{Line, LogHandle};
use crate::sources::print_notes;
use crate::units::{Period, Size};

/// The options for published models.
#[derive(Args, Debug)]
#[command(next_help_heading = "Published models")]
pub(crate) struct PublishingArgs {
    /// Manage the models that are published in this directory of a tmpfs: publish those of --preload,
    /// and evict unused ones. The models stay when the server ends, and the next one adopts them.
    #[arg(long, value_name = "DIR")]
    pub(crate) publish: Option<PathBuf>,

    /// Publish this model at the start, and again when its source changes, unless that is on a server. A model of the
    /// same name is replaced. The server does not evict it. May be repeated.
    #[arg(long, value_name = "SOURCE", requires = "publish")]
    preload: Vec<PathBuf>,

    /// Evict a published model that no program has had open for this long, at least 10s: 30s, 10m, 2h;
    /// 0: ten seconds after a use, when no program has it open; forever: only if memory is short.
    #[arg(long, value_name = "DURATION", default_value = "forever", requires = "publish")]
    keep_alive: KeepAlive,

    /// The permissions of preloaded files, such as 0444, instead of those of their sources.
    #[arg(long, value_name = "MODE", value_parser = publish::parse_mode, requires = "preload")]
    preload_mode: Option<u32>,

    /// Do not publish a model unless each safetensors and GGUF file has the checksum in this file, which
    /// has the format of sha256sum.
    #[arg(long, value_name = "MANIFEST", requires = "preload")]
    preload_manifest: Option<PathBuf>,

    /// If the directory is not in a tmpfs, make it and mount one there with huge pages. Needs root.
    #[arg(long, requires = "publish")]
    mount: bool,

    /// The size of the mounted tmpfs. The default is half of the machine's memory.
    #[arg(long, value_name = "SIZE", requires = "mount")]
    mount_size: Option<Size>,
}

/// The time for which a published model is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeepAlive(Keep);

impl std::str::FromStr for KeepAlive {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        if word == "forever" {
            return Ok(Self(Keep::Always));
        }
        let period: Period = word.parse().map_err(|_| {
            format!("'{word}' is not a time to keep models (expected 10m, 2h, 0 or forever)")
        })?;
        Ok(Self(if period.0.is_zero() { Keep::Attached } else { Keep::Idle(period.0) }))
    }
}

/// A source on servers, or a repository of the Hub.
#[derive(Debug)]
struct OnServers {
    remote: Remote,
    source: PathBuf,
    /// The source without secrets.
    path: PathBuf,
    quiet: bool,
}

impl RemoteSource for OnServers {
    fn path(&self) -> &Path {
        &self.path
    }

    fn find(&self) -> load::Result<FoundModel> {
        self.remote.restart_time_limit();
        let before = self.remote.notes().len();
        let found = self.remote.model(&self.source, &ModelFilter::new())?;
        print_notes(&self.remote.notes()[before..], self.quiet);
        Ok(match found {
            // It is resolved once, because a user who can write the cache could change where it leads.
            FoundModel::Local(path) => FoundModel::Local(locate(&path)?),
            remote => remote,
        })
    }
}

/// Makes the manager of published models, if one was requested.
pub(crate) fn manager(
    args: &PublishingArgs,
    timeout: Option<Duration>,
    quiet: bool,
    stop: &Stop,
) -> anyhow::Result<Option<PublishManager>> {
    let Some(directory) = &args.publish else { return Ok(None) };
    let manifest = args.preload_manifest.as_ref().map(Manifest::open).transpose()?;
    if args.mount {
        publish::mount(directory, args.mount_size)?;
    }
    let mut options = PublishOptions::new(directory);
    for source in &args.preload {
        if !is_remote(source) && !HubName::is_one(source) {
            options.preload.push(source.clone());
            continue;
        }
        let remote = timeout.into_iter().fold(Remote::new(), Remote::time_limit);
        let stop = stop.clone();
        let remote = remote.stop_when(move || stop.is_stopped());
        let path = without_secrets(&source.to_string_lossy()).into();
        let source = source.clone();
        options.preload_remote.push(Box::new(OnServers { remote, source, path, quiet }));
    }
    options.keep = args.keep_alive.0;
    options.mode = args.preload_mode;
    options.manifest = manifest;
    Ok(Some(PublishManager::new(options, stop.clone())?))
}

/// Logs an event.
pub(crate) fn log(event: &PublishEvent, log: &LogHandle, json: bool, quiet: bool) {
    let is_error = matches!(event, PublishEvent::Failed { .. } | PublishEvent::Trouble { .. });
    if json {
        log.say(Line::Out(as_json(event).to_string()));
    } else if is_error {
        log.say(Line::Error(event.to_string()));
    } else if !quiet {
        log.say(Line::Out(event.to_string()));
    }
}

fn as_json(event: &PublishEvent) -> Value {
    match event {
        PublishEvent::Adopted { name, content_bytes, is_pinned } => json!({
            "event": "model_found", "name": name, "bytes": content_bytes, "pinned": is_pinned,
        }),
        PublishEvent::Published { name, source, published } => {
            let mut object = publish::as_json(published);
            object["event"] = "published".into();
            object["name"] = name.as_str().into();
            object["source"] = source.to_string_lossy().into();
            object
        }
        PublishEvent::Failed { source, .. } => json!({
            "event": "publish_failed", "source": source.to_string_lossy(),
            "message": event.to_string(),
        }),
        PublishEvent::Evicted { name, content_bytes, why } => json!({
            "event": "evicted", "name": name, "bytes": content_bytes, "why": why.to_string(),
        }),
        PublishEvent::Ready { directory, models } => json!({
            "event": "managing", "pid": std::process::id(),
            "directory": directory.to_string_lossy(), "models": models,
        }),
        PublishEvent::Trouble { path, problem } => json!({
            "event": "trouble", "path": path.to_string_lossy(), "message": problem.to_string(),
        }),
        PublishEvent::Stopping => json!({ "event": "publishing_stopped" }),
        other => json!({ "event": "other", "message": other.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_to_keep_are_parsed() {
        for (word, keep) in [
            ("forever", Keep::Always),
            ("0", Keep::Attached),
            ("0s", Keep::Attached),
            ("10m", Keep::Idle(Duration::from_secs(600))),
        ] {
            assert_eq!(word.parse(), Ok(KeepAlive(keep)), "{word}");
        }
        assert!("never".parse::<KeepAlive>().unwrap_err().contains("forever"));
    }
}
