//! The Debian mirror that the host uses, read from its apt sources.

use std::{fs, path::Path};

const DEFAULT_URI: &str = "http://deb.debian.org/debian";
const DEFAULT_KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Suites whose archive also has the suites that the harness needs.
const DEBIAN_SUITES: [&str; 10] = [
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "sid",
    "oldoldstable",
    "oldstable",
    "stable",
    "testing",
    "unstable",
];

/// A Debian archive and the keys that sign it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mirror {
    uri: String,
    keyring: String,
}

impl Mirror {
    /// Returns the first Debian archive among the host's apt sources, or Debian's own if there is none.
    pub(super) fn of_this_machine() -> Self {
        Self::configured_under(Path::new("/etc/apt")).unwrap_or_else(|| Self {
            uri: DEFAULT_URI.to_owned(),
            keyring: DEFAULT_KEYRING.to_owned(),
        })
    }

    /// Returns a line of `sources.list` for `suite`.
    pub(super) fn source_line(&self, suite: &str) -> String {
        format!("deb [signed-by={}] {} {suite} main\n", self.keyring, self.uri)
    }

    fn configured_under(etc: &Path) -> Option<Self> {
        let mut files = vec![etc.join("sources.list")];
        let mut parts: Vec<_> = fs::read_dir(etc.join("sources.list.d"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        parts.sort();
        files.extend(parts);
        files.iter().find_map(|file| {
            let text = fs::read_to_string(file).ok()?;
            match file.extension()?.to_str()? {
                "list" => from_lines(&text),
                "sources" => from_stanzas(&text),
                _ => None,
            }
        })
    }

    fn new(uri: &str, suites: &str, signed_by: Option<&str>) -> Option<Self> {
        suites.split_whitespace().any(|suite| DEBIAN_SUITES.contains(&suite)).then(|| Self {
            uri: uri.trim_end_matches('/').to_owned(),
            // An inline key spans several lines; Debian's own keyring has the same keys.
            keyring: signed_by
                .filter(|value| value.starts_with('/'))
                .unwrap_or(DEFAULT_KEYRING)
                .to_owned(),
        })
    }
}

/// Reads the one-line format: `deb [options] uri suite components`.
fn from_lines(text: &str) -> Option<Mirror> {
    text.lines().find_map(|line| {
        let rest = line.trim().strip_prefix("deb")?.strip_prefix([' ', '\t'])?.trim_start();
        let (options, rest) = match rest.strip_prefix('[') {
            Some(inner) => inner.split_once(']')?,
            None => ("", rest),
        };
        let mut words = rest.split_whitespace();
        let (uri, suite) = (words.next()?, words.next()?);
        let signed_by =
            options.split_whitespace().find_map(|option| option.strip_prefix("signed-by="));
        Mirror::new(uri, suite, signed_by)
    })
}

/// Reads the deb822 format: stanzas of `Field: value`.
fn from_stanzas(text: &str) -> Option<Mirror> {
    text.split("\n\n").find_map(|stanza| {
        let field = |name: &str| {
            stanza
                .lines()
                .filter(|line| !line.starts_with('#'))
                .filter_map(|line| line.split_once(':'))
                .find(|(key, _)| key.trim().eq_ignore_ascii_case(name))
                .map(|(_, value)| value.trim())
        };
        let disabled = field("Enabled").is_some_and(|value| value.eq_ignore_ascii_case("no"));
        let binary = field("Types").is_some_and(|types| types.split(' ').any(|t| t == "deb"));
        if disabled || !binary {
            return None;
        }
        let uri = field("URIs")?.split_whitespace().next()?;
        Mirror::new(uri, field("Suites")?, field("Signed-By"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirror(uri: &str, keyring: &str) -> Option<Mirror> {
        Some(Mirror { uri: uri.into(), keyring: keyring.into() })
    }

    #[test]
    fn the_one_line_format_is_read() {
        let text = "# a comment\ndeb-src http://src.example/debian bookworm main\n\
                    deb http://sec.example/debian-security bookworm-security main\n\
                    deb [arch=amd64 signed-by=/k.gpg] http://a.example/debian/ bookworm main\n";
        assert_eq!(from_lines(text), mirror("http://a.example/debian", "/k.gpg"));
        assert_eq!(
            from_lines("deb http://b.example/debian sid main"),
            mirror("http://b.example/debian", DEFAULT_KEYRING)
        );
        assert_eq!(from_lines("deb http://c.example/other stable-channel main"), None);
    }

    #[test]
    fn the_stanza_format_is_read() {
        let text = "Types: deb\n# URIs: http://comment.example\nURIs: http://a.example/debian\n\
                    Suites: bookworm bookworm-updates\nSigned-By: /k.gpg\n";
        assert_eq!(from_stanzas(text), mirror("http://a.example/debian", "/k.gpg"));
    }

    #[test]
    fn other_archives_are_ignored() {
        let text = "Types: deb\nURIs: http://vendor.example\nSuites: nodistro\n\n\
                    Enabled: no\nTypes: deb\nURIs: http://off.example\nSuites: bookworm\n\n\
                    Types: deb-src\nURIs: http://src.example\nSuites: bookworm\n\n\
                    Types: deb deb-src\nURIs: http://a.example http://b.example\n\
                    Suites: trixie\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n";
        assert_eq!(from_stanzas(text), mirror("http://a.example", DEFAULT_KEYRING));
    }

    #[test]
    fn a_host_without_debian_sources_uses_debians_own_archive() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Mirror::configured_under(dir.path()), None);
        fs::create_dir(dir.path().join("sources.list.d")).unwrap();
        let parts = dir.path().join("sources.list.d");
        fs::write(parts.join("debian.sources.disabled"), "Types: deb\nURIs: x\nSuites: sid")
            .unwrap();
        assert_eq!(Mirror::configured_under(dir.path()), None);
        fs::write(parts.join("b.list"), "deb http://b.example bookworm main").unwrap();
        assert_eq!(
            Mirror::configured_under(dir.path()),
            mirror("http://b.example", DEFAULT_KEYRING)
        );
    }

    #[test]
    fn a_source_line_names_keys_archive_and_suite() {
        let line = mirror("http://a.example/debian", "/k.gpg").unwrap().source_line("sid");
        assert_eq!(line, "deb [signed-by=/k.gpg] http://a.example/debian sid main\n");
    }
}
