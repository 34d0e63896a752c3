//! Replays the corpus of the fuzzers.

mod memory;

#[path = "../../../../fuzz/src/replay.rs"]
mod replay;

#[expect(unreachable_pub, reason = "it is public in the fuzzers' package")]
#[path = "../../../../fuzz/src/cursor.rs"]
mod cursor;

#[test]
#[cfg_attr(miri, ignore = "files")]
fn the_corpus_of_cursors_passes() {
    replay::corpus("iov_cursor", cursor::iov_cursor);
}
