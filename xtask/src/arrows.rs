//! The allowed dependencies between the crates.
//!
//! ```text
//!   cli          bench ──► vm-tests ◄── guest     and the examples: no crate of the library uses these
//!     ╲            │
//!      └─────► longshore                          the facade
//!              ╱       ╲
//!          serve        ╲
//!            │           ╲
//! formats ◄─ load      domain ──► access ──► pagetable
//!    │       │ ╲      ╱ │ ╲       │   │         │
//!    │       │  heap ◄┘ │  └─► iov ◄──┘         │
//!    │       │  │  ╲────│──────►│               │
//!    │       ▼  ▼       ▼       ▼               │
//!    │       sys ─────────────► mem ◄───────────┘
//!    └───────────────────────────┘
//! ```
//!
//! The relation is transitive: a crate may also depend on the dependencies of its dependencies.

use std::collections::BTreeSet;

use anyhow::Result;

use crate::metadata::{Metadata, Package};
use crate::repository::Repository;

/// Every crate of the workspace and its direct arrows.
const ARROWS: &[(&str, &[&str])] = &[
    ("longshore-mem", &[]),
    ("longshore-iov", &["longshore-mem"]),
    ("longshore-sys", &["longshore-mem"]),
    ("longshore-sync", &["longshore-sys"]),
    ("longshore-heap", &["longshore-iov", "longshore-sys"]),
    ("longshore-formats", &["longshore-mem"]),
    ("longshore-load", &["longshore-formats", "longshore-heap", "longshore-sys"]),
    ("longshore-remote", &["longshore-load"]),
    ("longshore-serve", &["longshore-load"]),
    ("longshore-pagetable", &["longshore-mem"]),
    (
        "longshore-access",
        &["longshore-pagetable", "longshore-iov", "longshore-sync", "longshore-sys"],
    ),
    ("longshore-domain", &["longshore-access", "longshore-iov", "longshore-heap", "longshore-sys"]),
    ("longshore-vfio-user", &["longshore-access"]),
    ("longshore-vhost-user", &["longshore-access"]),
    ("longshore-nvme", &["longshore-domain"]),
    (
        "longshore",
        &[
            "longshore-remote",
            "longshore-serve",
            "longshore-domain",
            "longshore-vfio-user",
            "longshore-vhost-user",
        ],
    ),
    ("longshore-cli", &["longshore"]),
    ("longshore-c", &["longshore-remote", "longshore-serve"]),
    ("longshore-python", &["longshore-remote", "longshore-serve"]),
    ("longshore-bench", &["longshore", "longshore-vm-tests"]),
    ("longshore-device-example", &["longshore"]),
    ("longshore-vhost-example", &["longshore"]),
    ("longshore-nvme-example", &["longshore", "longshore-nvme"]),
    ("longshore-vm-tests", &["longshore", "longshore-device-example"]),
    ("longshore-guest", &["longshore", "longshore-nvme", "longshore-vm-tests"]),
    ("xtask", &[]),
];

/// Returns the dependencies without an arrow, and the crates that are not in the list.
pub(crate) fn broken(repository: &Repository) -> Result<Vec<String>> {
    Ok(wrong_ways(&repository.metadata))
}

fn wrong_ways(metadata: &Metadata) -> Vec<String> {
    let mut places = Vec::new();
    for package in metadata.members() {
        let Some(allowed) = reachable(&package.name) else {
            places.push(format!("{}: is not listed in xtask/src/arrows.rs", package.name));
            continue;
        };
        for target in targets(package) {
            if target != package.name && !allowed.contains(target) {
                places.push(format!(
                    "{} → {target}: xtask/src/arrows.rs does not allow this dependency",
                    package.name
                ));
            }
        }
    }
    places
}

/// Returns the crates of this repository that `package` depends on, for any kind of dependency.
fn targets(package: &Package) -> BTreeSet<&str> {
    let ours = package.dependencies.iter().filter(|dependency| dependency.path.is_some());
    ours.map(|dependency| dependency.name.as_str()).collect()
}

/// Returns all crates that `name` may depend on; `None` for a crate that is not in the list.
fn reachable(name: &str) -> Option<BTreeSet<&'static str>> {
    let arrows_of = |name: &str| Some(ARROWS.iter().find(|(from, _)| *from == name)?.1);
    let mut found = BTreeSet::new();
    let mut open: Vec<&str> = arrows_of(name)?.to_vec();
    while let Some(next) = open.pop() {
        if found.insert(next) {
            open.extend(arrows_of(next).unwrap_or_default());
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Dependency;
    use crate::repository;

    fn package(name: &str, dependencies: &[&str]) -> Package {
        let dependency =
            |name: &&str| Dependency { name: (*name).to_owned(), path: Some(name.into()) };
        Package {
            name: name.to_owned(),
            dependencies: dependencies.iter().map(dependency).collect(),
            ..Package::default()
        }
    }

    fn wrong(packages: Vec<Package>) -> Vec<String> {
        wrong_ways(&Metadata { packages })
    }

    #[test]
    fn this_workspace_keeps_the_rule() {
        let metadata = Metadata::of(&repository::root()).unwrap();
        assert!(metadata.members().count() > 5);
        assert_eq!(wrong_ways(&metadata), [""; 0]);
    }

    #[test]
    fn a_dependency_without_an_arrow_is_reported() {
        let packages = vec![
            package("longshore-mem", &["longshore-heap"]),
            package("longshore-load", &["longshore-mem", "longshore-domain"]),
            package("longshore", &["longshore-load", "longshore-domain", "longshore-mem"]),
            package("longshore-guest", &["longshore-vm-tests"]),
            package("longshore-heap", &["longshore-vm-tests"]),
            package("longshore-bench", &["longshore-cli"]),
        ];
        assert_eq!(
            wrong(packages),
            [
                "longshore-mem → longshore-heap",
                "longshore-load → longshore-domain",
                "longshore-heap → longshore-vm-tests",
                "longshore-bench → longshore-cli",
            ]
            .map(|edge| format!("{edge}: xtask/src/arrows.rs does not allow this dependency"))
        );
    }

    #[test]
    fn an_unlisted_crate_is_reported_and_external_ones_are_ignored() {
        let newcomer = package("longshore-new", &[]);
        assert_eq!(wrong(vec![newcomer]), ["longshore-new: is not listed in xtask/src/arrows.rs"]);
        let mut foreign = package("libc", &["longshore-mem"]);
        foreign.source = Some("registry".to_owned());
        let mut user = package("longshore-mem", &["libc"]);
        user.dependencies[0].path = None;
        assert_eq!(wrong(vec![foreign, user]), [""; 0]);
    }

    #[test]
    fn the_arrows_have_no_cycle_and_load_does_not_reach_domain() {
        for (name, arrows) in ARROWS {
            assert!(!reachable(name).unwrap().contains(name), "{name} is on a cycle");
            for target in *arrows {
                assert!(reachable(target).is_some(), "{target} is not listed");
            }
        }
        assert!(!reachable("longshore-load").unwrap().contains("longshore-domain"));
    }
}
