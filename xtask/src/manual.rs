//! Checks the manual: a test runs every block, every page is in the reference, every link is valid.

use std::path::Path;

use anyhow::{Result, bail};

use crate::blocks::{self, OUTPUT, RUN};
use crate::repository::{self, Repository, TextFile};

/// The module that includes the pages in the reference.
const MODULE: &str = "crates/longshore/src/manual.rs";

/// Returns the blocks that no test runs, and the pages and links that do not work on code hosts or in
/// rustdoc.
pub(crate) fn broken(repository: &Repository) -> Result<Vec<String>> {
    let module = &repository.file(MODULE)?.text;
    let mut places = Vec::new();
    for page in pages(repository) {
        if !module.contains(&format!("{}\"", name(page))) {
            places.push(format!("{}: {MODULE} does not have this page", page.path));
        }
        places.extend(unrun(page));
        places.extend(dead_links(page, module, &repository.root));
    }
    Ok(places)
}

/// Returns the blocks of a page that are in one language, as one program.
pub(crate) fn program(path: &str, language: &str) -> Result<String> {
    let page = std::fs::read_to_string(repository::root().join(path))?;
    let blocks = match blocks::blocks(&page) {
        Ok(blocks) => blocks,
        Err(reason) => bail!("{path}:{reason}"),
    };
    let of_language = blocks.into_iter().filter(|block| block.language == language);
    Ok(of_language.map(|block| block.text).collect::<Vec<_>>().join("\n"))
}

fn pages(repository: &Repository) -> impl Iterator<Item = &TextFile> {
    repository
        .files
        .iter()
        .filter(|file| file.path.starts_with("docs/") && file.extension() == "md")
}

fn name(page: &TextFile) -> &str {
    page.path.trim_start_matches("docs/")
}

fn unrun(page: &TextFile) -> Vec<String> {
    let blocks = match blocks::blocks(&page.text) {
        Ok(blocks) => blocks,
        Err(reason) => return vec![format!("{}:{reason}", page.path)],
    };
    let mut places = Vec::new();
    for block in blocks {
        let mut say = |line, what: &str| places.push(format!("{}:{line}: {what}", page.path));
        if block.language != OUTPUT && !RUN.contains(&block.language) {
            let message = format!("no test runs {:?}: write one of {RUN:?}", block.language);
            say(block.line, &message);
        }
        if block.language == "rust" {
            for (index, line) in block.text.lines().enumerate() {
                if line.starts_with("# ") || line == "#" {
                    say(block.line + 1 + index, "rustdoc hides this line, but code hosts show it");
                }
            }
        }
    }
    places
}

/// Returns the links that are not valid. A link to a page is a label in brackets, which is defined at the
/// end of the page for code hosts and in the module for rustdoc. All other links are to other hosts; files
/// of the repository are named as code.
fn dead_links(page: &TextFile, module: &str, root: &Path) -> Vec<String> {
    let mut places = Vec::new();
    let mut defined = Vec::new();
    let mut used = Vec::new();
    let mut is_prose = true;
    for (index, line) in page.text.lines().enumerate() {
        let place = format!("{}:{}", page.path, index + 1);
        if line.starts_with("```") {
            is_prose = !is_prose;
        } else if let Some((label, target)) = definition(line).filter(|_| is_prose) {
            if !root.join("docs").join(target).is_file() {
                places.push(format!("{place}: there is no page {target}"));
            }
            if !module.contains(&format!("[{label}]: ")) {
                places.push(format!("{place}: {MODULE} does not define [{label}]"));
            }
            defined.push(label.to_lowercase());
        } else if is_prose {
            // Every second part is between backquotes.
            for plain in line.split('`').step_by(2) {
                for (label, target) in links(plain) {
                    match target {
                        Some(target) if target.starts_with("https://") => {}
                        Some(target) => places.push(format!(
                            "{place}: the link to {target} must be a label in brackets"
                        )),
                        None => used.push((place.clone(), label.to_lowercase())),
                    }
                }
            }
        }
    }
    for (place, label) in used {
        if !defined.contains(&label) {
            places.push(format!("{place}: [{label}] is not defined at the end of the page"));
        }
    }
    places
}

fn definition(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix('[')?.split_once("]: ")
}

/// Returns each text in brackets, with the text in parentheses that follows directly.
fn links(text: &str) -> Vec<(&str, Option<&str>)> {
    let mut links = Vec::new();
    for part in text.split('[').skip(1) {
        let Some((label, rest)) = part.split_once(']') else { continue };
        let target = rest.strip_prefix('(').and_then(|rest| Some(rest.split_once(')')?.0));
        links.push((label, target));
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> TextFile {
        TextFile { path: "docs/x.md".to_owned(), text: text.to_owned() }
    }

    #[test]
    fn blocks_of_languages_that_are_run_are_allowed() {
        let text = "a\n\n```sh\ntrue\n```\n\n```text\nout\n```\n\n```rust\n#[test]\n```\nb\n";
        assert_eq!(unrun(&page(text)), [""; 0]);
        let found = blocks::blocks(text).unwrap();
        let found: Vec<_> = found.iter().map(|it| (it.language, it.line, it.follows)).collect();
        assert_eq!(found, [("sh", 3, false), ("text", 7, true), ("rust", 11, true)]);
    }

    #[test]
    fn blocks_that_no_test_runs_are_refused() {
        for (text, line) in [
            ("```console\n$ ls\n```\n", 1),
            ("```\nls\n```\n", 1),
            ("```rust,no_run\n```\n", 1),
            ("```sh ignore\n```\n", 1),
            ("```rust\n# fn main() {}\n```\n", 2),
            (" ```sh\n```\n", 1),
            ("~~~sh\n~~~\n", 1),
            ("````sh\n````\n", 1),
            ("a\n```sh\n", 2),
        ] {
            let places = unrun(&page(text));
            assert_eq!(places.len(), 1, "{text}: {places:?}");
            assert!(places[0].starts_with(&format!("docs/x.md:{line}:")), "{places:?}");
        }
    }

    #[test]
    fn links_must_be_defined_in_the_page_and_in_the_module() {
        let root = repository::root();
        let module = "[page tables]: crate::manual::page_tables";
        let dead = |text| dead_links(&page(text), module, &root);
        let good = "See [page tables], `[0; 8]` and [a site](https://example.org).\n\n\
                    ```rust\nlet x = [0];\n```\n\n[page tables]: page-tables.md\n";
        assert_eq!(dead(good), [""; 0]);
        for bad in [
            "[page tables](page-tables.md)",
            "[page tables]",
            "[page tables]: gone.md",
            "[other]: page-tables.md",
        ] {
            assert_eq!(dead(bad).len(), 1, "{bad}");
        }
    }
}
