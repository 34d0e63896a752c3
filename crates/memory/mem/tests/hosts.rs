//! Programs in other languages that load this crate as a library and have signal handlers of their
//! own. A guarded copy must end at the exact byte in several of their threads, and other signals
//! must still reach their handlers.
#![cfg(not(miri))]

use std::env;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hosts");

#[test]
fn a_go_program_keeps_its_handlers() {
    if !has_program("go", "version") {
        return;
    }
    let library = library();
    let program = library.with_file_name("go-host");
    let built = Command::new("go")
        .current_dir(FOLDER)
        .args(["build", "-o"])
        .arg(&program)
        .arg("host.go")
        // Uses the installed toolchain, and writes nothing outside of the target folder.
        .envs([("CGO_ENABLED", "1"), ("GOTOOLCHAIN", "local"), ("GOFLAGS", "")])
        .env("GOCACHE", target().join("go-cache"))
        .output()
        .unwrap();
    assert!(built.status.success(), "go build: {}", errors(&built));

    let run =
        |mode: Option<&str>| Command::new(&program).arg(&library).args(mode).output().unwrap();
    assert_holds(&run(None));
    for mode in ["c-fault", "late"] {
        let output = run(Some(mode));
        let words = errors(&output);
        assert_eq!(output.status.code(), Some(2), "Go's exit status of a crash, {mode}: {words}");
        assert!(words.contains("SIGBUS: bus error"), "Go's handler ran, {mode}: {words}");
        assert!(words.contains("main.main()"), "and showed the place, {mode}: {words}");
    }
}

#[test]
fn a_python_program_keeps_its_handlers() {
    if !has_program("python3", "--version") {
        return;
    }
    let library = library();
    let copy = library.with_file_name("libguarded_copy_twice.so");
    fs::copy(&library, &copy).unwrap();
    let run = |mode: Option<&str>| {
        let host = Path::new(FOLDER).join("host.py");
        let copy = mode.and(Some(&copy));
        Command::new("python3").arg(host).arg(&library).args(mode).args(copy).output().unwrap()
    };
    assert_holds(&run(None));
    for (mode, signal, error, place) in [
        ("segv", libc::SIGSEGV, "Segmentation fault", "in fall_over_segv"),
        ("bus", libc::SIGBUS, "Bus error", "in fall_over_bus"),
        ("segv-unguarded", libc::SIGSEGV, "Segmentation fault", "in fall_over_segv"),
        ("segv-between", libc::SIGSEGV, "Segmentation fault", "in fall_over_segv"),
        ("segv-two", libc::SIGSEGV, "Segmentation fault", "in fall_over_segv"),
    ] {
        let output = run(Some(mode));
        let words = errors(&output);
        assert_eq!(output.status.signal(), Some(signal), "{mode}: {words}");
        let headline = format!("Fatal Python error: {error}");
        assert_eq!(words.matches(&headline).count(), 1, "{mode}: {words}");
        assert!(words.contains(place), "the traceback shows the place, {mode}: {words}");
    }
}

/// Returns `true` if `program` is installed. If it is not, reports the test as skipped.
///
/// # Panics
/// In CI (`CI=true`) if the program is missing.
fn has_program(program: &str, ask: &str) -> bool {
    match Command::new(program).arg(ask).output() {
        Ok(output) if output.status.success() => true,
        Ok(output) => panic!("{program} {ask}: {}", errors(&output)),
        Err(error) if env::var("CI").as_deref() == Ok("true") => panic!("{program}: {error}"),
        Err(error) => {
            eprintln!("SKIPPED: a host with handlers of its own: {program}: {error}");
            false
        }
    }
}

/// Builds the library, in a target folder of its own.
fn library() -> PathBuf {
    let status = Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["build", "--quiet", "--locked", "--example", "guarded_copy", "--target-dir"])
        .arg(target())
        // Set for test programs that print their times.
        .env_remove("RUSTC_BOOTSTRAP")
        .status()
        .expect("cargo runs the tests, so it is available");
    assert!(status.success(), "the library compiles");
    target().join("debug/examples/libguarded_copy.so")
}

fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target/hosts")
}

fn assert_holds(output: &Output) {
    let words = String::from_utf8_lossy(&output.stdout);
    let holds = output.status.success() && words.contains("the host holds");
    assert!(holds, "{}: {words}{}", output.status, errors(output));
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
