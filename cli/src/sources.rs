//! The sources of models: files, directories, and repositories in the cache of the Hugging Face Hub.

use std::path::{Path, PathBuf};

use clap::Args;
use longshore::formats::directory::ModelFilter;
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

    /// Returns the files of all sources.
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

    /// Opens the files of all sources.
    pub(crate) fn open(&self, sources: &[PathBuf], format: FormatChoice) -> load::Result<Opened> {
        load::open_by(&self.files(sources, format)?, format, &Remote::new())
    }
}

/// Returns the directory or file to publish for a source, as an absolute path.
pub(crate) fn to_publish(source: &Path) -> anyhow::Result<PathBuf> {
    Ok(std::path::absolute(load::locate(source)?)?)
}
