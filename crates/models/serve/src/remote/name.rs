//! Names of models on servers, and the roots that they must be beneath.
//!
//! A name is the claim of a client that is not trusted. It is compared with the roots as text, so it must
//! have only one spelling: no text that a server or a library could decode to another path is permitted.

use std::fmt;
use std::path::{Path, PathBuf};

use longshore_load::HubName;

/// The longest name in bytes: that of a path in a message.
pub(crate) const NAME_BYTES_MAX: usize = 4096;
/// The beginning of the name of a repository of the Hugging Face Hub.
const HUB: &str = "hf";
/// The schemes of all names.
const SCHEMES: [&str; 6] = ["https", "http", "s3", "gs", "az", HUB];

/// A name in its only spelling: `SCHEME://AUTHORITY/PATH`, without a user, a query and a fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteName {
    text: String,
    hub: Option<HubName>,
}

/// The reason why a text is not a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NameProblem {
    #[error(
        "it is no name of a model on a server (expected https://HOST/PATH, s3://BUCKET/PREFIX/, \
         gs://…, az://… or hf://ORG/NAME)"
    )]
    Scheme,
    #[error("it has more than {NAME_BYTES_MAX} bytes")]
    TooLong,
    #[error("its host or bucket is not valid; a user or a password is not permitted")]
    Authority,
    #[error(
        "its path is not in normal form: no part may be empty, '.' or '..', and control characters, \
         '\\', '?', '#' and some percent-encoded characters are not permitted"
    )]
    Path,
}

/// Returns `true` if a path is the name of a model on a server, or of a repository of the Hub.
pub(crate) fn is_remote_or_hub(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    SCHEMES.iter().any(|scheme| {
        let rest = bytes.get(scheme.len()..).unwrap_or_default();
        rest.starts_with(b":/") && bytes[..scheme.len()].eq_ignore_ascii_case(scheme.as_bytes())
    })
}

impl RemoteName {
    /// Parses a name. One `/` behind the scheme is enough, because Python's `pathlib` makes one of two.
    pub(crate) fn parse(text: &str) -> Result<Self, NameProblem> {
        if text.len() > NAME_BYTES_MAX {
            return Err(NameProblem::TooLong);
        }
        let (scheme, rest) = text.split_once(":/").ok_or(NameProblem::Scheme)?;
        let is_it = |known: &&&str| scheme.eq_ignore_ascii_case(known);
        let scheme = *SCHEMES.iter().find(is_it).ok_or(NameProblem::Scheme)?;
        let rest = rest.strip_prefix('/').unwrap_or(rest);
        if scheme == HUB {
            return Self::of_hub(rest);
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let is_http = scheme.starts_with("http");
        let authority = match is_http {
            true => host(scheme, authority)?,
            false => bucket(authority)?,
        };
        let segments = path.strip_suffix('/').unwrap_or(path).split('/');
        if path == "/" || !path.is_empty() && !segments.clone().all(|it| is_plain(it, is_http)) {
            return Err(NameProblem::Path);
        }
        Ok(Self { text: format!("{scheme}://{authority}/{path}"), hub: None })
    }

    fn of_hub(rest: &str) -> Result<Self, NameProblem> {
        let name: HubName = format!("{HUB}://{rest}").parse().map_err(|_| NameProblem::Path)?;
        let parts = [&name.revision, &name.file, &name.variant].into_iter().flatten();
        for part in parts {
            // The grammar of these names has no other use of '%' that could remain.
            if !part.split('/').all(|segment| is_plain(segment, false)) {
                return Err(NameProblem::Path);
            }
        }
        Ok(Self { text: name.to_string(), hub: Some(name) })
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the name without a `/` at its end.
    fn base(&self) -> &str {
        self.text.strip_suffix('/').unwrap_or(&self.text)
    }
}

impl fmt::Display for RemoteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Returns the host and port of a URL in their usual spelling.
fn host(scheme: &str, authority: &str) -> Result<String, NameProblem> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    if !authority.starts_with(|it: char| it.is_ascii_alphanumeric() || it == '[')
        || !authority.bytes().all(is_plain)
    {
        return Err(NameProblem::Authority);
    }
    let usual = if scheme == "https" { ":443" } else { ":80" };
    let host = authority.strip_suffix(usual).unwrap_or(authority);
    // A `:` that is not within brackets begins a port.
    let port = match host.rsplit_once(']') {
        Some((_, "")) => None,
        Some((_, port)) => Some(port.strip_prefix(':').unwrap_or("?")),
        None => host.split_once(':').map(|(_, port)| port),
    };
    if port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return Err(NameProblem::Authority);
    }
    Ok(host.to_ascii_lowercase())
}

