//! Memory that a server gave this process.
#![expect(unsafe_code, reason = "lends out a slice of memory that is sealed against writing")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use longshore_mem::Granule;
use longshore_sys::mapping::{Access, Mapping};
use longshore_sys::memfd::{self, Seals};
use longshore_sys::readiness::{self, Watch};

use super::line::Line;
use crate::error::{Error, Result};
use crate::fault::ServerFault;
use crate::protocol::{Reply, Request};

/// The time for a server to count a release. It may also count it without an answer.
const RELEASE_TIME: Duration = Duration::from_secs(5);

/// A model that a server shares with this process. It is released when this is dropped, or when this
/// process dies.
///
/// The memory is mapped, and was checked to be sealed against changes. It stays valid for as long as
/// this lives, also when the server ends.
#[derive(Debug)]
pub struct Attachment {
    socket: OwnedFd,
    memfd: OwnedFd,
    mapping: Mapping,
    id: u64,
    len_bytes: u64,
    files: Vec<AttachedFile>,
    /// The process that attached it. Forked children share the connection.
    pid: u32,
}

/// A file of a model, and its place in the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttachedFile {
    /// The path, as the server reports it.
    pub path: PathBuf,
    /// The offset in bytes at which it begins in the memory.
    pub buffer_offset: u64,
    /// Its length in bytes.
    pub len_bytes: u64,
}

impl Attachment {
    /// Checks everything that the server reports about the memory.
    pub(super) fn new(
        socket: OwnedFd,
        memfd: OwnedFd,
        id: u64,
        len_bytes: u64,
        files: Vec<AttachedFile>,
    ) -> Result<Self> {
        verify(&memfd, len_bytes)?;
        let mapping = Mapping::of_file(&memfd, len_bytes, Granule::SIZE_2M, Access::Read)
            .map_err(Error::kernel("mapping the memory"))?;
        Ok(Self { socket, memfd, mapping, id, len_bytes, files, pid: std::process::id() })
    }

    /// Returns the server's number for the model.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the length of the content in bytes.
    pub fn len(&self) -> u64 {
        self.len_bytes
    }

    /// Returns `true` if there is no content. A server has no empty model.
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Returns the content, which cannot change.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the mapping is readable and lives as long as `self`. The file is at least that long,
        // and is sealed against shrinking and against writes of every process: `verify` has checked both
        // seals, and seals cannot be removed.
        unsafe {
            std::slice::from_raw_parts(self.mapping.start().as_ptr(), self.mapping.len_bytes())
        }
    }

    /// Returns the files, in their order in the memory.
    pub fn files(&self) -> &[AttachedFile] {
        &self.files
    }

    /// Returns the content of one of [`Self::files`].
    pub fn file_bytes(&self, file: &AttachedFile) -> Option<&[u8]> {
        let start = usize::try_from(file.buffer_offset).ok()?;
        let end = start.checked_add(usize::try_from(file.len_bytes).ok()?)?;
        self.as_slice().get(start..end)
    }

    /// Returns a read-only descriptor of the memory. It may be passed to other processes; it does not
    /// keep the attachment.
    pub fn memfd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }

    /// Returns the connection. The attachment lasts for as long as a descriptor of it is open: a program
    /// that this process becomes must inherit it.
    pub fn connection(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns `true` if the server is still there. Without it the memory stays, and references are not
    /// counted.
    pub fn is_server_alive(&self) -> bool {
        let watch = Watch { fd: self.socket.as_fd(), read: false, write: false };
        let ready = readiness::wait(&[watch], Some(Instant::now()));
        ready.is_ok_and(|ready| !ready[0].gone)
    }

    /// Releases the attachment and waits until the server has counted that. It is no error if the server
    /// is gone. In a forked child this releases nothing: the attachment is the parent's.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::Untrustworthy`]. The attachment is released in any case.
    pub fn release(self) -> Result<()> {
        if self.pid != std::process::id() {
            return Ok(());
        }
        let mut line = Line::of(self.socket, RELEASE_TIME);
        let answered = line.send(&Request::Release, None).and_then(|()| line.receive());
        match answered {
            Ok((Reply::Released, None)) | Err(Error::ServerGone) => Ok(()),
            Ok(_) => Err(ServerFault::OutOfTurn.into()),
            Err(error) => Err(error),
        }
    }
}

/// Checks that a descriptor is a read-only one, of memory of this length that no process can change or
/// shorten.
fn verify(memfd: &OwnedFd, len_bytes: u64) -> Result<()> {
    let kernel = || Error::kernel("looking at the memory");
    let seals = memfd::seals(memfd).map_err(|_| ServerFault::NotAMemfd)?;
    let needed = Seals { shrink: true, grow: true, write: true, seal: seals.seal };
    if seals != needed {
        let Seals { shrink, grow, write, .. } = seals;
        return Err(ServerFault::NotSealed { shrink, grow, write }.into());
    }
    let (found_bytes, is_writable) = memfd::look_at(memfd).map_err(kernel())?;
    if is_writable {
        return Err(ServerFault::Writable.into());
    }
    // Memory of the hugetlb pool consists of whole huge pages.
    let rounded = Granule::SIZE_2M.checked_round_up(len_bytes);
    if len_bytes == 0 || found_bytes != len_bytes && Some(found_bytes) != rounded {
        return Err(ServerFault::OtherLength { found_bytes, reported_bytes: len_bytes }.into());
    }
    Ok(())
}
