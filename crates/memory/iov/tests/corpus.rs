//! What fuzzing has kept, replayed.

mod memory;

#[path = "../../../../fuzz/src/replay.rs"]
mod replay;

#[expect(unreachable_pub, reason = "it is public where it is at home, with the fuzzers")]
#[path = "../../../../fuzz/src/cursor.rs"]
mod cursor;

#[test]
#[cfg_attr(miri, ignore = "files")]
fn the_corpus_of_cursors_holds() {
    replay::corpus("iov_cursor", cursor::iov_cursor);
}
