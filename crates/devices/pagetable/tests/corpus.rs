//! What fuzzing has kept, replayed, and the same with operations at random.

#![cfg(not(loom))]

#[expect(unreachable_pub, reason = "it is public where it is at home, with the fuzzers")]
#[path = "../../../../fuzz/src/page_table.rs"]
mod page_table;

use std::fs;
use std::path::{Path, PathBuf};

#[test]
#[cfg_attr(miri, ignore = "files")]
fn the_corpus_of_page_tables_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/page_table");
    let mut files: Vec<PathBuf> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 5, "{} has but {} files", folder.display(), files.len());
    for file in files {
        eprintln!("{}", file.display());
        page_table::page_table(&fs::read(file).unwrap());
    }
}

/// Inputs at random, the same in every run, for every format with every option.
#[test]
fn operations_at_random_hold() {
    let (formats, rounds) = if cfg!(miri) { (1, 1) } else { (27, 1) };
    let mut random = 0x243f_6a88_85a3_08d3_u64;
    for format in 0..formats {
        for options in 0..8 {
            for _ in 0..rounds {
                let mut input = vec![format, options];
                for _ in 0..24 {
                    // xorshift64
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    input.extend(&random.to_le_bytes()[2..6]);
                }
                page_table::page_table(&input);
            }
        }
    }
}
