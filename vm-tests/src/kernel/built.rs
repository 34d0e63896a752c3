//! The kernel with iommufd, built from Debian's source, because no Debian kernel has it.
//!
//! ```text
//!   linux-source-6.12 ─► tree ─► allnoconfig and iommufd.config ─► bzImage ─► CACHE/kernel-iommufd/
//!     apt: signed,         │                  │                                 VERSION-HASH/
//!     hash checked         │                  └ each option is checked            boot/vmlinuz-RELEASE
//!                          └ beside the cache's entries, removed at the end       lib/modules/RELEASE/
//! ```
//!
//! There are no modules: everything is in the kernel's list of built-in modules, so a request for one
//! finds that nothing needs to be loaded.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Instant,
};

use super::{Kernel, SUITE, config::Config, make::Make, path_str, version_key};
use crate::{
    apt::{self, Archive},
    cache::{Building, Cache},
    error::{Error, Result},
    static_binary::target_dir,
    tool::{self, BC, BISON, DEPMOD, DF, FLEX, GCC, LD, MAKE, TAR, XZ},
};

const CACHE_KIND: &str = "kernel-iommufd";
const PACKAGE: &str = "linux-source-6.12";
const CONFIG: &str = include_str!("../../iommufd.config");

/// Two fifths of the source, which this configuration does not need. Their Kconfig files are read. Of
/// the network drivers only those in subfolders are left out, because CONFIG_NET needs the loopback
/// device, which is in none.
const LEFT_OUT: [&str; 2] = ["*/drivers/gpu/*.[ch]", "*/drivers/net/*/*.[ch]"];

/// The disk space for the tree, its object files and the packed source, 1.3 GB, with some reserve.
const NEEDED_BYTES: u64 = 1_600_000_000;

/// A header that the kernel's build needs, and its package.
const HEADER: &str = "gelf.h";
const HEADER_PACKAGE: &str = "libelf-dev";

/// Files beside the kernel's image that tell modprobe what is built in.
const BUILT_IN: [&str; 2] = ["modules.builtin", "modules.builtin.modinfo"];

/// Returns the newest such kernel from the cache; if there is none, it is built.
pub(super) fn obtain(cache: &Cache) -> Result<Kernel> {
    let config = Config::parse(CONFIG);
    if let Some(kernel) = newest_in(cache, &config)? {
        return Ok(kernel);
    }
    let building = cache.lock(CACHE_KIND)?;
    // Another process may have built it while this one waited for the lock.
    if let Some(kernel) = newest_in(cache, &config)? {
        return Ok(kernel);
    }
    build(&building, &config)
}

fn newest_in(cache: &Cache, config: &Config<'_>) -> Result<Option<Kernel>> {
    let newest = cache
        .entries(CACHE_KIND)?
        .into_iter()
        .filter(|(name, _)| version_in(name, config).is_some())
        .max_by_key(|(name, _)| version_key(name));
    newest.map(|(_, root)| Kernel::in_folder(root)).transpose()
}

/// Returns the name in the cache; another configuration has another name.
fn entry_name(version: &str, config: &Config<'_>) -> String {
    format!("{version}-{:016x}", config.hash())
}

/// Returns the version in an entry's name, if the entry has this configuration.
fn version_in<'a>(name: &'a str, config: &Config<'_>) -> Option<&'a str> {
    name.strip_suffix(&entry_name("", config))
}

fn build(building: &Building, config: &Config<'_>) -> Result<Kernel> {
    let started = Instant::now();
    check_tools()?;
    let scratch = building.scratch()?;
    check_header(scratch.path())?;
    check_space(scratch.path())?;
    let logs = target_dir().join("vm-tests");
    fs::create_dir_all(&logs).map_err(Error::io("creating", &logs))?;
    let log = logs.join("kernel-build.log");
    fs::write(&log, "").map_err(Error::io("writing", &log))?;

    let source = scratch.path().join("source");
    let version = unpack_source(scratch.path(), &source)
        .map_err(|error| error.into_unavailable("the kernel's source could not be downloaded"))?;
    eprintln!("building the kernel {version} with iommufd, once; the log is {}", log.display());
    let make = Make { folder: &source, log: &log };
    configure(&make, config)?;
    make.run(&settings(), &["bzImage"])?;

    let tree = scratch.path().join("tree");
    let kernel = collect(&source, &tree)?;
    // modprobe reads the list of built-in modules from an index.
    DEPMOD.run(["--basedir", path_str(&tree)?, kernel.release()])?;
    let kernel = Kernel::in_folder(building.publish(&tree, &entry_name(&version, config))?)?;
    eprintln!("the kernel {} was built in {} s", kernel.release(), started.elapsed().as_secs());
    Ok(kernel)
}

