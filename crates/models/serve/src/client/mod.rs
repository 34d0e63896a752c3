//! The client.

mod attachment;
mod line;
mod trust;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_formats::directory::{DirectoryProblem, ModelFilter};
use longshore_load::{
    self as load, CancelToken, FormatChoice, HubName, Progress, SourceFile, find_files,
};
use longshore_mem::Granule;
use longshore_sys::{beneath, file, packet_socket};

use crate::address::default_server;
use crate::error::{Error, Result};
use crate::fault::ServerFault;
use crate::held::Held;
use crate::protocol::{PATH_BYTES_MAX, Reply, Request, Target, VERSION};
use crate::remote::name::is_remote_or_hub;
use crate::served::parent;

use line::Line;

pub use attachment::{AttachedFile, Attachment};
pub use trust::{TRUST_VARIABLE, Trust};

/// More files than any model has; a server that reports more is not trusted.
const FILES_MAX: u32 = 100_000;
/// More lines than the list of any server has.
const LINES_MAX: usize = 100_000;

/// The model to attach.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wanted {
    /// The file at this path, or the model in this directory. A name such as `s3://BUCKET/PREFIX/` is that of
    /// a model on a server, which the server attaches by its own credentials, if it is beneath one of its
    /// roots. `hf://ORG/NAME` is one, too, if the server has such a root, and is otherwise a repository in the
    /// local cache of the Hugging Face Hub.
    Path(PathBuf),
    /// The model that the server has under this number.
    Id(u64),
    /// A name as people write it: a path or a name on a server, as in [`Self::Path`]; else a name beneath a
    /// served directory; else a number; else the end of the path of a model in memory, which must not be the
    /// end of the path of another one.
    /// The files of the model, and links to them, must then belong to root, to this user or to the user
    /// that runs the server. A model on a server is not found by the end of its name.
    Word(OsString),
}

/// A model to request.
enum Place {
    /// A file that this process has opened.
    File(Located),
    /// A model on a server.
    Server(Target),
}

/// A file that this process has opened, and the request for it.
struct Located {
    path: PathBuf,
    target: Target,
    file: OwnedFd,
    /// The name by which it was found, if that is the end of its path.
    by_end: Option<String>,
}

/// The served files and the models of a server.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Listing {
    /// The directories and files that are served, and the names below which models on servers are.
    pub roots: Vec<PathBuf>,
    /// The models that are in memory or being loaded.
    pub held: Vec<Held>,
}

/// A connection to a server, without an attachment.
///
/// ```no_run
/// use longshore_load::CancelToken;
/// use longshore_load::FormatChoice;
/// use longshore_serve::{Client, Wanted};
///
/// let wanted = Wanted::Path("model.safetensors".into());
/// let attachment = Client::connect(None, &CancelToken::new())?.attach(
///     &wanted,
///     FormatChoice::Auto,
///     &mut |progress| eprintln!("{} bytes", progress.done_bytes),
/// )?;
/// println!("{} bytes of {:?}", attachment.as_slice().len(), attachment.files());
/// # Ok::<(), longshore_serve::Error>(())
/// ```
#[derive(Debug)]
pub struct Client {
    line: Line,
    server_pid: u32,
    /// The user that runs the server.
    server_uid: u32,
    /// `true` if that user may choose which file it is sent.
    may_choose_files: bool,
    align: Option<Granule>,
}

impl Client {
    /// Connects to the server that listens at `socket` or, for `None`, to that of this user or of the
    /// system ([`default_server`]). Cancelling `cancel` ends every wait for the server.
    ///
    /// The user that runs the server has to be trusted ([`Trust::from_env`]).
    ///
    /// # Errors
    /// Those of [`Self::connect_with`] and [`Trust::from_env`].
    pub fn connect(socket: Option<&Path>, cancel: &CancelToken) -> Result<Self> {
        Self::connect_with(socket, &Trust::from_env()?, cancel)
    }

