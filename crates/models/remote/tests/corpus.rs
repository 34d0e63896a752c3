//! Replays the corpora of the fuzzer.

#[path = "../../../../fuzz/src/replay.rs"]
mod replay;

#[expect(unreachable_pub, reason = "it is public in the package of the fuzzers")]
#[path = "../../../../fuzz/src/http.rs"]
mod http;

#[test]
fn the_corpus_of_heads_passes() {
    replay::corpus("http_head", http::http_head);
}

#[test]
fn the_corpus_of_bodies_passes() {
    replay::corpus("http_body", http::http_body);
}

#[expect(unreachable_pub, reason = "it is public in the package of the fuzzers")]
#[path = "../../../../fuzz/src/xet.rs"]
mod xet;

#[test]
fn the_corpus_of_chunks_passes() {
    replay::corpus("xet_chunk", xet::xet_chunk);
}

#[test]
fn the_corpus_of_descriptions_passes() {
    replay::corpus("xet_plan", xet::xet_plan);
}
