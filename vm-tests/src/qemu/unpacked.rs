//! QEMU 11 from a later Debian, independent of the host's own QEMU.
//!
//! Its packages and all their dependencies, including libc, are unpacked into one folder. QEMU then runs
//! with the dynamic loader and the libraries of that folder, which needs neither root nor a container,
//! and paths of the host stay valid:
//!
//! ```text
//! CACHE/qemu/11.1.3+ds-1~bpo13+1/
//!   usr/bin/qemu-system-x86_64      or qemu-system-aarch64, in a separate folder
//!   usr/bin/qemu-loader             a copy of the folder's ld-linux: QEMU looks for its parts
//!                                   beside /proc/self/exe, which is the loader
//!   usr/bin/qemu-bundle -> ../..    makes QEMU find /usr/share/qemu and its plug-ins here, and
//!                                   not those of the host's own QEMU
//!   lib -> usr/lib, ...             the merged /usr that packages of this age rely on
//! ```

use std::{fs, os::unix::fs::symlink, path::Path, path::PathBuf};

use crate::{
    apt::{self, Archive},
    cache::{Building, Cache},
    error::{Error, Result},
};

/// A package with a QEMU, and its name in the cache.
#[derive(Debug)]
pub(super) struct Emulator {
    cache_kind: &'static str,
    package: &'static str,
    program: &'static str,
}

pub(super) const X86_64: Emulator = Emulator {
    cache_kind: "qemu",
    package: "qemu-system-x86",
    program: "usr/bin/qemu-system-x86_64",
};
pub(super) const AARCH64: Emulator = Emulator {
    cache_kind: "qemu-arm",
    package: "qemu-system-arm",
    program: "usr/bin/qemu-system-aarch64",
};

const SUITES: [&str; 2] = ["trixie", "trixie-backports"];

/// Any version 11, because archives keep only the last build of a version. Its firmware is newer than
/// that of the release and comes from the backports too, which apt ignores unless their priority is
/// equal.
const PREFERENCES: &str = "\
Package: qemu-*
Pin: version 1:11.*
Pin-Priority: 990

Package: *
Pin: release n=trixie-backports
Pin-Priority: 500
";

const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const LOADER: &str = "usr/bin/qemu-loader";

/// The command of the unpacked QEMU.
pub(super) struct Unpacked {
    pub(super) loader: PathBuf,
    pub(super) leading_args: Vec<String>,
}

/// Returns the unpacked QEMU from the cache; if there is none, it is downloaded first.
pub(super) fn obtain(emulator: &Emulator) -> Result<Unpacked> {
    let cache = Cache::of_user()?;
    if let Some(root) = in_cache(&cache, emulator)? {
        return in_folder(&root, emulator);
    }
    let building = cache.lock(emulator.cache_kind)?;
    // Another process may have built it while this one waited for the lock.
    if let Some(root) = in_cache(&cache, emulator)? {
        return in_folder(&root, emulator);
    }
    let root = download(&building, emulator)
        .map_err(|error| error.into_unavailable("QEMU 11 could not be downloaded"))?;
    in_folder(&root, emulator)
}

fn in_cache(cache: &Cache, emulator: &Emulator) -> Result<Option<PathBuf>> {
    Ok(cache.entries(emulator.cache_kind)?.into_iter().map(|(_, root)| root).max())
}

fn in_folder(root: &Path, emulator: &Emulator) -> Result<Unpacked> {
    let text = |path: PathBuf| {
        path.into_os_string().into_string().map_err(|path| Error::Unsupported {
            path: path.into(),
            reason: "the path of the cache must be UTF-8",
        })
    };
    let libraries = text(root.join(LIBRARIES))?;
    if libraries.contains([':', ';']) {
        let reason = "the loader treats a colon or semicolon in a path as a separator";
        return Err(Error::Unsupported { path: libraries.into(), reason });
    }
    let program = text(root.join(emulator.program))?;
    let leading_args = vec!["--library-path".into(), libraries, program];
    Ok(Unpacked { loader: root.join(LOADER), leading_args })
}

fn download(building: &Building, emulator: &Emulator) -> Result<PathBuf> {
    let package = emulator.package;
    eprintln!("downloading QEMU 11 and its libraries ({package}, some 50 MB, once)");
    let scratch = building.scratch()?;
    let archive = Archive::open(&scratch.path().join("apt"), &SUITES, PREFERENCES)?;
    let version = archive.version(package)?;
    let packages = archive.download_with_dependencies(package)?;
    let tree = scratch.path().join("tree");
    merge_usr(&tree)?;
    apt::unpack(&packages, &tree)?;
    let loader = tree.join("usr/lib64/ld-linux-x86-64.so.2");
    fs::copy(&loader, tree.join(LOADER)).map_err(Error::io("copying", loader))?;
    let bundle = tree.join("usr/bin/qemu-bundle");
    symlink("../..", &bundle).map_err(Error::io("linking", bundle))?;
    building.publish(&tree, without_epoch(&version))
}

/// Returns a version without its epoch, because the loader does not accept a colon in a path.
fn without_epoch(version: &str) -> &str {
    version.split_once(':').map_or(version, |(_, rest)| rest)
}

/// Creates the links of a merged /usr before any package is unpacked.
fn merge_usr(root: &Path) -> Result<()> {
    for name in ["bin", "sbin", "lib", "lib64"] {
        let real = root.join("usr").join(name);
        fs::create_dir_all(&real).map_err(Error::io("creating", real))?;
        let link = root.join(name);
        symlink(format!("usr/{name}"), &link).map_err(Error::io("linking", link))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_without_merged_usr_is_unpacked_into_usr() {
        let dir = tempfile::tempdir().unwrap();
        merge_usr(dir.path()).unwrap();
        fs::write(dir.path().join("lib/x"), "x").unwrap();
        assert!(dir.path().join("usr/lib/x").is_file());
    }

    #[test]
    fn qemu_runs_with_its_own_loader_and_libraries() {
        let unpacked = in_folder(Path::new("/cache/qemu/11"), &X86_64).unwrap();
        assert!(
            in_folder(Path::new("/cache/1:11"), &X86_64).is_err(),
            "the loader would look in two places"
        );
        assert_eq!(without_epoch("1:11.1.3+ds-1"), "11.1.3+ds-1");
        assert_eq!(unpacked.loader, Path::new("/cache/qemu/11/usr/bin/qemu-loader"));
        assert_eq!(
            unpacked.leading_args,
            [
                "--library-path",
                "/cache/qemu/11/usr/lib/x86_64-linux-gnu",
                "/cache/qemu/11/usr/bin/qemu-system-x86_64"
            ]
        );
    }
}
