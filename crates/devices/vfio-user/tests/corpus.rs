//! Replays the corpus that fuzzing has found, and messages with random content.

#![cfg(not(loom))]

#[path = "../../../../fuzz/src/replay.rs"]
mod replay;

#[expect(unreachable_pub, reason = "it is public where it is at home, with the fuzzers")]
#[path = "../../../../fuzz/src/vfio_user.rs"]
mod vfio_user;

#[test]
fn the_corpus_of_clients_holds() {
    replay::corpus("vfio_user", vfio_user::vfio_user);
}

/// Random inputs, the same in every run.
#[test]
fn random_clients_are_refused_or_served() {
    let mut next = replay::random();
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
