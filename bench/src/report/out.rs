//! A file that appears when it is complete.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A file being written beside the one that it is to become.
#[derive(Debug)]
pub(super) struct Out {
    file: File,
    partial: PathBuf,
    complete: PathBuf,
    done: bool,
}

impl Out {
    /// # Errors
    /// Where no file can be made in that folder, or the name is a folder's.
    pub(super) fn begin(complete: &Path) -> Result<Self> {
        let shown = complete.display();
        let Some(name) = complete.file_name() else { bail!("'{shown}' names no file") };
        if complete.is_dir() {
            bail!("'{shown}' is a folder: name a file in it");
        }
        let partial = format!(".{}.{}.partial", name.to_string_lossy(), std::process::id());
        let partial = complete.with_file_name(partial);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&partial)
            .with_context(|| format!("making a file beside '{shown}'"))?;
        Ok(Self { file, partial, complete: complete.to_owned(), done: false })
    }

    /// # Errors
    /// Where the text cannot be written; then the file that was there is still there.
    pub(super) fn end(mut self, text: &str) -> Result<()> {
        let shown = self.complete.display();
        self.file
            .write_all(text.as_bytes())
            .and_then(|()| self.file.sync_all())
            .and_then(|()| fs::rename(&self.partial, &self.complete))
            .with_context(|| format!("writing '{shown}'"))?;
        self.done = true;
        Ok(())
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        if !self.done {
            let _ = fs::remove_file(&self.partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_is_replaced_when_it_is_complete_and_not_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.html");
        fs::write(&path, "old").unwrap();
        let out = Out::begin(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        out.end("new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(names(folder.path()), ["page.html"]);
    }

    #[test]
    fn what_is_given_up_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        drop(Out::begin(&folder.path().join("page.html")).unwrap());
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn a_place_that_cannot_be_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let refusal = |path: &Path| Out::begin(path).unwrap_err().to_string();
        assert!(refusal(folder.path()).contains("is a folder"));
        assert!(refusal(&folder.path().join("absent/page.html")).contains("absent/page.html"));
        assert!(refusal(Path::new("/")).contains("names no file"));
    }
}
