//! The client's side.

mod attachment;
mod line;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_formats::printable;
use longshore_load::FormatChoice;
use longshore_load::{CancelToken, Progress};
use longshore_mem::Granule;
use longshore_sys::{file, packet_socket};

use crate::address::default_server;
use crate::error::{Error, Result};
use crate::protocol::{Held, Reply, Request, Target, VERSION};
use crate::served::parent;

use line::Line;

pub use attachment::{AttachedFile, Attachment};

/// More files than any model has; a server that says more is not believed.
const FILES_MAX: u32 = 100_000;
/// More lines than any server's list has.
const LINES_MAX: usize = 100_000;

/// What is to be attached.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wanted {
    /// The file at this path.
    Path(PathBuf),
    /// What the server holds under this number.
    Id(u64),
    /// As people write it: a path; else a name beneath what is served; else a number; else the end
    /// of the path of what is held.
    Word(OsString),
}

/// What a server serves and holds.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Directories and files that are served.
    pub roots: Vec<PathBuf>,
    /// Models that are held or being loaded.
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
    align: Option<Granule>,
}

impl Client {
    /// Connects to the server that listens at `socket`; without one, to that of this user or of the
    /// system ([`default_server`]). When `cancel` is cancelled, whatever waits for the server ends.
    ///
    /// # Errors
    /// [`Error::NoServer`], [`Error::SocketDenied`], [`Error::Refused`] where it speaks another
    /// version or has too many clients, [`Error::Cancelled`]; those of [`default_server`].
    pub fn connect(socket: Option<&Path>, cancel: &CancelToken) -> Result<Self> {
        let socket = socket.map_or_else(default_server, |socket| Ok(socket.to_owned()))?;
        let mut line = Line::connect(&socket, cancel)?;
        line.send(&Request::Hello { version: VERSION }, None)?;
        match line.receive()? {
            (Reply::Welcome { version: VERSION, pid }, None) => {
                Ok(Self { line, server_pid: pid, align: None })
            }
            _ => Err(out_of_turn()),
        }
    }

    /// Has the server place every tensor at a multiple of this, as [`Opened::align`] does: it is
    /// another memory than the same model's as it is. What is attached by its number is as it is held.
    ///
    /// [`Opened::align`]: longshore_load::Opened::align
    pub fn align(self, alignment: Granule) -> Self {
        Self { align: Some(alignment), ..self }
    }

    /// The server's process, as it says.
    pub fn server_pid(&self) -> u32 {
        self.server_pid
    }

