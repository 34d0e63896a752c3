//! Finds the files of a model.

use std::ffi::OsString;
use std::path::PathBuf;

use longshore_formats::directory::ModelFilter;
use longshore_load::FormatChoice;
use pyo3::prelude::*;

use crate::error;
use crate::load::word;
use crate::servers;

/// Returns the files to load for a source; `longshore.find_files` describes the arguments.
#[pyfunction]
#[pyo3(signature = (source, *, include, variant, format, storage_options, timeout))]
#[expect(clippy::needless_pass_by_value, reason = "Python values are converted to it")]
pub(crate) fn find_files(
    py: Python<'_>,
    source: PathBuf,
    include: Vec<String>,
    variant: Option<String>,
    format: &str,
    storage_options: Vec<(String, String)>,
    timeout: Option<f64>,
) -> PyResult<Vec<OsString>> {
    let format = word::<FormatChoice>(format)?;
    let filter = include.into_iter().fold(ModelFilter::new(), ModelFilter::include);
    let filter = variant.into_iter().fold(filter, ModelFilter::variant);
    let remote = servers::access(&storage_options, timeout)?;
    let found = py.detach(|| remote.find_files(&source, format, &filter));
    let found = found.map_err(|error| error::raised(py, &error))?;
    servers::warn(py, &remote)?;
    // A `pathlib.Path` would have one slash behind the scheme.
    Ok(found.into_iter().map(PathBuf::into_os_string).collect())
}
