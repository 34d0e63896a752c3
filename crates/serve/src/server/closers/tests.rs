use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::*;

/// Waits until `is_true`, which must come.
fn wait(mut is_true: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_true() {
        assert!(begin.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns whether nothing waits.
fn is_idle(closers: &Closers) -> bool {
    closers.retry() && lock(&closers.waiting).users.is_empty()
}

#[test]
fn what_was_sent_is_closed_and_users_are_counted_apart() {
    let closers = Closers::new(2 * WAITING_MAX);
    let (mut reader, writer) = io::pipe().unwrap();
    let file = tempfile::tempfile().unwrap();
    closers.close(User::limited(7), vec![writer.into(), file.into()]);
    wait(|| is_idle(&closers));
    assert_eq!(reader.read(&mut [0]).unwrap(), 0, "the only writer is closed");
    let stuck = OfUser { descriptors: WAITING_MAX, ..OfUser::default() };
    lock(&closers.waiting).users.insert(User::limited(8), stuck);
    assert!(!closers.may_send(User::limited(8)) && closers.may_send(User::limited(9)));
    let stuck = OfUser { descriptors: 100 * WAITING_MAX, ..OfUser::default() };
    lock(&closers.waiting).users.insert(User::limited(8), stuck);
    assert!(closers.may_accept(), "files of one user are not in the way of others");
    let stuck = OfUser { connections: 2 * WAITING_MAX, ..OfUser::default() };
    lock(&closers.waiting).users.insert(User::limited(8), stuck);
    assert!(!closers.may_accept());
}

/// Two connected sockets; a message in the queue of the first has a socket, whose peer is the third.
fn queued() -> (OwnedFd, OwnedFd, OwnedFd) {
    let (ours, theirs) = packet_socket::pair().unwrap();
    let (kept, other) = packet_socket::pair().unwrap();
    packet_socket::send(&theirs, b"queued", Some(kept.as_fd())).unwrap();
    (ours, theirs, other)
}

fn is_open(peer: &OwnedFd) -> bool {
    packet_socket::receive(peer, &mut [0]).is_err()
}

#[test]
fn without_a_thread_descriptors_are_kept_and_closed_later() {
    let mut closers = Closers::new(10);
    let (ours, theirs, other) = queued();
    (closers.threads_per_user, closers.disposes) = (0, false);
    closers.end(User::limited(7), ours);
    assert!(is_open(&other), "nothing was closed on this thread");
    assert_eq!(lock(&closers.waiting).users[&User::limited(7)].connections, 1);
    assert!(!closers.retry());
    closers.threads_per_user = THREADS_PER_USER_MAX;
    assert!(closers.retry());
    wait(|| is_idle(&closers));
    assert!(!is_open(&other), "the descriptor that was queued is closed");
    assert_eq!(packet_socket::receive(&theirs, &mut [0]).unwrap().len_bytes, 0, "no reset");
}

#[test]
fn a_connection_is_disposed_of_without_a_reset() {
    let closers = Closers::new(10);
    let (ours, theirs, other) = queued();
    closers.end(User::limited(7), ours);
    wait(|| is_idle(&closers));
    assert!(!is_open(&other), "the descriptor that was queued is closed");
    assert_eq!(packet_socket::receive(&theirs, &mut [0]).unwrap().len_bytes, 0, "no reset");
}

#[test]
fn sockets_of_a_user_whose_disposals_wait_are_closed_in_batches() {
    let closers = Closers::new(1000);
    let user = User::limited(7);
    let begin = |peers: &mut Vec<OwnedFd>| {
        let (ours, theirs, _) = queued();
        closers.end(user, ours);
        peers.push(theirs);
    };
    let mut peers = Vec::new();
    let stuck = (0..DISPOSALS_MAX).map(|_| Disposal::endless()).collect();
    lock(&closers.waiting).users.entry(user).or_default().disposals = stuck;
    (1..BATCH).for_each(|_| begin(&mut peers));
    assert!(!closers.retry() && peers.iter().all(|peer| !is_open(peer)), "shut down at once");
    assert_eq!(lock(&closers.waiting).users[&user].ended.len(), BATCH - 1);
    begin(&mut peers);
    assert_eq!(lock(&closers.waiting).users[&user].ended.len(), 0);
    wait(|| {
        closers.retry();
        lock(&closers.waiting).users[&user].disposals.len() == DISPOSALS_MAX
    });
    assert!(closers.may_accept() && closers.may_send(user));
    for peer in &peers {
        assert_eq!(packet_socket::receive(peer, &mut [0]).unwrap().len_bytes, 0, "no reset");
    }
}
