#![expect(unsafe_code, reason = "sets record locks of an open file, which rustix has not")]

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use super::*;

fn closers(max: usize) -> Closers {
    Closers::new(max)
}

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
    let closers = closers(2 * WAITING_MAX);
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
    assert!(closers.may_send(User::limited(9)), "it has none that wait");
    for (descriptors, may_send) in [(WAITING_MIN - 1, true), (WAITING_MIN, false)] {
        let few = OfUser { descriptors, ..OfUser::default() };
        lock(&closers.waiting).users.insert(User::limited(10), few);
        assert_eq!(closers.may_send(User::limited(10)), may_send);
    }
    lock(&closers.waiting).users.remove(&User::limited(10));
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

/// Receives the end of a connection, which comes after an error if messages were left in its queue.
fn expect_end(peer: &OwnedFd) {
    let receive = || packet_socket::receive(peer, &mut [0]);
    assert_eq!(receive().or_else(|_| receive()).unwrap().len_bytes, 0);
}

/// Sets a record lock that belongs to the open file, which conflicts with ours as one of another process
/// does.
fn set_record_lock(file: &OwnedFd) {
    let (l_type, l_whence) = (libc::F_WRLCK as libc::c_short, libc::SEEK_SET as libc::c_short);
    let lock = libc::flock { l_type, l_whence, l_start: 0, l_len: 1, l_pid: 0 };
    // SAFETY: the descriptor is open, and the kernel only reads the structure.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}

fn is_open(peer: &OwnedFd) -> bool {
    packet_socket::receive(peer, &mut [0]).is_err()
}

#[test]
fn without_a_thread_descriptors_are_kept_and_closed_later() {
    let mut closers = closers(10);
    let (ours, theirs, other) = queued();
    (closers.threads_per_user, closers.disposes) = (0, false);
    closers.end(User::limited(7), ours);
    assert!(is_open(&other), "nothing was closed on this thread");
    assert_eq!(lock(&closers.waiting).users[&User::limited(7)].connections, 1);
    assert!(!closers.retry());
    closers.threads_per_user = THREADS_PER_USER_MAX;
    wait(|| is_idle(&closers));
    assert!(!is_open(&other), "the descriptor that was queued is closed");
    expect_end(&theirs);
}

#[test]
fn a_connection_is_disposed_of_with_what_is_queued() {
    let closers = closers(10);
    let (ours, theirs, other) = queued();
    packet_socket::send(&ours, b"last", None).unwrap();
    closers.end(User::limited(7), ours);
    wait(|| is_idle(&closers));
    assert!(!is_open(&other), "the descriptor that was queued is closed");
    let mut bytes = [0; 4];
    let last = packet_socket::receive(&theirs, &mut bytes);
    let reset = last.unwrap_err().raw_os_error();
    assert_eq!(reset, Some(rustix::io::Errno::CONNRESET.raw_os_error()));
    packet_socket::receive(&theirs, &mut bytes).unwrap();
    assert_eq!(&bytes, b"last", "it is read after the error");
    expect_end(&theirs);
}

#[test]
fn a_connection_without_descriptors_is_closed_without_a_reset() {
    let closers = closers(10);
    let (ours, theirs) = packet_socket::pair().unwrap();
    packet_socket::send(&theirs, b"not received", None).unwrap();
    packet_socket::send(&ours, b"last", None).unwrap();
    closers.end(User::limited(7), ours);
    assert!(lock(&closers.waiting).users.is_empty(), "no user waits for it");
    let mut bytes = [0; 4];
    packet_socket::receive(&theirs, &mut bytes).unwrap();
    assert_eq!(&bytes, b"last");
    expect_end(&theirs);
    assert!(closers.retry());
    wait(|| packet_socket::send(&theirs, b"x", None).is_err());
}

#[test]
fn sockets_of_a_user_whose_disposals_wait_are_held() {
    /// More than one message has, and less than a thread can have.
    const COUNT: usize = 300;
    let closers = closers(1000);
    let user = User::limited(7);
    lock(&closers.waiting).users.entry(user).or_default().disposals = Disposals::endless();
    let mut others = Vec::new();
    for _ in 0..COUNT {
        let (ours, theirs, other) = queued();
        closers.end(user, ours);
        assert!(!is_open(&theirs), "shut down at once");
        others.push(other);
    }
    assert!(closers.retry(), "none waits here");
    {
        let waiting = lock(&closers.waiting);
        let of_user = &waiting.users[&user];
        assert!(of_user.sockets.is_empty() && of_user.disposals.held() == COUNT);
    }
    assert!(!closers.may_send(user) && closers.may_send(User::limited(8)) && closers.may_accept());
    assert!(others.iter().all(is_open), "what is queued is not closed");
    lock(&closers.waiting).users.get_mut(&user).unwrap().disposals = Disposals::default();
    wait(|| is_idle(&closers) && !others.iter().any(is_open));
    assert!(closers.may_send(user));
}

#[test]
fn what_has_record_locks_is_closed_by_threads_that_may_wait() {
    let mut closers = closers(10);
    closers.threads_per_user = 0;
    let queued = |user| lock(&closers.waiting).users[&user].queue.len();
    let user = User::limited(7);
    let [free, locked] = [(); 2].map(|()| OwnedFd::from(io::pipe().unwrap().1));
    set_record_lock(&locked);
    closers.close(user, vec![free, locked]);
    assert_eq!(queued(user), 1);
    closers.close_memory(user, tempfile::tempfile().unwrap().into());
    assert_eq!(queued(user), 2);
    assert!(!closers.retry());
    closers.threads_per_user = 1;
    wait(|| is_idle(&closers));
}

#[test]
fn nothing_is_done_on_connections_of_a_user_whose_time_is_used_up() {
    let closers = closers(10);
    let user = User::limited(7);
    lock(&closers.waiting).users.entry(user).or_default().disposals = Disposals::endless();
    closers.budget.count(user, Duration::from_secs(1));
    let (ours, theirs) = packet_socket::pair().unwrap();
    closers.end(user, ours);
    assert!(is_open(&theirs), "it is not even shut down here");
    lock(&closers.waiting).users.get_mut(&user).unwrap().disposals = Disposals::default();
    wait(|| is_idle(&closers) && !is_open(&theirs));
}

#[test]
fn another_thread_is_started_only_if_one_hangs() {
    let closers = closers(1000);
    let user = User::limited(7);
    let threads = || lock(&closers.waiting).users[&user].threads;
    // A thread that closes something for as long as the test likes.
    let begin = |at| {
        let mut waiting = lock(&closers.waiting);
        let of_user = waiting.users.entry(user).or_default();
        (of_user.threads, of_user.last_progress) = (1, at);
    };
    begin(Some(Instant::now()));
    closers.close_memory(user, tempfile::tempfile().unwrap().into());
    assert!(!closers.retry());
    assert_eq!((threads(), lock(&closers.waiting).users[&user].queue.len()), (1, 1));
    begin(Instant::now().checked_sub(2 * HANGS_AFTER));
    closers.retry();
    wait(|| lock(&closers.waiting).users[&user].queue.is_empty() && threads() == 1);
}

#[test]
fn messages_of_a_client_that_makes_calls_slow_are_not_drained() {
    // Enough for a call to take more than a millisecond.
    const EPOLLS: usize = 100;
    const COPIES: usize = 500;
    let closers = closers(10);
    let user = User::limited(7);
    lock(&closers.waiting).users.entry(user).or_default().disposals = Disposals::endless();
    let drained = || lock(&closers.waiting).drained.len();
    for is_watched in [false, true] {
        let (ours, theirs) = packet_socket::pair().unwrap();
        packet_socket::send(&theirs, b"not received", None).unwrap();
        let copies = if is_watched { COPIES } else { 0 };
        let copies: Vec<OwnedFd> = (0..copies).map(|_| theirs.try_clone().unwrap()).collect();
        let flags = rustix::event::epoll::CreateFlags::CLOEXEC;
        let epolls: Vec<OwnedFd> =
            (0..EPOLLS).map(|_| rustix::event::epoll::create(flags).unwrap()).collect();
        for (epoll, copy) in
            epolls.iter().flat_map(|epoll| copies.iter().map(move |it| (epoll, it)))
        {
            let data = rustix::event::epoll::EventData::new_u64(0);
            let events = rustix::event::epoll::EventFlags::IN;
            rustix::event::epoll::add(epoll, copy, data, events).unwrap();
        }
        closers.end(user, ours);
        assert_eq!(drained(), 1, "only that of the client that does not");
    }
    assert_eq!(lock(&closers.waiting).users[&user].disposals.held(), 1);
}
