//! The selection of tensors and rows for a stream.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use longshore_formats::{Dtype, QuotedName, TensorView, matches_pattern};

use super::problem::StreamProblem;
use crate::error::{Error, Result};
use crate::open::Opened;

/// The tensors of a stream, and their rows. Without any restriction, that is all tensors of all files,
/// whole.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    names: HashSet<String>,
    patterns: Vec<String>,
    files: Vec<PathBuf>,
    rows: Option<Rows>,
    rows_by_name: HashMap<String, Rows>,
}

/// Rows of a tensor: indices of its outermost dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rows {
    /// The rows from the start to before the end.
    Range(Range<u64>),
    /// The part `index` of `count` consecutive parts, whose lengths differ by at most one row. A scalar is
    /// not divided: each part has it.
    Share {
        /// The index of the part, from 0.
        index: u64,
        /// The number of parts.
        count: u64,
    },
}

/// A tensor, or rows of it, that is to be read.
#[derive(Clone, Debug)]
pub(super) struct Pick {
    /// The index of the file in the plan.
    pub(super) file: usize,
    pub(super) name: String,
    pub(super) dtype: Dtype,
    /// The shape of what is read.
    pub(super) shape: Vec<u64>,
    /// The selected rows, if not all.
    pub(super) rows: Option<Range<u64>>,
    /// The range of the file.
    pub(super) data: Range<u64>,
}

/// The place of rows of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowsOfTensor {
    /// The indices of the rows.
    pub rows: Range<u64>,
    /// The range of their bytes in the file.
    pub data: Range<u64>,
}

impl Rows {
    /// Returns the place of these rows of a tensor; `None` for a scalar, which each part has.
    ///
    /// # Errors
    /// [`Error::Stream`] if the tensor does not have these rows, or if they do not consist of whole blocks of
    /// its type. A share is rounded to whole blocks instead.
    pub fn of(&self, tensor: &TensorView<'_>) -> Result<Option<RowsOfTensor>> {
        let name = || QuotedName::new(tensor.name);
        if let Self::Share { index, count } = self
            && index >= count
        {
            return Err(StreamProblem::NoSuchShare { index: *index, count: *count }.into());
        }
        let block_rows = block_rows(tensor);
        let rows = match (self, tensor.shape.first()) {
            (Self::Share { .. }, None) => return Ok(None),
            (Self::Range(_), None) => return Err(StreamProblem::Scalar { tensor: name() }.into()),
            (Self::Range(rows), Some(&of_rows)) => {
                if rows.start > rows.end || rows.end > of_rows {
                    let (tensor, rows) = (name(), rows.clone());
                    return Err(StreamProblem::RowsBeyond { tensor, rows, of_rows }.into());
                }
                rows.clone()
            }
            (Self::Share { index, count }, Some(&of_rows)) => {
                // A part of the rows has no more rows than the tensor.
                let at = |index: u64| {
                    let row = u128::from(of_rows) * u128::from(index) / u128::from(*count);
                    let row = row as u64;
                    if row == of_rows { row } else { row - row % block_rows }
                };
                at(*index)..at(index + 1)
            }
        };
        let of_rows = tensor.shape.first().copied().unwrap_or(1).max(1);
        let is_whole = |row: u64| row == of_rows || row.is_multiple_of(block_rows);
        if !is_whole(rows.start) || !is_whole(rows.end) {
            return Err(StreamProblem::PartialBlock { tensor: name(), rows, block_rows }.into());
        }
        let len_bytes = tensor.data.end.saturating_sub(tensor.data.start);
        let before =
            |row: u64| (u128::from(len_bytes) * u128::from(row) / u128::from(of_rows)) as u64;
        let data = tensor.data.start + before(rows.start)..tensor.data.start + before(rows.end);
        Ok(Some(RowsOfTensor { rows, data }))
    }
}

