//! Checksums of files, and manifests of expected checksums.

use std::path::{Component, Path, PathBuf};

use crate::checksum::Hasher;
use crate::digest_kind::DigestKind;
use crate::error::{Error, Result};
use crate::open::read_exact;
use crate::plan::PlannedFile;
use crate::reason::{Change, ManifestProblem};
use crate::source::{HeaderSeen, SourceFile};

/// The limit on the length of a manifest, in bytes: 200,000 lines with paths of 256 bytes.
const MANIFEST_LEN_MAX_BYTES: u64 = 64 << 20;

/// The checksums of a planned file whose bytes pass in their order, and the check of its header.
pub(crate) struct FileHasher<'a> {
    file: &'a PlannedFile,
    hashers: Vec<Hasher>,
    header: Option<HeaderHasher<'a>>,
}

/// The check that a file begins with the bytes that were parsed as its header.
struct HeaderHasher<'a> {
    expected: &'a HeaderSeen,
    left_bytes: u64,
    hasher: Hasher,
}

impl<'a> FileHasher<'a> {
    pub(crate) fn new(kinds: &[DigestKind], file: &'a PlannedFile) -> Self {
        let contains = |seen: &&HeaderSeen| {
            file.range().start().raw() == 0 && seen.len_bytes <= file.range().len()
        };
        let header = file.source().header().filter(contains).map(|expected| HeaderHasher {
            expected,
            left_bytes: expected.len_bytes,
            hasher: Hasher::new(DigestKind::Sha256),
        });
        Self { file, hashers: kinds.iter().copied().map(Hasher::new).collect(), header }
    }

    /// Adds the next bytes of the file.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.hashers.iter_mut().for_each(|hasher| hasher.update(bytes));
        if let Some(header) = &mut self.header {
            let len = header.left_bytes.min(bytes.len() as u64);
            header.hasher.update(&bytes[..len as usize]);
            header.left_bytes -= len;
        }
    }

    /// Returns the checksums as hexadecimal digits, in the order of the kinds.
    ///
    /// # Errors
    /// [`Error::Changed`] if the file did not begin with the header from which its tensors are known.
    pub(crate) fn finish(self) -> Result<Vec<String>> {
        if let Some(HeaderHasher { expected, hasher, .. }) = self.header
            && hasher.finish() != expected.sha256
        {
            let (path, change) = (self.file.source().path().to_owned(), Change::Written);
            return Err(Error::Changed { path, change });
        }
        Ok(self.hashers.into_iter().map(Hasher::finish).collect())
    }
}

/// The expected checksums of files. Each line is a checksum, two spaces and a file name, as `sha256sum`
/// writes them. The length of a checksum determines its kind. Empty lines and lines that begin with `#`
/// are skipped.
#[derive(Clone, Debug)]
pub struct Manifest {
    path: PathBuf,
    entries: Vec<Entry>,
}

/// The checksum in hexadecimal digits, its kind, and the path of the file.
type Entry = (String, DigestKind, PathBuf);

