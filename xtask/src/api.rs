//! The public API of each published crate as text, so that reviewers see every change of it.
//!
//! The text is generated from rustdoc's JSON, whose format differs between compilers, so it is always made
//! by the nightly that also runs Miri (`rust_nightly` in `scripts/setup.sh`).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::metadata::{Metadata, Package};
use crate::repository;

/// The file beside a crate's manifest.
const FILE: &str = "api.txt";
const SETUP: &str = "scripts/setup.sh";

/// Compares each crate's API with its file and returns the lines that differ, or writes the files if
/// `update`.
pub(crate) fn compare(update: bool) -> Result<Vec<String>> {
    let root = repository::root();
    let setup = fs::read_to_string(root.join(SETUP)).context(SETUP)?;
    let nightly = nightly(&setup).with_context(|| format!("{SETUP}: no rust_nightly"))?;
    let mut places = Vec::new();
    for package in Metadata::of(&root)?.members().filter(|package| is_published(package, &root)) {
        let api = public_api(package, nightly, &root)?;
        let file = package.manifest_path.with_file_name(FILE);
        if update {
            fs::write(&file, api).with_context(|| file.display().to_string())?;
            continue;
        }
        let committed = fs::read_to_string(&file).unwrap_or_default();
        let file = file.strip_prefix(&root).unwrap_or(&file).display();
        places.extend(differences(&committed, &api).map(|line| format!("{file}: {line}")));
    }
    Ok(places)
}

/// Returns the toolchain that the setup script names.
fn nightly(setup: &str) -> Option<&str> {
    setup.lines().find_map(|line| line.strip_prefix("rust_nightly="))
}

/// Returns `true` for the crates of the library; the command, the bindings, examples and tools are not
/// published.
pub(crate) fn is_published(package: &Package, root: &Path) -> bool {
    package.manifest_path.starts_with(root.join("crates"))
}

/// Returns the public items of a crate with all its features, one per line, sorted.
fn public_api(package: &Package, nightly: &str, root: &Path) -> Result<String> {
    let target = target_folder(root).join("api");
    let mut rustdoc = Command::new("cargo");
    // cargo set these variables for the compiler of this program.
    rustdoc.current_dir(root).env_remove("RUSTC").env_remove("RUSTUP_TOOLCHAIN");
    rustdoc.env("CARGO_TARGET_DIR", &target);
    rustdoc.arg(format!("+{nightly}"));
    rustdoc.args(["rustdoc", "--quiet", "--lib", "--all-features", "--package", &package.name]);
    rustdoc.args(["--", "-Z", "unstable-options", "--output-format", "json", "--cap-lints=allow"]);
    let status = rustdoc.status().context("starting cargo")?;
    ensure!(status.success(), "{}: rustdoc of {nightly} failed", package.name);
    let json = target.join("doc").join(package.name.replace('-', "_")).with_extension("json");
    let api = public_api::Builder::from_rustdoc_json(json)
        .omit_auto_trait_impls(true)
        .omit_blanket_impls(true)
        .build()
        .with_context(|| package.name.clone())?;
    let lines: BTreeSet<String> = api.items().map(ToString::to_string).collect();
    Ok(lines.into_iter().map(|line| line + "\n").collect())
}

fn target_folder(root: &Path) -> PathBuf {
    let set = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    root.join(set.unwrap_or_else(|| "target".into()))
}

/// Returns the lines that only one of two texts has, marked as in a diff.
fn differences<'t>(committed: &'t str, now: &'t str) -> impl Iterator<Item = String> + use<'t> {
    let lines = |text: &'t str| text.lines().collect::<BTreeSet<_>>();
    let (old, new) = (lines(committed), lines(now));
    let removed: Vec<_> = old.difference(&new).map(|line| format!("- {line}")).collect();
    let added: Vec<_> = new.difference(&old).map(|line| format!("+ {line}")).collect();
    removed.into_iter().chain(added)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_only_one_text_has_are_differences() {
        let found: Vec<_> = differences("a\nb\nc\n", "a\nc\nd\n").collect();
        assert_eq!(found, ["- b", "+ d"]);
        assert_eq!(differences("a\n", "a\n").count(), 0);
    }

    #[test]
    fn the_setup_script_names_a_nightly_by_its_date() {
        let setup = fs::read_to_string(repository::root().join(SETUP)).unwrap();
        let date = nightly(&setup).unwrap().strip_prefix("nightly-").unwrap();
        assert_eq!(date.len(), "2026-01-31".len(), "{date}");
        assert_eq!(nightly("rust_oldest=1\n"), None);
    }

    #[test]
    fn only_crates_of_the_library_are_published() {
        let package = |path: &str| Package { manifest_path: path.into(), ..Package::default() };
        let root = Path::new("/tree");
        assert!(is_published(&package("/tree/crates/memory/mem/Cargo.toml"), root));
        assert!(!is_published(&package("/tree/cli/Cargo.toml"), root));
    }
}