/// Returns the smallest number of rows of the tensor that are whole blocks of its type.
fn block_rows(tensor: &TensorView<'_>) -> u64 {
    let (mut block, inner) = (tensor.dtype.block_elements(), tensor.shape.iter().skip(1));
    // Divide by the greatest common divisor with each dimension of a row.
    for &len in inner {
        let (mut divisor, mut rest) = (block, len);
        while rest > 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        block /= divisor;
    }
    block
}

impl Selection {
    /// Selects all tensors.
    pub fn all() -> Self {
        Self::default()
    }

    /// Selects the tensors of this name. Several names and patterns select all tensors that any of them
    /// names.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.names.insert(name.into());
        self
    }

    /// Selects the tensors whose names match a pattern, in which `*` stands for any characters and `?` for
    /// one.
    pub fn pattern(mut self, pattern: impl Into<String>) -> Self {
        self.patterns.push(pattern.into());
        self
    }

    /// Selects the tensors of this file, or of several. A path without a directory is the name of a file
    /// in any directory.
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.files.push(path.into());
        self
    }

    /// Selects these rows of each tensor. Only their bytes are read.
    pub fn rows(mut self, rows: Rows) -> Self {
        self.rows = Some(rows);
        self
    }

    /// Selects these rows of the tensor of this name, instead of those of [`Selection::rows`].
    pub fn rows_of(mut self, name: impl Into<String>, rows: Rows) -> Self {
        self.rows_by_name.insert(name.into(), rows);
        self
    }

    /// Returns the selected tensors, by file and then by offset.
    pub(super) fn picks(&self, opened: &Opened) -> Result<Vec<Pick>> {
        let mut unused: HashSet<&str> = self.names.iter().map(String::as_str).collect();
        unused.extend(self.rows_by_name.keys().map(String::as_str));
        let mut unmatched: HashSet<&str> = self.patterns.iter().map(String::as_str).collect();
        let by_name = !self.names.is_empty() || !self.patterns.is_empty();
        let mut picks = Vec::new();
        for of_file in self.files(opened)? {
            let file = &opened.plan.files()[of_file.file_index];
            let (path, len_bytes) = (file.source().path(), file.source().len());
            if file.is_image() {
                return Err(StreamProblem::Aligned { path: path.to_owned() }.into());
            }
            for tensor in of_file.header.tensors().filter(|tensor| !tensor.is_padding()) {
                let matching = self.patterns.iter().filter(|it| matches_pattern(it, tensor.name));
                let mut is_selected = !by_name || self.names.contains(tensor.name);
                for pattern in matching {
                    unmatched.remove(pattern.as_str());
                    is_selected = true;
                }
                if !is_selected {
                    continue;
                }
                unused.remove(tensor.name);
                if tensor.data.start > tensor.data.end || tensor.data.end > len_bytes {
                    let (path, range) = (path.to_owned(), tensor.data);
                    return Err(Error::OutOfFile { path, range, len_bytes });
                }
                picks.push(self.pick(of_file.file_index, &tensor)?);
            }
        }
        let missing = unused.into_iter().chain(unmatched).min();
        if let Some(name) = missing {
            return Err(StreamProblem::NoTensor { name: QuotedName::new(name) }.into());
        }
        picks.sort_by_key(|pick| (pick.file, pick.data.start, pick.data.end));
        Ok(picks)
    }

    /// Returns the tensors of the selected files.
    fn files<'o>(
        &self,
        opened: &'o Opened,
    ) -> Result<impl Iterator<Item = &'o crate::open::FileTensors>> {
        let path_of = |index: usize| opened.plan.files()[index].source().path();
        let is_named = |path: &Path, wanted: &PathBuf| {
            path == wanted || path.file_name().is_some_and(|name| name == wanted.as_os_str())
        };
        for index in 0..opened.plan.files().len() {
            if !opened.tensors.iter().any(|tensors| tensors.file_index == index) {
                return Err(Error::NoTensors { path: path_of(index).to_owned() });
            }
        }
        for wanted in &self.files {
            if !(0..opened.plan.files().len()).any(|index| is_named(path_of(index), wanted)) {
                return Err(StreamProblem::NoFile { path: wanted.clone() }.into());
            }
        }
        let wanted = self.files.clone();
        Ok(opened.tensors.iter().filter(move |tensors| {
            let path = path_of(tensors.file_index);
            wanted.is_empty() || wanted.iter().any(|wanted| is_named(path, wanted))
        }))
    }

    /// Returns the selected files that have no tensors, as indices in the plan.
    pub(super) fn empty_files(&self, opened: &Opened) -> Result<Vec<usize>> {
        let files = self.files(opened)?;
        let is_empty = |of_file: &&crate::open::FileTensors| {
            of_file.header.tensors().all(|tensor| tensor.is_padding())
        };
        Ok(files.filter(is_empty).map(|of_file| of_file.file_index).collect())
    }

    fn pick(&self, file: usize, tensor: &TensorView<'_>) -> Result<Pick> {
        let mut pick = Pick {
            file,
            name: tensor.name.to_owned(),
            dtype: tensor.dtype,
            shape: tensor.shape.to_vec(),
            rows: None,
            data: tensor.data.clone(),
        };
        let wanted = self.rows_by_name.get(tensor.name).or(self.rows.as_ref());
        let Some(part) = wanted.map(|rows| rows.of(tensor)).transpose()?.flatten() else {
            return Ok(pick);
        };
        let RowsOfTensor { rows, data } = part;
        let of_rows = std::mem::replace(&mut pick.shape[0], rows.end - rows.start);
        pick.data = data;
        pick.rows = (rows != (0..of_rows)).then_some(rows);
        Ok(pick)
    }
}