    /// Connects as [`Self::connect`] does, and trusts the servers of these users.
    ///
    /// The kernel reports the user whose process listened on the socket. If a service manager made
    /// the socket, that is the service manager's user.
    ///
    /// # Errors
    /// [`Error::NoServer`]; [`Error::SocketDenied`]; [`Error::UntrustedServer`], and nothing was
    /// sent; [`Error::Refused`] if the server speaks another version or has too many clients;
    /// [`Error::Cancelled`]; those of [`default_server`].
    pub fn connect_with(
        socket: Option<&Path>,
        trust: &Trust,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let socket = socket.map_or_else(default_server, |socket| Ok(socket.to_owned()))?;
        let mut line = Line::connect(&socket, cancel)?;
        let server = packet_socket::peer(&line).map_err(Error::kernel("asking who listens"))?;
        if !trust.contains(server.uid) {
            return Err(Error::UntrustedServer { socket, uid: server.uid });
        }
        line.send(&Request::Hello { version: VERSION }, None)?;
        match line.receive()? {
            (Reply::Welcome { version: VERSION, pid }, None) => {
                let (server_uid, may_choose_files) =
                    (server.uid, trust.may_choose_files(server.uid));
                Ok(Self { line, server_pid: pid, server_uid, may_choose_files, align: None })
            }
            _ => Err(out_of_turn()),
        }
    }

    /// Asks the server to align every tensor to `alignment`, as [`Opened::align`] does. The aligned
    /// model is another one in the server's memory. A model that is attached by its number keeps its
    /// layout.
    ///
    /// [`Opened::align`]: longshore_load::Opened::align
    pub fn align(self, alignment: Granule) -> Self {
        Self { align: Some(alignment), ..self }
    }

    /// Returns the process id of the server, as it reports it.
    pub fn server_pid(&self) -> u32 {
        self.server_pid
    }

    /// Returns the served files and the models of the server.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Cancelled`], [`Error::ServerGone`], [`Error::TimedOut`],
    /// [`Error::Untrustworthy`].
    pub fn list(&mut self) -> Result<Listing> {
        self.line.send(&Request::List, None)?;
        let mut listing = Listing::default();
        for _ in 0..LINES_MAX {
            match self.line.receive()? {
                (Reply::Root { path }, None) => listing.roots.push(path),
                (Reply::Held(held), None) => listing.held.push(held),
                (Reply::End, None) => return Ok(listing),
                _ => return Err(out_of_turn()),
            }
        }
        Err(ServerFault::ListTooLong { lines_max: LINES_MAX }.into())
    }

    /// Attaches a model, and waits while the server loads it; `observe` is called with the progress.
    /// This process opens the files, too, to show that it may read them.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::NotFound`], [`Error::Ambiguous`], [`Error::OtherUser`],
    /// [`Error::Load`] if a directory has no model, several, or one that no single file names,
    /// [`Error::Refused`], [`Error::Cancelled`], [`Error::ServerGone`], [`Error::TimedOut`],
    /// [`Error::Untrustworthy`]. The model is not attached then.
    pub fn attach(
        mut self,
        wanted: &Wanted,
        format: FormatChoice,
        observe: &mut dyn FnMut(Progress),
    ) -> Result<Attachment> {
        let (target, located) = match self.place(wanted, format)? {
            Place::File(located) => (located.target.clone(), Some(located)),
            Place::Server(target) => (target, None),
        };
        if let Some(located) = &located {
            located.check_owner(&located.path, &located.file, self.server_uid)?;
        }
        let align_bytes = self.align.map_or(0, Granule::bytes);
        let request = Request::Attach { target, format: format.to_string(), align_bytes };
        self.line.send(&request, located.as_ref().map(|it| it.file.as_fd()))?;
        let mut shards = None;
        loop {
            match self.line.receive()? {
                (Reply::Prove { path: shard }, None) => {
                    // Of a model on a server, there is nothing to show.
                    let located = located.as_ref().ok_or_else(out_of_turn)?;
                    let Located { path, file, .. } = located;
                    let shards = match &mut shards {
                        Some(shards) => shards,
                        None => shards.insert(others_of(path, file, format)?),
                    };
                    // The server may ask for each once.
                    if !shards.remove(&shard) {
                        return Err(ServerFault::AsksForOtherFile { path: shard }.into());
                    }
                    let file = opened(&shard)?;
                    located.check_owner(&shard, &file, self.server_uid)?;
                    self.line.send(&Request::Proof, Some(file.as_fd()))?;
                }
                (Reply::Progress { done_bytes, total_bytes, elapsed_ms }, None) => {
                    let elapsed = Duration::from_millis(elapsed_ms);
                    observe(Progress::new(done_bytes, total_bytes, elapsed));
                }
                (Reply::Attached { id, len_bytes, files }, Some(memfd)) => {
                    let files = self.files(files, len_bytes)?;
                    return Attachment::new(self.line.end(), memfd, id, len_bytes, files);
                }
                _ => return Err(out_of_turn()),
            }
        }
    }

