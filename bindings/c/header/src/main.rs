//! Makes `bindings/c/include/longshore.h` out of `bindings/c/src`. Fails where anything in it is not
//! documented.
//!
//! ```console
//! $ cargo run --manifest-path bindings/c/header/Cargo.toml             # writes it
//! $ cargo run --manifest-path bindings/c/header/Cargo.toml -- --check  # fails where it differs
//! ```

mod documentation;

use std::error::Error;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::{env, fs};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = tool.parent().ok_or("the tool lies beside the library's sources")?;
    let header = library.join("include/longshore.h");
    let args: Vec<String> = env::args().skip(1).collect();
    let made = made(library)?;
    let missing = documentation::missing(&made);
    if !missing.is_empty() {
        return Err(format!("the header does not say all:\n{}", missing.join("\n")).into());
    }
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => fs::write(&header, made)?,
        ["--check"] if fs::read_to_string(&header)? != made => {
            eprintln!(
                "{} is not what cbindgen makes of the sources; write it anew: cargo run \
                 --manifest-path bindings/c/header/Cargo.toml",
                header.display()
            );
            return Ok(ExitCode::FAILURE);
        }
        ["--check"] => println!("{} is what cbindgen makes of the sources", header.display()),
        _ => return Err("usage: longshore-header [--check]".into()),
    }
    Ok(ExitCode::SUCCESS)
}

/// The header, as it should be.
fn made(library: &Path) -> Result<String, Box<dyn Error>> {
    let mut config = cbindgen::Config::from_file(library.join("cbindgen.toml"))?;
    config.after_includes = Some(version_macros(&version(library)?)?);
    let bindings = cbindgen::Builder::new().with_crate(library).with_config(config).generate()?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    Ok(String::from_utf8(text)?)
}

/// The library's version, as cargo knows it.
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

/// What a program can ask of the header when it is compiled.
fn version_macros(version: &str) -> Result<String, Box<dyn Error>> {
    let numbers = version.split(['-', '+']).next().unwrap_or_default();
    let [major, minor, patch] = numbers.split('.').collect::<Vec<_>>()[..] else {
        return Err(format!("'{version}' is no version of three numbers").into());
    };
    Ok(format!(
        "\n\
         /** The version of this header. That of the library that runs is `longshore_version`. */\n\
         #define LONGSHORE_VERSION \"{version}\"\n\
         /** The major version of this header. */\n\
         #define LONGSHORE_VERSION_MAJOR {major}\n\
         /** The minor version of this header. While the major one is 0 another means another ABI. */\n\
         #define LONGSHORE_VERSION_MINOR {minor}\n\
         /** The patch level of this header. */\n\
         #define LONGSHORE_VERSION_PATCH {patch}\n\
         /** The version of this header as one number, so that a later one is greater. */\n\
         #define LONGSHORE_VERSION_NUMBER \\\n    \
         ((LONGSHORE_VERSION_MAJOR << 16) | (LONGSHORE_VERSION_MINOR << 8) | \
         LONGSHORE_VERSION_PATCH)\n\
         \n\
         /** What `longshore_load_options` begin as: nothing is said but the size. */\n\
         #define LONGSHORE_LOAD_OPTIONS_INIT \\\n    \
         {{sizeof(longshore_load_options), NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, NULL, NULL}}"
    ))
}