    /// What is served and held.
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
        Err(untrustworthy(format!("a list of more than {LINES_MAX} lines")))
    }

    /// Attaches a model, and waits while the server loads it: `observe` hears how far it has come. A
    /// file is opened by this process, too: that is how it shows that it may read it.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::NotFound`], [`Error::Refused`], [`Error::Cancelled`],
    /// [`Error::ServerGone`], [`Error::TimedOut`], [`Error::Untrustworthy`]. Nothing is left then.
    pub fn attach(
        mut self,
        wanted: &Wanted,
        format: FormatChoice,
        observe: &mut dyn FnMut(Progress),
    ) -> Result<Attachment> {
        let (path, target) = self.locate(wanted)?;
        let file = opened(&path)?;
        let align_bytes = self.align.map_or(0, Granule::bytes);
        let request = Request::Attach { target, format: format.to_string(), align_bytes };
        self.line.send(&request, Some(file.as_fd()))?;
        drop(file);
        let mut shards = None;
        loop {
            match self.line.receive()? {
                (Reply::Prove { path: shard }, None) => {
                    let shards = match &mut shards {
                        Some(shards) => shards,
                        None => shards.insert(files_of(&path, format)?),
                    };
                    // Each is asked for once.
                    if !shards.remove(&shard) {
                        let shown = shard.to_string_lossy();
                        let what =
                            format!("it asks for {}, which is no part of it", printable(&shown));
                        return Err(untrustworthy(what));
                    }
                    let file = opened(&shard)?;
                    self.line.send(&Request::Proof, Some(file.as_fd()))?;
                }
                (Reply::Progress { done_bytes, total_bytes, elapsed_ms }, None) => {
                    let elapsed = Duration::from_millis(elapsed_ms);
                    observe(Progress { done_bytes, total_bytes, elapsed });
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
            return Err(untrustworthy(format!("a model of {count} files")));
        }
        let mut files = Vec::new();
        for _ in 0..count {
            let (Reply::File { buffer_offset, len_bytes: bytes, path }, None) =
                self.line.receive()?
            else {
                return Err(out_of_turn());
            };
            if buffer_offset.checked_add(bytes).is_none_or(|end| end > len_bytes) {
                return Err(untrustworthy("a file that is not inside of the memory".to_owned()));
            }
            files.push(AttachedFile { path, buffer_offset, len_bytes: bytes });
        }
        Ok(files)
    }

    /// The file to be opened, and what to ask the server for.
    fn locate(&mut self, wanted: &Wanted) -> Result<(PathBuf, Target)> {
        let of_path = |path: &Path| {
            let path = resolved(path)?;
            Ok((path.clone(), Target::Path(path)))
        };
        match wanted {
            Wanted::Path(path) => of_path(path),
            Wanted::Id(id) => {
                let listing = self.list_of_names()?;
                by_id(&listing, *id).ok_or_else(|| not_found(&id.to_string(), &listing))
            }
            Wanted::Word(word) => {
                let path = Path::new(word);
                if path.is_absolute() || path.exists() {
                    return of_path(path);
                }
                let listing = self.list_of_names()?;
                let beneath = listing.roots.iter().map(|root| root.join(path));
                if let Some(beneath) = beneath.into_iter().find(|path| path.exists()) {
                    return of_path(&beneath);
                }
                let id = word.to_str().and_then(|word| word.parse().ok());
                if let Some(found) = id.and_then(|id| by_id(&listing, id)) {
                    return Ok(found);
                }
                let mut named = listing.held.iter().map(|held| &held.path).chain(&listing.roots);
                match named.rfind(|named| named.ends_with(path)) {
                    Some(named) => of_path(named),
                    None => Err(not_found(&word.to_string_lossy(), &listing)),
                }
            }
        }
    }

    /// The list, where the server may say which file is meant: it is sent that file, opened with our
    /// rights. So only a server that has those rights may.
    fn list_of_names(&mut self) -> Result<Listing> {
        let peer = packet_socket::peer(&self.line).map_err(Error::kernel("asking who serves"))?;
        if peer.uid != 0 && peer.uid != longshore_sys::effective_uid() {
            return Err(untrustworthy(format!(
                "it is run by user {}, who is to be told files by their paths only",
                peer.uid
            )));
        }
        self.list()
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }
}

fn unreachable_by(socket: &Path, source: io::Error) -> Error {
    let socket = socket.to_owned();
    let hint = match source.kind() {
        ErrorKind::PermissionDenied => return Error::SocketDenied { socket, source },
        ErrorKind::NotFound | ErrorKind::NotADirectory => "there is no such socket",
        ErrorKind::ConnectionRefused => {
            "the socket is there, but its server is not: it was killed, and the next one replaces it"
        }
        ErrorKind::WouldBlock => "there is a server, but it accepts nobody",
        ErrorKind::InvalidFilename => "the path is too long for a socket",
        _ => "what is there is no server's socket",
    };
    Error::NoServer { socket, hint, source }
}

pub(super) fn untrustworthy(what: String) -> Error {
    Error::Untrustworthy { what }
}

fn out_of_turn() -> Error {
    untrustworthy("an answer to something else".to_owned())
}

fn opened(path: &Path) -> Result<OwnedFd> {
    file::open(path).map_err(|source| Error::Open { path: path.to_owned(), source })
}

/// The absolute path of a file, without symbolic links but for its own name: where the file is said
/// to be decides about its format and where its shards are.
fn resolved(path: &Path) -> Result<PathBuf> {
    let failed = |source| Error::Open { path: path.to_owned(), source };
    match (parent(path), path.file_name()) {
        (Some(directory), Some(name)) => Ok(directory.canonicalize().map_err(failed)?.join(name)),
        _ => path.canonicalize().map_err(failed),
    }
}

/// The files that one stands for: a server that asks for others asks for too much.
fn files_of(path: &Path, format: FormatChoice) -> Result<BTreeSet<PathBuf>> {
    let opened = longshore_load::open(&[path], format)?;
    Ok(opened.plan.files().iter().map(|file| file.source().path().to_owned()).collect())
}

fn by_id(listing: &Listing, id: u64) -> Option<(PathBuf, Target)> {
    let held = listing.held.iter().find(|held| held.id == id)?;
    Some((held.path.clone(), Target::Id(id)))
}

fn not_found(name: &str, listing: &Listing) -> Error {
    let shown = |path: &Path| printable(&path.to_string_lossy()).into_owned();
    let roots: Vec<String> = listing.roots.iter().map(|root| shown(root)).collect();
    let hint = format!(
        "it is no file here, nor one beneath {}, nor the name or number of any of the {} models that \
         are held",
        roots.join(", "),
        listing.held.len()
    );
    Error::NotFound { name: printable(name).into_owned(), hint }
}

/// The words of the command line.
impl From<&OsStr> for Wanted {
    fn from(word: &OsStr) -> Self {
        Self::Word(word.to_owned())
    }
}
