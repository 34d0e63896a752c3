//! What fuzzing has kept, replayed, and the same with messages at random.

#[expect(unreachable_pub, reason = "it is public where it is at home, with the fuzzers")]
#[path = "../../../../fuzz/src/serve_protocol.rs"]
mod serve_protocol;

use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn the_corpus_of_messages_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/serve_protocol");
    let mut files: Vec<PathBuf> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 5, "{} has but {} files", folder.display(), files.len());
    for file in files {
        eprintln!("{}", file.display());
        serve_protocol::serve_protocol(&fs::read(file).unwrap());
    }
}

/// Inputs at random, the same in every run.
#[test]
fn messages_at_random_are_refused_or_answered() {
    let mut random = 0x243f_6a88_85a3_08d3_u64;
    let mut next = || {
        // xorshift64
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for _ in 0..500 {
        let mut input = vec![0, 0x20];
        for _ in 0..next() % 8 {
            let [template, with, kind, len, ..] = next().to_le_bytes();
            if kind & 3 != 0 {
                input.extend([template, 0x20 | with & 0xc0]);
            } else {
                input.extend([len, with & 0xc0]);
                (0..len).for_each(|_| input.push(next() as u8));
            }
        }
        serve_protocol::serve_protocol(&input);
    }
}
