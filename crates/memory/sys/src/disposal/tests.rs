use std::fs::{self, File};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Instant;

use super::lingering::{lingering, many, nested, send};
use super::*;

/// Waits until all disposals have ended, which takes an hour if the closing thread lingers.
fn wait(disposals: &[Disposal]) {
    let begin = Instant::now();
    while !disposals.iter().all(Disposal::has_ended) {
        assert!(begin.elapsed() < Duration::from_secs(60), "the closing thread waits");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Disposes of `socket`, and waits until it is closed.
fn close(socket: impl Into<OwnedFd>) {
    let mut sockets = vec![socket.into()];
    let disposals = dispose(&mut sockets);
    assert!(sockets.is_empty() && disposals.len() == 1);
    wait(&disposals);
}

/// Reads until the end, which is reached only if the other end is closed.
fn expect_closed(peer: OwnedFd) {
    let peer = std::net::TcpStream::from(peer);
    peer.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    io::copy(&mut &peer, &mut io::sink()).unwrap();
}

#[test]
fn sockets_that_linger_are_closed_at_once() {
    assert!(prepare().unwrap(), "the kernel refuses close_range(2)");
    let (socket, peer) = lingering();
    close(socket);
    expect_closed(peer);
    let (socket, peer) = nested();
    close(socket);
    expect_closed(peer);
}

/// Hides `/proc` from this thread, if this user may.
fn hide_proc() -> io::Result<()> {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    // SAFETY: only this thread gets a separate working directory and mounts; descriptors stay shared.
    unsafe { unshare_unsafe(UnshareFlags::FS | UnshareFlags::NEWNS) }?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    Ok(mount("none", "/proc", "tmpfs", MountFlags::empty(), None)?)
}

/// A user can delay look-ups in `/proc/PID/task` for ever.
#[test]
fn has_ended_looks_up_no_path() {
    let (send_id, id) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        send_id.send(rustix::thread::gettid().as_raw_pid().unsigned_abs()).unwrap();
        let _ = ended.recv();
    });
    let disposal = Disposal { thread: Arc::new(AtomicU32::new(id.recv().unwrap())) };
    let asked = disposal.clone();
    let without_proc = thread::spawn(move || hide_proc().map(|()| asked.has_ended()));
    match without_proc.join().unwrap() {
        Ok(has_ended) => assert!(!has_ended),
        Err(error) => println!("SKIPPED: /proc cannot be hidden: {error}"),
    }
    drop(end);
    thread.join().unwrap();
    wait(&[disposal]);
}

/// A service manager continues to listen after a server has ended.
#[test]
fn a_socket_that_another_process_listens_on_is_not_shut_down() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let mut copy = vec![listener.try_clone().unwrap().into()];
    wait(&dispose(&mut copy));
    UnixStream::connect(&path).unwrap();
}

#[test]
fn descriptors_in_the_queue_of_a_socket_are_closed_with_it() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (sockets, _peers) = many();
    let mut sockets: Vec<OwnedFd> = sockets.into_iter().map(OwnedFd::from).collect();
    let all: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    send(&theirs, b"message", &all);
    drop((all, theirs));
    // After this, the descriptors in the queue are the last ones.
    wait(&dispose(&mut sockets));
    close(ours);
}

#[test]
fn a_holder_keeps_sockets_open_until_it_is_dropped() {
    let mut holder = Holder::start(&[]).unwrap();
    let (sockets, mut others) = many();
    let mut sockets: Vec<OwnedFd> = sockets.into_iter().map(OwnedFd::from).collect();
    let (nested, peer) = nested();
    sockets.push(nested.into());
    let (ours, theirs) = UnixStream::pair().unwrap();
    sockets.push(ours.into());
    let count = sockets.len();
    holder.take(&mut sockets, &mut Copies::default());
    assert!(sockets.is_empty() && holder.count == count && !holder.is_full());
    theirs.set_nonblocking(true).unwrap();
    let read = || io::Read::read(&mut &theirs, &mut [0]);
    assert_eq!(read().unwrap_err().kind(), io::ErrorKind::WouldBlock, "it is open");
    let disposal = holder.close();
    wait(&[disposal]);
    // Processes and threads of other tests own copies for a moment.
    theirs.set_nonblocking(false).unwrap();
    theirs.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(read().unwrap(), 0);
    expect_closed(peer);
    expect_closed(others.pop().unwrap());
}

#[test]
fn a_full_holder_takes_no_more_descriptors() {
    let mut holder = Holder::start(&[]).unwrap();
    holder.max = 3;
    let mut sockets: Vec<OwnedFd> = (0..5).map(|_| UnixStream::pair().unwrap().0.into()).collect();
    holder.take(&mut sockets, &mut Copies::default());
    assert!(sockets.len() == 2 && holder.is_full());
    holder.take(&mut sockets, &mut Copies::default());
    assert_eq!(sockets.len(), 2);
    wait(&[holder.close()]);
}

