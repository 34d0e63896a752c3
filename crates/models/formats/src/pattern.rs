//! Patterns with `*` and `?`.

/// Returns `true` if `name` matches `pattern`, in which `*` stands for any characters and `?` for one.
/// Takes at most the product of both lengths in steps.
pub fn matches_pattern(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut in_pattern, mut in_name) = (0, 0);
    // The last `*`, and the characters of the name that it stands for.
    let mut star: Option<(usize, usize)> = None;
    while in_name < name.len() {
        match pattern.get(in_pattern) {
            Some('*') => {
                star = Some((in_pattern, in_name));
                in_pattern += 1;
            }
            Some(&wanted) if wanted == '?' || wanted == name[in_name] => {
                in_pattern += 1;
                in_name += 1;
            }
            _ => {
                let Some((at, upto)) = star else { return false };
                star = Some((at, upto + 1));
                (in_pattern, in_name) = (at + 1, upto + 1);
            }
        }
    }
    pattern[in_pattern..].iter().all(|rest| *rest == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters_and_a_question_mark_for_one() {
        for (pattern, name, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "any.thing", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("a?c", "aéc", true),
            ("layers.*.weight", "layers.10.mlp.weight", true),
            ("layers.*.weight", "layers.10.mlp.bias", false),
            ("*.weight", "weight", false),
            ("*a*b", "aab_ab", true),
            ("*a*b", "aab_a", false),
            ("a*", "b", false),
        ] {
            assert_eq!(matches_pattern(pattern, name), expected, "{pattern} {name}");
        }
        let name = "a".repeat(20_000);
        assert!(!matches_pattern(&"*a".repeat(50), &format!("{name}b")));
    }
}
