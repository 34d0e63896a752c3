//! The server: one thread that waits for clients and jobs and updates the model cache, and threads that
//! wait for disks.
//!
//! ```text
//!   listener ──┐                        ┌── look: where is it, is it served? ─────┐
//!   clients ───┼──► poll ──► core ──────┼── load: into a sealed memfd ────────────┼──► done ──► core
//!   stop ──────┘      (model cache)     └── sweep: is it changed, or deleted? ────┘
//! ```
//!
//! The serving thread never waits for a client or for a disk: sockets do not block, the bytes that a
//! client leaves unread are bounded, and after a time it is disconnected. No more descriptors of memory
//! are in flight than there are connections, ended ones included: `unread`. Other threads close
//! connections and the descriptors that clients sent, because closing those can block: `closers`. A
//! client can make calls slow that do not block, so each user has a share of the thread's time:
//! `budget`.

mod asking;
mod budget;
mod closers;
mod connection;
mod core;
mod events;
mod giving;
mod jobs;
mod limits;
mod lingering;
mod names;
mod notify;
mod open_files;
mod queue;
mod room;
mod starting;
mod stop;
mod sweep;
mod unread;
mod users;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore_heap::Heap;
use longshore_load::FormatChoice;
use longshore_mem::Granule;
use longshore_sys::{descriptors, disposal};

use crate::address::Listener;
use crate::error::{Error, Result};
use crate::model_cache::Keep;
use crate::remote::{RemoteOptions, RemoteServed};
use crate::served::{Served, not_a_file_name, parent};

pub use events::{Event, LoadFailure, ServerProblem};
pub(crate) use notify::notify;
pub use stop::Stop;
pub use users::Users;

/// The fewest descriptors that a server needs, so that each of its shares is enough for something.
const DESCRIPTORS_MIN: u64 = 256;

/// The files that a server serves, and its limits.
///
/// ```
/// use longshore_serve::{Keep, Options};
///
/// let options = Options::new().root("/srv/models").keep(Keep::Always).memory_max(64 << 30);
/// assert_eq!(options.roots.len(), 1);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The directories whose files may be attached. No symbolic link leads out of them, or into another
    /// mount: a mount beneath a root is served only if it is a root of its own.
    pub roots: Vec<PathBuf>,
    /// Files to load at the start and keep for as long as the server runs. Of this machine, only these and
    /// the files beneath a root are served.
    pub files: Vec<PathBuf>,
    /// The models on servers that may be attached. Their credentials are those of this process.
    pub remote: Option<RemoteOptions>,
    /// The format of the files.
    pub format: FormatChoice,
    /// The alignment of their tensors; `None` if they stay where they are in the files.
    pub align: Option<Granule>,
    /// The most bytes of models in memory at once, loads included; `None` for the memory of the machine.
    pub memory_max: Option<u64>,
    /// The most bytes of models that one user may have or wait for at once. `None` for as many as the
    /// user leaves free of [`Self::memory_max`] or, without that, of the memory that is available at the
    /// start: a half, if others have none. With [`Heap::Hugetlb`], the free pages of the pool at the
    /// start are divided, if [`Self::memory_max`] is not less. Models that the user released, and that
    /// no other user has attached, count until their memory is free, except for the largest one that
    /// others had as well.
    ///
    /// This limit, [`Self::clients_per_user`] and [`Self::loads_per_user`] do not apply to root and
    /// to the server's own user. The ids that a user owns in `/etc/subuid` count as that user.
    pub memory_per_user: Option<u64>,
    /// The most attachments of one user, those that wait for a model included.
    pub attachments_max: usize,
    /// The most connections of all users at once.
    pub clients_max: usize,
    /// The most connections of one user; `None` for half of [`Self::clients_max`]. A user never has
    /// more than are still free for others.
    pub clients_per_user: Option<usize>,
    /// The most models that are loaded at once for one user, at least 1; `None` for half of those that
    /// are loaded at once for all, which is 1 of 2.
    pub loads_per_user: Option<usize>,
    /// The time for which models without attachments are kept.
    pub keep: Keep,
    /// The source of the memory. Its content must be sealable ([`Heap::seals_content`]).
    pub heap: Heap,
    /// The users that may open the memory by its name in `/proc/PID/fd`, as permissions of a file;
    /// writing is prevented by a seal in any case. 0400 permits the server's own user.
    pub memory_mode: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            roots: Vec::new(),
            files: Vec::new(),
            remote: None,
            format: FormatChoice::Auto,
            align: None,
            memory_max: None,
            memory_per_user: None,
            attachments_max: 256,
            clients_max: 1024,
            clients_per_user: None,
            loads_per_user: None,
            keep: Keep::Attached,
            heap: Heap::Memfd,
            memory_mode: 0o400,
        }
    }
}

impl Options {
    /// Makes options without a file or directory to serve.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a directory to [`Self::roots`].
    pub fn root(mut self, path: impl Into<PathBuf>) -> Self {
        self.roots.push(path.into());
        self
    }

