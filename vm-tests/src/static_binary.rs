//! Builds statically linked programs, which need no other file to run, against the host's libc.

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

/// The host's own target. It is named explicitly so that cargo applies the flags only to the program,
/// and not to build scripts and macros, which cannot be static.
const TARGET: &str = if cfg!(target_arch = "aarch64") {
    "aarch64-unknown-linux-gnu"
} else {
    "x86_64-unknown-linux-gnu"
};

/// Settings that build a test program in seconds instead of a minute after each change. A program that
/// is measured is built with the unchanged release profile.
const QUICK_BUILD: [(&str, &str); 3] = [
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_RELEASE_INCREMENTAL", "true"),
];

/// Builds the guest's init, which is also its test program, and returns its file.
///
/// # Errors
///
/// Like [`static_binary`].
pub fn guest_init() -> Result<PathBuf> {
    build_once(GUEST_PACKAGE, GUEST_PACKAGE, &QUICK_BUILD)
}

/// Builds the binary `name` of the workspace's `package` in release mode, linked statically, and returns
/// its file. A process builds each binary once.
///
/// The build has its own target folder, so it does not wait for the lock of another cargo, such as the
/// one that runs the tests, and their different flags do not invalidate each other's work.
///
/// # Errors
///
/// Returns an error if the build fails.
pub fn static_binary(package: &str, name: &str) -> Result<PathBuf> {
    build_once(package, name, &[])
}

/// Like [`static_binary`], for a program that is not measured: with the settings and the build artifacts
/// of the guest's init.
///
/// # Errors
/// Like [`static_binary`].
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

/// Returns cargo's target folder, for build output and logs.
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
        // RUSTFLAGS below is overridden only by this variable.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        // Set for test programs that print their times.
        .env_remove("RUSTC_BOOTSTRAP")
        .env("RUSTFLAGS", rust_flags(env::var("RUSTFLAGS").ok().as_deref()));
    tool::output(&mut cargo)?;
    let binary = into.join(TARGET).join("release").join(name);
    if binary.is_file() {
        return Ok(binary);
    }
    Err(Error::Unsupported { path: binary, reason: "cargo did not create the program" })
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
