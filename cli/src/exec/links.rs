//! A model in memory of this process, as a directory with links to its descriptors, for machines on which
//! no tmpfs can be used.

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::Context;
use longshore::load::{FoundModel, HeldModel, Manifest};
use longshore::{CancelToken, Progress};
use longshore_sys::effective_uid;
use rustix::io::FdFlags;

use crate::exit::failure;

/// The number of names that are tried.
const ATTEMPTS_MAX: u32 = 100;

/// Loads a model, and makes a directory with links to its files, which the program inherits as
/// descriptors. Returns the path for the program, and the model, whose descriptors must stay open.
pub(super) fn link(
    source: &FoundModel,
    manifest: Option<&Manifest>,
    cancel: &CancelToken,
    observe: impl FnMut(Progress),
) -> anyhow::Result<(PathBuf, HeldModel)> {
    let model = match source {
        FoundModel::Local(source) => HeldModel::load(source, manifest, cancel, observe)?,
        FoundModel::Remote(model) => HeldModel::load_remote(model, manifest, cancel, observe)?,
    };
    remove_old();
    let pid = std::process::id();
    let own = make_own(pid)?;
    let directory = own.join(&model.name);
    make(&directory)?;
    for folder in &model.folders {
        make(&directory.join(folder))?;
    }
    for file in &model.files {
        let missing = || failure(21, "the memory has no descriptor");
        let memfd = file.memory.memfd().ok_or_else(missing)?;
        rustix::io::fcntl_setfd(memfd, FdFlags::empty())
            .context("keeping a descriptor open for the program")?;
        let link = directory.join(&file.path);
        symlink(format!("/proc/{pid}/fd/{}", memfd.as_raw_fd()), &link)
            .with_context(|| format!("linking {}", link.display()))?;
    }
    let path = model.main.as_ref().map_or_else(|| directory.clone(), |main| directory.join(main));
    Ok((path, model))
}

/// Makes a directory for the links of this process.
fn make_own(pid: u32) -> anyhow::Result<PathBuf> {
    let base = env::temp_dir();
    for number in 0..ATTEMPTS_MAX {
        let path = base.join(format!("{}{pid}.{number}", prefix()));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            // Another user may have made it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                let message = format!("making the directory {}", path.display());
                return Err(error).context(message);
            }
        }
    }
    let message = format!("the names {}{pid}.* in {} exist", prefix(), base.display());
    Err(failure(1, message))
}

fn make(path: &Path) -> anyhow::Result<()> {
    let made = DirBuilder::new().mode(0o700).create(path);
    made.with_context(|| format!("making the directory {}", path.display()))
}

/// Returns the beginning of the names of directories. It has the PID namespace, because a process with the
/// same number can run in another one that shares the directory.
fn prefix() -> String {
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let digits = namespace.to_string_lossy().replace(|it: char| !it.is_ascii_digit(), "");
    format!("longshore-links-{}-{digits}-", effective_uid())
}

/// Removes the directories of programs that have ended. An error is ignored: the next run tries again.
fn remove_old() {
    let entries = fs::read_dir(env::temp_dir()).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(&prefix())?.split_once('.'));
        let Some(Ok(pid)) = pid.map(|(pid, _)| pid.parse()) else { continue };
        let _ = remove_if_ended(&entry.path(), pid);
    }
}

fn remove_if_ended(path: &Path, pid: u32) -> io::Result<()> {
    let is_own = fs::symlink_metadata(path)?.uid() == effective_uid();
    let has_ended = !Path::new(&format!("/proc/{pid}")).exists();
    // A process with this number that is this one has no directory yet.
    if is_own && (has_ended || pid == std::process::id()) {
        fs::remove_dir_all(path)?;
    }
    Ok(())
}
