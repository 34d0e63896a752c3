//! Builds programs that run where there is no other file: linked statically, against the host's libc.

use std::{
    collections::HashMap,
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
};

use crate::{
    error::{Error, Result},
    tool,
};

/// The package of the guest's init and tests.
const GUEST_PACKAGE: &str = "longshore-guest";

/// The host's own target, named so that cargo applies the flags to the program and not to the
/// build scripts and macros on the way, which cannot be static.
const TARGET: &str = if cfg!(target_arch = "aarch64") {
    "aarch64-unknown-linux-gnu"
} else {
    "x86_64-unknown-linux-gnu"
};

/// Builds the tests in seconds rather than a minute after each change. What is measured is built as
/// the release profile says.
const QUICK_BUILD: [(&str, &str); 3] = [
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_RELEASE_INCREMENTAL", "true"),
];

/// The guest's init, which is also its test program.
///
/// # Errors
///
/// As [`static_binary`].
pub fn guest_init() -> Result<PathBuf> {
    build_once(GUEST_PACKAGE, GUEST_PACKAGE, &QUICK_BUILD)
}

/// Builds the binary `name` of the workspace's `package` in release mode, linked statically, and
/// returns its file. Within one process each is built once.
///
/// The build has its own target folder: another cargo, such as the one that runs the tests, does
/// not hold its lock, and neither throws the other's work away for having other flags.
///
/// # Errors
///
/// If it does not build.
pub fn static_binary(package: &str, name: &str) -> Result<PathBuf> {
    build_once(package, name, &[])
}

/// As [`static_binary`], for a program that is not measured: with the settings of the guest's init,
/// and what that has built.
///
/// # Errors
///
/// As [`static_binary`].
pub fn quick_static_binary(package: &str, name: &str) -> Result<PathBuf> {
    build_once(package, name, &QUICK_BUILD)
}

fn build_once(package: &str, name: &str, settings: &[(&str, &str)]) -> Result<PathBuf> {
    static BUILT: Mutex<Option<HashMap<(String, String), PathBuf>>> = Mutex::new(None);
    let mut built = BUILT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let built = built.get_or_insert_default();
    let key = (package.to_owned(), name.to_owned());
    if let Some(path) = built.get(&key) {
        return Ok(path.clone());
    }
    let path = build(package, name, settings)?;
    built.insert(key, path.clone());
    Ok(path)
}

/// The folder for build output and logs: cargo's.
pub(crate) fn target_dir() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR").filter(|value| !value.is_empty()) {
        Some(dir) => workspace().join(dir),
        None => workspace().join("target"),
    }
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace")
}

fn build(package: &str, name: &str, settings: &[(&str, &str)]) -> Result<PathBuf> {
    let into = target_dir().join("static");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(workspace())
        .args(["build", "--quiet", "--release", "--target", TARGET])
        .args(["--package", package, "--bin", name, "--target-dir"])
        .arg(&into)
        .envs(settings.iter().copied())
        // The one form of flags that nothing else overrides.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        // For test programs that print their times.
        .env_remove("RUSTC_BOOTSTRAP")
        .env("RUSTFLAGS", rust_flags(env::var("RUSTFLAGS").ok().as_deref()));
    tool::output(&mut cargo)?;
    let binary = into.join(TARGET).join("release").join(name);
    if binary.is_file() {
        return Ok(binary);
    }
    Err(Error::Unsupported { path: binary, reason: "cargo did not put the program there" })
}

fn rust_flags(inherited: Option<&str>) -> String {
    format!("{} -C target-feature=+crt-static", inherited.unwrap_or_default()).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_callers_flags_are_kept() {
        assert_eq!(rust_flags(None), "-C target-feature=+crt-static");
        assert_eq!(rust_flags(Some("-D warnings")), "-D warnings -C target-feature=+crt-static");
    }
}
