//! Names of objects: `s3://BUCKET/KEY`, `gs://BUCKET/KEY`, `az://CONTAINER/KEY`.

use std::fmt;
use std::path::Path;

/// The limit on the name of a bucket, in bytes. That of Google is 222.
const BUCKET_MAX_BYTES: usize = 255;
/// The limit on a key, in bytes. Those of the providers are 1,024 bytes, or characters.
const KEY_MAX_BYTES: usize = 4096;

/// A provider of object stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Provider {
    /// Amazon S3, and the servers that speak its protocol.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
}

/// The name of an object, or of all objects whose keys begin with a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectName {
    pub(crate) provider: Provider,
    /// The bucket, or the container of Azure.
    pub(crate) bucket: String,
    /// The key, without a `/` at its end.
    pub(crate) key: String,
    /// `true` if the name ends with `/`, so that the key can only be a prefix.
    pub(crate) is_prefix: bool,
}

/// The error for a name that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a name of an object (expected {0}://BUCKET/KEY, with at most 4,096 bytes in the key)")]
pub(crate) struct ParseObjectNameError(&'static str);

impl Provider {
    const ALL: [Self; 3] = [Self::S3, Self::Gcs, Self::Azure];

    /// Returns the scheme of its names.
    pub(crate) fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gcs => "gs",
            Self::Azure => "az",
        }
    }

    /// Returns the advice for an environment without credentials.
    pub(crate) fn hint(self) -> &'static str {
        match self {
            Self::S3 => {
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or \
                 AWS_SKIP_SIGNATURE=true for a public bucket"
            }
            Self::Gcs => {
                "set GOOGLE_APPLICATION_CREDENTIALS, or GOOGLE_SKIP_SIGNATURE=true for a public bucket"
            }
            Self::Azure => {
                "set AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or \
                 AZURE_STORAGE_SAS_TOKEN, or AZURE_SKIP_SIGNATURE=true for a public container"
            }
        }
    }
}

impl ObjectName {
    /// Parses a path that begins with `s3://`, `gs://` or `az://`, or with one `/`, which Python's `pathlib`
    /// makes of it. Returns `None` for any other path. A file of such a name is written as `./s3:/…`.
    ///
    /// # Errors
    /// [`ParseObjectNameError`] if there is no bucket, or if it has a character that no name of a bucket has.
    pub(crate) fn from_path(path: &Path) -> Result<Option<Self>, ParseObjectNameError> {
        let text = path.to_string_lossy();
        let parts = Provider::ALL.into_iter().find_map(|provider| {
            let rest = text.strip_prefix(provider.scheme())?.strip_prefix(":/")?;
            Some((provider, rest.strip_prefix('/').unwrap_or(rest)))
        });
        let Some((provider, rest)) = parts else { return Ok(None) };
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        let error = ParseObjectNameError(provider.scheme());
        let is_name = (1..=BUCKET_MAX_BYTES).contains(&bucket.len())
            && bucket.bytes().all(|it| it.is_ascii_alphanumeric() || b"-_.$".contains(&it))
            && !bucket.starts_with('.');
        if !is_name || key.len() > KEY_MAX_BYTES || path.to_str().is_none() {
            return Err(error);
        }
        let is_prefix = key.is_empty() || key.ends_with('/');
        let key = key.strip_suffix('/').unwrap_or(key).to_owned();
        Ok(Some(Self { provider, bucket: bucket.to_owned(), key, is_prefix }))
    }

    /// Returns the name of an object below this prefix.
    pub(crate) fn below(&self, name: &str) -> Self {
        let key = match self.key.as_str() {
            "" => name.to_owned(),
            key => format!("{key}/{name}"),
        };
        Self { key, is_prefix: false, ..self.clone() }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.is_prefix && !self.key.is_empty() { "/" } else { "" };
        write!(f, "{}://{}/{}{end}", self.provider.scheme(), self.bucket, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<ObjectName> {
        ObjectName::from_path(Path::new(text)).unwrap()
    }

    #[test]
    fn names_are_parsed() {
        for (text, bucket, key, is_prefix, shown) in [
            ("s3://b/k/m.gguf", "b", "k/m.gguf", false, "s3://b/k/m.gguf"),
            ("s3:/b/k/", "b", "k", true, "s3://b/k/"),
            ("gs://b", "b", "", true, "gs://b/"),
            ("az://c/a b", "c", "a b", false, "az://c/a b"),
        ] {
            let name = parsed(text).unwrap();
            assert_eq!((&*name.bucket, &*name.key, name.is_prefix), (bucket, key, is_prefix));
            assert_eq!(name.to_string(), shown);
        }
        assert_eq!(parsed("./s3:/a"), None);
        assert_eq!(parsed("s3:a"), None);
        for wrong in ["s3://", "s3://b ad/x", "gs://b?x/k", "az://../k", "s3://b#/k", "s3://b\n/k"]
        {
            assert!(ObjectName::from_path(Path::new(wrong)).is_err(), "{wrong}");
        }
        let long = format!("s3://b/{}", "k".repeat(70_000));
        assert!(ObjectName::from_path(Path::new(&long)).is_err());
        assert_eq!(parsed("s3://b").unwrap().below("m").to_string(), "s3://b/m");
        assert_eq!(parsed("s3://b/k/").unwrap().below("m").to_string(), "s3://b/k/m");
    }
}
