//! URLs as they are shown.

use std::path::{Path, PathBuf};

use url::Url;

/// The schemes of sources.
const SCHEMES: [&str; 6] = ["http", "https", "s3", "gs", "az", "hf"];

/// Returns a URL without the parts that can be secret.
pub(crate) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // These fail only for URLs without a host, which have no user.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.into()
}

/// Returns the text of a URL, which need not be a valid one, without the parts that can be secret. Another text is
/// returned as it is.
pub(crate) fn shown_text(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once(":/") else { return text.to_owned() };
    let (slashes, rest) = match rest.strip_prefix('/') {
        Some(rest) => ("//", rest),
        None => ("/", rest),
    };
    let known = SCHEMES.into_iter().find(|known| scheme.eq_ignore_ascii_case(known));
    let is_scheme = !scheme.is_empty() && scheme.bytes().all(|it| it.is_ascii_alphanumeric());
    let authority = rest.split('/').next().unwrap_or_default();
    let shown = match known {
        Some("http" | "https") => match Url::parse(text) {
            Ok(url) => return shown(&url),
            Err(_) => without_query(after_last_at(rest)),
        },
        Some("hf") => {
            // `hf://NAME@REVISION` has no user. The kind of a repository can be in front of one.
            let kinds = ["datasets/", "spaces/", "models/"];
            let kind = kinds.into_iter().find(|kind| rest.starts_with(kind)).unwrap_or_default();
            let rest = &rest[kind.len()..];
            let authority = rest.split('/').next().unwrap_or_default();
            let is_user =
                has_password(authority) || authority.contains('@') && authority.starts_with("hf_");
            let rest = without_query(if is_user { after_at(authority, rest) } else { rest });
            return format!("{scheme}:{slashes}{kind}{rest}");
        }
        Some(_) => {
            // A secret key can have a `/`, and the name of a bucket no `:`.
            let rest = match authority.contains(':') {
                true => after_last_at(rest),
                false => after_at(authority, rest),
            };
            without_signature(rest)
        }
        None if is_scheme && (slashes == "//" || has_password(authority)) => {
            without_query(after_at(authority, rest))
        }
        None => return text.to_owned(),
    };
    format!("{scheme}:{slashes}{shown}")
}

fn has_password(authority: &str) -> bool {
    authority.split_once('@').is_some_and(|(user, _)| user.contains(':'))
}

/// Returns the text behind the user and the password in an authority.
fn after_at<'t>(authority: &str, rest: &'t str) -> &'t str {
    authority.rfind('@').map_or(rest, |at| &rest[at + 1..])
}

fn after_last_at(rest: &str) -> &str {
    rest.rsplit_once('@').map_or(rest, |(_, rest)| rest)
}

fn without_query(text: &str) -> &str {
    text.split(['?', '#']).next().unwrap_or_default()
}

/// Removes a query that is a signature. Another `?` is a part of a key.
fn without_signature(text: &str) -> &str {
    let is_secret = |query: &str| {
        let query = query.to_ascii_lowercase();
        ["sig=", "signature=", "token=", "credential="].iter().any(|name| query.contains(name))
    };
    match text.split_once('?') {
        Some((before, query)) if is_secret(query) => before,
        _ => text,
    }
}

/// Returns a message in which URLs have no parts that can be secret: users and passwords, and queries of HTTP. A URL
/// ends at a space or a quotation mark.
pub fn without_secrets(message: &str) -> String {
    let mut shown = String::with_capacity(message.len());
    for word in message.split_inclusive(|char: char| char.is_whitespace() || "'\"`".contains(char))
    {
        let end = |char: char| char.is_whitespace() || "'\"`.,:;)".contains(char);
        let text = word.trim_end_matches(end);
        let start = url_start(text);
        shown.push_str(&text[..start]);
        shown.push_str(&shown_text(&text[start..]));
        shown.push_str(&word[text.len()..]);
    }
    shown
}

/// Returns a path as [`shown_text`] shows it.
pub(crate) fn shown_path(path: &Path) -> PathBuf {
    match path.to_str() {
        Some(text) => shown_text(text).into(),
        None => path.to_owned(),
    }
}

/// Returns the place at which a URL begins in a word, which is behind the word if there is none.
fn url_start(word: &str) -> usize {
    let begin = |at: usize| {
        let before = word[..at].rfind(|char: char| !char.is_ascii_alphanumeric());
        before.map_or(0, |before| before + 1)
    };
    let is_url = |at: &usize| {
        let scheme = &word[begin(*at)..*at];
        let is_known = SCHEMES.iter().any(|known| scheme.eq_ignore_ascii_case(known));
        let authority = word[at + 2..].split('/').next().unwrap_or_default();
        let has_user = word[*at..].starts_with("://") || has_password(authority);
        is_known || has_user && !scheme.is_empty()
    };
    let mut places = word.match_indices(":/").map(|(at, _)| at);
    places.find(is_url).map_or(word.len(), begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_a_url_are_not_shown() {
        for (text, expected) in [
            ("https://user:password@host/a/b.gguf?X-Amz-Signature=1#x", "https://host/a/b.gguf"),
            ("https://user:password@host:99999/a?b", "https://host:99999/a"),
            ("https://[::1/a?b", "https://[::1/a"),
            ("https:/?a", "https:/"),
            ("http://user:pa/ss?w@host/a?b", "http://host/a"),
            ("http:a.gguf", "http:a.gguf"),
            ("s3:/key:secret@bucket/a", "s3:/bucket/a"),
            ("s3://bucket/a?X-Amz-Signature=b", "s3://bucket/a"),
            ("hf://user:token@org/name", "hf://org/name"),
            ("hf://hf_token@org/name?b", "hf://org/name"),
            ("hf://datasets/hf_token@org/name", "hf://datasets/org/name"),
            ("hf://org/name@main:Q4", "hf://org/name@main:Q4"),
            ("ftp://user:password@host/a?b", "ftp://host/a"),
            ("s3://key:secret@bucket/a?b#c", "s3://bucket/a?b#c"),
            ("hf://name@main", "hf://name@main"),
            ("s3://key:a/b@bucket/c", "s3://bucket/c"),
            ("a/b?c", "a/b?c"),
            ("a:/b@c?d", "a:/b@c?d"),
            ("ftp:/user:password@host/a?b", "ftp:/host/a"),
        ] {
            assert_eq!(shown_text(text), expected);
        }
    }

    #[test]
    fn messages_have_no_secrets_of_urls() {
        for (message, expected) in [
            ("cannot open 'https://u:p@host/a?b': no", "cannot open 'https://host/a': no"),
            ("cannot open https://host/a?b=c,d: no", "cannot open https://host/a: no"),
            ("a (s3://k:s/t@bucket/a) b", "a (s3://bucket/a) b"),
            ("see hf://name@main. (http:/host/a?b)", "see hf://name@main. (http://host/a)"),
            ("cannot open /a/http:/u:p@host/b", "cannot open /a/http://host/b"),
            ("no file /cwd/ftp:/u:p@h/x?sig=1: no", "no file /cwd/ftp:/h/x: no"),
            ("50 % of a:b? yes\n", "50 % of a:b? yes\n"),
        ] {
            assert_eq!(without_secrets(message), expected);
        }
    }
}
