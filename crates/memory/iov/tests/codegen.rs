//! The machine code of walks: for each kind, the step is inlined into a loop of its own, without
//! calls through a pointer.
#![cfg(not(miri))]

use std::fs;
use std::path::Path;
use std::process::Command;

const WALKS: [&str; 7] = [
    "probe_foreign_buf",
    "probe_foreign_vec",
    "probe_own_vec",
    "probe_page_vec",
    "probe_sparse_pages",
    "probe_page_queue",
    "probe_any_kind",
];

#[test]
fn steps_are_inlined_into_the_loops_of_every_kind() {
    let assembly = assembly_of_the_probe();
    for walk in WALKS {
        let body = body_of(&assembly, walk);
        assert!(body.lines().count() > 5, "{walk} has a body:\n{body}");
        let calls: Vec<&str> = body.lines().map(str::trim).filter(|line| is_call(line)).collect();
        // The lookup of a leaf of sparse pages may be a call, once for 128 pages. No other walk may
        // call a function, and none may call through a pointer.
        let is_through_pointer =
            |call: &&&str| call.starts_with("blr") || call.contains('*') && !call.contains("@GOT");
        let through_pointer = calls.iter().find(is_through_pointer);
        assert_eq!(through_pointer, None, "{walk} calls through a pointer:\n{body}");
        if !matches!(walk, "probe_sparse_pages" | "probe_any_kind") {
            assert!(calls.is_empty(), "{walk} calls {calls:?}:\n{body}");
        }
    }
}

fn is_call(line: &str) -> bool {
    let word = line.split_whitespace().next().unwrap_or_default();
    // A panic is a call that does not return, and that a correct walk does not reach.
    let is_panic = line.contains("panic") || line.contains("slice_index_fail");
    matches!(word, "call" | "callq" | "bl" | "blr") && !is_panic
}

/// Compiles the probe in release mode, in a target folder of its own, and reads its assembly.
fn assembly_of_the_probe() -> String {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = package.join("../../../target/codegen-probe");
    let status = Command::new(env!("CARGO"))
        .current_dir(package)
        .args(["rustc", "--quiet", "--release", "--locked", "--example", "codegen_probe"])
        .arg("--target-dir")
        .arg(&target)
        .args(["--", "--emit=asm", "-Ccodegen-units=1", "-Clto=no"])
        .env_remove("RUSTFLAGS")
        // Set for test programs that print their times.
        .env_remove("RUSTC_BOOTSTRAP")
        .status()
        .expect("cargo runs the tests, so it is available");
    assert!(status.success(), "the probe compiles");
    let folder = target.join("release/examples");
    let mut newest = None;
    for entry in fs::read_dir(&folder).expect("cargo has made the folder").flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "s") {
            let modified = entry.metadata().and_then(|metadata| metadata.modified()).ok();
            if newest.as_ref().is_none_or(|(time, _)| modified > *time) {
                newest = Some((modified, path));
            }
        }
    }
    let (_, path) = newest.expect("the compiler wrote assembly");
    fs::read_to_string(path).expect("assembly is text")
}

/// Returns the lines of a function, from its label to its end. A function that is equal to another
/// one may be an alias of it.
fn body_of(assembly: &str, name: &str) -> String {
    let second_name = format!("{name} = ");
    let name = assembly.lines().find_map(|line| line.strip_prefix(&second_name)).unwrap_or(name);
    let label = format!("{name}:");
    let mut lines = assembly.lines().skip_while(|line| *line != label);
    assert!(lines.next().is_some(), "the assembly has {name}");
    lines.take_while(|line| !line.contains(".cfi_endproc")).collect::<Vec<_>>().join("\n")
}