fn bucket(authority: &str) -> Result<String, NameProblem> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.$".contains(&byte);
    let is_bucket =
        !authority.is_empty() && !authority.starts_with('.') && authority.bytes().all(is_plain);
    is_bucket.then(|| authority.to_owned()).ok_or(NameProblem::Authority)
}

/// Returns `true` if a part of a path stands for itself, also after it is decoded.
fn is_plain(segment: &str, is_http: bool) -> bool {
    // Some servers ignore parameters behind a `;`.
    let name = segment.split(';').next().unwrap_or_default();
    let is_permitted = |char: char| match is_http {
        // The characters of RFC 3986 that a URL can have in a part of its path.
        true => char.is_ascii_alphanumeric() || "-._~!$&'()*+,;=:@%".contains(char),
        false => !char.is_control() && !"\\?#".contains(char),
    };
    !matches!(name, "" | "." | "..")
        && segment.chars().all(is_permitted)
        && segment.split('%').skip(1).all(is_plain_code)
        && (!is_http || has_one_reading(segment))
}

/// Returns `true` if the decoded text is UTF-8, and has no other character that a server could take for a `.`, a `/`
/// or a `\\`: those whose compatibility decomposition in Unicode is one of these.
fn has_one_reading(segment: &str) -> bool {
    let mut parts = segment.split('%');
    let mut decoded = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let Some((digits, rest)) = part.split_at_checked(2) else { return false };
        let Ok(byte) = u8::from_str_radix(digits, 16) else { return false };
        decoded.push(byte);
        decoded.extend_from_slice(rest.as_bytes());
    }
    const LIKE_SPECIAL: &str = "\u{2024}\u{2025}\u{2026}\u{fe52}\u{fe68}\u{ff0e}\u{ff0f}\u{ff3c}";
    str::from_utf8(&decoded).is_ok_and(|text| !text.contains(|char| LIKE_SPECIAL.contains(char)))
}

/// Returns `true` if a text begins with the two digits of a percent-encoded byte that is not special.
fn is_plain_code(text: &str) -> bool {
    let digits = text.get(..2).filter(|it| it.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
    byte.is_some_and(|byte| !byte.is_ascii_control() && !b"./\\%?#;".contains(&byte))
}

/// Returns a text that need not be a name, without the parts that can be secret.
pub(crate) fn without_secrets(text: &str) -> String {
    let text = text.split(['?', '#']).next().unwrap_or_default();
    match text.split_once(":/") {
        Some((scheme, rest)) => {
            let rest = rest.trim_start_matches('/');
            let authority = rest.split('/').next().unwrap_or_default();
            // A password can have a `/`. `hf://NAME@REVISION` has no user.
            let has_password = authority.contains(':') && rest.contains('@');
            let is_hub = scheme.eq_ignore_ascii_case(HUB) && !authority.starts_with("hf_");
            let shown = match () {
                () if has_password => rest.rsplit_once('@').map_or(rest, |(_, rest)| rest),
                () if is_hub => rest,
                () => authority.rfind('@').map_or(rest, |at| &rest[at + 1..]),
            };
            format!("{scheme}://{shown}")
        }
        None => text.to_owned(),
    }
}

/// A model, or a place with models, that clients may attach.
#[derive(Clone)]
pub(crate) struct Root {
    name: RemoteName,
    /// The URL with its query, if it has one, which can be a signature. Then only this one file is served.
    signed: Option<String>,
    /// `true` if only the model of this very name is served.
    is_model: bool,
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The query can be secret.
        f.debug_tuple("Root").field(&self.name.as_str()).finish()
    }
}

