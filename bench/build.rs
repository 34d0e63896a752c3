//! Passes the compiler's version to the bench, which records it with every figure.

use std::process::Command;

fn main() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc)
        .arg("--version")
        .output()
        .ok()
        .and_then(|answer| String::from_utf8(answer.stdout).ok())
        .unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=LONGSHORE_BENCH_RUSTC={}", version.trim());
    println!("cargo::rerun-if-changed=build.rs");
}
