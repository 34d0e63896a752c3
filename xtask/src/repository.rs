//! The files that the rules check.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::metadata::Metadata;

/// The repository, read once.
#[derive(Debug, Default)]
pub(crate) struct Repository {
    pub(crate) root: PathBuf,
    pub(crate) metadata: Metadata,
    /// All text files that are committed or not ignored.
    pub(crate) files: Vec<TextFile>,
}

/// A text file of the repository.
#[derive(Debug)]
pub(crate) struct TextFile {
    /// Its path from the root, with slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Repository {
    /// Reads the repository that this program was built from.
    pub(crate) fn read() -> Result<Self> {
        let root = root();
        let metadata = Metadata::of(&root)?;
        let files = text_files(&root)?;
        Ok(Self { root, metadata, files })
    }

    /// Returns the file at `path`, from the root.
    pub(crate) fn file(&self, path: &str) -> Result<&TextFile> {
        self.files
            .iter()
            .find(|file| file.path == path)
            .with_context(|| format!("{path} does not exist or is not text"))
    }
}

impl TextFile {
    pub(crate) fn extension(&self) -> &str {
        Path::new(&self.path).extension().and_then(|extension| extension.to_str()).unwrap_or("")
    }
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

fn text_files(root: &Path) -> Result<Vec<TextFile>> {
    // Untracked files are included, so that a rule reports them before they are committed.
    let output = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("starting git to list the files of the repository")?;
    ensure!(
        output.status.success(),
        "git ls-files: {}",
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    let names = String::from_utf8(output.stdout).context("a file's name is not UTF-8")?;
    let mut files = Vec::new();
    for path in names.split_terminator('\0') {
        // Skip files that are deleted in the work tree, and binary files.
        if let Ok(text) = fs::read_to_string(root.join(path)) {
            files.push(TextFile { path: path.to_owned(), text });
        }
    }
    ensure!(!files.is_empty(), "git lists no files in {}", root.display());
    Ok(files)
}
