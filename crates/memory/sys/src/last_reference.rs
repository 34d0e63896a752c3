//! Learning when the last reference to a file without a name is gone: every descriptor of it, in any
//! process or in flight between two, and every mapping.
//!
//! The kernel reports it to inotify as the deletion of the inode. Pages that a driver has pinned, or
//! that are in the buffer of a pipe or socket after `splice(2)` or `sendfile(2)`, may live longer than
//! the file. Such a reference to a single byte keeps its whole page: 2 MiB of a file in huge pages.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

/// Files of which the last references are watched.
#[derive(Debug)]
pub struct LastReferences {
    inotify: OwnedFd,
    /// The files whose last references are not known to be gone.
    watched: BTreeSet<Watched>,
    /// The kernel had no room for an event, so that others may be missing.
    has_overflowed: bool,
}

/// The number of a watched file, used for no other as long as the [`LastReferences`] exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Watched(i32);

/// Returns how many files all processes of this user may watch; `None` if the kernel does not tell.
pub fn watches_max() -> Option<usize> {
    let limits = ["/proc/sys/fs/inotify/max_user_watches", "/proc/sys/user/max_inotify_watches"];
    let limits = limits.iter().filter_map(|path| fs::read_to_string(path).ok());
    limits.filter_map(|limit| limit.trim().parse().ok()).min()
}

impl LastReferences {
    /// Watches no file yet.
    ///
    /// # Errors
    /// `EMFILE` if this user has too many inotify instances or this process too many descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self::of(inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?))
    }

    fn of(inotify: OwnedFd) -> Self {
        Self { inotify, watched: BTreeSet::new(), has_overflowed: false }
    }

    /// Watches a file that has no name, such as a memfd. The watch is not a reference.
    ///
    /// # Errors
    /// `ENOSPC` if this user watches too many files, `ENOENT` if `/proc` is not mounted, `EACCES`.
    pub fn watch(&mut self, file: impl AsFd) -> io::Result<Watched> {
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        let number = inotify::add_watch(&self.inotify, path.as_str(), WatchFlags::DELETE_SELF)?;
        self.watched.insert(Watched(number));
        Ok(Watched(number))
    }

    /// Returns the files whose last references are gone since the last call. Does not block.
    ///
    /// # Errors
    /// Those of `read(2)`, or of reading `/proc`, if they occur before any of these files is known. Files
    /// that are known by then are returned, and the next call goes on.
    pub fn gone(&mut self) -> io::Result<Vec<Watched>> {
        let mut gone = Vec::new();
        let read = self.read_events(&mut gone);
        let read = read.and_then(|()| match self.has_overflowed {
            true => self.find_unreported(&mut gone),
            false => Ok(()),
        });
        match read {
            Err(error) if gone.is_empty() => Err(error),
            _ => Ok(gone),
        }
    }

    fn read_events(&mut self, gone: &mut Vec<Watched>) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) if event.events().contains(ReadFlags::DELETE_SELF) => {
                    let file = Watched(event.wd());
                    gone.extend(self.watched.remove(&file).then_some(file));
                }
                Ok(event) => {
                    self.has_overflowed |= event.events().contains(ReadFlags::QUEUE_OVERFLOW);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Finds the files that are gone and for which there is no event: the kernel keeps at most
    /// `fs.inotify.max_queued_events` events. It lists the watches of all other files in `/proc`.
    fn find_unreported(&mut self, gone: &mut Vec<Watched>) -> io::Result<()> {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", self.inotify.as_raw_fd()))?;
        let number = |line: &str| {
            let number = line.strip_prefix("inotify wd:")?.split(' ').next()?;
            i32::from_str_radix(number, 16).ok().map(Watched)
        };
        let kept: BTreeSet<Watched> = info.lines().filter_map(number).collect();
        gone.extend(self.watched.difference(&kept));
        self.watched.retain(|file| kept.contains(file));
        self.has_overflowed = false;
        Ok(())
    }
}

impl AsFd for LastReferences {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, Mode, OFlags};

    use super::*;

    #[test]
    fn a_file_is_gone_with_its_last_descriptor_however_that_was_opened() {
        let mut references = LastReferences::new().unwrap();
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
        let mut references = LastReferences::of(reader);
        references.watched.insert(Watched(7));
        assert_eq!(references.gone().unwrap(), [Watched(7)]);
        assert!(references.gone().is_err(), "and nothing is lost by that");
    }

    /// Needs more files than the kernel keeps events, for each of which there are two.
    #[test]
    fn files_whose_events_are_lost_are_found() {
        let queued = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
        let count = queued.trim().parse::<usize>().unwrap() / 2 + 100;
        let mut references = LastReferences::new().unwrap();
        let memfd = || rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        let kept = memfd();
        let watched = references.watch(&kept).unwrap();
        let mut all = BTreeSet::new();
        for _ in 0..count {
            let file = memfd();
            match references.watch(&file) {
                Ok(watched) => _ = all.insert(watched),
                Err(error) => return println!("SKIPPED: {} watches: {error}", all.len()),
            }
        }
        let gone = references.gone().unwrap();
        assert_eq!(gone.len(), all.len());
        assert_eq!(BTreeSet::from_iter(gone), all);
        assert_eq!(references.gone().unwrap(), []);
        drop(kept);
        assert_eq!(references.gone().unwrap(), [watched]);
    }
}
