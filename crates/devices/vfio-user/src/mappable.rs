//! Memory of a device that its client maps.
#![expect(unsafe_code, reason = "copies to and from memory that the client maps, too")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use longshore_mem::Granule;
use longshore_mem::copy::copy_bytes;
use longshore_mem::fault::FaultGuard;
use longshore_sys::closing::{Disposable, User};
use longshore_sys::mapping::{Access, Mapping};
use longshore_sys::memfd::{self, Backing, Seals};
use longshore_sys::{file, memory, page_size_bytes};

use crate::description::RegionDescription;
use crate::wire::{MappableArea, RegionInfo};

/// The memory of a region, for one client. The device keeps a clone, which is the same memory, and reads and
/// writes it by [`read`](Self::read) and [`write`](Self::write), from any thread.
///
/// # Why there is no descriptor
///
/// The memory is a memfd. Once a client has the file, this process must not call `write(2)`, `fallocate(2)`,
/// `ftruncate(2)` or `fchmod(2)` on it, nor add seals to it (`F_ADD_SEALS`): these wait for the lock of the
/// file's inode. The client can keep that lock for ever, because it can write to the file from a page of a
/// FUSE file system that does not answer. A thread that waits for the lock does not end by SIGKILL either. Nor
/// must this process call `read(2)`, which takes the lock in some file systems. A page fault does not take
/// it, so a device uses a mapping of the file. Another thread closes the file, because `close(2)` walks all
/// record locks that the client has set on it.
#[derive(Clone, Debug)]
pub struct MappableFile {
    memory: Arc<Memory>,
    areas: Vec<MappableArea>,
}

/// A file and a mapping of all of it. They are dropped in this order, so that unmapping is not the last close
/// of the file.
#[derive(Debug)]
struct Memory {
    mapping: Mapping,
    file: Arc<Disposable<OwnedFd>>,
    is_given: AtomicBool,
    /// No seal guarantees that the kernel has a page for a hole that the client punches, or that a page is
    /// not lost in swap.
    _guard: FaultGuard,
}

impl MappableFile {
    /// Makes a file of `len_bytes` zero bytes, all of which may be mapped.
    ///
    /// # Errors
    /// Those of `memfd_create(2)` and `mmap(2)`, as if descriptors or addresses are exhausted; `FileTooLarge`
    /// beyond the limit of this process (`RLIMIT_FSIZE`); those of [`FaultGuard::install`].
    pub fn new(len_bytes: u64) -> io::Result<Self> {
        if memory::file_size_limit().is_some_and(|limit| len_bytes > limit) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let file = memfd::create("vfio-user-region", Backing::Shmem)?;
        memfd::set_len(&file, len_bytes)?;
        // Without the last one, a client could seal the file against writing.
        let seals = Seals { shrink: true, grow: true, seal: true, ..Seals::default() };
        memfd::add_seals(&file, seals)?;
        let guard = FaultGuard::install()?;
        let page = Granule::new(page_size_bytes() as u64).unwrap_or(Granule::SIZE_4K);
        let mapping = Mapping::of_file(&file, len_bytes, page, Access::ReadWrite)?;
        let file = Arc::new(Disposable::of_user(file, User::own()));
        let memory = Memory { mapping, file, is_given: AtomicBool::new(false), _guard: guard };
        Ok(Self { memory: Arc::new(memory), areas: Vec::new() })
    }

    /// Has only these parts mapped by the client; all of it where there are none.
    #[must_use]
    pub fn with_areas(self, areas: Vec<MappableArea>) -> Self {
        Self { areas, ..self }
    }

    /// Reads `into.len()` bytes at the offset `at`, in bytes. If the client writes them meanwhile, some are
    /// from before and some from after that.
    ///
    /// # Errors
    /// `InvalidInput` for bytes that are not all inside the file, of which none are read then; another error
    /// if a page of the file is lost.
    pub fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let from = self.memory.at(at, into.len())?.as_ptr();
        // SAFETY: the source is mapped and no Rust object, the target is borrowed, and a guard lives.
        unsafe { copy_bytes(from, into.as_mut_ptr(), into.len()) }.map_err(io::Error::other)
    }

    /// Writes all of `from` at the offset `at`, in bytes. If the client accesses the bytes meanwhile, it
    /// finds some of them written and some not.
    ///
    /// # Errors
    /// `InvalidInput` for bytes that are not all inside the file, of which none are written then; another
    /// error if a page of the file is lost.
    pub fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
        let to = self.memory.at(at, from.len())?.as_ptr();
        // SAFETY: the source is borrowed, the target is mapped and no Rust object, and a guard lives.
        unsafe { copy_bytes(from.as_ptr(), to, from.len()) }.map_err(io::Error::other)
    }

    /// Checks the file for region `index`, and makes of it what one client is given.
    pub(crate) fn give(
        self,
        index: u32,
        region: &RegionDescription,
        client: User,
    ) -> io::Result<Mappable> {
        let Self { memory, areas } = self;
        let refused = |reason| {
            let reason = format!("clients cannot map region {index}: {reason}");
            Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
        };
        if region.len_bytes > memory.mapping.len_bytes() as u64 {
            return refused("its file ends before the region does");
        }
        if memory.is_given.swap(true, Ordering::Relaxed) {
            return refused(
                "its file was given to a client before, which still has it; make a new one for each \
                 client and each region",
            );
        }
        memory.file.set_user(client);
        let file = match region.writable {
            true => Arc::clone(&memory.file),
            false => Arc::new(Disposable::of_user(read_only(&memory.file)?, client)),
        };
        Ok(Mappable { file, areas })
    }
}

impl Memory {
    /// Returns where the bytes at an offset are mapped, if all of them are.
    fn at(&self, at: u64, len_bytes: usize) -> io::Result<NonNull<u8>> {
        let file_bytes = self.mapping.len_bytes();
        let is_inside = |start: &usize| {
            let end = start.checked_add(len_bytes);
            end.is_some_and(|end| end <= file_bytes)
        };
        let Some(start) = usize::try_from(at).ok().filter(is_inside) else {
            let reason = format!(
                "{len_bytes} bytes at offset {at} are not inside the file of a region, which has \
                 {file_bytes}"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        };
        // SAFETY: inside of the mapping, as just checked.
        Ok(unsafe { self.mapping.start().add(start) })
    }
}

/// Opens a memfd read-only. From then on other users cannot open it for writing.
fn read_only(memfd: &OwnedFd) -> io::Result<OwnedFd> {
    memfd::set_permissions(memfd, 0o400)?;
    file::reopen_read_only(memfd.as_fd())
}

/// The memory of a region that belongs to the client of this connection, and to no other.
#[derive(Debug)]
pub(crate) struct Mappable {
    pub(crate) file: Arc<Disposable<OwnedFd>>,
    areas: Vec<MappableArea>,
}

impl Mappable {
    /// Adds the offset and the areas that can be mapped to the description of a region.
    pub(crate) fn describe(&self, info: &mut RegionInfo) {
        info.flags |= RegionInfo::MMAP;
        info.areas.clone_from(&self.areas);
    }
}