/// Checks the tools, so that a missing one is reported before anything is downloaded.
fn check_tools() -> Result<()> {
    [MAKE, GCC, LD, FLEX, BISON, BC, XZ].into_iter().try_for_each(|tool| tool.find().map(drop))
}

fn check_header(scratch: &Path) -> Result<()> {
    let probe = scratch.join("probe.c");
    fs::write(&probe, format!("#include <{HEADER}>\n")).map_err(Error::io("writing", &probe))?;
    let compiled = tool::output(GCC.command()?.arg("-fsyntax-only").arg(&probe));
    compiled.map(drop).map_err(|error| Error::Unavailable {
        what: format!(
            "the kernel's build needs the header {HEADER}; on Debian: apt install {HEADER_PACKAGE}"
        ),
        source: Some(Box::new(error)),
    })
}

fn check_space(folder: &Path) -> Result<()> {
    let shown = tool::output(DF.command()?.args(["--output=avail", "--block-size=1"]).arg(folder))?;
    let Some(free) = free_bytes(&String::from_utf8_lossy(&shown)) else { return Ok(()) };
    if free >= NEEDED_BYTES {
        return Ok(());
    }
    Err(Error::Unavailable {
        what: format!(
            "building the kernel with iommufd needs {:.1} GB of disk, but {} has only {:.1} GB free; \
             set LONGSHORE_CACHE to another folder",
            NEEDED_BYTES as f64 / 1e9,
            folder.parent().unwrap_or(folder).display(),
            free as f64 / 1e9
        ),
        source: None,
    })
}

/// Parses the output of `df`, which has a heading.
fn free_bytes(shown: &str) -> Option<u64> {
    shown.lines().nth(1)?.trim().parse().ok()
}

/// Unpacks the newest source of the suite into `source`, and returns its version.
fn unpack_source(scratch: &Path, source: &Path) -> Result<String> {
    eprintln!("downloading the kernel's source ({PACKAGE}, 153 MB, once)");
    let apt_folder = scratch.join("apt");
    let archive = Archive::open(&apt_folder, &[SUITE], "")?;
    let version = archive.version(PACKAGE)?;
    let package = scratch.join("package");
    apt::unpack(&archive.download(PACKAGE)?, &package)?;
    let tarball = package.join("usr/src").join(format!("{PACKAGE}.tar.xz"));
    fs::create_dir(source).map_err(Error::io("creating", source))?;
    let mut tar = TAR.command()?;
    tar.args(LEFT_OUT.map(|pattern| format!("--exclude={pattern}")));
    tar.args(["--extract", "--no-same-owner", "--strip-components=1", "--file"]).arg(&tarball);
    tool::output(tar.arg("--directory").arg(source))?;
    for done in [apt_folder, package] {
        fs::remove_dir_all(&done).map_err(Error::io("removing", &done))?;
    }
    Ok(version)
}

/// Makes the configuration with the kernel's own tools, and checks that it has the wanted options.
fn configure(make: &Make<'_>, config: &Config<'_>) -> Result<()> {
    let wanted = make.folder.join("wanted.config");
    fs::write(&wanted, CONFIG).map_err(Error::io("writing", &wanted))?;
    let mut settings = settings();
    settings.push("KCONFIG_ALLCONFIG=wanted.config".into());
    make.run(&settings, &["allnoconfig"])?;
    let made = make.folder.join(".config");
    let made = fs::read_to_string(&made).map_err(Error::io("reading", &made))?;
    let lost = config.lost_in(&Config::parse(&made));
    if lost.is_empty() {
        return Ok(());
    }
    Err(Error::KernelConfig { lost })
}

fn settings() -> Vec<String> {
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    vec![
        "ARCH=x86_64".into(),
        format!("--jobs={jobs}"),
        // The defaults would be this machine's.
        "KBUILD_BUILD_USER=longshore".into(),
        "KBUILD_BUILD_HOST=longshore".into(),
    ]
}

