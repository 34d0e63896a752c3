//! URLs as they are shown.

use std::path::{Path, PathBuf};

use url::Url;

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

/// Returns the text of a URL, which need not be a valid one, without the parts that can be secret.
pub(crate) fn shown_text(text: &str) -> String {
    let is_url =
        |scheme: &str| text.get(..scheme.len()).is_some_and(|it| it.eq_ignore_ascii_case(scheme));
    if !text.contains("://") && !is_url("http:") && !is_url("https:") {
        return text.to_owned();
    }
    // A key of an object may have these characters.
    if ["s3://", "gs://", "az://", "hf://"].into_iter().any(is_url) {
        return without_user(text);
    }
    if let Ok(url) = Url::parse(text) {
        return shown(&url);
    }
    without_user(text.split(['?', '#']).next().unwrap_or_default())
}

/// Returns a message in which URLs have no parts that can be secret: users and passwords, and queries of HTTP. A URL
/// ends at a space or a quotation mark.
pub fn without_secrets(message: &str) -> String {
    let mut shown = String::with_capacity(message.len());
    for word in message.split_inclusive(|char: char| char.is_whitespace() || "'\"`".contains(char))
    {
        let end = |char: char| char.is_whitespace() || "'\"`.,:;)".contains(char);
        let text = word.trim_end_matches(end);
        let begins = |char: char| !char.is_ascii_alphanumeric();
        let start = match text.find("://") {
            Some(at) => text[..at].rfind(begins).map_or(0, |before| before + 1),
            None => text.find(|char: char| !"([<".contains(char)).unwrap_or(0),
        };
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

fn without_user(text: &str) -> String {
    match text.split_once("://") {
        Some((scheme, rest)) => {
            let is_hub = scheme.eq_ignore_ascii_case("hf");
            let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            // A secret key can have a `/`, and the name of a bucket no `:`.
            if let (false, true, Some((_, rest))) =
                (is_hub, host.contains(':'), rest.rsplit_once('@'))
                && !scheme.to_ascii_lowercase().starts_with("http")
            {
                return format!("{scheme}://{rest}");
            }
            let shown = host.rsplit_once('@').map_or(host, |(_, host)| host);
            // `hf://ORG/NAME@REVISION` and `hf://NAME@REVISION` have no user.
            let shown = if is_hub { host } else { shown };
            format!("{scheme}://{shown}{path}")
        }
        None => text.to_owned(),
    }
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
            ("https:?a", "https:"),
            ("ftp://user:password@host/a?b", "ftp://host/a"),
            ("s3://key:secret@bucket/a?b#c", "s3://bucket/a?b#c"),
            ("hf://name@main", "hf://name@main"),
            ("s3://key:a/b@bucket/c", "s3://bucket/c"),
            ("a/b?c", "a/b?c"),
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
            ("50 % of a:b? yes\n", "50 % of a:b? yes\n"),
        ] {
            assert_eq!(without_secrets(message), expected);
        }
    }
}
