//! Models in several files, as llama.cpp's `gguf-split` makes them.
//!
//! Each is a GGUF file with some of the tensors. Their names end in `-00001-of-00003.gguf`, and
//! their metadata say the same: `split.no` counts from zero, `split.count` is how many there are,
//! `split.tensors.count` how many tensors all have together. The metadata of the model are in the
//! first.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{FORMAT, Header};
use crate::error::{Error, Result};
use crate::format::Opener;
use crate::format::json::quoted;
use crate::source::SourceFile;

const NUMBER_KEY: &str = "split.no";
const COUNT_KEY: &str = "split.count";
const TENSORS_KEY: &str = "split.tensors.count";

/// Opens a file and reads its header. If it is the first of several splits, so for all of them, in
/// their order; they are beside it. Any other split is opened alone.
///
/// # Errors
/// [`Error::Format`] where a split is missing or they do not belong together; those of
/// [`SourceFile::open`] and [`Header::read`].
pub fn open_splits(path: impl Into<PathBuf>) -> Result<Vec<(SourceFile, Header)>> {
    open_splits_by(&path.into(), &|path| SourceFile::open(path))
}

/// Whether a path is by its name the first of several splits.
pub(in crate::format) fn is_first_of_several(path: &Path) -> bool {
    SplitName::of(path).is_some_and(|name| name.count > 1 && name.number == 1)
}

/// As [`open_splits`], each opened by `open`.
pub(in crate::format) fn open_splits_by(
    path: &Path,
    open: Opener<'_>,
) -> Result<Vec<(SourceFile, Header)>> {
    let source = open(path)?;
    let header = Header::read(&source)?;
    let path = source.path().to_owned();
    let refuse = |reason| refused(&path, reason);
    let named = SplitName::of(&path).filter(|name| name.count > 1);
    let number = number_of(&header, NUMBER_KEY).unwrap_or(0);
    let count = number_of(&header, COUNT_KEY).unwrap_or(1);
    match &named {
        Some(name) if name.number == 1 || number == 0 => {
            if (number.saturating_add(1), count) != (name.number, name.count) {
                return Err(refuse(format!(
                    "by its name it is split {} of {}, but by its metadata {} of {count}; give it \
                     its own name back",
                    name.number,
                    name.count,
                    number.saturating_add(1)
                )));
            }
        }
        Some(_) => return Ok(vec![(source, header)]),
        None if number == 0 && count > 1 => {
            return Err(refuse(format!(
                "it is the first of {count} splits, and the others are found only if its name \
                 ends in -00001-of-{count:05}.gguf"
            )));
        }
        None => return Ok(vec![(source, header)]),
    }
    let Some(named) = named else { return Ok(vec![(source, header)]) };
    let mut splits = vec![(source, header)];
    for number in 2..=count {
        let path = named.path(number);
        let source = open(&path).map_err(|error| match error {
            Error::Open { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                refuse(missing(&named, number))
            }
            error => error,
        })?;
        let header = Header::read(&source)?;
        let claimed = (number_of(&header, NUMBER_KEY), number_of(&header, COUNT_KEY));
        if claimed != (Some(number - 1), Some(count)) {
            let shown = |number: Option<u64>| number.map_or("?".to_owned(), |it| it.to_string());
            let reason = format!(
                "it should be split {number} of {count}, but its metadata has {NUMBER_KEY} {} and \
                 {COUNT_KEY} {}",
                shown(claimed.0),
                shown(claimed.1)
            );
            return Err(refused(&path, reason));
        }
        splits.push((source, header));
    }
    contradiction(&splits).map_or(Ok(()), |reason| Err(refuse(reason)))?;
    Ok(splits)
}

/// Why splits do not belong together.
fn contradiction(splits: &[(SourceFile, Header)]) -> Option<String> {
    let mut names: Vec<(&str, usize)> = Vec::new();
    for (number, (_, header)) in (1..).zip(splits) {
        names.extend(header.tensors.iter().map(|tensor| (tensor.name.as_str(), number)));
    }
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let [(name, a), (_, b)] = [pair[0], pair[1]];
        return Some(format!("tensor {} is in two splits, {a} and {b}", quoted(name)));
    }
    let there = names.len() as u64;
    for (number, (_, header)) in (1..).zip(splits) {
        let claimed = number_of(header, TENSORS_KEY).filter(|claimed| *claimed != there);
        if let Some(claimed) = claimed {
            return Some(format!(
                "split {number} says that all have {claimed} tensors together, but they have \
                 {there}; are they of the same version?"
            ));
        }
    }
    None
}

/// A whole number of the metadata.
fn number_of(header: &Header, key: &str) -> Option<u64> {
    header.metadata.get(key)?.as_u64()
}

/// The path of a split, taken apart.
struct SplitName {
    folder: PathBuf,
    /// All before the numbers, as it is: names need not be UTF-8.
    prefix: Vec<u8>,
    number: u64,
    count: u64,
}

impl SplitName {
    /// Takes apart a name that ends in `-NNNNN-of-NNNNN.gguf`.
    fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.as_bytes();
        let (prefix, end) = name.split_at_checked(name.len().checked_sub(20)?)?;
        let end = std::str::from_utf8(end).ok()?;
        let (number, count) = end.strip_prefix('-')?.strip_suffix(".gguf")?.split_once("-of-")?;
        let parsed = |digits: &str| {
            let all = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|_| all)
        };
        let (number, count) = (parsed(number)?, parsed(count)?);
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        Some(Self { folder, prefix: prefix.to_owned(), number, count })
    }

    fn file_name(&self, number: u64) -> Vec<u8> {
        let mut name = self.prefix.clone();
        name.extend(format!("-{number:05}-of-{:05}.gguf", self.count).bytes());
        name
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(OsStr::from_bytes(&self.file_name(number)))
    }
}

fn missing(name: &SplitName, first: u64) -> String {
    let missing = (2..=name.count).filter(|number| !name.path(*number).exists()).count();
    let folder = if name.folder.as_os_str().is_empty() { Path::new(".") } else { &name.folder };
    format!(
        "its split {} is not in {} ({missing} of {} are missing); fetch it",
        quoted(&String::from_utf8_lossy(&name.file_name(first))),
        folder.display(),
        name.count
    )
}

fn refused(path: &Path, reason: String) -> Error {
    Error::Format { path: path.to_owned(), format: FORMAT, reason }
}