    fn files(&mut self, count: u32, len_bytes: u64) -> Result<Vec<AttachedFile>> {
        if count > FILES_MAX {
            return Err(ServerFault::TooManyFiles { count }.into());
        }
        let mut files = Vec::new();
        for _ in 0..count {
            let (Reply::File { buffer_offset, len_bytes: bytes, path }, None) =
                self.line.receive()?
            else {
                return Err(out_of_turn());
            };
            if buffer_offset.checked_add(bytes).is_none_or(|end| end > len_bytes) {
                return Err(ServerFault::FileOutside.into());
            }
            files.push(AttachedFile { path, buffer_offset, len_bytes: bytes });
        }
        Ok(files)
    }

    /// Finds the model to request.
    fn place(&mut self, wanted: &Wanted, format: FormatChoice) -> Result<Place> {
        let path = match wanted {
            Wanted::Path(path) => Some(path.as_path()),
            Wanted::Word(word) => Some(Path::new(word)),
            Wanted::Id(_) => None,
        };
        if let Some(path) = path.filter(|path| is_remote_or_hub(path)) {
            let is_cached = HubName::is_one(path) && !self.has_root_of(path)?;
            if let Some(name) = path.to_str().filter(|_| !is_cached) {
                // A longer name would be cut off. No server has such a name.
                if name.len() > PATH_BYTES_MAX {
                    return Err(not_found(name, &Listing::default()));
                }
                return Ok(Place::Server(Target::Remote(name.to_owned())));
            }
        }
        self.locate(wanted, format)
    }

    /// Returns `true` if a name of the Hub can be beneath a root of the server, which decides that.
    fn has_root_of(&mut self, name: &Path) -> Result<bool> {
        let repository = |path: &Path| HubName::from_path(path).ok().flatten();
        let Some(wanted) = repository(name) else { return Ok(false) };
        let roots = self.list()?.roots;
        Ok(roots.iter().filter_map(|root| repository(root)).any(|root| {
            let rest = wanted.repository.strip_prefix(root.repository.as_str());
            root.kind == wanted.kind
                && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }))
    }

    /// Opens the file, and returns it with its path and the target of the request.
    fn locate(&mut self, wanted: &Wanted, format: FormatChoice) -> Result<Place> {
        let of_path = |path: &Path| {
            let path = resolved(&only_file(path, format)?)?;
            let file = opened(&path)?;
            let target = Target::Path(path.clone());
            Ok(Place::File(Located { path, target, file, by_end: None }))
        };
        match wanted {
            Wanted::Path(path) => of_path(path),
            Wanted::Id(id) => {
                let listing = self.list_to_choose_from()?;
                by_id(&listing, *id).unwrap_or_else(|| Err(not_found(&id.to_string(), &listing)))
            }
            Wanted::Word(word) => {
                let path = Path::new(word);
                if path.is_absolute() || HubName::is_one(path) || path.exists() {
                    return of_path(path);
                }
                let listing = self.list_to_choose_from()?;
                // The names of models on servers are no paths of this machine.
                let roots = listing.roots.iter().filter(|root| root.is_absolute());
                let beneath = roots.clone().map(|root| root.join(path));
                if let Some(beneath) = beneath.into_iter().find(|path| path.exists()) {
                    return of_path(&beneath);
                }
                let id = word.to_str().and_then(|word| word.parse().ok());
                if let Some(found) = id.and_then(|id| by_id(&listing, id)) {
                    return found;
                }
                let held = listing.held.iter().map(|held| &held.path);
                let named = held.filter(|path| path.is_absolute()).chain(roots);
                let named: BTreeSet<&PathBuf> = named.filter(|it| it.ends_with(path)).collect();
                let name = word.to_string_lossy().into_owned();
                match named.first() {
                    Some(named_once) if named.len() == 1 => {
                        let found = of_path(named_once)?;
                        Ok(match found {
                            Place::File(file) => {
                                Place::File(Located { by_end: Some(name), ..file })
                            }
                            server @ Place::Server(_) => server,
                        })
                    }
                    // Another user can have attached a file of the same name.
                    Some(_) => {
                        let paths = named.into_iter().cloned().collect();
                        Err(Error::Ambiguous { name, paths })
                    }
                    None => Err(not_found(&name, &listing)),
                }
            }
        }
    }

