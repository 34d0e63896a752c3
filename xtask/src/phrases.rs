//! Finds phrases that are hard to read or to look up, and that plain words have replaced.
//!
//! The rule lists phrases and not single words, because most words are right in some context.

use anyhow::Result;

use crate::repository::{Repository, TextFile};

/// The files that may contain the phrases: the history keeps its words, and this file has the list.
const EXCEPT: [&str; 2] = ["CHANGELOG.md", "xtask/src/phrases.rs"];

/// A phrase in lower case, and words to use instead.
const PHRASES: [(&str, &str); 27] = [
    ("told of", "reported, notified"),
    ("is told", "is notified, gets"),
    ("are told", "are notified, get"),
    ("says so", "reports it, fails with an error"),
    ("whoever", "the thread, the user, the client"),
    ("so many bytes", "this number of bytes"),
    ("says of itself", "declares, reports"),
    ("say of itself", "declare, report"),
    ("whoever unmaps", "the unmapping thread"),
    ("who waits", "the waiting thread"),
    ("what is resident", "resident pages"),
    ("set of instructions", "instruction set"),
    ("sets of instructions", "instruction sets"),
    ("past the caches", "non-temporal stores"),
    ("make pages", "prefault"),
    ("as it should be", "with the expected result"),
    ("asks for its words", "requests the message"),
    ("does as it likes", "sends any message"),
    ("do as they like", "send any message"),
    ("harvest", "collect"),
    ("harvests", "collections"),
    ("has had enough", "has ended the connection"),
    ("may have had enough", "may have ended the connection"),
    ("takes its time", "takes long"),
    ("the same words for", "the same message for"),
    ("without anybody", "without a request, without a client"),
    ("nobody wants", "no client waits for"),
];

/// Words with which the documentation of an item does not begin: the relative clause after them is no name
/// for the item.
const NO_BEGINNINGS: [&str; 6] = ["what", "whether", "who", "where", "that", "nobody"];

/// Returns the places of these phrases, and of documentation that begins with one of these words.
pub(crate) fn broken(repository: &Repository) -> Result<Vec<String>> {
    let files = repository.files.iter().filter(|file| !EXCEPT.contains(&file.path.as_str()));
    Ok(files.flat_map(|file| [phrases_in(file), beginnings_in(file)].concat()).collect())
}

fn beginnings_in(file: &TextFile) -> Vec<String> {
    if !file.path.ends_with(".rs") {
        return Vec::new();
    }
    let mut places = Vec::new();
    let mut is_first = true;
    for (index, line) in file.text.lines().enumerate() {
        let text = line.trim_start().strip_prefix("///").map(str::trim);
        let first = text.filter(|_| is_first).and_then(|text| text.split(' ').next());
        let first = first.unwrap_or_default().to_lowercase();
        if NO_BEGINNINGS.contains(&first.as_str()) {
            let (path, number) = (&file.path, index + 1);
            let instead = "begin with a verb, a noun, or \"`true` if\"";
            places
                .push(format!("{path}:{number}: documentation begins with '{first}' ({instead})"));
        }
        is_first = text.is_none();
    }
    places
}

fn phrases_in(file: &TextFile) -> Vec<String> {
    let mut places = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let line = line.to_lowercase();
        for (phrase, instead) in PHRASES {
            if has_words(&line, phrase) {
                let (path, number) = (&file.path, index + 1);
                places.push(format!("{path}:{number}: '{phrase}' (instead: {instead})"));
            }
        }
    }
    places
}

/// Returns `true` if `line` has these words, and not as parts of longer ones.
fn has_words(line: &str, words: &str) -> bool {
    line.match_indices(words).any(|(at, _)| {
        let (before, from) = line.split_at(at);
        let after = from[words.len()..].chars().next();
        let is_inside_a_word = |next: Option<char>| next.is_some_and(char::is_alphanumeric);
        !is_inside_a_word(before.chars().next_back()) && !is_inside_a_word(after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_word_of_documentation_is_looked_at() {
        let text = "/// What it has.\nfn a() {}\n    /// Returns\n    /// what it has.\n    fn b() {}\n// What\n";
        let file = |path: &str| TextFile { path: path.to_owned(), text: text.to_owned() };
        let found = beginnings_in(&file("a.rs"));
        assert!(matches!(&found[..], [one] if one.starts_with("a.rs:1: ")), "{found:?}");
        assert!(beginnings_in(&file("a.md")).is_empty());
    }

    #[test]
    fn a_phrase_is_found_as_whole_words_in_any_case() {
        let text = "// Told of twice.\nfn retold_of() {}\nit foretold offers, and told\n";
        let file = TextFile { path: "a.rs".to_owned(), text: text.to_owned() };
        assert_eq!(phrases_in(&file), ["a.rs:1: 'told of' (instead: reported, notified)"]);
    }
}
