//! The tree that the rules look at.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::metadata::Metadata;

/// The tree, read once.
#[derive(Debug, Default)]
pub(crate) struct Repository {
    pub(crate) root: PathBuf,
    pub(crate) metadata: Metadata,
    /// Everything that is or would be committed and is text.
    pub(crate) files: Vec<TextFile>,
}

/// A file of the tree.
#[derive(Debug)]
pub(crate) struct TextFile {
    /// From the root, with slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Repository {
    /// Reads the tree that this program was built from.
    pub(crate) fn read() -> Result<Self> {
        let root = root();
        let metadata = Metadata::of(&root)?;
        let files = text_files(&root)?;
        Ok(Self { root, metadata, files })
    }

    /// The file at `path`, from the root.
    pub(crate) fn file(&self, path: &str) -> Result<&TextFile> {
        self.files
            .iter()
            .find(|file| file.path == path)
            .with_context(|| format!("{path} is not there or not text"))
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
    // Also what is not committed yet, so that a rule speaks up before the commit.
    let output = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("starting git, which knows the files of the tree")?;
    ensure!(
        output.status.success(),
        "git ls-files: {}",
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    let names = String::from_utf8(output.stdout).context("a file's name is not UTF-8")?;
    let mut files = Vec::new();
    for path in names.split_terminator('\0') {
        // A file may be deleted and not yet committed as such; a binary one has no words.
        if let Ok(text) = fs::read_to_string(root.join(path)) {
            files.push(TextFile { path: path.to_owned(), text });
        }
    }
    ensure!(!files.is_empty(), "git knows no file in {}", root.display());
    Ok(files)
}
