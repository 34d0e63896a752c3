//! What fuzzing has kept, replayed, and the same with messages at random.

#[path = "../../../../fuzz/src/replay.rs"]
mod replay;

#[expect(unreachable_pub, reason = "it is public where it is at home, with the fuzzers")]
#[path = "../../../../fuzz/src/vhost_user.rs"]
mod vhost_user;

#[test]
fn the_corpus_of_front_ends_holds() {
    replay::corpus("vhost_user", vhost_user::vhost_user);
}

/// Inputs at random, the same in every run.
#[test]
fn front_ends_at_random_are_refused_or_served() {
    let mut next = replay::random();
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
