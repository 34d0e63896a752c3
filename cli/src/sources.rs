//! The sources of models: files, directories, and repositories in the cache of the Hugging Face Hub.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use longshore::formats::directory::ModelFilter;
use longshore::formats::{Format, printable};
use longshore::load::{
    self, FormatChoice, FoundModel, HubCache, HubName, KeptCopy, Opened, RemoteModel,
};
use longshore::remote::{Remote, is_remote};

use crate::exit::failure;

/// The options that select files of a directory.
#[derive(Args, Debug)]
pub(crate) struct FilterArgs {
    /// Of a directory, take all safetensors and GGUF files that match this pattern instead of its model.
    /// `*` stands for any characters, also for `/`, and `?` for one. May be repeated.
    #[arg(long, value_name = "GLOB")]
    include: Vec<String>,

    /// Of a directory, take this variant: fp16 is model.fp16.safetensors, and Q4_K_M a GGUF file with
    /// this word in its name.
    #[arg(long, value_name = "VARIANT")]
    variant: Option<String>,
}

impl FilterArgs {
    /// Returns the filter for the files of a directory.
    pub(crate) fn filter(&self) -> ModelFilter {
        let filter = self.include.iter().fold(ModelFilter::new(), ModelFilter::include);
        self.variant.iter().fold(filter, ModelFilter::variant)
    }

    /// Returns the files of all sources, on this machine or on servers. Prints notes about them on standard
    /// error.
    pub(crate) fn files_anywhere(
        &self,
        remote: &Remote,
        sources: &[PathBuf],
        format: FormatChoice,
        quiet: bool,
    ) -> load::Result<Vec<PathBuf>> {
        let filter = self.filter();
        let mut files = Vec::new();
        for source in sources {
            files.extend(remote.find_files(source, format, &filter)?);
        }
        print_notes(&remote.notes(), quiet);
        Ok(files)
    }

    /// Opens the files of a model of servers, and begins a copy in `directory`, or in the cache of the Hub, where
    /// `hub` stands for. Returns `None` for a model that this cache has already.
    pub(crate) fn open_to_keep(
        &self,
        remote: &Remote,
        sources: &[PathBuf],
        format: FormatChoice,
        directory: &Path,
        quiet: bool,
    ) -> anyhow::Result<Option<(Opened, RemoteModel, KeptCopy)>> {
        let [source] = sources else {
            return Err(failure(2, "--keep-copy keeps one model, but several sources were given"));
        };
        let is_hub = directory.as_os_str() == "hub";
        let name = HubName::from_path(source).map_err(|error| failure(2, error.to_string()))?;
        if is_hub && name.is_none() {
            let message = "--keep-copy hub is for repositories of the Hub (hf://ORG/NAME); name a \
                           directory for other sources";
            return Err(failure(2, message));
        }
        let filter = match format {
            FormatChoice::Gguf => self.filter().format(Format::Gguf),
            FormatChoice::Safetensors => self.filter().format(Format::Safetensors),
            _ => self.filter(),
        };
        let found = remote.model(source, &filter)?;
        print_notes(&remote.notes(), quiet);
        let model = match (found, &name) {
            (FoundModel::Remote(model), _) => model,
            (FoundModel::Local(found), Some(name)) if is_hub => {
                let at_commit = HubName::from_path(&found).ok().flatten();
                let commit =
                    at_commit.and_then(|it| it.revision).filter(|it| HubName::is_commit(it));
                if let Some(commit) = commit {
                    HubCache::from_env()?.set_revision(name, &commit)?;
                }
                return Ok(None);
            }
            (FoundModel::Local(_), _) => {
                let message =
                    format!("--keep-copy: {} is on this machine already", source.display());
                return Err(failure(2, message));
            }
        };
        let copy = match &name {
            Some(name) if is_hub => KeptCopy::begin_in_hub(HubCache::from_env()?, name, &model)?,
            _ => KeptCopy::begin(directory, &model)?,
        };
        let opened = load::open_by(model.first_files(), format, &model)?;
        Ok(Some((opened, model, copy)))
    }

    /// Opens the files of all sources.
    pub(crate) fn open(
        &self,
        remote: &Remote,
        sources: &[PathBuf],
        format: FormatChoice,
        quiet: bool,
    ) -> load::Result<Opened> {
        let files = self.files_anywhere(remote, sources, format, quiet)?;
        let before = remote.notes().len();
        let opened = load::open_by(&files, format, remote)?;
        print_notes(&remote.notes()[before..], quiet);
        Ok(opened)
    }
}

/// The options of sources on servers.
#[derive(Args, Debug)]
pub(crate) struct ServerArgs {
    /// Of a source on a server, end with an error if all requests together take longer.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
}

impl ServerArgs {
    /// Makes the access to files on servers.
    pub(crate) fn remote(&self) -> Remote {
        self.timeout.iter().fold(Remote::new(), |remote, limit| remote.time_limit(*limit))
    }
}

/// Parses the time of an option.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0.0);
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| "expected a number of seconds, such as 600".to_owned())
}

/// Refuses a source on a server, whose name can have secrets, for a command that takes files of this machine.
pub(crate) fn check_local(source: &Path) -> anyhow::Result<()> {
    match is_remote(source) {
        true => Err(failure(2, "this command takes files of this machine, not of servers")),
        false => Ok(()),
    }
}

/// Prints notes about files that were found, on standard error, unless only errors are to be printed.
pub(crate) fn print_notes(notes: &[String], quiet: bool) {
    for note in notes.iter().filter(|_| !quiet) {
        eprintln!("longshore: note: {}", printable(note));
    }
}

/// Returns the model to publish for a source. One on this machine has an absolute path.
pub(crate) fn to_publish(remote: &Remote, source: &Path) -> anyhow::Result<FoundModel> {
    Ok(match remote.model(source, &ModelFilter::new())? {
        // The publisher looks a name up itself, because it follows no links in the cache.
        FoundModel::Local(path) if HubName::is_one(&path) => FoundModel::Local(path),
        FoundModel::Local(path) => FoundModel::Local(std::path::absolute(path)?),
        remote => remote,
    })
}
