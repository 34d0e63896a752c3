//! `longshore exec`.

mod links;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::DirBuilder;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use clap::Args;
use longshore::formats::printable;
use longshore::load::{self, FoundModel, HeldModel, Manifest, Published, Publisher};
use longshore::{CancelToken, Progress, heap};
use longshore_sys::{beneath, directory, effective_uid, namespace, tmpfs};
use rustix::io::FdFlags;

use crate::exit::failure;
use crate::program::{cannot_run, check_program};
use crate::progress::Display;
use crate::signals;
use crate::sources;

/// The argument that the path of the model replaces.
const PLACE: &str = "{}";
/// The name of the lock file in the directory under a private tmpfs.
const LOCK_NAME: &str = ".longshore.lock";
/// The environment variable with the path of the model.
const VARIABLE: &str = "LONGSHORE_MODEL";

/// Publish a model in memory for one program, and become that program. Needs no privilege.
///
/// The model is published in a tmpfs with huge pages that only this program and its children see, in a
/// user and mount namespace of their own, and that ends with them. If namespaces are not permitted, it
/// is published in /dev/shm instead, where it stays. If that has no room, the program gets a directory
/// of links to sealed memory that it inherits. A line on standard error says which.
///
/// The path of the model, a directory or a file, replaces `{}`, and is in $LONGSHORE_MODEL.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  Serve a model directory:
    longshore exec ./llama -- vllm serve {}
  An argument may contain the path:
    longshore exec model.gguf -- llama-server --model={}
  A shell finds it in a variable:
    longshore exec ./llama -- sh -c 'ls -l \"$LONGSHORE_MODEL\"'
  Publish in a given tmpfs, where the model stays for the next run:
    longshore exec ./llama --to /models -- vllm serve {}
")]
pub(crate) struct ExecArgs {
    /// The model: a directory or a file. On a server: https://HOST/FILE, s3://BUCKET/KEY, gs://BUCKET/KEY,
    /// az://CONTAINER/KEY, or hf://ORG/NAME of the Hugging Face Hub.
    #[arg(value_name = "SOURCE")]
    source: PathBuf,

    #[command(flatten)]
    server: sources::ServerArgs,

    /// Publish in this directory of a tmpfs, where the model stays.
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,

    /// Fail unless each safetensors and GGUF file has the checksum in this file, which has the format
    /// of sha256sum.
    #[arg(long, value_name = "MANIFEST")]
    manifest: Option<PathBuf>,

    /// Print only errors.
    #[arg(long, short)]
    quiet: bool,

    /// The program and its arguments. The path of the model replaces `{}` where it is a whole argument,
    /// the value of an option (--model={}), or the beginning of a path ({}/config.json).
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// The directory for the model, and the words that describe it.
struct Way {
    target: PathBuf,
    description: String,
    /// `true` if an old version in the directory is replaced.
    replaces: bool,
    /// `true` if the model stays when the program has ended.
    stays: bool,
    /// `true` if the directory was not requested.
    is_default: bool,
    /// The lock file in the directory under the mount of a private tmpfs.
    lock: Option<OwnedFd>,
}

pub(crate) fn run(args: &ExecArgs) -> anyhow::Result<()> {
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(failure(2, "no command was given"));
    };
    let names_model = |argument: &OsString| {
        with_path(argument, Path::new("")).is_some()
            || argument.to_string_lossy().contains(VARIABLE)
    };
    if !arguments.iter().any(names_model) {
        let message = "the command does not name the model: {} is replaced where it is an argument, \
                       the beginning of one ({}/config.json) or the value of an option (--model={}), \
                       and not inside a string, where $LONGSHORE_MODEL can be used";
        return Err(failure(2, message));
    }
    check_program(&args.command)?;
    let cancel = signals::cancel_token()?;
    let manifest = args.manifest.as_ref().map(Manifest::open).transpose()?;
    let remote = args.server.remote().cancel(&cancel);
    let source = sources::to_publish(&remote, &args.source)?;
    sources::print_notes(&remote.notes(), args.quiet);
    let mut display = Display::new(args.quiet);
    let observe = |progress| display.show(progress);
    let placed = place(args, &source, manifest.as_ref(), &cancel, observe)?;
    drop(display);
    if !args.quiet {
        let line = format!("{} is in {}", placed.path.display(), placed.description);
        eprintln!("longshore: {}", printable(&line));
    }
    signals::restore_defaults()?;
    if let Some(signal) = signals::received() {
        // The signal came after everything was read.
        return Err(failure(128 + signal, format!("ended by signal {signal}")));
    }
    let arguments = arguments
        .iter()
        .map(|argument| with_path(argument, &placed.path).unwrap_or_else(|| argument.clone()));
    let mut command = Command::new(program);
    command.args(arguments).env(VARIABLE, &placed.path);
    Err(cannot_run(&args.command, &command.exec()))
}

