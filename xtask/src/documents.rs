//! Checks that the files that documents name exist.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;

use crate::repository::{Repository, TextFile};

/// The document that describes each folder.
const MAP: &str = "ARCHITECTURE.md";

/// The history, which may name files that were removed.
const HISTORY: &str = "CHANGELOG.md";

/// Returns the paths in documents that do not exist, and the crates that the map does not describe.
pub(crate) fn broken(repository: &Repository) -> Result<Vec<String>> {
    let mut places = Vec::new();
    let folders = top_folders(&repository.files);
    for file in &repository.files {
        if file.extension() == "md" && file.path != HISTORY {
            places.extend(dead_paths(file, &repository.root, &folders));
        }
    }
    let map = repository.file(MAP)?;
    for package in repository.metadata.members() {
        let folder =
            package.manifest_path.parent().and_then(|it| it.strip_prefix(&repository.root).ok());
        let Some(folder) = folder.and_then(Path::to_str) else { continue };
        if !map.text.contains(folder) {
            places.push(format!("{MAP}: does not describe {folder}"));
        }
    }
    Ok(places)
}

/// Returns the folders at the root that have tracked files, so not the build output.
fn top_folders(files: &[TextFile]) -> BTreeSet<&str> {
    files.iter().filter_map(|file| Some(file.path.split_once('/')?.0)).collect()
}

fn dead_paths(file: &TextFile, root: &Path, folders: &BTreeSet<&str>) -> Vec<String> {
    let mut places = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        // Every second part is between backquotes.
        for quoted in line.split('`').skip(1).step_by(2) {
            if is_path_in(folders, quoted) && !root.join(quoted).exists() {
                places.push(format!("{}:{}: {quoted} does not exist", file.path, index + 1));
            }
        }
    }
    places
}

/// Returns `true` if `word` looks like a path that begins in one of `folders`.
fn is_path_in(folders: &BTreeSet<&str>, word: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    word.chars().all(plain)
        && word.split_once('/').is_some_and(|(first, _)| folders.contains(first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository;

    #[test]
    fn only_paths_into_the_repository_are_checked() {
        let text = "`xtask/src/main.rs`, `xtask/`, `xtask/src/gone.rs`\n\
                    `target/x`, `xtask/*.rs`, xtask/x, `/dev/null`, `cargo xtask/x`\n\
                    and `xtask/gone`";
        let file = TextFile { path: "xtask/X.md".to_owned(), text: text.to_owned() };
        let files = [file];
        assert_eq!(
            dead_paths(&files[0], &repository::root(), &top_folders(&files)),
            [
                "xtask/X.md:1: xtask/src/gone.rs does not exist",
                "xtask/X.md:3: xtask/gone does not exist"
            ]
        );
    }
}
