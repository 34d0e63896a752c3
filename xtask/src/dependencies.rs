//! Checks versions, licences and sources of dependencies against `deny.toml`.
//!
//! `cargo deny check` reads the same file and checks more, but takes minutes to install. The checks for
//! every commit are here; they need no network and take only a moment.

mod spdx;

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::metadata::{Metadata, Package};
use crate::repository::Repository;

/// Cargo's name for crates.io.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The part of `deny.toml` that is checked here.
#[derive(Debug, Default, Deserialize)]
struct Policy {
    #[serde(default)]
    advisories: Advisories,
    licenses: Licenses,
    bans: Bans,
}

#[derive(Debug, Default, Deserialize)]
struct Advisories {
    /// Advisories of RustSec that do not apply to Longshore.
    #[serde(default)]
    ignore: Vec<Ignored>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Ignored {
    /// An identifier alone.
    Bare(String),
    /// An identifier, or a package that was yanked, with the reason.
    Explained {
        #[serde(alias = "crate")]
        id: String,
        #[serde(default)]
        reason: String,
    },
}

#[derive(Debug, Default, Deserialize)]
struct Licenses {
    /// The allowed SPDX identifiers.
    allow: Vec<String>,
    /// The licences of packages whose manifest has none.
    #[serde(default)]
    clarify: Vec<Clarified>,
}

#[derive(Debug, Default, Deserialize)]
struct Clarified {
    #[serde(rename = "crate")]
    package: String,
    expression: String,
}

#[derive(Debug, Default, Deserialize)]
struct Bans {
    /// Versions that are allowed beside another version of the same package.
    skip: Vec<Skip>,
}

#[derive(Debug, Default, Deserialize)]
struct Skip {
    /// `name@version`.
    #[serde(rename = "crate")]
    package: String,
    #[serde(default)]
    reason: String,
}

impl Policy {
    fn of(repository: &Repository) -> Result<Self> {
        basic_toml::from_str(&repository.file("deny.toml")?.text).context("reading deny.toml")
    }
}

/// Returns the packages that occur in several versions, except those that `deny.toml` skips.
pub(crate) fn duplicates(repository: &Repository) -> Result<Vec<String>> {
    Ok(duplicates_in(&repository.metadata, &Policy::of(repository)?.bans))
}

fn duplicates_in(metadata: &Metadata, bans: &Bans) -> Vec<String> {
    let mut places = Vec::new();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Package { name, version, .. } in &metadata.packages {
        versions.entry(name).or_default().push(version);
    }
    for skip in &bans.skip {
        let Skip { package, reason } = skip;
        if reason.is_empty() {
            places.push(format!("deny.toml: skips {package} without a reason"));
        }
        let (name, version) = package.split_once('@').unwrap_or((package, ""));
        let passed = versions.get_mut(name).filter(|all| all.len() > 1).is_some_and(|all| {
            let before = all.len();
            all.retain(|other| *other != version);
            all.len() < before
        });
        if !passed {
            places.push(format!("deny.toml: skips {package}, which is not a second version"));
        }
    }
    for (name, versions) in versions {
        if versions.len() > 1 {
            places.push(format!(
                "{name}: {}; see `cargo tree --duplicates`, or skip one in deny.toml with a reason",
                versions.join(" and ")
            ));
        }
    }
    places
}

/// Returns the advisories that `deny.toml` ignores without a reason. `cargo deny check advisories` checks
/// the dependencies against RustSec's database, which it fetches.
pub(crate) fn ignored_advisories(repository: &Repository) -> Result<Vec<String>> {
    Ok(without_reason(&Policy::of(repository)?.advisories))
}

fn without_reason(advisories: &Advisories) -> Vec<String> {
    let bare = |ignored: &Ignored| match ignored {
        Ignored::Explained { reason, .. } if !reason.is_empty() => None,
        Ignored::Explained { id, .. } | Ignored::Bare(id) => {
            Some(format!("deny.toml: ignores {id} without a reason"))
        }
    };
    advisories.ignore.iter().filter_map(bare).collect()
}

/// Returns the packages whose licence `deny.toml` does not allow.
pub(crate) fn licences(repository: &Repository) -> Result<Vec<String>> {
    Ok(unlicensed(&repository.metadata, &Policy::of(repository)?.licenses))
}

fn unlicensed(metadata: &Metadata, licenses: &Licenses) -> Vec<String> {
    let allows = |identifier: &str| licenses.allow.iter().any(|allowed| allowed == identifier);
    let mut places = Vec::new();
    for Package { name, version, license, .. } in &metadata.packages {
        let clarified = licenses.clarify.iter().find(|clarified| clarified.package == *name);
        match license.as_ref().or(clarified.map(|clarified| &clarified.expression)) {
            None => places.push(format!("{name} {version}: has no licence in its manifest")),
            Some(license) => match spdx::satisfied(license, &allows) {
                Some(true) => {}
                Some(false) => places.push(format!("{name} {version}: {license} is not allowed")),
                None => {
                    places.push(format!("{name} {version}: '{license}' is not an SPDX expression"));
                }
            },
        }
    }
    places
}

/// Returns the packages that come neither from this repository nor from crates.io.
pub(crate) fn sources(repository: &Repository) -> Result<Vec<String>> {
    Ok(strangers(&repository.metadata))
}

fn strangers(metadata: &Metadata) -> Vec<String> {
    let foreign = metadata.packages.iter().filter_map(|package| {
        let source = package.source.as_deref().filter(|source| *source != CRATES_IO)?;
        Some(format!("{} {}: comes from {source}", package.name, package.version))
    });
    foreign.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str, license: &str) -> Package {
        Package {
            name: name.to_owned(),
            version: version.to_owned(),
            license: Some(license.to_owned()),
            source: Some(CRATES_IO.to_owned()),
            ..Package::default()
        }
    }

