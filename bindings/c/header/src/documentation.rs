//! Checks that every declaration of the header is documented.

/// Returns one line for each declaration without documentation and for each name that a comment
/// mentions and the header does not declare; none if the documentation is complete.
pub(crate) fn missing(header: &str) -> Vec<String> {
    let mut missing = Vec::new();
    let mut lines = header.lines();
    let mut comment = String::new();
    let mut code = String::new();
    let mut comments = String::new();
    while let Some(line) = lines.next() {
        if line.trim_start().starts_with("/*") {
            comment = line.to_owned();
            while !comment.ends_with("*/") {
                comment.push('\n');
                comment.push_str(lines.next().unwrap_or("*/"));
            }
            comments.push_str(&comment);
            continue;
        }
        code.push_str(line);
        code.push('\n');
        let mut declared = line.to_owned();
        if is_function(line) {
            while !declared.ends_with(';') {
                let more = lines.next().unwrap_or(";").trim();
                declared = format!("{declared} {more}");
            }
            code.push_str(&declared);
        }
        missing.extend(undescribed(&declared, &comment));
        comment.clear();
    }
    missing.extend(
        quoted(&comments)
            .filter(|word| !is_declared(word, &code))
            .map(|word| format!("`{word}` is mentioned, but not declared")),
    );
    missing
}

fn is_function(line: &str) -> bool {
    !line.starts_with([' ', '#', '}']) && !line.starts_with("typedef") && line.contains('(')
}

/// Returns the parts of a declaration that the comment before it does not describe.
fn undescribed(declared: &str, comment: &str) -> Vec<String> {
    let inside = declared.starts_with("    ") && declared.ends_with([';', ',']);
    let macro_named = declared.strip_prefix("#define ");
    let is_guard = macro_named == Some("LONGSHORE_H");
    // C's name for the enum, which has its comment at `enum`.
    let is_alias = declared.starts_with("typedef") && declared.ends_with(" longshore_code;");
    let declares = inside
        || macro_named.is_some()
        || declared.starts_with("typedef")
        || declared.starts_with("enum ")
        || is_function(declared);
    if !declares || is_guard || is_alias {
        return Vec::new();
    }
    if comment.is_empty() {
        return vec![format!("no comment: {}", declared.trim())];
    }
    if !is_function(declared) {
        return Vec::new();
    }
    let mut missing = Vec::new();
    let described = |word: &str| {
        comment.lines().any(|line| line.trim_start_matches([' ', '*']).starts_with(word))
    };
    if !declared.starts_with("void longshore_") && !described("@return ") {
        missing.push(format!("no @return: {declared}"));
    }
    let parameters = declared.split(['(', ')']).nth(1).unwrap_or_default();
    for parameter in parameters.split(',').filter(|parameter| *parameter != "void") {
        let name = parameter.rsplit([' ', '*']).next().unwrap_or_default();
        if !described(&format!("@param {name} ")) {
            missing.push(format!("no @param {name}: {declared}"));
        }
    }
    missing
}

/// Returns the names of Longshore that are in backquotes.
fn quoted(comments: &str) -> impl Iterator<Item = &str> {
    let words = comments.split('`').skip(1).step_by(2);
    words.filter(|word| word.to_lowercase().starts_with("longshore_"))
}

/// Returns `true` if the header declares the name. `LONGSHORE_LOAD_*` stands for all names with that
/// prefix.
fn is_declared(word: &str, code: &str) -> bool {
    let whole = |at: usize| {
        let next = code[at + word.len()..].chars().next();
        !next.is_some_and(|c| c.is_alphanumeric() || c == '_')
    };
    match word.strip_suffix('*') {
        Some(begins) => code.contains(begins),
        None => code.match_indices(word).any(|(at, _)| whole(at)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "\
/* Of this file. */
#ifndef LONGSHORE_H
#define LONGSHORE_H
/** A number. */
#define LONGSHORE_ONE 1
/**
 * A struct, of which `longshore_of` makes `LONGSHORE_*`.
 */
typedef struct {
    /**
     * A field.
     */
    int field;
} longshore_struct;
/**
 * A function.
 *
 * @param one First.
 * @param two Second.
 * @return Nothing much.
 */
int longshore_of(const char *const *one,
                 longshore_struct *two);
/**
 * Another one.
 */
void longshore_nothing(void);
#endif
";

    fn without(part: &str) -> Vec<String> {
        assert!(HEADER.contains(part));
        missing(&HEADER.replacen(part, "", 1))
    }

    #[test]
    fn a_documented_header_has_no_complaints() {
        assert_eq!(missing(HEADER), [""; 0]);
    }

    #[test]
    fn missing_documentation_is_reported() {
        assert_eq!(without("/** A number. */\n"), ["no comment: #define LONGSHORE_ONE 1"]);
        let field = "    /**\n     * A field.\n     */\n";
        assert_eq!(without(field), ["no comment: int field;"]);
        assert!(without(" * @param two Second.\n")[0].starts_with("no @param two: int longshore_"));
        assert!(without(" * @return Nothing much.\n")[0].starts_with("no @return: int longshore_"));
        let function = "/**\n * Another one.\n */\n";
        assert_eq!(without(function), ["no comment: void longshore_nothing(void);"]);
    }

    #[test]
    fn mentioned_names_must_be_declared() {
        let gone = missing(&HEADER.replace("`longshore_of`", "`longshore_o`"));
        assert_eq!(gone, ["`longshore_o` is mentioned, but not declared"]);
    }
}
