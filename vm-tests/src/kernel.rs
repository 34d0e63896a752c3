//! The guest's kernel: Debian's, downloaded and unpacked but never installed, or one built from Debian's
//! source, with features that Debian's lacks.
//!
//! Debian 12's backports have a 6.12 for clouds, with udmabuf, dma-heap, nvme and ext4 built in. Debian
//! 12's own 6.1 has neither udmabuf nor dma-heap.

mod built;
mod config;
mod make;
mod module;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Mutex,
};

use crate::{
    apt::{self, Archive},
    cache::{Building, Cache},
    error::{Error, Result},
    tool::DEPMOD,
};
pub(crate) use module::Module;

const CACHE_KIND: &str = "kernel";
const SUITE: &str = "bookworm-backports";
const PACKAGE_PATTERN: &str = r"^linux-image-6\.12.*-cloud-amd64-unsigned$";

/// The kernel that a machine boots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flavor {
    /// Debian's kernel for clouds.
    #[default]
    Debian,
    /// A kernel with iommufd, and little else: `vm-tests/iommufd.config` names all of it.
    Iommufd,
}

/// A kernel image and its modules, in a folder of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    root: PathBuf,
    release: String,
}

impl Kernel {
    /// Returns the newest kernel of this flavour from the cache. If there is none, Debian's is
    /// downloaded (34 MB), and the one with iommufd is built, which takes minutes and prints its
    /// progress to standard error.
    ///
    /// A kernel in the cache is used without access to the archive, so a machine without a network keeps
    /// working. To get the archive's newest kernel, remove the cache's folder `kernel` or
    /// `kernel-iommufd`.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unavailable`] if it is not in the cache and cannot be downloaded, or the disk is
    /// too full to build it; [`Error::MissingTool`] if a tool of the build is missing; [`Error::Build`]
    /// or [`Error::KernelConfig`] if the build fails.
    pub fn obtain(flavor: Flavor) -> Result<Self> {
        // Tests of one process ask at the same time, so they share the result.
        static DEBIAN: Mutex<Option<Kernel>> = Mutex::new(None);
        static IOMMUFD: Mutex<Option<Kernel>> = Mutex::new(None);
        let obtained = match flavor {
            Flavor::Debian => &DEBIAN,
            Flavor::Iommufd => &IOMMUFD,
        };
        let mut obtained = obtained.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(kernel) = &*obtained {
            return Ok(kernel.clone());
        }
        if !cfg!(target_arch = "x86_64") {
            return Err(Error::Unavailable {
                what: "the guest's programs are built for this machine, and only an x86-64 kernel is supported"
                    .into(),
                source: None,
            });
        }
        let cache = Cache::of_user()?;
        let kernel = match flavor {
            Flavor::Debian => Self::from_cache(&cache)?,
            Flavor::Iommufd => built::obtain(&cache)?,
        };
        *obtained = Some(kernel.clone());
        Ok(kernel)
    }

    /// Returns the file that QEMU boots.
    #[must_use]
    pub fn image(&self) -> PathBuf {
        self.root.join("boot").join(format!("vmlinuz-{}", self.release))
    }

    /// Returns the release, as printed by `uname -r`.
    #[must_use]
    pub fn release(&self) -> &str {
        &self.release
    }

    /// Returns a kernel without files, for tests that start nothing.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        Self { root: "/kernel".into(), release: "6.12".into() }
    }

    fn from_cache(cache: &Cache) -> Result<Self> {
        if let Some(kernel) = Self::newest_in(cache)? {
            return Ok(kernel);
        }
        let building = cache.lock(CACHE_KIND)?;
        // Another process may have built it while this one waited for the lock.
        if let Some(kernel) = Self::newest_in(cache)? {
            return Ok(kernel);
        }
        Self::download(&building)
            .map_err(|error| error.into_unavailable("the kernel could not be downloaded"))
    }

    fn newest_in(cache: &Cache) -> Result<Option<Self>> {
        let newest =
            cache.entries(CACHE_KIND)?.into_iter().max_by_key(|(name, _)| version_key(name));
        newest.map(|(_, root)| Self::in_folder(root)).transpose()
    }

    fn in_folder(root: PathBuf) -> Result<Self> {
        let modules = root.join("lib/modules");
        let release = fs::read_dir(&modules)
            .and_then(|mut listing| listing.next().transpose())
            .map_err(Error::io("listing", &modules))?
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .ok_or(Error::Unsupported { path: modules, reason: "has no kernel release" })?;
        Ok(Self { root, release })
    }

    fn download(building: &Building) -> Result<Self> {
        eprintln!("downloading the guest's kernel (34 MB, once)");
        let scratch = building.scratch()?;
        let archive = Archive::open(&scratch.path().join("apt"), &[SUITE], "")?;
        let package = archive
            .names(PACKAGE_PATTERN)?
            .into_iter()
            .max_by_key(|name| version_key(name))
            .expect("names() refuses to find none");
        let version = archive.version(&package)?;
        let tree = scratch.path().join("tree");
        apt::unpack(&archive.download(&package)?, &tree)?;
        let kernel = Self::in_folder(tree.clone())?;
        // The package has no module index, because its installation script would create that.
        DEPMOD.run(["--basedir", path_str(&tree)?, kernel.release()])?;
        Self::in_folder(building.publish(&tree, &version)?)
    }
}

fn path_str(path: &Path) -> Result<&str> {
    path.to_str().ok_or(Error::Unsupported {
        path: path.to_owned(),
        reason: "the path of the cache must be UTF-8",
    })
}

/// Returns a sort key of versions by their numbers, so that 6.12.9 comes before 6.12.90.
fn version_key(version: &str) -> Vec<(u64, String)> {
    let mut key = Vec::new();
    let mut rest = version;
    while !rest.is_empty() {
        let text_len = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (text, tail) = rest.split_at(text_len);
        let digits_len = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        let (digits, tail) = tail.split_at(digits_len);
        key.push((digits.parse().unwrap_or(0), text.to_owned()));
        rest = tail;
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_sort_by_number() {
        let mut versions =
            ["6.12.90-1~bpo12+1", "6.12.9-1~bpo12+1", "6.12.100-1~bpo12+1", "6.12.90-2~bpo12+1"];
        versions.sort_by_key(|version| version_key(version));
        assert_eq!(
            versions,
            ["6.12.9-1~bpo12+1", "6.12.90-1~bpo12+1", "6.12.90-2~bpo12+1", "6.12.100-1~bpo12+1"]
        );
        assert!(
            version_key("linux-image-6.12.95+deb12-cloud-amd64-unsigned")
                > version_key("linux-image-6.12.9+deb12-cloud-amd64-unsigned")
        );
    }

    #[test]
    fn the_newest_cached_kernel_is_used_without_the_archive() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().to_owned());
        assert_eq!(Kernel::newest_in(&cache).unwrap(), None);
        for version in ["6.12.9-1", "6.12.10-1"] {
            let modules = dir.path().join(CACHE_KIND).join(version).join("lib/modules");
            fs::create_dir_all(modules.join(format!("{version}-cloud"))).unwrap();
        }
        let kernel = Kernel::from_cache(&cache).unwrap();
        assert_eq!(kernel.release(), "6.12.10-1-cloud");
        assert!(kernel.image().ends_with("6.12.10-1/boot/vmlinuz-6.12.10-1-cloud"));
    }
}
