//! Learning when the last reference to a file without a name is gone: every descriptor of it, in any
//! process or in flight between two, and every mapping.
//!
//! The kernel reports it to inotify as the deletion of the inode. Pages that a driver has pinned, or
//! that are in the buffer of a pipe or socket after `splice(2)` or `sendfile(2)`, may live longer than
//! the file. Such a reference to a single byte keeps its whole page: 2 MiB of a file in huge pages.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

/// Files of which the last references are watched.
#[derive(Debug)]
pub struct LastReferences(OwnedFd);

/// The number of a watched file, used for no other as long as the [`LastReferences`] exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Watched(i32);

impl LastReferences {
    /// Watches no file yet.
    ///
    /// # Errors
    /// `EMFILE` if this user has too many inotify instances or this process too many descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self(inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?))
    }

    /// Watches a file that has no name, such as a memfd. The watch is not a reference.
    ///
    /// # Errors
    /// `ENOSPC` if this user watches too many files, `ENOENT` if `/proc` is not mounted, `EACCES`.
    pub fn watch(&self, file: impl AsFd) -> io::Result<Watched> {
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        Ok(Watched(inotify::add_watch(&self.0, path.as_str(), WatchFlags::DELETE_SELF)?))
    }

    /// Returns the files whose last references are gone since the last call. Does not block.
    ///
    /// # Errors
    /// Those of `read(2)`, if it fails before any of these files is known. If it fails after that, they
    /// are returned.
    pub fn gone(&self) -> io::Result<Vec<Watched>> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.0, &mut buffer);
        let mut gone = Vec::new();
        loop {
            match reader.next() {
                Ok(event) if event.events().contains(ReadFlags::DELETE_SELF) => {
                    gone.push(Watched(event.wd()));
                }
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(gone),
                // The kernel reports each file once.
                Err(_) if !gone.is_empty() => return Ok(gone),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for LastReferences {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, Mode, OFlags};

    use super::*;

    #[test]
    fn a_file_is_gone_with_its_last_descriptor_however_that_was_opened() {
        let references = LastReferences::new().unwrap();
        let memfd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        let kept = rustix::fs::memfd_create("kept", MemfdFlags::CLOEXEC).unwrap();
        let watched = references.watch(&memfd).unwrap();
        assert_ne!(references.watch(&kept).unwrap(), watched);
        let path = format!("/proc/self/fd/{}", memfd.as_raw_fd());
        let open = |flags| rustix::fs::open(path.as_str(), flags, Mode::empty()).unwrap();
        let others = [open(OFlags::RDONLY), open(OFlags::PATH), memfd.try_clone().unwrap()];
        drop(memfd);
        for other in others {
            assert_eq!(references.gone().unwrap(), []);
            drop(other);
        }
        assert_eq!(references.gone().unwrap(), [watched]);
        assert_eq!(references.gone().unwrap(), []);
    }

    /// Stands in for inotify: one event, and then an error.
    #[test]
    fn a_file_that_is_gone_is_returned_though_reading_on_fails() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        // `struct inotify_event` without a name: number, mask, cookie, length of the name.
        let event = [7, ReadFlags::DELETE_SELF.bits(), 0, 0].map(u32::to_ne_bytes).concat();
        rustix::io::write(&writer, &event).unwrap();
        drop(writer);
        let references = LastReferences(reader);
        assert_eq!(references.gone().unwrap(), [Watched(7)]);
        assert!(references.gone().is_err(), "and nothing is lost by that");
    }
}