#[cfg(test)]
mod tests {
    use longshore_formats::{gguf, safetensors};

    use super::*;

    #[test]
    fn rows_are_whole_blocks_of_quantized_types() {
        let q8 = Dtype::Ggml(gguf::Dtype::from_name("Q8_0").unwrap());
        let f4 = Dtype::Safetensors(safetensors::Dtype::F4);
        let rows = |dtype, shape: &[u64], len: u64, rows: &Rows| {
            let of = rows.of(&TensorView::new("t", dtype, shape, 100..100 + len));
            of.map(|it| it.map(|it| (it.rows, it.data.start - 100..it.data.end - 100)))
        };
        // A block of Q8_0 has 32 elements in 34 bytes.
        assert_eq!(rows(q8, &[96], 102, &Rows::Range(32..96)).unwrap(), Some((32..96, 34..102)));
        assert_eq!(rows(q8, &[6, 32], 204, &Rows::Range(1..2)).unwrap(), Some((1..2, 34..68)));
        assert_eq!(rows(q8, &[8, 4, 4], 136, &Rows::Range(2..8)).unwrap(), Some((2..8, 34..136)));
        assert_eq!(rows(f4, &[5, 2], 5, &Rows::Range(1..3)).unwrap(), Some((1..3, 1..3)));
        for (dtype, shape, len, range, block_rows) in [
            (q8, [96, 1], 102, 16..48, 32),
            (q8, [96, 1], 102, 0..16, 32),
            (q8, [8, 16], 136, 1..2, 2),
            (f4, [6, 1], 3, 0..3, 2),
        ] {
            let refused = rows(dtype, &shape, len, &Rows::Range(range)).unwrap_err();
            let text = refused.to_string();
            assert!(text.contains(&format!("at a multiple of {block_rows}")), "{text}");
        }
        // The shares of all ranks are the whole tensor.
        let share = |index| rows(q8, &[96], 102, &Rows::Share { index, count: 2 }).unwrap();
        assert_eq!([share(0), share(1)], [Some((0..32, 0..34)), Some((32..96, 34..102))]);
        assert_eq!(
            rows(q8, &[0], 0, &Rows::Share { index: 0, count: 2 }).unwrap(),
            Some((0..0, 0..0))
        );
    }
}
