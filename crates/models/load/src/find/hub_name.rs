//! Names of repositories of the Hugging Face Hub.

use std::fmt;
use std::path::{Component, Path};
use std::str::FromStr;

use longshore_formats::QuotedName;

/// The beginning of a name.
pub(super) const SCHEME: &str = "hf://";

/// The kind of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RepositoryKind {
    /// A model.
    Model,
    /// A dataset.
    Dataset,
    /// A space.
    Space,
}

/// A parsed name of a repository or of a file in it.
///
/// The grammar is that of [`HfFileSystem`]: `hf://[datasets/|spaces/]ORG/NAME[@REVISION][/FILE]`. The
/// organisation is missing in some old names (`hf://gpt2`). A `/` in the revision is written as `%2F`,
/// except in `refs/pr/N` and `refs/convert/…`. In addition, `hf://ORG/NAME:VARIANT` selects the files of a
/// variant, as llama.cpp does with `-hf ORG/NAME:Q4_K_M`.
///
/// [`HfFileSystem`]: https://huggingface.co/docs/huggingface_hub/guides/hf_file_system
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HubName {
    /// The kind of the repository.
    pub kind: RepositoryKind,
    /// `ORG/NAME`, or `NAME`.
    pub repository: String,
    /// The branch, tag or commit. The default is `main`.
    pub revision: Option<String>,
    /// The path of a file or folder in the repository.
    pub file: Option<String>,
    /// The variant of the files.
    pub variant: Option<String>,
}

/// The error for a name that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} is not a name of the Hugging Face Hub (expected hf://ORG/NAME[@REVISION][/FILE] or \
         hf://ORG/NAME:VARIANT)"
)]
pub struct ParseHubNameError(QuotedName);

impl HubName {
    /// Returns `true` for a revision that names a commit.
    pub fn is_commit(revision: &str) -> bool {
        revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit())
    }

    /// Returns `true` if the path begins with `hf://`, or with `hf:/`, which Python's `pathlib` makes of it. A
    /// file of such a name is written as `./hf:/…`.
    pub fn is_one(path: &Path) -> bool {
        path.as_os_str().as_encoded_bytes().starts_with(b"hf:/")
    }

    /// Parses a path that begins with `hf://`. Returns `None` for any other path.
    ///
    /// # Errors
    /// [`ParseHubNameError`] if the name is not valid.
    pub fn from_path(path: &Path) -> Result<Option<Self>, ParseHubNameError> {
        Self::is_one(path).then(|| path.to_string_lossy().parse()).transpose()
    }

    /// Returns the names that the cache may have for the repository, because the first of two parts can
    /// be the whole name and the second a file.
    pub(super) fn readings(&self) -> Vec<(String, Option<String>)> {
        let mut readings = vec![(self.repository.clone(), self.file.clone())];
        if self.revision.is_none()
            && self.variant.is_none()
            && let Some((name, rest)) = self.repository.split_once('/')
        {
            let file = match &self.file {
                Some(file) => format!("{rest}/{file}"),
                None => rest.to_owned(),
            };
            readings.push((name.to_owned(), Some(file)));
        }
        readings
    }
}

impl FromStr for HubName {
    type Err = ParseHubNameError;

    fn from_str(name: &str) -> Result<Self, ParseHubNameError> {
        let wrong = || ParseHubNameError(QuotedName::new(name));
        let rest = name.strip_prefix(SCHEME).or_else(|| name.strip_prefix("hf:/"));
        let rest = rest.ok_or_else(wrong)?.trim_end_matches('/');
        let kinds = [
            ("datasets/", RepositoryKind::Dataset),
            ("spaces/", RepositoryKind::Space),
            ("models/", RepositoryKind::Model),
        ];
        let kind =
            kinds.iter().find_map(|(prefix, kind)| Some((rest.strip_prefix(prefix)?, *kind)));
        let (rest, kind) = kind.unwrap_or((rest, RepositoryKind::Model));
        let (repository, revision, file) = match rest.split_once('@') {
            Some((repository, rest)) => {
                let (revision, file) = split_revision(rest);
                (repository, Some(decoded(revision).ok_or_else(wrong)?), file)
            }
            None => {
                let end = rest.match_indices('/').nth(1).map(|(at, _)| at);
                let (repository, file) = rest.split_at(end.unwrap_or(rest.len()));
                (repository, None, file.strip_prefix('/').unwrap_or(file))
            }
        };
        // The variant is behind the last part of a name without a file.
        let (mut repository, mut revision, mut variant) = (repository, revision, None);
        if file.is_empty() {
            let before_variant = |text: &str| text.rsplit_once(':').map(|(it, _)| it.len());
            if let Some(of_revision) = &mut revision {
                if let Some(at) = before_variant(of_revision) {
                    variant = Some(of_revision.split_off(at)[1..].to_owned());
                }
            } else if let Some(at) = before_variant(repository) {
                variant = Some(repository[at + 1..].to_owned());
                repository = &repository[..at];
            }
        }
        // These become parts of paths.
        let is_part = |part: &str| {
            let plain = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
            !part.is_empty()
                && part.chars().all(plain)
                && !part.starts_with('.')
                && !part.contains("--")
        };
        let is_plain = |path: &str| {
            let is_normal = |part| matches!(part, Component::Normal(_));
            Path::new(path).components().all(is_normal)
                && !path.contains("//")
                && !path.contains('\0')
        };
        // A token of the Hub in front of an `@`, as in the URL of a repository.
        if revision.is_some() && repository.starts_with("hf_") && !repository.contains('/') {
            return Err(ParseHubNameError(QuotedName::new(&name.replace(repository, "…"))));
        }
        let parts: Vec<&str> = repository.split('/').collect();
        if parts.len() > 2 || !parts.into_iter().all(is_part) || !is_plain(file) {
            return Err(wrong());
        }
        let given = |text: &Option<String>| text.as_ref().is_none_or(|text| !text.is_empty());
        let is_revision = revision.as_ref().is_none_or(|revision| is_plain(revision));
        if !given(&revision) || !given(&variant) || !is_revision {
            return Err(wrong());
        }
        Ok(Self {
            kind,
            repository: repository.to_owned(),
            revision,
            file: Some(file.to_owned()).filter(|file| !file.is_empty()),
            variant,
        })
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = match self.kind {
            RepositoryKind::Model => "",
            RepositoryKind::Dataset => "datasets/",
            RepositoryKind::Space => "spaces/",
        };
        write!(f, "{SCHEME}{prefix}{}", self.repository)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{}", revision.replace('%', "%25").replace('/', "%2F"))?;
        }
        if let Some(file) = &self.file {
            write!(f, "/{file}")?;
        }
        match &self.variant {
            Some(variant) => write!(f, ":{variant}"),
            None => Ok(()),
        }
    }
}

