//! Checks the text of source files: their length, reasons for unsafe code, and forbidden words.

use anyhow::Result;

use crate::repository::{Repository, TextFile};

/// The most lines of a file. Files of more than 600 lines should be reviewed; longer files must be split.
const LINES_MAX: usize = 900;

/// The files that a tool generates from short sources.
const GENERATED: [&str; 1] = ["bindings/c/include/longshore.h"];

const SOURCE_EXTENSIONS: [&str; 6] = ["rs", "sh", "py", "c", "h", "toml"];

/// Marks of unfinished work, written in two parts so that this file does not contain them.
const UNFINISHED: [&str; 5] = [
    concat!("to", "do!("),
    concat!("unimpl", "emented!("),
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];

/// The folders of home folders.
const HOMES: [&str; 3] = ["/home/", "/Users/", "/root/"];

/// Returns the source files that are too long.
pub(crate) fn long_files(repository: &Repository) -> Result<Vec<String>> {
    Ok(repository.files.iter().filter_map(too_long).collect())
}

fn too_long(file: &TextFile) -> Option<String> {
    let lines = file.text.lines().count();
    let is_source =
        SOURCE_EXTENSIONS.contains(&file.extension()) && !GENERATED.contains(&file.path.as_str());
    (is_source && lines > LINES_MAX)
        .then(|| format!("{}: {lines} lines, above {LINES_MAX}", file.path))
}

/// Returns the attributes that allow unsafe code without a reason.
pub(crate) fn unreasoned_unsafe(repository: &Repository) -> Result<Vec<String>> {
    let rust = repository.files.iter().filter(|file| file.extension() == "rs");
    Ok(rust.flat_map(unlocked_without_reason).collect())
}

fn unlocked_without_reason(file: &TextFile) -> Vec<String> {
    let mut places = Vec::new();
    for (at, lint) in file.text.match_indices("unsafe_code") {
        let (before, after) = file.text.split_at(at);
        let Some(start) = before.rfind("#[").max(before.rfind("#![")) else { continue };
        let head = &before[start..];
        if head.contains(']') || !(head.contains("allow(") || head.contains("expect(")) {
            // The word is outside of an attribute, or the attribute denies unsafe code.
            continue;
        }
        let tail = after[lint.len()..].split(")]").next().unwrap_or_default();
        if !head.contains("reason =") && !tail.contains("reason =") {
            places.push(format!("{}:{}: gives no reason", file.path, line_number(before)));
        }
    }
    places
}

/// Returns the marks of unfinished work and the paths into home folders.
pub(crate) fn forbidden_words(repository: &Repository) -> Result<Vec<String>> {
    Ok(repository.files.iter().flat_map(forbidden_in).collect())
}

fn forbidden_in(file: &TextFile) -> Vec<String> {
    let is_word = |next: Option<char>| next.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let mut places = Vec::new();
    for word in UNFINISHED.into_iter().chain(HOMES) {
        for (at, _) in file.text.match_indices(word) {
            let (before, from) = file.text.split_at(at);
            let followed_by_word = is_word(from[word.len()..].chars().next());
            let forbidden = if word.starts_with('/') {
                // Without a user's name it is not a home folder.
                followed_by_word
            } else {
                let stands_alone = !followed_by_word || word.ends_with('(');
                stands_alone && !is_word(before.chars().next_back())
            };
            if forbidden {
                places.push(format!("{}:{}: {word}", file.path, line_number(before)));
            }
        }
    }
    places
}

fn line_number(before: &str) -> usize {
    before.matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: impl Into<String>) -> TextFile {
        TextFile { path: path.to_owned(), text: text.into() }
    }

    #[test]
    fn only_source_files_are_checked_and_only_long_ones_reported() {
        let text = "line\n".repeat(LINES_MAX);
        assert_eq!(too_long(&file("a.rs", text.clone())), None);
        let longer = text + "line\n";
        assert_eq!(too_long(&file("a.rs", longer.clone())).unwrap(), "a.rs: 901 lines, above 900");
        assert_eq!(too_long(&file("Cargo.lock", longer.clone())), None);
        assert_eq!(too_long(&file(GENERATED[0], longer)), None);
    }

    #[test]
    fn allowing_unsafe_code_needs_a_reason_and_denying_it_does_not() {
        // The lint's name is inserted here, so that this file has no such attribute.
        let broken_lines = |text: &str| {
            unlocked_without_reason(&file("a.rs", text.replace("LINT", concat!("unsafe", "_code"))))
        };
        for kept in [
            "#![forbid(LINT)]",
            "#![expect(LINT, reason = \"ioctl\")]",
            "#[allow(\n    LINT,\n    reason = \"calls (f) [g]\"\n)]\nfn f() {}",
            "#[derive(Debug)]\nstruct S; // LINT is denied, allow( nothing",
            "LINT",
        ] {
            assert_eq!(broken_lines(kept), [""; 0], "{kept}");
        }
        assert_eq!(broken_lines("//! x\n#![allow(LINT)]"), ["a.rs:2: gives no reason"]);
        let later = "#[expect(dead_code, LINT)]\n#[expect(x, reason = \"not this one\")]";
        assert_eq!(broken_lines(later), ["a.rs:1: gives no reason"]);
    }

    #[test]
    fn unfinished_marks_are_found_as_words_only() {
        for mark in UNFINISHED {
            let text = format!("fine\n    // {mark} later");
            assert_eq!(forbidden_in(&file("a.rs", text)), [format!("a.rs:2: {mark}")]);
            let inside = format!("a{mark} _{mark}");
            assert_eq!(forbidden_in(&file("a.rs", inside)), [""; 0]);
        }
        let template = format!("mktemp /tmp/{}", "X".repeat(6));
        assert_eq!(forbidden_in(&file("a.sh", template)), [""; 0]);
    }

    #[test]
    fn a_home_folder_is_reported_and_the_folder_of_homes_is_not() {
        for home in HOMES {
            let place = forbidden_in(&file("a.md", format!("see {home}someone/x")));
            assert_eq!(place, [format!("a.md:1: {home}")]);
            assert_eq!(forbidden_in(&file("a.md", format!("{home} {home}.cache"))), [""; 0]);
        }
    }
}
