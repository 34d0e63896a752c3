//! Replays the corpus of the fuzzer, and random messages.

#[path = "../../../../fuzz/src/replay.rs"]
mod replay;

#[expect(unreachable_pub, reason = "it is public in the package of the fuzzers")]
#[path = "../../../../fuzz/src/serve_protocol.rs"]
mod serve_protocol;

#[test]
fn the_corpus_of_messages_causes_no_failure() {
    replay::corpus("serve_protocol", serve_protocol::serve_protocol);
}

/// The inputs are random, and the same in every run.
#[test]
fn messages_at_random_are_refused_or_answered() {
    let mut next = replay::random();
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
