//! What fuzzing has kept, replayed, and the same with messages at random.

#[expect(unreachable_pub, reason = "it is public where it is at home, with the fuzzers")]
#[path = "../../../../fuzz/src/vhost_user.rs"]
mod vhost_user;

use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn the_corpus_of_front_ends_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/vhost_user");
    let mut files: Vec<PathBuf> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 5, "{} has but {} files", folder.display(), files.len());
    for file in files {
        eprintln!("{}", file.display());
        vhost_user::vhost_user(&fs::read(file).unwrap());
    }
}

/// Inputs at random, the same in every run.
#[test]
fn front_ends_at_random_are_refused_or_served() {
    let mut random = 0x243f_6a88_85a3_08d3_u64;
    let mut next = || {
        // xorshift64
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for _ in 0..300 {
        let mut input = Vec::new();
        for _ in 0..next() % 30 {
            let [request, flags, files, len, byte, ..] = next().to_le_bytes();
            // Most are acknowledged, with the descriptors that are theirs, and make sense.
            let request = 1 + request % 25;
            let files = match request {
                5 => 1,
                6 => 1 | 2 << 2,
                12..=14 => 1 | 1 << 2,
                21 => 1 | 3 << 2,
                _ if files & 0xe0 == 0 => files & 15,
                _ => 0,
            };
            let len = if len & 7 == 0 { 8 + len / 16 } else { 0 };
            input.extend([request, flags & 1 | u8::from(flags & 0xf0 == 0) << 1, files, len]);
            // One bit of most bytes, at most.
            (0..len).for_each(|_| input.push(1 << (next() % 8) & byte));
        }
        vhost_user::vhost_user(&input);
    }
}
