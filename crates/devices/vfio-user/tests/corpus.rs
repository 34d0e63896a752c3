//! What fuzzing has kept, replayed, and the same with messages at random.

#![cfg(not(loom))]

#[expect(unreachable_pub, reason = "it is public where it is at home, with the fuzzers")]
#[path = "../../../../fuzz/src/vfio_user.rs"]
mod vfio_user;

use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn the_corpus_of_clients_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/vfio_user");
    let mut files: Vec<PathBuf> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 5, "{} has but {} files", folder.display(), files.len());
    for file in files {
        eprintln!("{}", file.display());
        vfio_user::vfio_user(&fs::read(file).unwrap());
    }
}

/// Inputs at random, the same in every run.
#[test]
fn clients_at_random_are_refused_or_served() {
    let mut random = 0x243f_6a88_85a3_08d3_u64;
    let mut next = || {
        // xorshift64
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for _ in 0..500 {
        let mut input = Vec::new();
        for _ in 0..next() % 20 {
            let [command, files, len, template, ..] = next().to_le_bytes();
            // Most have no descriptors and are as long as their template.
            let files = if files & 0xc0 == 0 { files & 0x31 } else { files & 0x20 };
            let len = if len & 3 == 0 { len / 8 } else { 0 };
            input.extend([command % 20, files, len, template]);
            (0..len).for_each(|_| input.push(next() as u8));
        }
        vfio_user::vfio_user(&input);
    }
}
