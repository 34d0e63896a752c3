//! Replays the fuzzing corpus, and random messages.

#[path = "../../../../fuzz/src/replay.rs"]
mod replay;

#[expect(unreachable_pub, reason = "it is public for the fuzz targets")]
#[path = "../../../../fuzz/src/vhost_user.rs"]
mod vhost_user;

#[test]
fn the_corpus_passes() {
    replay::corpus("vhost_user", vhost_user::vhost_user);
}

/// The random inputs are the same in every run.
#[test]
fn random_messages_are_refused_or_served() {
    let mut next = replay::random();
    for _ in 0..300 {
        let mut input = Vec::new();
        for _ in 0..next() % 30 {
            let [request, flags, files, len, byte, ..] = next().to_le_bytes();
            // Most ask for an acknowledgement, have the right descriptors, and are valid.
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
            // At most one bit of most bytes is set.
            (0..len).for_each(|_| input.push(1 << (next() % 8) & byte));
        }
        vhost_user::vhost_user(&input);
    }
}