/// A name that is beneath a root.
#[derive(Clone)]
pub(crate) struct Permitted {
    /// The name, in its only spelling.
    pub(crate) name: RemoteName,
    /// The source to find: the name, or the URL with its query.
    pub(crate) source: PathBuf,
    /// `true` if it is the root itself.
    pub(crate) is_root: bool,
    scope: Scope,
}

/// The files that may be opened for a model.
#[derive(Clone)]
enum Scope {
    /// Those whose names begin with this text, and the URL with a query.
    Below(String),
    /// Those of this repository.
    Repository(HubName),
}

impl Root {
    /// Parses a root; `is_model` if only the model of this very name is served.
    pub(crate) fn parse(text: &str, is_model: bool) -> Result<Self, NameProblem> {
        let is_http = text.get(..4).is_some_and(|it| it.eq_ignore_ascii_case("http"));
        let (plain, query) = match text.split_once('?').filter(|_| is_http) {
            Some((plain, query)) => (plain, Some(query)),
            None => (text, None),
        };
        let name = RemoteName::parse(plain)?;
        if query.is_some_and(|query| query.contains('#') || query.contains(char::is_control)) {
            return Err(NameProblem::Path);
        }
        let signed = query.map(|query| format!("{name}?{query}"));
        Ok(Self { name, signed, is_model })
    }

    /// Returns the name of the root, without secrets.
    pub(crate) fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Returns the name as one to be found, if it is beneath the root.
    pub(crate) fn permit(&self, name: &RemoteName) -> Option<Permitted> {
        let is_root = name.base() == self.name.base();
        let is_beneath = match (&self.name.hub, &name.hub) {
            (Some(root), Some(wanted)) => is_in_hub(root, wanted),
            (None, None) => is_below(self.name.base(), name.base()),
            _ => false,
        };
        let is_one = self.is_model || self.signed.is_some();
        if !is_root && (is_one || !is_beneath) {
            return None;
        }
        // Without the `/` at its end, it could be another object.
        let name = if is_root { &self.name } else { name };
        let scope = match &name.hub {
            Some(hub) => Scope::Repository(hub.clone()),
            // An index or a first split is served with the files beside it.
            None if is_root && !name.text.ends_with('/') => {
                let end = name.text.rfind('/').map_or(0, |at| at + 1);
                Scope::Below(name.text[..end].to_owned())
            }
            None => Scope::Below(format!("{}/", self.name.base())),
        };
        let source = self.signed.as_deref().unwrap_or(name.as_str()).into();
        Some(Permitted { name: name.clone(), source, is_root, scope })
    }
}

impl Permitted {
    /// Returns the path to open for a file of the model; `None` if the file is outside of the root.
    pub(crate) fn file(&self, path: &Path) -> Option<PathBuf> {
        if path == Path::new(self.name.as_str()) {
            return Some(self.source.clone());
        }
        let file = RemoteName::parse(path.to_str()?).ok()?;
        let is_inside = match (&self.scope, &file.hub) {
            (Scope::Below(begin), None) => file.text.starts_with(begin.as_str()),
            (Scope::Repository(model), Some(file)) => {
                model.kind == file.kind && model.repository == file.repository
            }
            _ => false,
        };
        is_inside.then(|| PathBuf::from(file.text))
    }
}