impl Manifest {
    /// Reads a manifest, a regular file of at most 64 MiB.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::NotRegular`], [`Error::Read`], [`Error::Truncated`];
    /// [`Error::Manifest`] if a line cannot be parsed, or if the file is too long or not UTF-8.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let source = SourceFile::open(path)?;
        let (path, len_bytes) = (source.path().to_owned(), source.len());
        if len_bytes > MANIFEST_LEN_MAX_BYTES {
            let reason = ManifestProblem::TooLong { len_bytes, max_bytes: MANIFEST_LEN_MAX_BYTES };
            return Err(Error::Manifest { path, reason });
        }
        let mut bytes = vec![0; len_bytes as usize];
        read_exact(&source, &mut bytes, 0)?;
        match String::from_utf8(bytes) {
            Ok(text) => Self::parse(path, &text),
            Err(_) => Err(Error::Manifest { path, reason: ManifestProblem::NotText }),
        }
    }

    /// Makes a manifest of the SHA-256 checksums that the Hugging Face Hub has of large files. The Hub sends them
    /// when it redirects to the storage. In the local cache, a file is stored under its checksum:
    /// `blobs/SHA256`, with links to it in `snapshots`.
    ///
    /// # Errors
    /// [`Error::Manifest`] for a file without such a checksum; [`Error::Open`] if a link cannot be followed.
    pub fn of_hub<'f>(files: impl IntoIterator<Item = &'f SourceFile>) -> Result<Self> {
        let mut entries = Vec::new();
        for source in files {
            let file = source.path();
            let told = match source.object() {
                Some(object) => object.sha256().map(str::to_owned),
                None => sha256_of_cached(file)?,
            };
            let is_sha256 =
                |it: &String| it.len() == 64 && it.bytes().all(|it| it.is_ascii_hexdigit());
            let Some(told) = told.filter(is_sha256) else {
                let reason = ManifestProblem::NoHubChecksum;
                return Err(Error::Manifest { path: file.to_owned(), reason });
            };
            entries.push((told.to_ascii_lowercase(), DigestKind::Sha256, file.to_owned()));
        }
        Ok(Self { path: PathBuf::new(), entries })
    }

    fn parse(path: PathBuf, text: &str) -> Result<Self> {
        let mut entries = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let entry = line.split_once(char::is_whitespace).and_then(|(hex, name)| {
                let kind = match hex.len() {
                    8 => DigestKind::Crc32c,
                    16 => DigestKind::Xxh3,
                    64 => DigestKind::Sha256,
                    _ => return None,
                };
                let name = name.trim_start().trim_start_matches('*');
                let well_formed =
                    !name.is_empty() && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
                well_formed.then(|| (hex.to_ascii_lowercase(), kind, PathBuf::from(name)))
            });
            let Some(entry) = entry else {
                let reason = ManifestProblem::NotAnEntry { line: index + 1 };
                return Err(Error::Manifest { path, reason });
            };
            entries.push(entry);
        }
        Ok(Self { path, entries })
    }

    /// Returns the manifest with its path resolved, to compare its names with resolved paths.
    pub(crate) fn resolved(&self) -> Self {
        let path = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        Self { path, entries: self.entries.clone() }
    }

    /// Returns the kinds of checksums in the manifest.
    pub fn kinds(&self) -> Vec<DigestKind> {
        let mut kinds = Vec::new();
        for (_, kind, _) in &self.entries {
            if !kinds.contains(kind) {
                kinds.push(*kind);
            }
        }
        kinds
    }

    /// Compares the checksums of a file with the expected ones. An entry is for a file if it has the file's path,
    /// as given or relative to the manifest. If no entry has, it is the one whose path is the longest end of the
    /// file's path. If there is none, it is the only one with the file's name.
    ///
    /// # Errors
    /// [`Error::Mismatch`]; [`Error::Manifest`] if the manifest does not name the file.
    pub(crate) fn check(&self, file: &Path, found: &[(DigestKind, String)]) -> Result<()> {
        let entries = self.entries_of(file);
        let mut checked = false;
        for (expected, kind, _) in entries {
            let Some((_, found)) = found.iter().find(|(found_kind, _)| found_kind == kind) else {
                continue;
            };
            if found != expected {
                return Err(Error::Mismatch {
                    path: file.to_owned(),
                    kind: *kind,
                    expected: expected.clone(),
                    found: found.clone(),
                });
            }
            checked = true;
        }
        if checked {
            return Ok(());
        }
        let reason = ManifestProblem::NotNamed { file: file.to_owned() };
        Err(Error::Manifest { path: self.path.clone(), reason })
    }

    /// Returns the entries that are for a file.
    fn entries_of(&self, file: &Path) -> Vec<&Entry> {
        let beside = self.path.parent().unwrap_or(Path::new(""));
        // The rank of a name that is an end of the path is its length.
        let rank = |name: &Path| {
            let end: PathBuf =
                name.components().filter(|part| *part != Component::CurDir).collect();
            match () {
                () if name == file || beside.join(name) == file => usize::MAX,
                () if end.is_relative() && file.ends_with(&end) => end.components().count(),
                () => 0,
            }
        };
        let best = self.entries.iter().map(|(.., name)| rank(name)).max().unwrap_or(0);
        if best > 0 {
            return self.entries.iter().filter(|(.., name)| rank(name) == best).collect();
        }
        let has_name = |entry: &&Entry| entry.2.file_name() == file.file_name();
        let named: Vec<&Entry> = self.entries.iter().filter(has_name).collect();
        let is_one = named.windows(2).all(|pair| pair[0].2 == pair[1].2);
        if is_one { named } else { Vec::new() }
    }
}

