//! What every crate takes from the workspace instead of saying it anew.

use std::fs;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::api;
use crate::repository::Repository;

/// Keys of `[package]`.
const INHERITED: [&str; 5] = ["version", "edition", "rust-version", "license", "repository"];

/// The keys that a crate sets for itself or leaves out.
pub(crate) fn broken(repository: &Repository) -> Result<Vec<String>> {
    let mut places = Vec::new();
    for package in repository.metadata.members() {
        let path = &package.manifest_path;
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let manifest: Value =
            basic_toml::from_str(&text).with_context(|| path.display().to_string())?;
        for key in not_inherited(&manifest) {
            places.push(format!("{}: {key}.workspace is not true", package.name));
        }
        let publish = &manifest["package"]["publish"];
        if api::is_published(package, &repository.root) {
            if !publish.is_null() {
                places
                    .push(format!("{}: publish is set, but the crate is published", package.name));
            }
        } else if !inherits(publish) {
            places.push(format!("{}: publish.workspace is not true", package.name));
        }
    }
    Ok(places)
}

fn inherits(value: &Value) -> bool {
    *value == json!({ "workspace": true })
}

fn not_inherited(manifest: &Value) -> Vec<String> {
    let of_package = INHERITED.into_iter().filter(|key| !inherits(&manifest["package"][key]));
    let mut keys: Vec<String> = of_package.map(str::to_owned).collect();
    if !inherits(&manifest["lints"]) {
        keys.push("lints".to_owned());
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_or_left_out_is_named() {
        let manifest = r#"
            [package]
            name = "crate"
            version.workspace = true
            edition = "2021"
            license.workspace = true
            rust-version = { workspace = true }
            [lints.rust]
            unsafe_code = "allow"
        "#;
        let keys = not_inherited(&basic_toml::from_str(manifest).unwrap());
        assert_eq!(keys, ["edition", "repository", "lints"]);
    }

    #[test]
    fn this_crate_inherits_everything() {
        let manifest = basic_toml::from_str(include_str!("../Cargo.toml")).unwrap();
        assert_eq!(not_inherited(&manifest), [""; 0]);
    }
}
