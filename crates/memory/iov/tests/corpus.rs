//! What fuzzing has kept, replayed.

mod memory;

#[expect(unreachable_pub, reason = "it is public where it is at home, with the fuzzers")]
#[path = "../../../../fuzz/src/cursor.rs"]
mod cursor;

use std::fs;
use std::path::{Path, PathBuf};

#[test]
#[cfg_attr(miri, ignore = "files")]
fn the_corpus_of_cursors_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/iov_cursor");
    let mut files: Vec<PathBuf> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 5, "{} has but {} files", folder.display(), files.len());
    for file in files {
        eprintln!("{}", file.display());
        cursor::iov_cursor(&fs::read(file).unwrap());
    }
}