/// A model where the program finds it.
struct Placed {
    path: PathBuf,
    description: String,
    /// Open files that the program inherits.
    _kept: Kept,
}

/// A file, or a model with a descriptor of each file.
#[expect(dead_code, reason = "only keeps them open")]
enum Kept {
    Nothing,
    File(OwnedFd),
    Model(HeldModel),
}

fn place(
    args: &ExecArgs,
    source: &FoundModel,
    manifest: Option<&Manifest>,
    cancel: &CancelToken,
    mut observe: impl FnMut(Progress),
) -> anyhow::Result<Placed> {
    let no_tmpfs = match choose(args)? {
        Ok(way) => {
            let mut publisher = Publisher::new(&way.target)
                .replace(way.replaces)
                .cancel(cancel)
                .observe(&mut observe);
            if let Some(manifest) = manifest {
                publisher = publisher.manifest(manifest);
            }
            match publisher.publish_found(source) {
                Err(error) if way.is_default && is_full(&error) => error.to_string(),
                published => {
                    let published = published?;
                    let pages = if published.gives_huge_pages { "2 MiB" } else { "4 KiB" };
                    let description = format!("{}, mapped in {pages} pages", way.description);
                    let kept = match way.lock {
                        Some(lock) => Kept::inherited(lock)?,
                        None if way.stays => keep_open(&published)?,
                        None => Kept::Nothing,
                    };
                    return Ok(Placed { path: published.path, description, _kept: kept });
                }
            }
        }
        Err(error) => error,
    };
    let (path, model) = links::link(source, manifest, cancel, observe)?;
    let description = format!(
        "memory of this program, which ends with it; programs that resolve the links find \
         /proc/PID/fd ({no_tmpfs})"
    );
    Ok(Placed { path, description, _kept: Kept::Model(model) })
}

/// Keeps a file of the model open in the program, so that the model is in use and no server evicts it.
fn keep_open(published: &Published) -> anyhow::Result<Kept> {
    let Some(file) = published.files.first() else { return Ok(Kept::Nothing) };
    let path = published.directory.join(&file.path);
    let file =
        beneath::open_regular(&path).with_context(|| format!("opening {}", path.display()))?;
    Kept::inherited(file)
}

impl Kept {
    fn inherited(file: OwnedFd) -> anyhow::Result<Self> {
        rustix::io::fcntl_setfd(&file, FdFlags::empty())?;
        Ok(Self::File(file))
    }
}

/// Returns `true` if the directory has no room for the model.
fn is_full(error: &load::Error) -> bool {
    use load::PublishProblem::{NoInodes, NoRoom};
    matches!(
        error,
        load::Error::Publish { reason: NoRoom { .. } | NoInodes { .. }, .. }
            | load::Error::Heap(heap::Error::TmpfsFull { .. })
    )
}

/// Returns the argument with the path in its place; `None` if it has no place for it.
fn with_path(argument: &OsStr, path: &Path) -> Option<OsString> {
    let bytes = argument.as_bytes();
    // The place is at the beginning, or after the name of an option.
    let start = match bytes.starts_with(PLACE.as_bytes()) {
        true => 0,
        false => bytes.windows(3).position(|three| three == b"={}")? + 1,
    };
    let (before, rest) = bytes.split_at(start);
    let after = rest.strip_prefix(PLACE.as_bytes())?;
    if !(after.is_empty() || after.starts_with(b"/")) {
        return None;
    }
    Some(OsString::from_vec([before, path.as_os_str().as_bytes(), after].concat()))
}

