//! Runs the shell blocks of the manual's pages.
//!
//! The blocks of one page are one script, which runs in a temporary folder with the `longshore` of this
//! build first in `PATH`. If a block of output follows a block, the standard output and the standard
//! error of the block are compared with it: `…` there stands for any text within a line, and alone in a
//! line for any number of lines.

mod command;

#[path = "../../xtask/src/blocks.rs"]
mod blocks;

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use blocks::{Block, OUTPUT, RUN};

/// The separator between the outputs of two blocks.
const BETWEEN: &str = "--- the next block ---";

/// The time limit of a page.
const SECONDS_MAX: &str = "300";

fn pages() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

#[test]
fn loading_models() {
    run("loading-models.md");
}

#[test]
fn sharing_models() {
    run("sharing-models.md");
}

#[test]
fn serving_models_on_a_node() {
    run("serving-models-on-a-node.md");
}

#[test]
fn page_tables() {
    run("page-tables.md");
}

#[test]
fn no_page_is_left_out() {
    let mut names = Vec::new();
    for entry in fs::read_dir(pages()).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let blocks = blocks::blocks(&text).unwrap();
        assert!(blocks.iter().all(|it| it.language == OUTPUT || RUN.contains(&it.language)));
        if blocks.iter().any(|block| block.language == "sh") {
            names.push(path.file_name().unwrap().to_str().unwrap().to_owned());
        }
    }
    let this = include_str!("manual.rs");
    for name in names {
        assert!(this.contains(&format!("run(\"{name}\");")), "{name} has no test here");
    }
}

/// Runs the shell blocks of a page, and compares their output with that in the page.
fn run(name: &str) {
    let page = fs::read_to_string(pages().join(name)).unwrap();
    let all = blocks::blocks(&page).unwrap();
    let mut script = "exec 2>&1\nset -eu\n".to_owned();
    let mut said: Vec<(&Block<'_>, Option<&Block<'_>>)> = Vec::new();
    for (index, block) in all.iter().enumerate().filter(|(_, block)| block.language == "sh") {
        let output = all.get(index + 1).filter(|next| next.follows && next.language == OUTPUT);
        said.push((block, output));
        script.push_str(&block.text);
        script.push_str(&format!("printf '\\n%s\\n' '{BETWEEN}'\n"));
    }

    // In `/var/tmp`, because `/tmp` may be a tmpfs.
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let longshore = Path::new(command::LONGSHORE).parent().unwrap().to_str().unwrap();
    let path = format!("{longshore}:{}", std::env::var("PATH").unwrap());
    // The output goes into a file: reading a pipe would wait for background processes of a block.
    let mut printed_to = tempfile::tempfile().unwrap();
    let mut child = Command::new("timeout")
        .args(["--signal=TERM", "--kill-after=10", SECONDS_MAX, "sh", "-c"])
        .arg(script)
        .current_dir(folder.path())
        .env("PATH", path)
        .stdin(Stdio::null())
        .stdout(printed_to.try_clone().unwrap())
        .spawn()
        .unwrap();
    let status = child.wait().unwrap();
    // Background processes are in the process group that `timeout` created. There may be none.
    let group = format!("-{}", child.id());
    Command::new("kill").args(["-s", "KILL", "--", &group]).stderr(Stdio::null()).status().unwrap();
    let mut printed = String::new();
    printed_to.seek(SeekFrom::Start(0)).unwrap();
    printed_to.read_to_string(&mut printed).unwrap();
    let mut parts: Vec<&str> = printed.split(&format!("\n{BETWEEN}\n")).collect();
    // Nothing follows the last separator, unless the script ended early.
    let last = parts.pop().unwrap();
    assert_eq!(
        (parts.len(), status.code(), last),
        (said.len(), Some(0), ""),
        "docs/{name}:{}: this block failed, and printed:\n{last}",
        said.get(parts.len()).map_or(0, |(block, _)| block.line)
    );
    for ((block, output), printed) in said.iter().zip(parts) {
        if let Some(output) = output {
            assert!(
                matches(&lines(&output.text), &lines(printed)),
                "docs/{name}:{}: this block printed:\n{printed}\nand should have:\n{}",
                block.line,
                output.text
            );
        }
    }
}

fn lines(text: &str) -> Vec<&str> {
    text.trim_end().lines().map(str::trim_end).collect()
}

/// Returns `true` if the lines match those of the page, where a line `…` stands for any number of lines.
fn matches(said: &[&str], printed: &[&str]) -> bool {
    match (said, printed) {
        ([], printed) => printed.is_empty(),
        (["…", said @ ..], _) => {
            (0..=printed.len()).any(|skipped| matches(said, &printed[skipped..]))
        }
        ([_, ..], []) => false,
        ([said, more_said @ ..], [printed, more_printed @ ..]) => {
            line_matches(said, printed) && matches(more_said, more_printed)
        }
    }
}

/// Returns `true` if a line matches that of the page, where `…` stands for any text.
fn line_matches(said: &str, printed: &str) -> bool {
    match said.split_once('…') {
        None => said == printed,
        Some((start, said)) => printed.strip_prefix(start).is_some_and(|rest| {
            let ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
            ends.into_iter().any(|at| line_matches(said, &rest[at..]))
        }),
    }
}

#[test]
fn output_is_compared_with_the_page() {
    for (said, printed, is_so) in [
        ("a\nb", "a\nb", true),
        ("a\nb", "a", false),
        ("a", "a\nb", false),
        ("a … c", "a b c", true),
        ("a … c", "a b d", false),
        ("… s: … GB/s", "1.07 GB in 0.5 s: 2.1 GB/s", true),
        ("…", "", true),
        ("a\n…\nd", "a\nb\nc\nd", true),
        ("a\n…\nd", "a\nb\nc", false),
    ] {
        assert_eq!(matches(&lines(said), &lines(printed)), is_so, "{said} / {printed}");
    }
}
