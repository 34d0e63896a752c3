//! The sources of models: files, directories, and repositories in the cache of the Hugging Face Hub.

use std::path::{Path, PathBuf};

use clap::Args;
use longshore::formats::directory::ModelFilter;
use longshore::formats::printable;
use longshore::load::{self, FormatChoice, Opened};
use longshore::remote::Remote;

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
    fn filter(&self) -> ModelFilter {
        let filter = self.include.iter().fold(ModelFilter::new(), ModelFilter::include);
        self.variant.iter().fold(filter, ModelFilter::variant)
    }

    /// Returns the files of all sources, which are on this machine.
    pub(crate) fn files(
        &self,
        sources: &[PathBuf],
        format: FormatChoice,
    ) -> load::Result<Vec<PathBuf>> {
        let filter = self.filter();
        let mut files = Vec::new();
        for source in sources {
            files.extend(load::find_files(source, format, &filter)?);
        }
        Ok(files)
    }

    /// Returns the files of all sources, on this machine or on servers. Prints notes about them on standard
    /// error.
    pub(crate) fn files_anywhere(
        &self,
        remote: &Remote,
        sources: &[PathBuf],
        format: FormatChoice,
    ) -> load::Result<Vec<PathBuf>> {
        let filter = self.filter();
        let mut files = Vec::new();
        for source in sources {
            files.extend(remote.find_files(source, format, &filter)?);
        }
        for note in remote.notes() {
            eprintln!("longshore: note: {}", printable(&note));
        }
        Ok(files)
    }

    /// Opens the files of all sources.
    pub(crate) fn open(&self, sources: &[PathBuf], format: FormatChoice) -> load::Result<Opened> {
        let remote = Remote::new();
        let files = self.files_anywhere(&remote, sources, format)?;
        load::open_by(&files, format, &remote)
    }
}

/// Returns the directory or file to publish for a source, as an absolute path.
pub(crate) fn to_publish(source: &Path) -> anyhow::Result<PathBuf> {
    Ok(std::path::absolute(load::locate(source)?)?)
}