#[test]
fn connections_that_were_not_accepted_are_closed_with_the_listener() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let client = UnixStream::connect(&path).unwrap();
    let (socket, peer) = nested();
    send(&client, b"message", &[socket.as_fd()]);
    close(socket);
    close(listener);
    expect_closed(peer);
}

#[test]
fn more_sockets_than_fit_in_a_message_are_sent_in_several_messages() {
    let (sockets, mut others) = many();
    let mut sockets: Vec<OwnedFd> = sockets.into_iter().map(OwnedFd::from).collect();
    sockets.append(&mut others);
    let disposals = dispose(&mut sockets);
    assert!(sockets.is_empty() && disposals.len() == 2);
    wait(&disposals);
}

#[test]
fn the_threads_keep_no_descriptor_of_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap().join("marker");
    let _marker = File::create(&path).unwrap();
    // Unlike the receiver that all tests share, this one starts while the file is open.
    let receiver = start().unwrap();
    let is_ours = |task: &fs::DirEntry| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == NAME)
    };
    let has_marker = |task: fs::DirEntry| {
        let files = fs::read_dir(task.path().join("fd")).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|link| link == path)
    };
    let tasks = || fs::read_dir("/proc/self/task").unwrap().flatten().filter(is_ours);
    assert!(tasks().count() > 0);
    let begin = Instant::now();
    while tasks().any(has_marker) {
        assert!(begin.elapsed() < Duration::from_secs(60), "a thread keeps the file open");
        thread::sleep(Duration::from_millis(1));
    }
    drop(receiver);
}

#[test]
fn sockets_are_held_while_the_maximum_number_of_threads_waits() {
    let mut disposals = Disposals::endless();
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let read = || io::Read::read(&mut &theirs, &mut [0]);
    drop(disposals.dispose(&mut vec![ours.into()]));
    assert!(disposals.held() == 1 && disposals.threads.len() == THREADS_MAX);
    assert!(!disposals.have_ended() && read().is_err(), "it is open");
    disposals.threads.pop();
    disposals.proceed();
    assert_eq!(disposals.held(), 0);
    theirs.set_nonblocking(false).unwrap();
    theirs.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(read().unwrap(), 0);
}

/// Waits until the peer has received everything, or has closed its end.
fn wait_until_received(ours: &OwnedFd) {
    let begin = Instant::now();
    while packet_socket::has_unreceived(ours) {
        assert!(begin.elapsed() < Duration::from_secs(60), "the other end is open");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_queue_that_holds_the_other_end_of_its_connection_is_emptied() {
    assert!(prepare().unwrap(), "the kernel refuses close_range(2)");
    let (ours, theirs) = packet_socket::pair().unwrap();
    packet_socket::send(&ours, b"memory", Some(ours.as_fd())).unwrap();
    let (other, _its_peer) = packet_socket::pair().unwrap();
    packet_socket::send(&theirs, b"", None).unwrap();
    send_all(&theirs, &[other.as_fd(), theirs.as_fd()]);
    packet_socket::send(&theirs, b"last", None).unwrap();
    drop((theirs, other));
    assert!(packet_socket::has_unreceived(&ours), "the end is in its own queue");
    packet_socket::shut_down(&ours);
    let mut disposals = Disposals::default();
    assert!(disposals.empty(&ours));
    wait_until_received(&ours);
    wait(&disposals.threads);
    assert!(!Disposals::endless().empty(&ours), "the user has no other thread");
}

/// Sends descriptors in one message.
fn send_all(socket: &OwnedFd, descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    let parts = [IoSlice::new(b"several")];
    rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::empty()).unwrap();
}

#[test]
fn held_sockets_are_closed_when_another_thread_has_ended() {
    let mut disposals = Disposals::endless();
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(disposals.dispose(&mut vec![ours.into()]));
    theirs.set_nonblocking(true).unwrap();
    let read = || io::Read::read(&mut &theirs, &mut [0]);
    assert_eq!(disposals.held(), 1);
    thread::sleep(Duration::from_millis(100));
    assert_eq!(read().unwrap_err().kind(), io::ErrorKind::WouldBlock, "it is open");
    // No thread of this process has this id.
    disposals.threads[3].thread.store(u32::MAX, Ordering::Release);
    theirs.set_nonblocking(false).unwrap();
    theirs.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(read().unwrap(), 0, "it is closed without another call");
}

#[test]
fn copies_are_closed_without_a_lock_and_before_the_thread_exits() {
    let begin = Instant::now();
    let wait_for = |disposals: &mut Disposals| {
        while !disposals.have_ended() {
            assert!(begin.elapsed() < Duration::from_secs(60), "a thread does not end");
            thread::sleep(Duration::from_millis(1));
        }
    };
    let descriptor = || vec![OwnedFd::from(UnixStream::pair().unwrap().0)];
    let mut slow = Disposals::default();
    let copies = slow.dispose(&mut descriptor());
    // Meanwhile others are closed.
    let mut other = Disposals::default();
    drop(other.dispose(&mut descriptor()));
    wait_for(&mut other);
    assert!(!slow.have_ended(), "the copy would be closed last");
    drop(copies);
    wait_for(&mut slow);
}
