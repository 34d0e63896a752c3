//! Finds the files of a model.

use std::path::PathBuf;

use longshore_formats::directory::ModelFilter;
use longshore_load::{self as library, FormatChoice};
use pyo3::prelude::*;

use crate::error;
use crate::load::word;

/// Returns the files to load for a source; `longshore.find_files` describes the arguments.
#[pyfunction]
#[pyo3(signature = (source, *, include, variant, format))]
#[expect(clippy::needless_pass_by_value, reason = "Python values are converted to it")]
pub(crate) fn find_files(
    py: Python<'_>,
    source: PathBuf,
    include: Vec<String>,
    variant: Option<String>,
    format: &str,
) -> PyResult<Vec<PathBuf>> {
    let format = word::<FormatChoice>(format)?;
    let filter = include.into_iter().fold(ModelFilter::new(), ModelFilter::include);
    let filter = variant.into_iter().fold(filter, ModelFilter::variant);
    let found = py.detach(|| library::find_files(&source, format, &filter));
    found.map_err(|error| error::raised(py, &error))
}
