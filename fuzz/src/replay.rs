//! Replays the corpora of the fuzz targets, and generates random numbers, for tests.

use std::fs;
use std::path::{Path, PathBuf};

/// Calls `check` with each file of a corpus, in the order of the file names.
pub(crate) fn corpus(target: &str, check: impl Fn(&[u8])) {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let corpora = crate_folder.ancestors().map(|folder| folder.join("fuzz/corpus"));
    let folder = corpora.map(|corpora| corpora.join(target)).find(|folder| folder.is_dir());
    let folder = folder.expect("a corpus");
    let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.collect();
    files.sort();
    assert!(files.len() >= 5, "{} has only {} files", folder.display(), files.len());
    for file in files {
        eprintln!("{}", file.display());
        check(&fs::read(file).unwrap());
    }
}

/// Returns a source of pseudorandom numbers, the same in every run (xorshift64).
#[allow(dead_code, reason = "some tests only replay a corpus")]
pub(crate) fn random() -> impl FnMut() -> u64 {
    let mut random = 0x243f_6a88_85a3_08d3_u64;
    move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    }
}
