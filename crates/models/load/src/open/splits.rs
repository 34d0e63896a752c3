//! Models in several GGUF files (splits), which are opened by the path of the first.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use longshore_formats::gguf::{Header, SplitName, check_splits};
use longshore_formats::{Format, QuotedName};

use super::header::{OfOneModel, count_missing, gguf_header, is_not_found};
use crate::error::{Error, Result};
use crate::reason::FormatProblem;
use crate::source::{Opener, SourceFile};

/// Returns `true` if the path has the name of the first of several splits.
pub(super) fn is_first_of_several(path: &Path) -> bool {
    SplitName::from_file_name(file_name(path)).is_some_and(|name| name.is_first_of_several())
}

/// Returns the paths of the other splits of the model whose first split is at `path`, in order; none if
/// there are no others. Opens only the file at `path`.
pub(super) fn others(path: &Path, by: &dyn Opener) -> Result<Vec<PathBuf>> {
    let source = by.open(path)?;
    let named = as_first_of_several(&source, &gguf_header(&source, by)?, by)?;
    Ok(named.map_or_else(Vec::new, |name| {
        (2..=name.count()).map(|number| split_path(source.path(), &name, number)).collect()
    }))
}

/// Opens a file and reads its header. If it is the first of several splits, this also opens the others,
/// which are in the same folder, in order. Any other split is opened alone.
///
/// # Errors
/// [`Error::Format`] if a split is missing, if the splits do not belong together, or if all headers
/// together are too long; those of `by` and [`gguf_header`].
pub(super) fn open(path: &Path, by: &dyn Opener) -> Result<Vec<(SourceFile, Header)>> {
    let by = OfOneModel::new(by, Format::Gguf);
    let source = by.open(path)?;
    let header = gguf_header(&source, &by)?;
    let first = source.path().to_owned();
    let Some(name) = as_first_of_several(&source, &header, &by)? else {
        return Ok(vec![(source, header)]);
    };
    let mut splits = vec![(source, header)];
    for number in 2..=name.count() {
        let path = split_path(&first, &name, number);
        let source = by.open(&path).map_err(|error| match is_not_found(&error) {
            true => missing(&first, &name, number, &by),
            false => error,
        })?;
        let header = gguf_header(&source, &by)?;
        let checked = header.check_split(number, name.count());
        checked.map_err(|error| Error::format(&path, error))?;
        splits.push((source, header));
    }
    let checked = check_splits(splits.iter().map(|(_, header)| header));
    checked.map_err(|error| Error::format(&first, error))?;
    Ok(splits)
}

fn as_first_of_several(
    source: &SourceFile,
    header: &Header,
    by: &dyn Opener,
) -> Result<Option<SplitName>> {
    let named = header.as_first_of_several(file_name(source.path()));
    let named = named.map_err(|error| Error::format(source.path(), error))?;
    if let Some(name) = &named {
        by.permit_files(source, name.count())?;
    }
    Ok(named)
}

fn file_name(path: &Path) -> &[u8] {
    path.file_name().unwrap_or_default().as_bytes()
}

/// Returns the path of the split `number` of the model whose first split is at `first`.
fn split_path(first: &Path, name: &SplitName, number: u64) -> PathBuf {
    first.with_file_name(OsStr::from_bytes(&name.with_number(number)))
}

fn missing(first: &Path, name: &SplitName, number: u64, by: &dyn Opener) -> Error {
    let others = (2..=name.count()).map(|number| split_path(first, name, number));
    let missing = count_missing(others, by);
    let folder = first.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let reason = FormatProblem::SplitMissing {
        name: QuotedName::new(&String::from_utf8_lossy(&name.with_number(number))),
        folder: folder.to_owned(),
        missing,
        splits: name.count(),
    };
    Error::Format { path: first.to_owned(), format: Format::Gguf, reason }
}
