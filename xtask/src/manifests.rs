//! The keys that every crate inherits from the workspace, and the versions of the two wings.
//!
//! Each wing is released on its own, so its crates share a version that is not the workspace's.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::api;
use crate::repository::Repository;

/// Keys of `[package]`.
const INHERITED: [&str; 5] = ["version", "edition", "rust-version", "license", "repository"];

/// The folders of crates that have a version of their own.
const WINGS: [&str; 2] = ["crates/models", "crates/devices"];

/// Returns the keys that a crate sets itself or omits, and the crates whose version is not that of their
/// wing.
pub(crate) fn broken(repository: &Repository) -> Result<Vec<String>> {
    let mut places = Vec::new();
    let mut versions = BTreeMap::new();
    for package in repository.metadata.members() {
        let path = &package.manifest_path;
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let manifest: Value =
            basic_toml::from_str(&text).with_context(|| path.display().to_string())?;
        let wing = WINGS.into_iter().find(|wing| path.starts_with(repository.root.join(wing)));
        if let Some(wing) = wing {
            places.extend(other_version(&mut versions, wing, &package.name, &manifest));
        }
        for key in not_inherited(&manifest) {
            if wing.is_some() && key == "version" {
                continue;
            }
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

/// Returns an error if a crate inherits its version, or if its version differs from that of an earlier crate
/// of its wing.
fn other_version(
    versions: &mut BTreeMap<&'static str, String>,
    wing: &'static str,
    name: &str,
    manifest: &Value,
) -> Option<String> {
    let Some(version) = manifest["package"]["version"].as_str() else {
        return Some(format!("{name}: its version is not that of {wing}"));
    };
    let of_wing = versions.entry(wing).or_insert_with(|| version.to_owned());
    (of_wing != version)
        .then(|| format!("{name}: version {version}, but another crate of {wing} has {of_wing}"))
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
    fn keys_that_are_set_or_omitted_are_reported() {
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
    fn crates_of_a_wing_have_one_version() {
        let with = |version: Value| json!({ "package": { "version": version } });
        let mut versions = BTreeMap::new();
        let mut check = |wing, version| other_version(&mut versions, wing, "a", &with(version));
        assert_eq!(check(WINGS[0], json!("1.0.0")), None);
        assert_eq!(check(WINGS[1], json!("2.0.0")), None);
        assert_eq!(check(WINGS[1], json!("2.0.0")), None);
        assert!(check(WINGS[0], json!("1.0.1")).is_some());
        assert!(check(WINGS[0], json!({ "workspace": true })).is_some());
    }

    #[test]
    fn this_crate_inherits_everything() {
        let manifest = basic_toml::from_str(include_str!("../Cargo.toml")).unwrap();
        assert_eq!(not_inherited(&manifest), [""; 0]);
    }
}
