//! A custom `AsFd` may return another descriptor each time. So each function calls it only once: the
//! descriptor that was checked must be the one that is used.
#![cfg(not(miri))]

use std::cell::Cell;
use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use longshore_mem::{FileOffset, Granule};
use longshore_sys::closing::User;
use longshore_sys::mapping::{Access, Mapping};
use longshore_sys::memfd::{self, Backing};
use longshore_sys::{answering, beneath, event_fd, page_cache, unix_socket};

/// Counts the calls of `as_fd`.
struct Counting<'f> {
    fd: BorrowedFd<'f>,
    count: &'f Cell<u32>,
}

impl AsFd for Counting<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.count.set(self.count.get() + 1);
        self.fd
    }
}

fn asks_once<R: Debug>(of: &impl AsFd, what: impl FnOnce(Counting<'_>) -> io::Result<R>) -> R {
    let count = Cell::new(0);
    let done = what(Counting { fd: of.as_fd(), count: &count }).unwrap();
    assert_eq!(count.get(), 1, "{done:?}");
    done
}

#[test]
fn as_fd_is_called_once() {
    let memory = memfd::create("lying", Backing::Shmem).unwrap();
    memfd::set_len(&memory, 8192).unwrap();
    let file = tempfile::tempfile().unwrap();
    let event = event_fd::create().unwrap();
    let (socket, _peer) = UnixStream::pair().unwrap();

    let access = Access::ReadWrite;
    asks_once(&memory, |fd| Mapping::of_file(fd, 4096, Granule::SIZE_2M, access));
    let at = FileOffset::new(4096);
    asks_once(&memory, |fd| Mapping::of_file_part(fd, at, 4096, Granule::SIZE_4K, access));
    for fd in [memory.as_fd(), file.as_fd(), event.as_fd()] {
        asks_once(&fd, |fd| answering::is_answered_by_kernel(fd));
        asks_once(&fd, |fd| Ok(answering::may_be_passed_on(fd)));
        asks_once(&fd, |fd| beneath::examine(fd).map(drop));
        asks_once(&fd, |fd| event_fd::is_one(fd));
    }
    asks_once(&event, |fd| event_fd::drain(fd));
    asks_once(&file, |fd| page_cache::evict(fd));
    let mut files = Vec::new();
    let user = asks_once(&socket, |fd| Ok(User::of_peer(fd)));
    asks_once(&socket, |fd| {
        let received = unix_socket::receive(fd, user, &mut [0], &mut files, None);
        assert_eq!(received.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        Ok(())
    });
}