/// Splits `REVISION/FILE`. Of the revisions with a `/`, only `refs/pr/N` and `refs/convert/NAME` need no
/// `%2F`.
fn split_revision(text: &str) -> (&str, &str) {
    let special = || {
        let rest = text.strip_prefix("refs/")?;
        let (space, rest) = rest.split_once('/')?;
        let end = rest.find('/').unwrap_or(rest.len());
        let is_special = match space {
            "pr" => {
                !rest[..end].is_empty() && rest[..end].bytes().all(|byte| byte.is_ascii_digit())
            }
            "convert" => end > 0,
            _ => false,
        };
        let at = text.len() - rest.len() + end;
        is_special.then(|| (&text[..at], text[at..].trim_start_matches('/')))
    };
    special().unwrap_or_else(|| text.split_once('/').unwrap_or((text, "")))
}

/// Decodes `%2F` and other percent-encoded bytes. Returns `None` if the encoding is not valid.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend(parts.next()?.bytes());
    for part in parts {
        let digits = part.get(..2).filter(|it| it.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend(part[2..].bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(
        name: &str,
    ) -> (RepositoryKind, String, Option<String>, Option<String>, Option<String>) {
        let HubName { kind, repository, revision, file, variant } =
            name.parse().unwrap_or_else(|error| panic!("{error}"));
        (kind, repository, revision, file, variant)
    }

    #[test]
    fn names_are_parsed_as_by_huggingface_hub() {
        use RepositoryKind::{Dataset, Model, Space};
        for (name, kind, repository, revision, file, variant) in [
            ("hf://gpt2", Model, "gpt2", None, None, None),
            ("hf://org/name", Model, "org/name", None, None, None),
            ("hf:/org/name", Model, "org/name", None, None, None),
            ("hf://org/name/", Model, "org/name", None, None, None),
            ("hf://models/org/name", Model, "org/name", None, None, None),
            ("hf://org/name/a/b.gguf", Model, "org/name", None, Some("a/b.gguf"), None),
            ("hf://org/name@main/b", Model, "org/name", Some("main"), Some("b"), None),
            ("hf://gpt2@main/b", Model, "gpt2", Some("main"), Some("b"), None),
            ("hf://o/n@refs/pr/10/b", Model, "o/n", Some("refs/pr/10"), Some("b"), None),
            ("hf://o/n@refs/convert/p/b", Model, "o/n", Some("refs/convert/p"), Some("b"), None),
            ("hf://o/n@a%2Fb/c", Model, "o/n", Some("a/b"), Some("c"), None),
            ("hf://o/n@refs/x/b", Model, "o/n", Some("refs"), Some("x/b"), None),
            ("hf://datasets/o/n@v1", Dataset, "o/n", Some("v1"), None, None),
            ("hf://spaces/o/n", Space, "o/n", None, None, None),
            ("hf://o/n-GGUF:Q4_K_M", Model, "o/n-GGUF", None, None, Some("Q4_K_M")),
            ("hf://o/n@v1:Q4_K_M", Model, "o/n", Some("v1"), None, Some("Q4_K_M")),
            ("hf://o/n/a:b.gguf", Model, "o/n", None, Some("a:b.gguf"), None),
        ] {
            let text = |it: Option<&str>| it.map(str::to_owned);
            let expected = (kind, repository.to_owned(), text(revision), text(file), text(variant));
            assert_eq!(parsed(name), expected, "{name}");
            let again: HubName = name.parse().unwrap();
            assert_eq!(again.to_string().parse(), Ok(again), "{name}");
        }
    }

    #[test]
    fn a_name_cannot_lead_out_of_the_cache() {
        for name in [
            "hf://",
            "hf:///name",
            "hf://..",
            "hf://../..",
            "hf://org/..",
            "hf://org/name/..",
            "hf://org/name/../../x",
            "hf://org/name//x",
            "hf://org/name@",
            "hf://org/name@../x",
            "hf://org/name@..",
            "hf://org/name@..%2F..",
            "hf://org/name@%2Fetc",
            "hf://org/name@%zz",
            "hf://org/name@%f",
            "hf://org/name@%00",
            "hf://org/name:",
            "hf://org--name/x",
            "hf://org/na me",
            "hf://org/name/x\0y",
            "org/name",
        ] {
            assert!(name.parse::<HubName>().is_err(), "{name}");
        }
    }

    #[test]
    fn a_token_is_no_repository_and_is_not_shown() {
        let error = "hf://hf_secret@org/name".parse::<HubName>().unwrap_err().to_string();
        assert!(error.contains("hf://…@org/name") && !error.contains("secret"), "{error}");
    }
}