/// Returns `true` if `text` is `root` or a path below it.
fn is_below(root: &str, text: &str) -> bool {
    text.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns `true` if a name of the Hub is beneath a root: a repository or an organisation, or a revision or
/// a folder of a repository.
fn is_in_hub(root: &HubName, wanted: &HubName) -> bool {
    if root.kind != wanted.kind || !is_below(&root.repository, &wanted.repository) {
        return false;
    }
    let is_same = root.repository == wanted.repository;
    let has_revision = root.revision.is_none() || is_same && root.revision == wanted.revision;
    let has_variant = root.variant.is_none() || is_same && root.variant == wanted.variant;
    let has_file = match (&root.file, &wanted.file) {
        (None, _) => true,
        (Some(root), Some(wanted)) => is_same && is_below(root, wanted),
        (Some(_), None) => false,
    };
    has_revision && has_variant && has_file
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_permitted(root: &str, name: &str) -> bool {
        let root = Root::parse(root, false).unwrap();
        RemoteName::parse(name).is_ok_and(|name| root.permit(&name).is_some())
    }

    #[test]
    fn names_beneath_a_root_are_permitted() {
        for (root, name) in [
            ("s3://b/models/", "s3://b/models/llama/"),
            ("s3://b/models/", "s3://b/models"),
            ("s3://b/models", "s3:/b/models/a b.gguf"),
            ("s3://b", "s3://b/x"),
            ("s3://b/", "s3://b"),
            ("gs://b/p/", "gs://b/p/q/"),
            ("az://c/", "az://c/m.gguf"),
            ("https://Host:443/m/", "HTTPS://host/m/a%20b/x.gguf"),
            ("http://host:8080/", "http://host:8080/m.safetensors"),
            ("https://host/m.gguf", "https://host/m.gguf"),
            ("https://host/m.gguf?sig=1", "https://host/m.gguf"),
            ("hf://org", "hf://org/name@v1"),
            ("hf://org/name", "hf://org/name"),
            ("hf://org/name", "hf://org/name:Q4_K_M"),
            ("hf://org/name", "hf://org/name@a%2Fb/x.gguf"),
            ("hf://org/name/sub", "hf://org/name/sub/x.gguf"),
            ("hf://datasets/org/name", "hf://datasets/org/name"),
        ] {
            assert!(is_permitted(root, name), "{name} is beneath {root}");
        }
    }

    #[test]
    fn names_outside_of_a_root_are_refused() {
        for (root, name) in [
            ("s3://b/models/", "s3://b/models2/x"),
            ("s3://b/models/", "s3://b/"),
            ("s3://b/models/", "s3://b/models/../x"),
            ("s3://b/models/", "s3://b/models/./x"),
            ("s3://b/models/", "s3://b/models//x"),
            ("s3://b/models/", "s3://b/models/%2e%2E/x"),
            ("s3://b/models/", "s3://b/models/..%2fx"),
            ("s3://b/models/", "s3://b/models/%252e%252e/x"),
            ("s3://b/models/", "s3://b/models/a\\..\\x"),
            ("s3://b/models/", "s3://b/models/a?x"),
            ("s3://b/models/", "s3://c/models/x"),
            ("s3://b/models/", "gs://b/models/x"),
            ("s3://b/models/", "/etc/passwd"),
            ("s3://b/models/", "file:///etc/passwd"),
            ("s3://b/models/", ""),
            ("https://host/m/", "http://host/m/x"),
            ("https://host/m/", "https://host:8443/m/x"),
            ("https://host/m/", "https://host.evil/m/x"),
            ("https://host/m/", "https://host@evil/m/x"),
            ("https://host/m/", "https://user:pw@host/m/x"),
            ("https://host/m/", "https://host:pw/m/x"),
            ("https://host/m/", "https://host:99999/m/x"),
            ("https://host/m/", "https://host/m/..;a/x"),
            ("https://host/m/", "https://host/m/x?y"),
            ("https://host/m/", "https://host/m/x#y"),
            ("https://host/m/", "https://host/m/\t../x"),
            ("https://host/m/", "https://host/m/a b"),
            ("https://host/m/", "https://host/m/%0a"),
            ("https://host/m/", "https://host/m/%"),
            ("https://host/m/", "https://host/m/%c0%ae%c0%ae/x"),
            ("https://host/m/", "https://host/m/%ef%bc%8e%ef%bc%8e/x"),
            ("https://host/m.gguf?sig=1", "https://host/m.gguf/x"),
            ("https://host/m.gguf?sig=1", "https://host/m.gguf?sig=1"),
            ("hf://org/name", "hf://org/name2"),
            ("hf://org/name", "hf://org/other"),
            ("hf://org/name", "hf://datasets/org/name"),
            ("hf://org", "hf://org2/name"),
            ("hf://org/name@v1", "hf://org/name"),
            ("hf://org/name@v1", "hf://org/name@v2"),
            ("hf://org/name/sub", "hf://org/name/sub2/x"),
            ("hf://org/name/sub", "hf://org/name/sub:x"),
            ("hf://org/name", "hf://org/name/../x"),
        ] {
            assert!(!is_permitted(root, name), "{name} is not beneath {root}");
        }
        let long = format!("s3://b/{}", "x".repeat(NAME_BYTES_MAX));
        assert_eq!(RemoteName::parse(&long), Err(NameProblem::TooLong));
    }

    #[test]
    fn only_files_of_the_model_may_be_opened() {
        let permit = |root: &str, name: &str, file: &str| {
            let root = Root::parse(root, false).unwrap();
            let permitted = root.permit(&RemoteName::parse(name).unwrap()).unwrap();
            permitted.file(Path::new(file)).map(|it| it.to_str().unwrap().to_owned())
        };
        let some = |text: &str| Some(text.to_owned());
        let index = "https://host/m/i.index.json";
        assert_eq!(permit(index, index, "https://host/m/a.st"), some("https://host/m/a.st"));
        assert_eq!(permit(index, index, "https://host/x/a.st"), None);
        assert_eq!(permit("s3://b/m/", "s3://b/m/x", "s3://b/m/y"), some("s3://b/m/y"));
        for file in ["s3://b/y", "s3://b/m/../y", "/etc/passwd", "y", "https://host/m/y"] {
            assert_eq!(permit("s3://b/m/", "s3://b/m/x", file), None, "{file}");
        }
        let at_commit = "hf://org/name@0123456789abcdef0123456789abcdef01234567/x";
        assert_eq!(permit("hf://org/name@v1", "hf://org/name@v1", at_commit), some(at_commit));
        assert_eq!(permit("hf://org", "hf://org/a", at_commit), None);
        let signed = "https://host/m.gguf?sig=1";
        let shown = "https://host/m.gguf";
        assert_eq!(permit(signed, shown, shown), some(signed));
        let root = Root::parse(signed, false).unwrap();
        assert!(!format!("{root:?} {}", root.name()).contains("sig"), "{root:?}");
    }

    #[test]
    fn secrets_are_not_shown() {
        for (text, expected) in [
            ("https://user:pw@host/a?sig=1", "https://host/a"),
            ("https:/user:pw@host/a#x", "https://host/a"),
            ("hf://org/name@v1", "hf://org/name@v1"),
            ("hf://hf_token@org/name", "hf://org/name"),
            ("https://user:p/w@host/a", "https://host/a"),
            ("s3://key:secret@bucket/a", "s3://bucket/a"),
        ] {
            assert_eq!(without_secrets(text), expected);
        }
    }

    proptest! {
        #[test]
        fn a_name_has_one_spelling(text in "(s3|https|hf|http|gs)://?[a-zA-Z.:@/%2ef;\\\\]{0,24}") {
            if let Ok(name) = RemoteName::parse(&text) {
                prop_assert_eq!(RemoteName::parse(name.as_str()), Ok(name.clone()));
                prop_assert!(!name.as_str().split('/').any(|it| matches!(it, "." | "..")));
            }
        }
    }
}