    /// Adds a file to [`Self::files`].
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.files.push(path.into());
        self
    }

    /// Also serves models on servers ([`Self::remote`]).
    pub fn remote(self, remote: RemoteOptions) -> Self {
        Self { remote: Some(remote), ..self }
    }

    /// Sets the format of the files ([`Self::format`]).
    pub fn format(self, format: FormatChoice) -> Self {
        Self { format, ..self }
    }

    /// Sets the alignment of tensors ([`Self::align`]).
    pub fn align(self, alignment: impl Into<Option<Granule>>) -> Self {
        Self { align: alignment.into(), ..self }
    }

    /// Limits the bytes in memory at once ([`Self::memory_max`]).
    pub fn memory_max(self, bytes: impl Into<Option<u64>>) -> Self {
        Self { memory_max: bytes.into(), ..self }
    }

    /// Limits the bytes that one user may have ([`Self::memory_per_user`]).
    pub fn memory_per_user(self, bytes: impl Into<Option<u64>>) -> Self {
        Self { memory_per_user: bytes.into(), ..self }
    }

    /// Limits the attachments of one user ([`Self::attachments_max`]).
    pub fn attachments_max(self, count: usize) -> Self {
        Self { attachments_max: count, ..self }
    }

    /// Limits the connections of all users ([`Self::clients_max`]).
    pub fn clients_max(self, count: usize) -> Self {
        Self { clients_max: count, ..self }
    }

    /// Limits the connections of one user ([`Self::clients_per_user`]).
    pub fn clients_per_user(self, count: impl Into<Option<usize>>) -> Self {
        Self { clients_per_user: count.into(), ..self }
    }

    /// Limits the models that are loaded at once for one user ([`Self::loads_per_user`]).
    pub fn loads_per_user(self, count: impl Into<Option<usize>>) -> Self {
        Self { loads_per_user: count.into(), ..self }
    }

    /// Sets the time for which unused models are kept ([`Self::keep`]).
    pub fn keep(self, keep: Keep) -> Self {
        Self { keep, ..self }
    }

    /// Sets the source of the memory ([`Self::heap`]).
    pub fn heap(self, heap: Heap) -> Self {
        Self { heap, ..self }
    }

    /// Sets the permissions of the memory ([`Self::memory_mode`]).
    pub fn memory_mode(self, mode: u32) -> Self {
        Self { memory_mode: mode, ..self }
    }
}

/// A server that has a socket and is not running yet.
#[derive(Debug)]
pub struct Server {
    core: core::Core,
}

impl Server {
    /// Makes a server on a socket. It loads nothing yet.
    ///
    /// # Errors
    /// [`Error::NothingToServe`]; [`Error::CannotServe`] for a root or file that cannot be served;
    /// [`Error::Load`] for a heap that cannot be sealed; [`Error::TooFewDescriptors`]; [`Error::Kernel`]
    /// if descriptors are exhausted, or another user holds the lock of this process's directory in `/proc`.
    pub fn new(listener: Listener, options: Options, stop: Stop) -> Result<Self> {
        let remote = options.remote.as_ref().map(RemoteServed::new).transpose()?;
        let has_remote = remote.as_ref().is_some_and(|remote| remote.roots().next().is_some());
        if options.roots.is_empty() && options.files.is_empty() && !has_remote {
            return Err(Error::NothingToServe);
        }
        if !options.heap.seals_content() {
            let heap = options.heap;
            let refused = longshore_heap::Error::CannotSealContent { heap };
            return Err(longshore_load::Error::from(refused).into());
        }
        let files = options.files.iter().map(|path| resolved(path)).collect::<Result<Vec<_>>>()?;
        let served = Arc::new(Served::new(&options.roots, &files)?);
        let served = (served, remote.map(Arc::new));
        // Before the first descriptor of a client arrives.
        disposal::prepare().map_err(Error::kernel("preparing to close clients' descriptors"))?;
        let limit = descriptors::raise_limit().unwrap_or_else(|_| descriptors::limit());
        if limit < DESCRIPTORS_MIN {
            return Err(Error::TooFewDescriptors { limit, needed: DESCRIPTORS_MIN });
        }
        // A descriptor for each client, as many again for everything else.
        let clients_max = options.clients_max.min(usize::try_from(limit / 2).unwrap_or(usize::MAX));
        let options = Options { files, clients_max, ..options };
        // Half of these are for the files and the memory of models, except those of root and of the
        // server's own user.
        let open_files_max = usize::try_from(limit / 4).unwrap_or(usize::MAX);
        Ok(Self { core: core::Core::new(listener, served, options, open_files_max, stop)? })
    }

    /// Serves until it is stopped, and calls `observe` with each event, on this thread. Then the socket
    /// is removed, and the memory is freed with the last client that has it.
    ///
    /// # Errors
    /// Returns an error if a file of the start cannot be loaded while the server is not ready and has
    /// accepted no client of another user, if the kernel refuses to wait, and in a process that was
    /// forked after the listener was made. No client of another user can cause such an error.
    pub fn run(self, observe: impl FnMut(&Event)) -> Result<()> {
        self.core.run(observe)
    }
}

/// Returns the absolute path of a file, without symbolic links except in its own name.
fn resolved(path: &Path) -> Result<PathBuf> {
    let (Some(directory), Some(name)) = (parent(path), path.file_name()) else {
        return Err(not_a_file_name(path));
    };
    let directory = directory.canonicalize().map_err(|error| Error::cannot_serve(path, error))?;
    Ok(directory.join(name))
}
