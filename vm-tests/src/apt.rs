//! A Debian archive, read with apt but without the package state of the host.
//!
//! Nothing is installed and no root is needed: apt gets its own lists, cache, empty status file and
//! preferences. The administrator's settings for access to archives (a mirror, a proxy) still apply. apt
//! checks the signature on a suite's index and the index's hash of every package before it returns the
//! package, so every package is one that Debian signed.

mod mirror;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    error::{Error, Result},
    tool::{self, APT_CACHE, APT_GET, DPKG_DEB, TAR, Tool},
};
use mirror::Mirror;

/// A set of suites whose indexes were fetched.
#[derive(Debug)]
pub(crate) struct Archive {
    dir: PathBuf,
    suites: String,
}

impl Archive {
    /// Fetches the indexes of `suites` into `dir`, with `preferences` as apt's pinning.
    pub(crate) fn open(dir: &Path, suites: &[&str], preferences: &str) -> Result<Self> {
        for sub in ["lists/partial", "cache/archives/partial", "state"] {
            let path = dir.join(sub);
            fs::create_dir_all(&path).map_err(Error::io("creating", path))?;
        }
        let mirror = Mirror::of_this_machine();
        let sources: String = suites.iter().map(|suite| mirror.source_line(suite)).collect();
        let archive = Self { dir: dir.to_owned(), suites: suites.join(", ") };
        archive.write("sources.list", &sources)?;
        archive.write("preferences", preferences)?;
        archive.write("status", "")?;
        archive.write("apt.conf", &configuration(dir))?;
        tool::output(archive.apt(APT_GET)?.arg("update"))?;
        Ok(archive)
    }

    /// Returns the packages whose name matches `pattern`, an extended regular expression.
    pub(crate) fn names(&self, pattern: &str) -> Result<Vec<String>> {
        let found = tool::output(self.apt(APT_CACHE)?.args(["search", "--names-only", pattern]))?;
        let names: Vec<String> = String::from_utf8_lossy(&found)
            .lines()
            .filter_map(|line| line.split_whitespace().next())
            .map(str::to_owned)
            .collect();
        if names.is_empty() {
            return Err(Error::NoPackage {
                pattern: pattern.to_owned(),
                suite: self.suites.clone(),
            });
        }
        Ok(names)
    }

    /// Returns the version of `package` that apt would install.
    pub(crate) fn version(&self, package: &str) -> Result<String> {
        let policy = tool::output(self.apt(APT_CACHE)?.args(["policy", package]))?;
        candidate(&String::from_utf8_lossy(&policy)).ok_or_else(|| Error::NoPackage {
            pattern: package.to_owned(),
            suite: self.suites.clone(),
        })
    }

    /// Downloads `package` without its dependencies, and returns its file.
    pub(crate) fn download(&self, package: &str) -> Result<Vec<PathBuf>> {
        let into = self.dir.join("alone");
        fs::create_dir_all(&into).map_err(Error::io("creating", &into))?;
        tool::output(self.apt(APT_GET)?.args(["download", package]).current_dir(&into))?;
        packages_in(&into)
    }

    /// Downloads `package` and all its dependencies, and returns their files.
    pub(crate) fn download_with_dependencies(&self, package: &str) -> Result<Vec<PathBuf>> {
        tool::output(self.apt(APT_GET)?.args(["install", "--yes", "--download-only", package]))?;
        packages_in(&self.dir.join("cache/archives"))
    }

    fn apt(&self, tool: Tool) -> Result<Command> {
        let mut command = tool.command()?;
        command.arg("--config-file").arg(self.dir.join("apt.conf"));
        Ok(command)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.dir.join(name);
        fs::write(&path, text).map_err(Error::io("writing", path))
    }
}

/// Unpacks packages into `root` without running any of their scripts.
pub(crate) fn unpack(packages: &[PathBuf], root: &Path) -> Result<()> {
    fs::create_dir_all(root).map_err(Error::io("creating", root))?;
    for package in packages {
        let tarball = package.with_extension("tar");
        let file = fs::File::create(&tarball).map_err(Error::io("writing", &tarball))?;
        let mut dpkg_deb = DPKG_DEB.command()?;
        tool::output(dpkg_deb.arg("--fsys-tarfile").arg(package).stdout(file))?;
        // The caller owns the files, and the links of a merged /usr stay links.
        let mut tar = TAR.command()?;
        tar.args(["--extract", "--no-same-owner", "--keep-directory-symlink", "--file"]);
        tool::output(tar.arg(&tarball).arg("--directory").arg(root))?;
        fs::remove_file(&tarball).map_err(Error::io("removing", &tarball))?;
    }
    Ok(())
}

fn packages_in(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(Error::io("listing", dir))? {
        let path = entry.map_err(Error::io("listing", dir))?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the candidate in the output of `apt-cache policy`.
fn candidate(policy: &str) -> Option<String> {
    let version = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate:"))?.trim();
    (version != "(none)").then(|| version.to_owned())
}

/// Returns apt's settings. They are read after the host's, so other settings of the host still apply.
fn configuration(dir: &Path) -> String {
    let dir = dir.display();
    // The cleared hooks maintain the package state of the host, which this archive does not use. apt
    // cannot switch to its own user, because that user may not enter the cache folder. The cache has its
    // own lock. Only one kind of index is needed. Without Error-Mode, an unreachable archive would look
    // like an archive without packages.
    format!(
        r#"Dir::Etc::sourcelist "{dir}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "{dir}/preferences";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "{dir}/state";
Dir::State::lists "{dir}/lists";
Dir::State::status "{dir}/status";
Dir::State::extended_states "{dir}/extended_states";
Dir::Cache "{dir}/cache";
Debug::NoLocking "true";
APT::Sandbox::User "root";
APT::Install-Recommends "false";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Pre-Invoke;
#clear DPkg::Post-Invoke;
#clear Acquire::IndexTargets;
Acquire::IndexTargets::deb::Packages {{
  MetaKey "$(COMPONENT)/binary-$(ARCHITECTURE)/Packages";
  flatMetaKey "Packages";
  ShortDescription "Packages";
  Description "$(RELEASE)/$(COMPONENT) $(ARCHITECTURE) Packages";
  Optional "no";
}};
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_candidate_is_read_from_the_policy() {
        let policy = "qemu-system-x86:\n  Installed: (none)\n  Candidate: 1:11.1.3+ds-1\n";
        assert_eq!(candidate(policy).as_deref(), Some("1:11.1.3+ds-1"));
        assert_eq!(candidate("x:\n  Installed: (none)\n  Candidate: (none)\n"), None);
        assert_eq!(candidate(""), None);
    }
}