/// Chooses the directory to publish in. Returns the reason if there is none.
///
/// # Errors
/// Fails if this process must not go on.
fn choose(args: &ExecArgs) -> anyhow::Result<Result<Way, String>> {
    let way = |target, description: &str| {
        let description = description.to_owned();
        let (replaces, stays, is_default) = (false, false, false);
        Way { target, description, replaces, stays, is_default, lock: None }
    };
    if let Some(target) = &args.to {
        let way = way(target.clone(), "the given tmpfs, where it stays");
        return Ok(Ok(Way { stays: true, ..way }));
    }
    let refused = match private_tmpfs() {
        Ok((target, lock)) => {
            let way = way(target, "a private tmpfs, which is removed when the program ends");
            return Ok(Ok(Way { lock: Some(lock), ..way }));
        }
        Err(Refused::NotPermitted(error)) => error,
        Err(Refused::Incomplete(error)) => {
            let message = format!(
                "a private tmpfs cannot be set up: {error}; name a directory of a tmpfs (--to)"
            );
            return Err(failure(21, message));
        }
    };
    let target = PathBuf::from(format!("/dev/shm/longshore-exec-{}", effective_uid()));
    let shared = own_directory(&target).and_then(|folder| match tmpfs::contains(folder)? {
        true => Ok(()),
        false => Err(io::Error::other("it is not in a tmpfs")),
    });
    let not_permitted = format!("a private tmpfs is not permitted: {refused}");
    Ok(match shared {
        Ok(()) => {
            let description =
                format!("/dev/shm, where it stays until it is removed ({not_permitted})");
            let way = way(target, &description);
            Ok(Way { replaces: true, stays: true, is_default: true, ..way })
        }
        Err(error) => Err(format!("{not_permitted}; {} cannot be used: {error}", target.display())),
    })
}

/// The reason why there is no private tmpfs.
enum Refused {
    /// Nothing has changed, so another way can be taken.
    NotPermitted(io::Error),
    /// This process is in a new namespace, in which files of other users can look like its own.
    Incomplete(io::Error),
}

/// Mounts a tmpfs with huge pages that only this process and its children see.
/// Returns its path, and the lock file in the directory under the mount. The kernel would unmount the tmpfs if
/// this directory were removed. `rmdir` fails because of the file, and programs that remove old files from `/tmp`
/// keep those that are locked.
fn private_tmpfs() -> Result<(PathBuf, OwnedFd), Refused> {
    // In the old namespace, which shows the owners of files.
    let (path, folder) = mount_point().map_err(Refused::NotPermitted)?;
    let lock = directory::open_lock_in(&folder, Path::new(LOCK_NAME));
    let lock = lock.map_err(Refused::NotPermitted)?;
    let before = namespace::user_namespace().map_err(Refused::NotPermitted)?;
    namespace::enter().map_err(|error| match namespace::user_namespace() {
        Ok(now) if now == before => Refused::NotPermitted(error),
        _ => Refused::Incomplete(error),
    })?;
    // The open directory belongs to the old mount namespace.
    let mounted = directory::open(&path).and_then(|now| {
        if !directory::is_same(&now, &folder)? {
            return Err(io::Error::other(format!("{} was replaced", path.display())));
        }
        // The memory of the machine and of the control group is the limit.
        tmpfs::mount(now.as_fd(), Some(0))
    });
    mounted.map_err(Refused::Incomplete)?;
    // Without the lock, the program runs all the same.
    let _ = directory::lock_shared(&lock);
    Ok((path, lock))
}

/// Makes the directory under the mount. It has the same name for all runs, so that at most one is left
/// behind.
fn mount_point() -> io::Result<(PathBuf, OwnedFd)> {
    let base = env::temp_dir().canonicalize()?;
    let usual = base.join(format!("longshore-exec-{}", effective_uid()));
    match own_directory(&usual) {
        Ok(folder) if directory::entries(&folder)?.iter().all(|(name, _)| name == LOCK_NAME) => {
            Ok((usual, folder))
        }
        // Another user has made it, or this program is itself run by `longshore exec`.
        _ => {
            let name = format!("longshore-exec-{}-{}", effective_uid(), std::process::id());
            let path = base.join(name);
            let folder = own_directory(&path)?;
            Ok((path, folder))
        }
    }
}

/// Opens a directory that only this user can access, and makes it if it is missing.
fn own_directory(path: &Path) -> io::Result<OwnedFd> {
    let is_new = match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        made => made.is_ok(),
    };
    let folder = directory::open(path)?;
    let found = directory::attributes(&folder)?;
    if !is_new && namespace::hides_owners_as(effective_uid()) {
        return Err(io::Error::other("it exists, and this user namespace does not show its owner"));
    }
    if found.owner != effective_uid() || found.mode & 0o022 > 0 {
        return Err(io::Error::other("it belongs to another user, or other users may write to it"));
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_replaces_its_place() {
        let path = Path::new("/m/a");
        for (argument, expected) in [
            ("{}", "/m/a"),
            ("--model={}", "--model=/m/a"),
            ("{}/config.json", "/m/a/config.json"),
            ("--tokenizer={}/t", "--tokenizer=/m/a/t"),
        ] {
            assert_eq!(with_path(argument.as_ref(), path), Some(expected.into()), "{argument}");
        }
        for argument in ["", "x{}", "{\"a\": {}}", "{}x", "--a={}}", "{"] {
            assert_eq!(with_path(argument.as_ref(), path), None, "{argument}");
        }
    }
}