    /// Returns the list, if the server may choose with it which file it is sent.
    fn list_to_choose_from(&mut self) -> Result<Listing> {
        if self.may_choose_files {
            return self.list();
        }
        Err(ServerFault::MayNotChoose { uid: self.server_uid }.into())
    }
}

impl Located {
    /// Checks that no other user decides the content of a file of the model, which was opened at `path`,
    /// if the model was found by the end of its path. Every user can have a file of that name attached
    /// while the right one is not, or a link to the index of the right one, with other shards beside it.
    fn check_owner(&self, path: &Path, opened: &OwnedFd, server_uid: u32) -> Result<()> {
        let Some(name) = &self.by_end else { return Ok(()) };
        let failed = |source| Error::Open { path: path.to_owned(), source };
        // The owner of the link, if the last component is one.
        let itself = fs::symlink_metadata(path).map_err(failed)?.uid();
        let target = file::status(opened).map_err(failed)?.owner;
        let trusted = [0, longshore_sys::effective_uid(), server_uid];
        match [itself, target].into_iter().find(|uid| !trusted.contains(uid)) {
            Some(uid) => Err(Error::OtherUser { name: name.clone(), path: self.path.clone(), uid }),
            None => Ok(()),
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }
}

fn out_of_turn() -> Error {
    ServerFault::OutOfTurn.into()
}

/// Opens a file to show. Another user may have changed where its path leads.
fn opened(path: &Path) -> Result<OwnedFd> {
    beneath::open_regular(path).map_err(|source| Error::Open { path: path.to_owned(), source })
}

/// Returns the file that names all files of the model at `path`.
fn only_file(path: &Path, format: FormatChoice) -> Result<PathBuf> {
    let mut files = find_files(path, format, &ModelFilter::new())?;
    if files.len() > 1 {
        let reason = DirectoryProblem::Separate { count: files.len() };
        return Err(load::Error::Directory { path: path.to_owned(), reason }.into());
    }
    files.pop().ok_or_else(|| Error::Open {
        path: path.to_owned(),
        source: std::io::ErrorKind::NotFound.into(),
    })
}

/// Returns the absolute path of a file, without symbolic links except in its own name: the path decides
/// the format of the file and the directory of its shards.
fn resolved(path: &Path) -> Result<PathBuf> {
    let failed = |source| Error::Open { path: path.to_owned(), source };
    match (parent(path), path.file_name()) {
        (Some(directory), Some(name)) => Ok(directory.canonicalize().map_err(failed)?.join(name)),
        _ => path.canonicalize().map_err(failed),
    }
}

/// Returns the other files of the model of a file; a server may ask for no others. This reads only the
/// named file, which is open already.
fn others_of(path: &Path, file: &OwnedFd, format: FormatChoice) -> Result<BTreeSet<PathBuf>> {
    let open = |path: &Path| {
        let own = file.try_clone();
        let own =
            own.map_err(|source| longshore_load::Error::Open { path: path.into(), source })?;
        Ok(SourceFile::from_fd(own)?.named(path))
    };
    let others = longshore_load::others_of(path, format, &open)?;
    Ok(others.into_iter().collect())
}

fn by_id(listing: &Listing, id: u64) -> Option<Result<Place>> {
    let path = listing.held.iter().find(|held| held.id == id)?.path.clone();
    if !path.is_absolute() {
        return Some(Ok(Place::Server(Target::RemoteId(id))));
    }
    let target = Target::Id(id);
    Some(opened(&path).map(|file| Place::File(Located { path, target, file, by_end: None })))
}

fn not_found(name: &str, listing: &Listing) -> Error {
    let (roots, held) = (listing.roots.clone(), listing.held.len());
    Error::NotFound { name: name.to_owned(), roots, held }
}

/// Parses a word of the command line.
impl From<&OsStr> for Wanted {
    fn from(word: &OsStr) -> Self {
        Self::Word(word.to_owned())
    }
}