    fn skip(package: &str, reason: &str) -> Skip {
        Skip { package: package.to_owned(), reason: reason.to_owned() }
    }

    #[test]
    fn a_second_version_needs_a_reason() {
        let packages = vec![package("digest", "0.10.7", "MIT"), package("digest", "0.11.3", "MIT")];
        let metadata = Metadata { packages };
        let places = |skip| duplicates_in(&metadata, &Bans { skip });
        assert!(places(vec![])[0].starts_with("digest: 0.10.7 and 0.11.3; see"));
        assert_eq!(places(vec![skip("digest@0.10.7", "crc-fast asks for it")]), [""; 0]);
        let bare = places(vec![skip("digest@0.10.7", "")]);
        assert_eq!(bare, ["deny.toml: skips digest@0.10.7 without a reason"]);
    }

    #[test]
    fn an_unused_skip_is_reported() {
        let metadata = Metadata { packages: vec![package("digest", "0.11.3", "MIT")] };
        for idle in ["digest@0.11.3", "digest@0.10.7", "sha2@1"] {
            let places = duplicates_in(&metadata, &Bans { skip: vec![skip(idle, "why not")] });
            assert_eq!(places, [format!("deny.toml: skips {idle}, which is not a second version")]);
        }
    }

    #[test]
    fn an_ignored_advisory_needs_a_reason() {
        let read = |ignore: &str| {
            let text = format!(
                "[advisories]\nyanked = \"deny\"\nignore = {ignore}\n[licenses]\nallow = []\n[bans]\nskip = []"
            );
            without_reason(&basic_toml::from_str::<Policy>(&text).unwrap().advisories)
        };
        assert_eq!(read("[]"), [""; 0]);
        assert_eq!(read(r#"[{ id = "RUSTSEC-2020-0071", reason = "no local time" }]"#), [""; 0]);
        let told = ["deny.toml: ignores RUSTSEC-2020-0071 without a reason"];
        assert_eq!(read(r#"["RUSTSEC-2020-0071"]"#), told);
        assert_eq!(read(r#"[{ id = "RUSTSEC-2020-0071" }]"#), told);
        let yanked = read(r#"[{ crate = "spin@0.9.7", reason = "" }]"#);
        assert_eq!(yanked, ["deny.toml: ignores spin@0.9.7 without a reason"]);
    }

    #[test]
    fn a_licence_must_be_declared_and_allowed() {
        let clarified = Clarified { package: "told".to_owned(), expression: "MIT".to_owned() };
        let licenses = Licenses { allow: vec!["MIT".to_owned()], clarify: vec![clarified] };
        let mut told = package("told", "1.0.0", "");
        told.license = None;
        let mut silent = package("silent", "1.0.0", "");
        silent.license = None;
        let packages = vec![
            package("fine", "1.0.0", "GPL-2.0-only OR MIT"),
            package("viral", "1.0.0", "GPL-2.0-only"),
            package("odd", "1.0.0", "MIT OR"),
            silent,
            told,
        ];
        assert_eq!(
            unlicensed(&Metadata { packages }, &licenses),
            [
                "viral 1.0.0: GPL-2.0-only is not allowed",
                "odd 1.0.0: 'MIT OR' is not an SPDX expression",
                "silent 1.0.0: has no licence in its manifest",
            ]
        );
    }

    #[test]
    fn a_package_from_another_source_is_reported() {
        let mut forked = package("forked", "1.0.0", "MIT");
        forked.source = Some("git+https://example.org/forked#1234".to_owned());
        let mut own = package("longshore-mem", "0.1.0", "MIT");
        own.source = None;
        let packages = vec![package("libc", "0.2.0", "MIT"), own, forked];
        assert_eq!(
            strangers(&Metadata { packages }),
            ["forked 1.0.0: comes from git+https://example.org/forked#1234"]
        );
    }
}
