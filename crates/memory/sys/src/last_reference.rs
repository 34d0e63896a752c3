//! Detecting when the last reference to a file without a name is gone. References are its descriptors,
//! in any process or in flight between two processes, and its mappings.
//!
//! inotify reports it as the deletion of the inode. Pages that a driver has pinned, or that are in the
//! buffer of a pipe or socket after `splice(2)` or `sendfile(2)`, may outlive the file. Such a reference
//! to a single byte keeps its whole page, which is 2 MiB for a file in huge pages.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

/// A watcher of the last references to files.
#[derive(Debug)]
pub struct LastReferences {
    inotify: OwnedFd,
    /// The files whose last references were not reported as gone.
    watched: BTreeSet<Watched>,
    /// `true` if the kernel has dropped events because its queue was full.
    has_overflowed: bool,
}

/// The number of a watched file, which is not reused while the [`LastReferences`] exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Watched(i32);

/// Returns the number of files that all processes of this user together may watch; `None` if the limit
/// cannot be read.
pub fn watches_max() -> Option<usize> {
    let limits = ["/proc/sys/fs/inotify/max_user_watches", "/proc/sys/user/max_inotify_watches"];
    let limits = limits.iter().filter_map(|path| fs::read_to_string(path).ok());
    limits.filter_map(|limit| limit.trim().parse().ok()).min()
}

impl LastReferences {
    /// Makes a watcher without files.
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

    /// Returns the files whose last references have gone since the last call. Does not block.
    ///
    /// # Errors
    /// Those of `read(2)`, or of reading `/proc`, if they occur before any file is found. Files that
    /// were found before the error are returned, and the next call continues.
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

    /// Finds the files that are gone but whose events were dropped, because the kernel queues at most
    /// `fs.inotify.max_queued_events` events. `/proc` lists the watches of all other files.
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
    fn a_file_is_gone_with_its_last_descriptor_of_any_kind() {
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

    /// A pipe in the place of inotify returns one event and then an error.
    #[test]
    fn a_file_that_is_gone_is_returned_even_if_the_next_read_fails() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        // `struct inotify_event` without a name: number, mask, cookie, length of the name.
        let event = [7, ReadFlags::DELETE_SELF.bits(), 0, 0].map(u32::to_ne_bytes).concat();
        rustix::io::write(&writer, &event).unwrap();
        drop(writer);
        let mut references = LastReferences::of(reader);
        references.watched.insert(Watched(7));
        assert_eq!(references.gone().unwrap(), [Watched(7)]);
        assert!(references.gone().is_err(), "the next call returns the error");
    }

    /// Uses more files than the kernel can queue events for; each file has two events.
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