/// Returns the name under which the cache of the Hub stores a file.
fn sha256_of_cached(file: &Path) -> Result<Option<String>> {
    let stored =
        file.canonicalize().map_err(|source| Error::Open { path: file.to_owned(), source })?;
    let is_blob = stored.parent().is_some_and(|folder| folder.ends_with("blobs"));
    let name = stored.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(is_blob.then_some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(kind: DigestKind, bytes: &[u8]) -> String {
        let mut hasher = Hasher::new(kind);
        hasher.update(bytes);
        hasher.finish()
    }

    #[test]
    fn checksums_match_the_test_vectors_of_their_standards() {
        // RFC 3720 B.4, the XXH3 reference implementation, FIPS 180-4.
        assert_eq!(digest(DigestKind::Crc32c, &[0; 32]), "8a9136aa");
        assert_eq!(digest(DigestKind::Crc32c, b"123456789"), "e3069283");
        assert_eq!(digest(DigestKind::Xxh3, b""), "2d06800538d394c2");
        assert_eq!(
            digest(DigestKind::Sha256, b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn a_manifest_names_files_by_path_or_by_name() {
        let text = "# models\n\ne3069283  b/x.bin\n8A9136AA *a/x.bin\n2d06800538d394c2  y.bin\n";
        let manifest = Manifest::parse("/data/sums".into(), text).unwrap();
        assert_eq!(manifest.kinds(), [DigestKind::Crc32c, DigestKind::Xxh3]);
        let crc = |hex: &str| [(DigestKind::Crc32c, hex.to_owned())];
        manifest.check(Path::new("/data/a/x.bin"), &crc("8a9136aa")).unwrap();
        manifest.check(Path::new("b/x.bin"), &crc("e3069283")).unwrap();
        let wrong = manifest.check(Path::new("/data/a/x.bin"), &crc("e3069283")).unwrap_err();
        assert!(matches!(wrong, Error::Mismatch { ref expected, .. } if expected == "8a9136aa"));
        let absent = manifest.check(Path::new("/data/z.bin"), &crc("e3069283")).unwrap_err();
        assert!(absent.to_string().contains("does not name /data/z.bin"), "{absent}");
    }

    #[test]
    fn only_a_regular_file_of_bounded_length_is_a_manifest() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(MANIFEST_LEN_MAX_BYTES + 1).unwrap();
        let error = Manifest::open(file.path()).unwrap_err().to_string();
        assert!(error.ends_with("it has 67.11 MB, more than the limit of 67.11 MB"));
        std::fs::write(file.path(), b"e3069283  x\n").unwrap();
        assert_eq!(Manifest::open(file.path()).unwrap().kinds(), [DigestKind::Crc32c]);
        std::fs::write(file.path(), [0xff]).unwrap();
        let error = Manifest::open(file.path()).unwrap_err().to_string();
        assert!(error.ends_with("it is not text"), "{error}");
        // Reading it would never end.
        let refused = Manifest::open("/dev/zero");
        assert!(matches!(refused, Err(Error::NotRegular { .. })), "{refused:?}");
    }

    #[test]
    fn the_error_of_an_invalid_line_has_its_number() {
        for text in ["e3069283", "zzzzzzzz  x", "123  x", "e3069283  "] {
            let error = Manifest::parse("m".into(), &format!("# ok\n{text}\n")).unwrap_err();
            assert!(error.to_string().contains("line 2"), "{text}: {error}");
        }
    }

    #[test]
    fn entries_are_found_by_the_end_of_a_path() {
        let sums = "00000001  ./unet/w.gguf\n00000002  vae/w.gguf\n00000003  s3://b/m/w.gguf\n\
                    00000004  other/x.gguf\n00000005  old/y.gguf\n00000006  new/y.gguf\n";
        let manifest = Manifest::parse("sd/SUMS".into(), sums).unwrap();
        let check = |file: &str, sum: u32| {
            let found = [(DigestKind::Crc32c, format!("{sum:08x}"))];
            manifest.check(Path::new(file), &found)
        };
        for (file, sum) in [
            ("sd/unet/w.gguf", 1),
            ("./unet/w.gguf", 1),
            ("/srv/sd/vae/w.gguf", 2),
            ("s3://b/sd/vae/w.gguf", 2),
            ("s3://b/m/w.gguf", 3),
            ("x.gguf", 4),
        ] {
            check(file, sum).unwrap();
            assert!(matches!(check(file, 9), Err(Error::Mismatch { .. })), "{file}");
        }
        for file in ["text/w.gguf", "y.gguf", "z.gguf"] {
            assert!(matches!(check(file, 1), Err(Error::Manifest { .. })), "{file}");
        }
    }
}