/// Copies the necessary files of the built `source` into `tree`, with the layout of Debian's packages.
fn collect(source: &Path, tree: &Path) -> Result<Kernel> {
    let release = source.join("include/config/kernel.release");
    let release = fs::read_to_string(&release).map_err(Error::io("reading", release))?;
    let release = release.trim();
    let modules = tree.join("lib/modules").join(release);
    let boot = tree.join("boot");
    for folder in [&modules, &boot] {
        fs::create_dir_all(folder).map_err(Error::io("creating", folder))?;
    }
    let copy =
        |from: &Path, to: PathBuf| fs::copy(from, to).map(drop).map_err(Error::io("copying", from));
    for name in BUILT_IN {
        copy(&source.join(name), modules.join(name))?;
    }
    // depmod needs this list even if it is empty.
    let order = modules.join("modules.order");
    fs::write(&order, "").map_err(Error::io("writing", &order))?;
    let kernel = Kernel::in_folder(tree.to_owned())?;
    copy(&source.join("arch/x86/boot/bzImage"), kernel.image())?;
    copy(&source.join(".config"), boot.join(format!("config-{release}")))?;
    Ok(kernel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::require;

    fn entry(cache: &Path, name: &str, release: &str) {
        fs::create_dir_all(cache.join(CACHE_KIND).join(name).join("lib/modules").join(release))
            .unwrap();
    }

    #[test]
    fn only_the_newest_entry_of_this_configuration_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().to_owned());
        let config = Config::parse(CONFIG);
        entry(dir.path(), &entry_name("6.12.100-1", &Config::parse("CONFIG_OTHER=y")), "other");
        assert_eq!(newest_in(&cache, &config).unwrap(), None);
        for version in ["6.12.9-1~bpo12+1", "6.12.95-1~bpo12+1"] {
            entry(dir.path(), &entry_name(version, &config), version);
        }
        // This calls no tool and no archive.
        let kernel = obtain(&cache).unwrap();
        assert_eq!(kernel.release(), "6.12.95-1~bpo12+1");
        assert!(kernel.image().starts_with(dir.path().join(CACHE_KIND)));
    }

    #[test]
    fn a_name_has_the_version_and_the_configuration() {
        let config = Config::parse("CONFIG_A=y");
        let name = entry_name("6.12.95-1~bpo12+1", &config);
        assert_eq!(version_in(&name, &config), Some("6.12.95-1~bpo12+1"));
        assert_eq!(version_in(&name, &Config::parse("CONFIG_A=m")), None);
        assert_eq!(name.len(), "6.12.95-1~bpo12+1-".len() + 16);
    }

    #[test]
    fn the_configuration_has_iommufd_and_no_modules() {
        let of = |line| Config::parse(CONFIG).lost_in(&Config::parse(line)).len();
        assert_eq!(of("CONFIG_IOMMUFD=y") + 1, of(""), "CONFIG_IOMMUFD=y is not asked for");
        assert!(
            !CONFIG.lines().any(|line| line.ends_with("=m")),
            "an option is a module, which nothing loads"
        );
    }

    #[test]
    fn a_built_kernel_has_the_layout_of_debians() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("source");
        for (file, content) in [
            ("include/config/kernel.release", "6.12.95-longshore\n"),
            ("arch/x86/boot/bzImage", "image"),
            ("modules.builtin", "kernel/drivers/vfio/pci/vfio-pci.ko\n"),
            ("modules.builtin.modinfo", "vfio_pci.license=GPL\0"),
            (".config", "CONFIG_A=y\n"),
        ] {
            fs::create_dir_all(source.join(file).parent().unwrap()).unwrap();
            fs::write(source.join(file), content).unwrap();
        }
        let tree = dir.path().join("tree");
        let kernel = collect(&source, &tree).unwrap();
        assert_eq!(kernel.release(), "6.12.95-longshore");
        assert_eq!(fs::read_to_string(kernel.image()).unwrap(), "image");
        if require::or_skip("the index of modules", DEPMOD.find()).is_none() {
            return;
        }
        // A built-in module needs no loading, and an unknown one is refused by name.
        DEPMOD.run(["--basedir", path_str(&tree).unwrap(), kernel.release()]).unwrap();
        assert!(kernel.modules(&["vfio-pci".to_owned()]).unwrap().is_empty());
        let refused = kernel.modules(&["xfs".to_owned()]).unwrap_err().to_string();
        assert!(refused.contains("xfs"), "{refused}");
    }

    #[test]
    fn free_space_is_read_from_df() {
        assert_eq!(free_bytes("      Avail\n40541351936\n"), Some(40_541_351_936));
        assert_eq!(free_bytes("Avail\n-\n"), None);
        // Checks the real df with an existing folder.
        let dir = tempfile::tempdir().unwrap();
        let shown = tool::output(
            DF.command().unwrap().args(["--output=avail", "--block-size=1"]).arg(dir.path()),
        );
        assert!(free_bytes(&String::from_utf8_lossy(&shown.unwrap())).is_some());
    }
}
