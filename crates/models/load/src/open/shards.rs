//! Models in several safetensors files, which an index names.

use std::path::{Path, PathBuf};

use longshore_formats::index::{self, ShardIndex};
use longshore_formats::safetensors::Header;
use longshore_formats::{Format, QuotedName};

use super::header::{OfOneModel, count_missing, is_not_found, read_exact, safetensors_header};
use crate::error::{Error, Result};
use crate::reason::FormatProblem;
use crate::source::{Opener, SourceFile};

/// Reads an index, and no shards.
///
/// # Errors
/// [`Error::Format`], [`Error::Read`], [`Error::Truncated`]; those of `by`.
pub(super) fn read_index(source: &SourceFile, by: &dyn Opener) -> Result<ShardIndex> {
    let refused = |error| Error::format(source.path(), error);
    index::check_len(source.len()).map_err(refused)?;
    by.permit_header(source, source.len())?;
    let mut bytes = vec![0; source.len() as usize];
    read_exact(source, &mut bytes, 0)?;
    let index = ShardIndex::parse(&bytes).map_err(refused)?;
    by.permit_files(source, index.shards().len() as u64)?;
    Ok(index)
}

/// Returns the paths of the shards of the index at `path`.
pub(super) fn paths(path: &Path, index: &ShardIndex, by: &dyn Opener) -> Vec<PathBuf> {
    index.shards().iter().map(|shard| by.shard_path(path, shard)).collect()
}

/// Opens the shards of an index in the order of their names, reads their headers, and checks them
/// against the index.
///
/// # Errors
/// Those of [`read_index`], `by` and [`safetensors_header`]; [`Error::Format`] of the index if a shard
/// is missing or contradicts it; [`Error::Format`] of a shard if all headers together are too long.
pub(super) fn open(source: &SourceFile, by: &dyn Opener) -> Result<Vec<(SourceFile, Header)>> {
    let index = read_index(source, by)?;
    let paths = paths(source.path(), &index, by);
    let refused = |error| Error::format(source.path(), error);
    let mut shards = Vec::new();
    for (path, name) in paths.iter().zip(index.shards()) {
        shards.push(by.open(path).map_err(|error| match error {
            error if is_not_found(&error) => {
                let missing = count_missing(paths.iter().cloned(), by);
                let folder = source.path().parent().filter(|it| !it.as_os_str().is_empty());
                let folder = folder.unwrap_or(Path::new("."));
                let reason = FormatProblem::ShardMissing {
                    name: QuotedName::new(name),
                    folder: folder.to_owned(),
                    missing,
                    shards: paths.len(),
                };
                let (path, format) = (source.path().to_owned(), Format::SafetensorsIndex);
                Error::Format { path, format, reason }
            }
            error => error,
        })?);
    }
    let by = OfOneModel::new(by, Format::Safetensors);
    let headers = shards.iter().map(|shard| safetensors_header(shard, &by));
    let headers = headers.collect::<Result<Vec<_>>>()?;
    index.check(&headers).map_err(refused)?;
    Ok(shards.into_iter().zip(headers).collect())
}
