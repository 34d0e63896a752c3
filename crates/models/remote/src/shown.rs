//! URLs as they are shown.

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
    if let Ok(url) = Url::parse(text) {
        return shown(&url);
    }
    let text = text.split(['?', '#']).next().unwrap_or_default();
    match text.split_once("://") {
        Some((scheme, rest)) => {
            let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
            let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
            format!("{scheme}://{host}/{path}")
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
        ] {
            assert_eq!(shown_text(text), expected);
        }
    }
}
