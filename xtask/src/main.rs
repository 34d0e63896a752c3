//! `cargo xtask check` checks the repository's rules. Other commands generate the text of public APIs and
//! print the manual's blocks.
//!
//! A rule is a function that returns the places of the [`Repository`] that break it. Each has tests that
//! show the rule kept and broken.

mod api;
mod arrows;
mod blocks;
mod circles;
mod dependencies;
mod documents;
mod manifests;
mod manual;
mod metadata;
mod no_std;
mod phrases;
mod repository;
mod sources;

use std::env;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;

use repository::Repository;

const USAGE: &str = "\
usage: cargo xtask check                    check the repository's rules
       cargo xtask api [--update]           compare the public API of each crate with its api.txt
       cargo xtask blocks PAGE LANGUAGE     print the blocks of a page of docs/ in a language";

/// A rule of the repository.
struct Rule {
    name: &'static str,
    /// Returns the places that break it, one line each.
    broken: fn(&Repository) -> Result<Vec<String>>,
}

const RULES: &[Rule] = &[
    Rule { name: "dependencies among the crates run one way", broken: arrows::broken },
    Rule { name: "modules do not use each other in circles", broken: circles::broken },
    Rule { name: "one version of each dependency", broken: dependencies::duplicates },
    Rule { name: "licences of dependencies are allowed", broken: dependencies::licences },
    Rule { name: "dependencies come from crates.io", broken: dependencies::sources },
    Rule { name: "ignored advisories have a reason", broken: dependencies::ignored_advisories },
    Rule { name: "manifests inherit, each wing has one version", broken: manifests::broken },
    Rule { name: "source files are short", broken: sources::long_files },
    Rule { name: "unsafe code is allowed with a reason", broken: sources::unreasoned_unsafe },
    Rule { name: "no unfinished marks, no home folders", broken: sources::forbidden_words },
    Rule { name: "no phrases that plain words have replaced", broken: phrases::broken },
    Rule { name: "paths in documents exist", broken: documents::broken },
    Rule { name: "the manual's blocks are run, its links are valid", broken: manual::broken },
    Rule { name: "mem and pagetable build without std", broken: no_std::broken },
];

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["check"] => match check() {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => fail(&error),
        },
        ["api"] => match api::compare(false) {
            Ok(places) if places.is_empty() => ExitCode::SUCCESS,
            Ok(places) => {
                places.iter().for_each(|place| println!("{place}"));
                println!(
                    "error: the public API changed; if that is intended, run cargo xtask api --update"
                );
                ExitCode::FAILURE
            }
            Err(error) => fail(&error),
        },
        ["api", "--update"] => match api::compare(true) {
            Ok(_) => ExitCode::SUCCESS,
            Err(error) => fail(&error),
        },
        ["blocks", page, language] => match manual::program(page, language) {
            Ok(program) => {
                print!("{program}");
                ExitCode::SUCCESS
            }
            Err(error) => fail(&error),
        },
        ["--help" | "-h" | "help"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::FAILURE
}

/// Checks all rules and prints the result of each; returns `true` if none is broken.
fn check() -> Result<bool> {
    let repository = Repository::read()?;
    let mut kept = true;
    for rule in RULES {
        let began = Instant::now();
        let broken = (rule.broken)(&repository)?;
        let verdict = if broken.is_empty() { "ok" } else { "BROKEN" };
        println!("{:<50} {verdict:<6} {:>5.1} s", rule.name, began.elapsed().as_secs_f64());
        for place in &broken {
            println!("    {place}");
        }
        kept &= broken.is_empty();
    }
    Ok(kept)
}
