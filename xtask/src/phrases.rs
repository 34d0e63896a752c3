//! Finds phrases that are hard to read or to look up, and that plain words have replaced.
//!
//! The rule lists phrases and not single words, because most words are right in some context.

use anyhow::Result;

use crate::repository::{Repository, TextFile};

/// The files that may contain the phrases: the history keeps its words, and this file has the list.
const EXCEPT: [&str; 2] = ["CHANGELOG.md", "xtask/src/phrases.rs"];

/// A phrase in lower case, and words to use instead.
const PHRASES: [(&str, &str); 10] = [
    ("told of", "reported, notified"),
    ("says of itself", "declares, reports"),
    ("say of itself", "declare, report"),
    ("whoever unmaps", "the unmapping thread"),
    ("who waits", "the waiting thread"),
    ("what is resident", "resident pages"),
    ("set of instructions", "instruction set"),
    ("sets of instructions", "instruction sets"),
    ("past the caches", "non-temporal stores"),
    ("make pages", "prefault"),
];

/// Returns the places of these phrases.
pub(crate) fn broken(repository: &Repository) -> Result<Vec<String>> {
    let files = repository.files.iter().filter(|file| !EXCEPT.contains(&file.path.as_str()));
    Ok(files.flat_map(phrases_in).collect())
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
    fn a_phrase_is_found_as_whole_words_in_any_case() {
        let text = "// Told of twice.\nfn retold_of() {}\nit foretold offers, and told\n";
        let file = TextFile { path: "a.rs".to_owned(), text: text.to_owned() };
        assert_eq!(phrases_in(&file), ["a.rs:1: 'told of' (instead: reported, notified)"]);
    }
}
