//! Generates `bindings/c/include/longshore.h` from `bindings/c/src`. Fails if a declaration in it is
//! not documented.
//!
//! ```console
//! $ cargo run --manifest-path bindings/c/header/Cargo.toml             # writes it
//! $ cargo run --manifest-path bindings/c/header/Cargo.toml -- --check  # fails if it differs
//! ```

mod documentation;

use std::error::Error;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::{env, fs};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = tool.parent().ok_or("the tool must be in a folder of the library's crate")?;
    let header = library.join("include/longshore.h");
    let args: Vec<String> = env::args().skip(1).collect();
    let made = made(library)?;
    let missing = documentation::missing(&made);
    if !missing.is_empty() {
        return Err(
            format!("the header's documentation is incomplete:\n{}", missing.join("\n")).into()
        );
    }
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => fs::write(&header, made)?,
        ["--check"] if fs::read_to_string(&header)? != made => {
            eprintln!(
                "{} differs from the output of cbindgen; generate it again: cargo run \
                 --manifest-path bindings/c/header/Cargo.toml",
                header.display()
            );
            return Ok(ExitCode::FAILURE);
        }
        ["--check"] => println!("{} is up to date", header.display()),
        _ => return Err("usage: longshore-header [--check]".into()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Generates the text of the header.
fn made(library: &Path) -> Result<String, Box<dyn Error>> {
    let mut config = cbindgen::Config::from_file(library.join("cbindgen.toml"))?;
    config.after_includes = Some(version_macros(&version(library)?)?);
    let bindings = cbindgen::Builder::new().with_crate(library).with_config(config).generate()?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    Ok(String::from_utf8(text)?)
}

/// Returns the library's version, from `cargo pkgid`.
fn version(library: &Path) -> Result<String, Box<dyn Error>> {
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["pkgid", "--quiet", "--manifest-path"])
        .arg(library.join("Cargo.toml"))
        .output()?;
    let id = String::from_utf8(output.stdout)?;
    // path+file:///…/bindings/c#longshore-c@0.1.0
    let version = id.trim().rsplit(['@', '#']).next().unwrap_or_default();
    if !output.status.success() || version.is_empty() {
        return Err(format!("cargo pkgid: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(version.to_owned())
}

/// Returns the macros for the version, and the initializers of the structs.
fn version_macros(version: &str) -> Result<String, Box<dyn Error>> {
    let numbers = version.split(['-', '+']).next().unwrap_or_default();
    let [major, minor, patch] = numbers.split('.').collect::<Vec<_>>()[..] else {
        return Err(format!("'{version}' is not a version of three numbers").into());
    };
    Ok(format!(
        "\n\
         /** The version of this header. `longshore_version` returns that of the library in use. */\n\
         #define LONGSHORE_VERSION \"{version}\"\n\
         /** The major version of this header. */\n\
         #define LONGSHORE_VERSION_MAJOR {major}\n\
         /** The minor version of this header. While the major version is 0, each has its own ABI. */\n\
         #define LONGSHORE_VERSION_MINOR {minor}\n\
         /** The patch level of this header. */\n\
         #define LONGSHORE_VERSION_PATCH {patch}\n\
         /** The version of this header as one number, which is greater for later versions. */\n\
         #define LONGSHORE_VERSION_NUMBER \\\n    \
         ((LONGSHORE_VERSION_MAJOR << 16) | (LONGSHORE_VERSION_MINOR << 8) | \
         LONGSHORE_VERSION_PATCH)\n\
         \n\
         /** The initial value of `longshore_load_options`: the defaults, with the size set. */\n\
         #define LONGSHORE_LOAD_OPTIONS_INIT \\\n    \
         {{sizeof(longshore_load_options), NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, NULL, NULL, \\\n     \
         NULL, 0, 0, 0}}\n\
         /** The initial value of `longshore_stream_options`: the defaults, with the size set. */\n\
         #define LONGSHORE_STREAM_OPTIONS_INIT \\\n    \
         {{sizeof(longshore_stream_options), NULL, NULL, NULL, NULL, 0, NULL, 0, NULL, 0, NULL, 0, \\\n     \
         0, 0, 0, 0, NULL, NULL, NULL, 0, 0, 0}}\n\
         /** The initial value of `longshore_rows`: no rows of all tensors, with the size set. */\n\
         #define LONGSHORE_ROWS_INIT {{sizeof(longshore_rows), NULL, 0, 0, 0, 0}}"
    ))
}
