//! `longshore exec`.

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

use clap::Args;
use longshore::load::{Manifest, Published, Publisher};
use longshore_sys::{directory, effective_uid, namespace, tmpfs};

use crate::exit::failure;
use crate::program::{cannot_run, check_program};
use crate::progress::Display;
use crate::signals;

/// The argument that the path of the model replaces.
const PLACE: &str = "{}";

/// Publish a model in memory for one program, and become that program. Needs no privilege.
///
/// The model is published in a tmpfs with huge pages that only this program and its children see, in a
/// user and mount namespace of their own, and that ends with them. If namespaces are not permitted, it
/// is published in /dev/shm instead, where it stays. A line on standard error says which.
///
/// The path of the model, a directory or a file, replaces `{}`, and is in $LONGSHORE_MODEL.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  Serve a model directory:
    longshore exec ./llama -- vllm serve {}
  An argument may contain the path:
    longshore exec model.gguf -- llama-server --model={}
  Publish in a given tmpfs, where the model stays for the next run:
    longshore exec ./llama --to /models -- vllm serve {}
")]
pub(crate) struct ExecArgs {
    /// The model: a directory or a file.
    #[arg(value_name = "SOURCE")]
    source: PathBuf,

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
}

pub(crate) fn run(args: &ExecArgs) -> anyhow::Result<()> {
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(failure(2, "no command was given"));
    };
    if !arguments.iter().any(|argument| with_path(argument, Path::new("")).is_some()) {
        let message = "the command has no argument {}, which the path of the model replaces";
        return Err(failure(2, message));
    }
    check_program(&args.command)?;
    let cancel = signals::cancel_token()?;
    let manifest = args.manifest.as_ref().map(Manifest::open).transpose()?;
    let source = std::path::absolute(&args.source)?;
    let way = choose(args)?;
    let mut display = Display::new(args.quiet);
    let mut publisher = Publisher::new(&way.target)
        .replace(way.replaces)
        .cancel(&cancel)
        .observe(|progress| display.show(progress));
    if let Some(manifest) = &manifest {
        publisher = publisher.manifest(manifest);
    }
    let published = publisher.publish(&source)?;
    drop(display);
    if !args.quiet {
        eprintln!("longshore: {}", described(&way, &published));
    }
    if let Some(signal) = signals::received() {
        // The signal came after everything was read.
        return Err(failure(128 + signal, format!("ended by signal {signal}")));
    }
    let arguments = arguments
        .iter()
        .map(|argument| with_path(argument, &published.path).unwrap_or_else(|| argument.clone()));
    let mut command = Command::new(program);
    command.args(arguments).env("LONGSHORE_MODEL", &published.path);
    Err(cannot_run(&args.command, &command.exec()))
}

fn described(way: &Way, published: &Published) -> String {
    let pages = if published.gives_huge_pages { "2 MiB" } else { "4 KiB" };
    format!("{} is in {}, in {pages} pages", published.path.display(), way.description)
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

/// Chooses the directory to publish in.
fn choose(args: &ExecArgs) -> anyhow::Result<Way> {
    if let Some(target) = &args.to {
        let description = "the given tmpfs, where it stays".to_owned();
        return Ok(Way { target: target.clone(), description, replaces: false });
    }
    let refused = match private_tmpfs() {
        Ok(target) => {
            let description = "a tmpfs of this program, which ends with it".to_owned();
            return Ok(Way { target, description, replaces: false });
        }
        Err(error) => error,
    };
    let target = PathBuf::from(format!("/dev/shm/longshore-exec-{}", effective_uid()));
    let shared = own_directory(&target).and_then(|folder| match tmpfs::contains(folder)? {
        true => Ok(()),
        false => Err(io::Error::other("it is not in a tmpfs")),
    });
    match shared {
        Ok(()) => {
            let description = format!(
                "/dev/shm, where it stays until it is removed, because a private tmpfs is not \
                 permitted ({refused})"
            );
            Ok(Way { target, description, replaces: true })
        }
        Err(error) => {
            let message = format!(
                "no tmpfs: a private one is not permitted ({refused}), and {} cannot be used \
                 ({error}); name a directory of a tmpfs (--to), or use longshore load --exec",
                target.display()
            );
            Err(failure(21, message))
        }
    }
}

/// Mounts a tmpfs with huge pages that only this process and its children see.
fn private_tmpfs() -> io::Result<PathBuf> {
    namespace::enter()?;
    // The directory under the mount is the same for all runs, so that at most one is left behind.
    let base = env::temp_dir().canonicalize()?;
    let usual = base.join(format!("longshore-exec-{}", effective_uid()));
    let (path, folder) = match own_directory(&usual) {
        Ok(folder) if directory::entries(&folder)?.is_empty() => (usual, folder),
        // Another user has made it, or this program is itself run by `longshore exec`.
        _ => {
            let path =
                base.join(format!("longshore-exec-{}-{}", effective_uid(), std::process::id()));
            let folder = own_directory(&path)?;
            (path, folder)
        }
    };
    // The memory of the machine and of the control group is the limit.
    tmpfs::mount(folder.as_fd(), Some(0))?;
    Ok(path)
}

/// Opens a directory that only this user can access, and makes it if it is missing.
fn own_directory(path: &Path) -> io::Result<OwnedFd> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let folder = directory::open(path)?;
    let found = directory::attributes(&folder)?;
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
